"""The paper's tables as data, and which of their cells a measurement compares with.

tables()["tab:svm"][0].cell("MoCoV2-BSIM", "SVM")              # "84.8"
find("svm", "mAP", {"method": "mocov2", "objective": "bsim"})  # the same, with the table it came from
"""

import functools
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import NamedTuple

import yaml  # type: ignore[import-untyped, unused-ignore]

METHODS = {"simclr": "SimCLR", "mocov1": "MoCo", "mocov2": "MoCoV2", "byol": "BYOL", "simsiam": "SimSiam"}
OBJECTIVES = {"sim": "", "bsim": "-BSIM", "wbsim": "-WBSIM", "mixaug": "+MixAug"}
USUAL_EPOCHS = "200"


class PaperTable(NamedTuple):
    """A table, its cells as printed."""

    number: int
    label: str
    """Of the paper's source; two tables share one."""
    caption: str
    columns: tuple[str, ...]
    hidden: tuple[str, ...]
    """Columns that are in the source and not on the page."""
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]

    def cell(self, row: str, column: str) -> str:
        """The cell of the first row that begins so."""
        place = self.columns.index(column)
        return next(cells[place] for cells in self.rows if cells[0] == row)


class Cell(NamedTuple):
    """A figure of the paper, and where it stands."""

    printed: str
    where: str
    mark: str
    """Short, for a table: T4."""


@functools.cache
def tables() -> dict[str, tuple[PaperTable, ...]]:
    """All tables by their label, in the paper's order."""
    found: dict[str, tuple[PaperTable, ...]] = {}
    for each in yaml.safe_load((files("mixview.evaluate") / "paper.yaml").read_text(encoding="utf-8")):
        table = PaperTable(
            each["table"],
            each["label"],
            each["caption"],
            tuple(each["columns"]),
            tuple(each.get("hidden", ())),
            tuple(tuple(row) for row in each["rows"]),
            tuple(each.get("notes", ())),
        )
        found[table.label] = (*found.get(table.label, ()), table)
    return found


def number(printed: str) -> float | None:
    """What a cell says: its first number; None for "-"."""
    found = re.match(r"-?\d+(\.\d+)?", printed)
    return float(found[0]) if found else None


JUDGED_ON = {
    "svm": "VOC2007",
    "lowshot": "VOC2007",
    "detection-voc-c4": "VOC07 test by Detectron2, whose AP of VOC2007 is 11-point",
    "detection-coco-c4-2x": "COCO2017 val",
}
"""What the paper judged by; ImageNet otherwise."""


def column_of(protocol: str, metric: str, objective: str, epoch: str = USUAL_EPOCHS) -> tuple[str, str] | None:
    """The table and column that a metric of a protocol is in."""
    if protocol.startswith("detection-") and objective != "mixaug":
        kind = metric.removeprefix("mask ").removeprefix("11-point ")
        if protocol == "detection-voc-c4" and not metric.startswith("mask "):
            return ("tab:lc_longer_epoch" if epoch == "800" else "tab:voc-od"), kind
        if protocol == "detection-coco-c4-2x" and not metric.startswith("11-point "):
            return "tab:coco-od", f"{kind} {'m' if metric.startswith('mask ') else 'b'}"
        return None
    if objective == "mixaug":
        return {
            ("svm", "mAP"): ("tab:mix_strategy_drop", "SVM @VOC2007"),
            ("linear", "top-1"): ("tab:mix_strategy_drop", "LC @ImageNet"),
        }.get((protocol, metric))
    if protocol == "lowshot":
        return "tab:svm", metric.removeprefix("k=").removesuffix(" oracle")
    if protocol == "probe" and metric.endswith(" top-1"):
        return "tab:linear-imagenet", metric.removesuffix(" top-1")
    if protocol == "semi":
        return "tab:semi-cls", metric.replace(" %", "%")
    return {("svm", "mAP"): ("tab:svm", "SVM"), ("linear", "top-1"): ("tab:linear-imagenet", "Top-1 Accuracy")}.get(
        (protocol, metric)
    )


def find(protocol: str, metric: str, about: Mapping[str, str]) -> Cell | None:
    """The paper's figure for a method, an objective and a protocol: of as many epochs, else of 200, else of any.

    It is of a ResNet-50 pretrained on ImageNet, whatever the measured one is of, and says so.
    """
    method, objective = about.get("method", ""), about.get("objective", "")
    place = column_of(protocol, metric, objective, about.get("epoch", USUAL_EPOCHS))
    if place is None or method not in METHODS or objective not in OBJECTIVES:
        return None
    label, column = place
    (table,) = tables()[label]
    wanted = METHODS[method] + OBJECTIVES[objective]
    rows = [row for row in table.rows if re.sub(r"(300)?( [†*])?$", "", row[0]) == wanted]
    if column not in table.columns or not rows:
        return None
    for epochs in (about.get("epoch"), USUAL_EPOCHS, rows[0][1]):
        for row in rows:
            if row[1] == epochs and number(row[table.columns.index(column)]) is not None:
                data = JUDGED_ON.get(protocol, "ImageNet")
                where = (
                    f"Table {table.number}, {wanted}, {epochs} epochs of ImageNet, ResNet-50, judged on {data}: no "
                    "other run's figures compare with it exactly."
                )
                return Cell(row[table.columns.index(column)], where, f"T{table.number}")
    return None
