"""The paper's tables: all there, as printed, with what does not agree noted."""

import json
import re
from dataclasses import fields, replace
from typing import Any

import pytest

from mixview import recipes
from mixview.evaluate.paper import (
    EVALUATED,
    MIXED,
    PRETRAINED,
    PaperKey,
    cells,
    find,
    number,
    pretraining_of,
    table_cells,
    tables,
)
from mixview.io.records import flatten
from mixview.train.config import MixingConfig, from_plain
from tests.evaluate.published import fingerprint, result_of, settings_of_protocol, settings_of_run

SHAPES = {
    "tab:mix_strategy_drop": [(2, 4)],
    "tab: mix strategy strategy": [(4, 3)],
    "tab:voc-od-ablation": [(3, 4)],
    "tab:svm": [(13, 11)],
    "tab:linear-imagenet": [(17, 10)],
    "tab:semi-cls": [(13, 6)],
    "tab: sensitivity_alpha": [(4, 4)],
    "tab:list-sym": [(19, 2)],
    "tab:voc-od": [(17, 5)],
    "tab:coco-od": [(12, 8)],
    "tab:moco-mem-cost": [(2, 4), (7, 4)],
    "tab:lc_longer_epoch": [(2, 7)],
}


def test_every_table_is_there_and_whole() -> None:
    found = {label: [(len(table.rows), len(table.columns)) for table in group] for label, group in tables().items()}
    assert found == SHAPES
    every = [table for group in tables().values() for table in group]
    assert sorted(table.number for table in every) == list(range(1, 14))
    assert all(len(row) == len(table.columns) for table in every for row in table.rows)
    assert all(isinstance(cell, str) for table in every for row in table.rows for cell in row)


@pytest.mark.parametrize(
    ("label", "row", "column", "printed"),
    [
        ("tab:mix_strategy_drop", "MoCoV2+MixAug", "SVM @VOC2007", "80.10% (-3.71%↓)"),
        ("tab: mix strategy strategy", "MoCoV2-BSIM (w/ CutMix, α=1.0)", "SVM Low-Shot (96)", "82.65±0.34%"),
        ("tab:svm", "MoCoV2-BSIM", "SVM", "84.8"),
        ("tab:svm", "BYOL-WBSIM300", "96", "86.3"),
        ("tab:svm", "SwAV *", "1", "-"),
        ("tab:linear-imagenet", "BYOL-WBSIM", "res5", "73.0 (+0.7↑)"),
        ("tab:linear-imagenet", "MoCo", "stem", "15.3"),
        ("tab:semi-cls", "MoCoV2-WBSIM", "1% top-1", "44.3 (+5.2↑)"),
        ("tab:semi-cls", "SimCLR-BSIM", "10% top-5", "84.5 (+2.9↑)"),
        ("tab:voc-od", "SimSiam, optimal", "AP75", "63.7"),
        ("tab:coco-od", "BYOL-WBSIM", "AP m", "35.5"),
        ("tab:lc_longer_epoch", "MoCoV2-WBSIM", "Top-5", "90.4"),
    ],
)
def test_numbers_are_as_printed(label: str, row: str, column: str, printed: str) -> None:
    assert tables()[label][0].cell(row, column) == printed


def test_what_does_not_agree_is_noted_where_it_stands() -> None:
    notes = {label: " ".join(note for table in group for note in table.notes) for label, group in tables().items()}
    assert "84.8 here and 84.55 in Tables 2 and 7" in notes["tab:svm"]
    assert "seven low-shot settings and lists eight" in notes["tab:svm"]
    assert "res4" in notes["tab:svm"]
    assert "44.3 %" in notes["tab:semi-cls"]
    assert "printed as 2.9; the column gives 1.9" in notes["tab:semi-cls"]
    assert "printed as 2.2; the column gives 1.2" in notes["tab:semi-cls"]
    assert "82.5, 64.0, 57.4" in notes["tab:voc-od"]
    assert "Table 9" in notes["tab:lc_longer_epoch"]
    assert tables()["tab:svm"][0].hidden == ("Epoch",)
    # What the notes say is so.
    semi = tables()["tab:semi-cls"][0]
    for better, base, gain in (("SimCLR-BSIM", "SimCLR", 1.9), ("BYOL-BSIM", "BYOL", 1.2)):
        one, other = (number(semi.cell(row, "10% top-5")) for row in (better, base))
        assert one is not None
        assert other is not None
        assert one - other == pytest.approx(gain)


LABELS = {"simclr": "SimCLR", "mocov1": "MoCo", "mocov2": "MoCoV2", "moco": "MoCo", "byol": "BYOL", "swav": "SwAV"}
LABELS |= {"simsiam": "SimSiam", "simsiam-optimal": "SimSiam, optimal", "infomin": "InfoMin Aug"}
DESCRIBING = ("Method", "Epoch", "α", "Backbone")
"""Columns that say what a row is of."""
ELSEWHERE = {"supervised", "infomin", "simsiam-optimal", "moco"}
"""Rows that no run of mixview is: other people's weights, augmentation and hyper-parameters, a MoCo of no version."""


def test_every_number_has_exactly_one_address() -> None:
    numbers = {
        (table.number, row, column)
        for group in tables().values()
        for table in group
        for row, cells_of_row in enumerate(table.rows)
        for column, printed in enumerate(cells_of_row)
        if number(printed) is not None and table.columns[column] not in DESCRIBING and column > 0
    }
    addressed = [(place.table.number, place.row, place.column) for place in table_cells()]
    assert len(addressed) == len(set(addressed)) == 438
    assert set(addressed) == numbers
    # Of an address that is printed more than once, one printing is the first; those that are not marked agree.
    for key in cells():
        firsts = {place.printed for place in table_cells() if place.key == key and not place.reprint}
        assert len(firsts) == 1, key


def test_addresses_say_what_the_rows_say() -> None:
    for place in table_cells():
        table, key = place.table, place.key
        row = dict(zip(table.columns, table.rows[place.row], strict=True))
        misprinted = table.number == 9 and row["AP50"] == "82.5"
        if "Epoch" in row and not misprinted:
            assert row["Epoch"] == (key.epochs or "-")
        assert (key.epochs == "800") if misprinted else True
        assert (float(row["α"]) == float(key.alpha)) if "α" in row else True
        label = table.columns[place.column] if table.number == 11 else row["Method"]
        if stated := re.search(r"(Mixup|CutMix)[, (]+α=([\d.]+)\)", label):
            assert (stated[1].lower(), float(stated[2])) == (key.mixer, float(key.alpha))
        if table.number == 3 or key.method == "supervised":
            continue
        suffix = {"bsim": "-BSIM", "wbsim": "-WBSIM", "mixaug": "+MixAug", "sim": ""}[key.objective]
        if key.mixer == "mixup":  # whose rows say that they are of the BSIM loss in the text only
            suffix = ""
        assert re.fullmatch(rf"{re.escape(LABELS[key.method] + suffix)}(300|, base| [†*]| \(w/.*)?", label), label


def test_every_address_is_found_by_the_result_of_such_a_run() -> None:
    """A walk over all numbers of the paper: the run, evaluated by its protocol, is shown this one and no other."""
    for place in table_cells():
        key = place.key
        if key.method in ELSEWHERE or key.protocol == "cost":
            assert key in cells()
            continue
        cell = find(result_of(key), key.column)
        assert cell is not None, key
        printed = (cell.printed, *cell.reprints)
        assert (f"{place.printed} in Table {place.table.number}" if place.reprint else place.printed) in printed
        assert cell.label == f"T{place.table.number}" or place.reprint


BSIM = ("mocov2", "bsim", "cutmix", "1", "200")


@pytest.mark.parametrize(
    ("pretraining", "protocol", "metric", "printed", "table"),
    [
        (("mocov2", "bsim", "mixup", "1", "200"), "svm", "mAP", "82.50%", 2),
        (("mocov2", "bsim", "mixup", "0.5", "200"), "low-shot", "k=96 oracle", "80.58±0.31%", 2),
        (("mocov2", "bsim", "cutmix", "0.25", "200"), "svm", "mAP", "84.02", 7),
        (("mocov2", "bsim", "cutmix", "0.75", "200"), "svm", "mAP", "84.56", 7),
        (BSIM, "svm", "mAP", "84.8", 4),
        (("mocov2", "mixaug", "cutmix", "1", "200"), "svm", "mAP", "80.10% (-3.71%↓)", 1),
        (("mocov2", "mixaug", "cutmix", "1", "200"), "linear-moco", "top-1", "64.6% (-2.9%↓)", 1),
        (("mocov2", "bsim", "mixup", "1", "200"), "detection-voc-c4", "11-point AP75", "63.4%(-0.2↓)", 3),
        (("mocov2", "wbsim", "cutmix", "1", "800"), "linear-moco", "top-1", "71.4", 13),
        (("mocov2", "wbsim", "cutmix", "1", "800"), "linear-moco", "top-5", "90.4", 13),
        (("mocov2", "sim", "", "", "800"), "linear-moco", "top-1", "71.1", 13),
        (("mocov2", "sim", "", "", "200"), "linear-moco", "top-1", "67.5", 5),
        (("mocov2", "sim", "", "", "200"), "detection-voc-c4", "11-point AP50", "82.4", 9),
        (("mocov2", "sim", "", "", "800"), "detection-voc-c4", "11-point AP50", "82.5", 13),
        (("simclr", "sim", "", "", "200"), "linear-moco", "top-1", "60.1", 5),
        (("simclr", "sim", "", "", "200"), "probe", "res5 top-1", "61.6", 5),
        (("simclr", "bsim", "cutmix", "1", "200"), "linear-moco", "top-1", "60.7", 5),
        (("simclr", "sim", "", "", "200"), "probe", "avgpool top-1", None, None),
        (("byol", "sim", "", "", "200"), "linear-byol", "top-1", "69.1", 5),
        (("byol", "sim", "", "", "200"), "linear-moco", "top-1", "67.1", 5),
        (("byol", "wbsim", "cutmix", "1", "300"), "linear-byol", "top-1", "73.0 (+0.7↑)", 5),
        (("byol", "wbsim", "cutmix", "1", "200"), "linear-byol", "top-1", None, None),
        (("simsiam", "bsim", "cutmix", "1", "200"), "linear-simsiam", "top-1", "70.4(+0.4↑)", 5),
        (("simsiam", "sim", "", "", "200"), "linear-moco", "top-1", None, None),
        (("simsiam", "sim", "", "", "200"), "probe", "res5 top-1", None, None),
        (("simsiam", "sim", "", "", "200"), "detection-voc-c4", "11-point AP50", "82.0", 9),
        (("simsiam", "wbsim", "cutmix", "1", "200"), "detection-voc-c4", "11-point AP", "57.4", 9),
        (("swav", "sim", "", "", "800"), "detection-voc-c4", "11-point AP50", "82.6", 9),
        (("swav", "sim", "", "", "800"), "detection-coco-c4-2x", "mask AP", "34.2", 10),
        (("swav", "sim", "", "", "400"), "svm", "mAP", "85.4", 4),
        (("swav", "sim", "", "", "200"), "svm", "mAP", None, None),
        (("swav", "sim", "", "", "200"), "linear-simsiam", "top-1", "69.1", 5),
        (("mocov2", "sim", "", "", "200"), "linear-byol", "top-1", None, None),
        (("simclr", "sim", "", "", "200"), "linear-byol", "top-1", None, None),
        (("byol", "sim", "", "", "200"), "linear-moco-code", "top-1", None, None),
        (("mocov1", "sim", "", "", "200"), "semi-supervised", "1 % top-1", "33.2", 6),
        (("byol", "sim", "", "", "1000"), "semi-supervised", "10percent top-5", "89.0", 6),
        (BSIM, "low-shot", "k=8 oracle", "72.4", 4),
        (BSIM, "low-shot", "k=8 cross-validated", None, None),
        (BSIM, "detection-voc-c4", "all-points AP50", None, None),
        (("mocov1", "bsim", "cutmix", "1", "200"), "svm", "mAP", None, None),
        (("mocov2", "bsim", "cutmix", "1", "800"), "linear-moco", "top-1", None, None),
        (("mocov2", "bsim", "cutmix", "0.3", "200"), "svm", "mAP", None, None),
        (("mocov2", "sim", "", "", "199"), "svm", "mAP", None, None),
    ],
)
def test_the_papers_number_beside_a_result(
    pretraining: tuple[str, str, str, str, str], protocol: str, metric: str, printed: str | None, table: int | None
) -> None:
    cell = find(result_of(PaperKey(*pretraining, protocol, metric)), metric)
    assert (cell and cell.printed) == printed
    assert (cell and cell.label) == (table and f"T{table}")


def test_two_printings_of_one_number_are_both_named() -> None:
    cell = find(result_of(PaperKey(*BSIM, "svm", "mAP")), "mAP")
    assert cell is not None
    assert cell.where == (
        "Table 4, MoCoV2-BSIM (CutMix, α 1), 200 epochs of ImageNet, ResNet-50, evaluated on VOC2007; printed as "
        "84.55% in Table 2 and 84.55 in Table 7."
    )
    longer = cells()[PaperKey("mocov2", "sim", "", "", "800", "detection-voc-c4", "11-point AP")]
    assert (longer.printed, longer.reprints) == ("57.4", ("57.4 in Table 9",))


def test_cost_has_addresses() -> None:
    def printed(method: str, objective: str, column: str) -> str:
        mixed = ("", "") if objective == "sim" else ("cutmix", "1")
        return cells()[PaperKey(method, objective, *mixed, "200", "cost", column)].printed

    assert [printed("moco", each, "memory per GPU") for each in ("sim", "bsim", "wbsim")] == ["5.5", "5.5", "8.2"]
    assert [printed("moco", each, "hours") for each in ("sim", "bsim", "wbsim")] == ["53", "53", "65"]
    assert [printed("byol", each, "batch") for each in ("sim", "bsim", "wbsim")] == ["4096", "4096", "1024"]
    assert (printed("swav", "sim", "memory"), printed("swav", "sim", "GPU days")) == ("819", "33.3")


OTHER_RUNS: dict[str, dict[str, Any]] = {
    "another backbone": {"backbone": "resnet18"},
    "Imagenette": {"images": 9469},
    "a tenth held out": {"images": 1153051, "data": fingerprint(1281167)},
    "as many scenes": {"data": "cb1d0d0f8e6a0fd8b1a3c4d5e6f70812"},
    "smaller views": {"size": 112},
    "other views": {"augment": "infomin"},
    "weights to start from": {"weights": "imagenet"},
    "one λ per image": {"mixing": MixingConfig()},
    "half of the images mixed": {"mixing": MixingConfig(lam_per="batch", prob=0.5)},
    "another epoch": {"epochs": 400},
    "the interpolated target": {"method": {"name": "byol", "target": "interpolated"}},
}


@pytest.mark.parametrize("name", OTHER_RUNS)
def test_a_run_that_is_not_the_papers_is_shown_nothing(name: str) -> None:
    usual = {"method": "byol", "objective": "bsim", "epochs": 200, "mixing": MixingConfig(lam_per="batch")}
    result = result_of(PaperKey("byol", "bsim", "cutmix", "1", "200", "svm", "mAP"))
    same, other = (json.dumps(settings_of_run(**(usual | each))) for each in ({}, OTHER_RUNS[name]))
    assert find(replace(result, about=result.about | {"settings": same}), "mAP") is not None
    assert find(replace(result, about=result.about | {"settings": other}), "mAP") is None
    without = {key: value for key, value in result.about.items() if key != "settings"}
    assert find(replace(result, about=without), "mAP") is None  # nobody knows
    assert find(replace(result, about={}), "mAP") is None


@pytest.mark.parametrize(
    ("protocol", "changes"),
    [
        ("linear-moco", {"fast": True}),
        ("linear-moco", {"epochs": 10}),
        ("linear-moco", {"schedule": "moco-code"}),
        ("linear-moco", {"size": 112}),
        ("probe", {"lr": 0.1}),
        ("svm", {"stage": "res4"}),
        ("svm", {"fit": {"folds": 2}}),
        ("low-shot", {"negatives": 1}),
        ("semi-supervised", {"head_rate": 1.0}),
        ("detection-voc-c4", {"max_test_images": 10}),
        ("detection-voc-c4", {"schedule": {"iterations": 10, "batch_size": 16, "lr": 0.02}}),
    ],
)
def test_another_protocol_is_shown_nothing(protocol: str, changes: dict[str, Any]) -> None:
    metric = next(each.column for each in cells() if each[:5] == BSIM and each.protocol == protocol)
    result = result_of(PaperKey(*BSIM, protocol, metric))
    assert find(result, metric) is not None
    assert changes.keys() <= result.settings.keys()
    assert find(replace(result, settings=result.settings | changes), metric) is None


def test_other_data_are_shown_nothing() -> None:
    result = result_of(PaperKey(*BSIM, "linear-moco", "top-1"))
    for part in ("train", "test"):
        details = {"data": result.details["data"] | {part: fingerprint(3925)}}
        assert find(replace(result, details=details), "top-1") is None
    assert find(replace(result, details={}), "top-1") is None


@pytest.mark.parametrize("name", [name for name in recipes.names() if name.startswith("paper/")])
def test_a_recipe_of_the_paper_is_shown_what_it_announces(name: str) -> None:
    recipe = recipes.read(name)
    run = from_plain(recipe.settings | {"size": 224})
    options = {each.name: getattr(run, each.name) for each in fields(run) if each.name not in ("data", "augment")}
    about = {"epoch": str(run.epochs), "settings": json.dumps(settings_of_run(**options))}
    own = pretraining_of(about)
    assert own is not None
    announced = {
        ("svm", "mAP"): r"VOC07 SVM (\d+\.\d+)",
        (
            f"linear-{run.method.name if run.method.name in ('byol', 'simsiam') else 'moco'}",
            "top-1",
        ): r"linear (\d+\.\d+)",
        ("detection-voc-c4", "11-point AP50"): r"VOC AP50 (\d+\.\d+)",
    }
    for (protocol, metric), pattern in announced.items():
        stated = re.search(pattern, recipe.about["paper"])
        cell = cells().get(PaperKey(*own, protocol, metric))
        if stated and run.method.name != "simclr":  # whose headline is that of the per-stage probe
            assert cell is not None, protocol
            assert stated[1] in " ".join((cell.printed, *cell.reprints)), protocol


def test_what_is_required_of_a_protocol_can_be_set() -> None:
    for protocol, (_, choices) in EVALUATED.items():
        known = flatten(settings_of_protocol(protocol), empty=True)
        assert choices.keys() <= known.keys(), protocol
    known = settings_of_run(
        method="byol", objective="bsim", weights="x", min_crop_scale=0.2, mixing=MixingConfig(warmup=(0, 1))
    )
    for method in ("simclr", "mocov2"):  # each shows the options of its own
        known |= settings_of_run(method=method)
    assert {*PRETRAINED, *MIXED} - {"extended_from"} <= known.keys()
