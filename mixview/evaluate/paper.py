"""The paper's tables as data, and the one cell that a measurement compares with.

    tables()["tab:svm"][0].cell("MoCoV2-BSIM", "SVM")                          # "84.8"
    cells()[PaperKey("mocov2", "bsim", "mixup", "1", "200", "svm", "mAP")]      # 82.50%, Table 2
    find(result, "mAP")                                                        # the same, for a result of that run

Every number of the paper has one key. A result that is not of exactly that run, protocol and data has none: the
paper's numbers are those of a ResNet-50 pretrained on ImageNet, and stand beside no other.
"""

import functools
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml  # type: ignore[import-untyped, unused-ignore]

from mixview.encoders.provenance import read_settings
from mixview.io.records import flatten

if TYPE_CHECKING:
    from mixview.evaluate.results import Result


class PaperTable(NamedTuple):
    """A table, its cells as printed."""

    number: int
    label: str
    """LaTeX label in the paper's source; two tables share one."""
    caption: str
    columns: tuple[str, ...]
    hidden: tuple[str, ...]
    """Columns that are in the source and not on the page."""
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]

    def cell(self, row: str, column: str) -> str:
        """The cell in the first row with this label."""
        place = self.columns.index(column)
        return next(cells[place] for cells in self.rows if cells[0] == row)


class PaperKey(NamedTuple):
    """The run, the protocol and the metric of a number of the paper."""

    method: str
    """A method of `mixview pretrain`, or what it has none for: supervised, infomin, simsiam-optimal; moco where the
    paper does not say which version."""
    objective: str
    mixer: str
    """Empty for sim and supervised, as is alpha."""
    alpha: str
    epochs: str
    """Epochs of pretraining; empty for supervised."""
    protocol: str
    """A protocol of `mixview evaluate` (linear with its schedule, detection with its recipe), or cost, or
    linear-infomin, which is InfoMin's own."""
    column: str
    """The metric."""


class PaperNumber(NamedTuple):
    """A number of the paper, and its place."""

    printed: str
    where: str
    label: str
    """Short, for a table: T4."""
    reprints: tuple[str, ...] = ()
    """The same number as it is printed elsewhere: `84.55% in Table 2`."""


class TableCell(NamedTuple):
    """One cell of one table, and its key."""

    table: PaperTable
    row: int
    column: int
    key: PaperKey
    reprint: bool
    """True if another table has it first."""

    @property
    def printed(self) -> str:
        return self.table.rows[self.row][self.column]


def read_yaml() -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = yaml.safe_load((files("mixview.evaluate") / "paper.yaml").read_text("utf-8"))
    return content


@functools.cache
def tables() -> dict[str, tuple[PaperTable, ...]]:
    """All tables by their label, in the paper's order."""
    by_label: dict[str, tuple[PaperTable, ...]] = {}
    for each in read_yaml():
        table = PaperTable(
            each["table"],
            each["label"],
            each["caption"],
            tuple(each["columns"]),
            tuple(each.get("hidden", ())),
            tuple(tuple(row) for row in each["rows"]),
            tuple(each.get("notes", ())),
        )
        by_label[table.label] = (*by_label.get(table.label, ()), table)
    return by_label


def number(printed: str) -> float | None:
    """The first number in a cell; None for "-"."""
    match = re.match(r"-?\d+(\.\d+)?", printed)
    return float(match[0]) if match else None


@functools.cache
def table_cells() -> tuple[TableCell, ...]:
    """Every number of the tables with its key, in the paper's order."""
    by_number = {table.number: table for group in tables().values() for table in group}
    entries = []
    for each in read_yaml():
        table, measures = by_number[each["table"]], each.get("measures", {})
        for place, run in enumerate(each.get("runs", ())):
            own = {"run": run} if isinstance(run, str) else run
            described, reprint = parse_pretraining(own["run"])
            for name, usual in measures.items():
                protocol, _, metric = own.get(name, usual).partition(" ")
                row, column = place, table.columns.index(name) if name in table.columns else 0
                if each.get("transposed"):
                    row, column = [cells[0] for cells in table.rows].index(name), place + 1
                if number(table.rows[row][column]) is not None:
                    entries.append(TableCell(table, row, column, PaperKey(*described, protocol, metric), reprint))
    return tuple(entries)


def parse_pretraining(text: str) -> tuple[tuple[str, str, str, str, str], bool]:
    """(method, objective, mixer, alpha, epochs) of a run in paper.yaml, and whether its row is a reprint."""
    parts = text.split()
    reprint = parts[-1] == "reprint"
    if reprint:
        parts = parts[:-1]
    if len(parts) == 1:
        return (parts[0], "", "", "", ""), reprint
    method, objective, *mixing, epochs = parts
    mixer, alpha = mixing or ("", "")
    return (method, objective, mixer, alpha, epochs), reprint


@functools.cache
def cells() -> dict[PaperKey, PaperNumber]:
    """The paper's numbers by their keys. Of a number that is printed twice, the main table's counts."""
    groups: dict[PaperKey, list[TableCell]] = {}
    for cell in sorted(table_cells(), key=lambda cell: cell.reprint):
        groups.setdefault(cell.key, []).append(cell)
    numbers = {}
    for key, group in groups.items():
        first, *others = group
        reprints = tuple(f"{other.printed} in Table {other.table.number}" for other in others)
        differing = [
            text for other, text in zip(others, reprints, strict=True) if number(other.printed) != number(first.printed)
        ]
        also = f"; printed as {' and '.join(differing)}" if differing else ""
        numbers[key] = PaperNumber(
            first.printed, f"Table {first.table.number}, {describe(key)}{also}.", f"T{first.table.number}", reprints
        )
    return numbers


NAMES = {"simclr": "SimCLR", "mocov1": "MoCo", "mocov2": "MoCoV2", "moco": "MoCo", "byol": "BYOL", "simsiam": "SimSiam",
         "swav": "SwAV", "sim": "", "bsim": "-BSIM", "wbsim": "-WBSIM", "mixaug": "+MixAug",
         "cutmix": "CutMix", "mixup": "Mixup"}  # fmt: skip


def describe(key: PaperKey) -> str:
    """A description of what a number measures."""
    name = NAMES.get(key.method, key.method) + NAMES.get(key.objective, "")
    mixed = f" ({NAMES[key.mixer]}, α {key.alpha})" if key.mixer else ""
    epochs = f"{key.epochs} epochs of ImageNet" if key.epochs else "trained on ImageNet"
    return f"{name}{mixed}, {epochs}, ResNet-50, {MEASURED_ON.get(key.protocol, 'evaluated on ImageNet')}"


MEASURED_ON = {
    "svm": "evaluated on VOC2007",
    "low-shot": "evaluated on VOC2007",
    "detection-voc-c4": "evaluated on VOC07 test by Detectron2, whose AP of VOC2007 is 11-point",
    "detection-coco-c4-2x": "evaluated on COCO2017 val",
    "cost": "measured on V100 GPUs",
}
"""The evaluation data of the paper's numbers, by protocol; ImageNet otherwise."""

Choices = Mapping[str, tuple[Any, ...]]
"""Settings under dotted names, and the values that they may have."""

IMAGENET, VOC07, VOC0712, COCO = (1_281_167, 50_000), (5_011, 4_952), (16_551, 4_952), (118_287, 5_000)
"""Images of the training and of the test part."""

PRETRAINED: Choices = {
    "backbone": ("resnet50", "torchvision/resnet50"),
    "images": (IMAGENET[0],),
    "size": (224,),
    "channels": (3,),
    "stem": ("auto", "standard"),
    "weights": (None,),
    "min_crop_scale": (None,),
    "extended_from": (None,),
    "method.symmetric": (True,),
    "method.other_parent": (False,),
    "method.target": ("parents",),
}
"""The common settings of every run of the paper. Optimizer, batch and the sizes of the heads are left to the run."""

AUGMENTATIONS: Mapping[str, tuple[str, ...]] = {"swav": ("swav", "simclr")}
"""The augmentations of methods that use others than the one of their own name."""

MIXED: Choices = {
    "mixing.lam_per": ("batch",),
    "mixing.partner": ("reversal",),
    "mixing.lam_at_least_half": (False,),
    "mixing.prob": (1,),
    "mixing.anchors": ("all",),
    "mixing.weight": (0.5,),
    "mixing.sim_weight": (0.5,),
    "mixing.warmup": (None,),
}
"""The paper's mixing settings, for any mixer and α."""

SVM_SETTINGS: Choices = {
    "size": (224,),
    "stage": (None, "res5"),
    "resize": ("squash",),
    "fit.costs": ([1.0, 10.0, 100.0, *(0.5**power for power in range(4, 20))],),
    "fit.folds": (3,),
    "fit.positive_weight": (2,),
    "fit.normalization": ("l2",),
    "fit.intercept": (1,),
    "fit.interpolation": ("all-points",),
}


def training_settings(epochs: int, batch_size: int, lr: float, **more: tuple[Any, ...]) -> Choices:
    """A published schedule: the defaults, or the same numbers given explicitly."""
    return {"size": (224,), "epochs": (None, epochs), "batch_size": (None, batch_size), "lr": (None, lr), **more}


def detector_settings(masks: bool, iterations: int, steps: list[int], smallest: int) -> Choices:
    """A published detector."""
    return {
        "model.architecture": ("c4",),
        "model.masks": (masks,),
        "model.extra_norm": (True,),
        "scales.train": (list(range(smallest, 801, 32)),),
        "scales.test": (800,),
        "schedule.optimizer": ("sgd",),
        "schedule.steps": (steps,),
        "precise_bn": (200,),
        "schedule.iterations": (iterations,),
        "schedule.batch_size": (16,),
        "schedule.lr": (0.02,),
        "empty": (False,),
        "max_test_images": (None,),
    }


EVALUATED: Mapping[str, tuple[tuple[int, int], Choices]] = {
    "linear-moco": (IMAGENET, training_settings(100, 256, 30, fast=(False,))),
    "linear-byol": (IMAGENET, training_settings(90, 256, 0.01, fast=(False,))),
    "linear-simsiam": (IMAGENET, training_settings(90, 4096, 1.6, fast=(False,))),
    "probe": (IMAGENET, training_settings(90, 256, 0.01, color_jitter=(True,), lighting=(True,))),
    "semi-supervised": (IMAGENET, training_settings(20, 256, 0.01, head_rate=(100,))),
    "svm": (VOC07, {**SVM_SETTINGS, "difficult": ("negative",)}),
    "low-shot": (VOC07, {**SVM_SETTINGS, "negatives": (None, 19)}),
    "detection-voc-c4": (
        VOC0712,
        detector_settings(masks=False, iterations=24_000, steps=[18_000, 22_000], smallest=480),
    ),
    "detection-coco-c4-2x": (
        COCO,
        detector_settings(masks=True, iterations=180_000, steps=[120_000, 160_000], smallest=640),
    ),
}
"""The paper's protocols: numbers of images, and settings."""

VARIANTS = {"linear": "schedule", "detection": "recipe"}
"""The option that is part of a protocol's name in a key."""


def find(result: "Result", metric: str) -> PaperNumber | None:
    """The paper's number for this metric of a result: of the same pretraining, protocol and data, or None."""
    pretraining, protocol = pretraining_of(result.about), protocol_of(result)
    if pretraining is None or protocol is None:
        return None
    return cells().get(PaperKey(*pretraining, protocol, column_of(protocol, metric)))


def matches_pretraining(settings: Mapping[str, Any]) -> bool:
    """Return True if an encoder's settings are a ResNet-50, ImageNet and the paper's views."""
    method = str(settings.get("method.name", ""))
    return (
        {"backbone", "images"} <= settings.keys()
        and matches(settings, PRETRAINED)
        and str(settings.get("data")).startswith(f"{IMAGENET[0]} images")  # the fingerprint; drawn scenes have no such
        and settings.get("augment") in AUGMENTATIONS.get(method, (method,))
        and (settings.get("objective") == "sim" or matches(settings, MIXED))
    )


def pretraining_of(metadata: Mapping[str, str]) -> tuple[str, str, str, str, str] | None:
    """(method, objective, mixer, alpha, epochs) of a finished run that is pretrained like the paper's, else None."""
    settings = read_settings(metadata)
    if settings is None or not matches_pretraining(settings) or metadata.get("epoch") != str(settings.get("epochs")):
        return None
    mixer, alpha = "", ""
    if settings.get("objective") != "sim":
        mixer, alpha = str(settings.get("mixing.mixer")), format_alpha(settings.get("mixing.alpha"))
    return str(settings.get("method.name")), str(settings.get("objective")), mixer, alpha, str(metadata["epoch"])


def format_alpha(value: Any) -> str:
    """α as in a key; ? for anything that is not a number, which is in no key."""
    return f"{value:g}" if isinstance(value, int | float) else "?"


def protocol_of(result: "Result") -> str | None:
    """The protocol in a key, if a result has the paper's data and settings; None if not."""
    settings = flatten(result.settings)
    variant = settings.get(VARIANTS.get(result.protocol, ""))
    name = f"{result.protocol}-{Path(str(variant)).stem}" if variant else result.protocol
    if name not in EVALUATED:
        return None
    counts, published = EVALUATED[name]
    parts = result.details.get("data", {})
    same_data = isinstance(parts, dict) and all(
        str(parts.get(part, "")).startswith(f"{count} images")
        for part, count in zip(("train", "test"), counts, strict=True)
    )
    return name if same_data and matches(settings, published) else None


def column_of(protocol: str, metric: str) -> str:
    """The metric as a key has it."""
    return (
        re.sub(r"^(\d+)percent ", r"\1 % ", metric) if protocol == "semi-supervised" else metric
    )  # of the published lists


def matches(settings: Mapping[str, Any], choices: Choices) -> bool:
    """Return True if every setting has one of its allowed values. A setting that does not exist yet matches."""
    present = {name: settings[name] for name in choices if settings.get(name) is not None}
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in present.items()}
    return all(value in choices[name] for name, value in values.items())
