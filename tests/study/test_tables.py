from pathlib import Path

from mixview.study import grid, plots, results, tables
from mixview.study.command import write_report
from tests.study.trials import invented, trial

VALUES = {"SIM": 50.0, "WBSIM": 53.0, "SIM × 1.75": 52.0, "random": 30.0}


def complete(missing: tuple[str, ...] = ()) -> tuple[grid.Study, dict[str, results.CellResult]]:
    study = grid.expand("trial", trial())
    found = {
        cell.name: invented(cell, VALUES[cell.objective] + (0.5 if cell.objective == "WBSIM" else 1) * cell.seed)
        for cell in study.cells
    }
    return study, {name: result for name, result in found.items() if not any(part in name for part in missing)}


def test_tables_have_means_differences_and_costs() -> None:
    text = tables.render(*complete())
    assert "Complete; seeds 0, 1" in text
    assert "| MoCo v2 · SIM | 2 | 16 | 1.00 | 0.8 | 12 | 50.5 ± 0.7 |" in text
    assert "| MoCo v2 · SIM × 1.75 | 2 | 28 | 1.75 | 1.4 | 12 | 52.5 ± 0.7 |" in text
    assert "| MoCo v2 · WBSIM | 2 | 16 | 1.75 | 0.8 | 12 | 53.2 ± 0.4 |" in text
    assert "| random | 2 |  |  |  |  | 30.5 ± 0.7 |" in text
    steps, compute = text.split("Less SIM at equal steps")[1].split("Less SIM at equal compute")
    assert "| MoCo v2 · WBSIM | 2 | +2.8 [-0.4, +5.9] |" in steps
    assert "| MoCo v2 · WBSIM (less SIM × 1.75) | 2 | +0.8 [-2.4, +3.9] |" in compute
    assert "weight decay chosen" in text


def test_baselines_that_hardly_learn_are_named() -> None:
    study, found = complete()
    rows = tables.rows_of(study, found)
    told = tables.above_random(rows, "SIM", "k-NN")
    assert told == ["Above the random encoder (k-NN): MoCo v2 · SIM +20.0.", ""]
    told = tables.above_random(rows, "SIM", "k-NN", enough=25)
    assert "**Less than 25 points, and no ground to compare on: MoCo v2 · SIM.**" in told[0]
    assert tables.above_random(rows, None) == []
    assert tables.above_random(rows, "SIM", "linear") == []


def test_a_partial_table_says_how_partial_it_is() -> None:
    study, found = complete(missing=("wbsim-s1", "sim-1.75"))
    text = tables.render(study, found)
    assert "**Partial: 5 of 8 cells are done**" in text
    assert "| MoCo v2 · WBSIM | 1 of 2 |" in text
    assert "| MoCo v2 · SIM × 1.75 | 0 of 2 |  |  |  |  |" in text
    assert "equal compute" not in text  # nothing to compare with yet
    assert "| MoCo v2 · WBSIM | 1 | +3.0 |" in text
    assert "No figures yet." in tables.render(study, {})


def test_pictures(tmp_path: Path) -> None:
    written = plots.draw(*complete(), tmp_path)
    assert [path.name for path in written] == ["trial-scenes-training.png", "trial-scenes-final.png"]
    first = {path: path.with_suffix(".svg").read_bytes() for path in written}
    plots.draw(*complete(), tmp_path)
    assert all(path.with_suffix(".svg").read_bytes() == content for path, content in first.items())
    assert plots.draw(grid.expand("trial", trial()), {}, tmp_path) == []


def test_the_report_is_of_what_is_in_the_folder(tmp_path: Path) -> None:
    import yaml

    study, found = complete()
    for cell in study.cells:
        results.save(found[cell.name], results.path_of(cell, tmp_path))
    (tmp_path / "trial" / "study.yaml").write_text(yaml.safe_dump(study.text))
    text = write_report(tmp_path).read_text()
    assert "53.2 ± 0.4" in text
    assert "![trial: accuracy at the end of training](trial/trial-scenes-final.png)" in text
