"""The paper's tables: all there, as printed, with what does not agree noted."""

import pytest

from mixview.evaluate.paper import find, number, tables

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
def test_cells_are_as_printed(label: str, row: str, column: str, printed: str) -> None:
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


def test_the_cell_of_a_measurement() -> None:
    mocov2 = {"method": "mocov2", "objective": "bsim", "epoch": "200"}
    cell = find("svm", "mAP", mocov2)
    assert cell is not None
    assert (cell.printed, cell.mark) == ("84.8", "T4")
    assert "Table 4, MoCoV2-BSIM, 200 epochs of ImageNet, ResNet-50, judged on VOC2007" in cell.where
    byol = {"method": "byol", "objective": "sim"}
    linear = [find("linear", "top-1", byol | {"epoch": epochs}) for epochs in ("300", "200", "12")]
    assert [each.printed for each in linear if each] == ["72.3", "69.1", "69.1"]
    found = {
        ("lowshot", "k=8 oracle"): "72.4",
        ("probe", "res3 top-1"): "46.8",
        ("semi", "1 % top-5"): "70.3 (+2.0↑)",
        ("lowshot", "k=8 cross-validated"): None,
        ("knn", "top-1"): None,
        ("linear", "top-5"): None,
        ("lowshot", "k=7 oracle"): None,
    }
    for (protocol, metric), printed in found.items():
        cell = find(protocol, metric, mocov2)
        assert (cell.printed if cell else None) == printed, (protocol, metric)
    assert find("svm", "mAP", {"method": "simclr", "objective": "wbsim"}) is None
    assert find("svm", "mAP", {}) is None
    mixaug = find("svm", "mAP", {"method": "mocov2", "objective": "mixaug"})
    assert mixaug is not None
    assert mixaug.printed.startswith("80.10%")
