import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from mixview.experiments import plots, results, tables
from mixview.experiments import spec as grid
from mixview.experiments.command import write_report
from mixview.report.document import write_page
from tests.experiments.trials import invented, trial

VALUES = {"SIM": 50.0, "WBSIM": 53.0, "SIM × 1.75": 52.0, "random": 30.0}


def complete(missing: tuple[str, ...] = ()) -> tuple[grid.Study, dict[str, results.RunResult]]:
    study = grid.expand("trial", trial())
    found = {
        run.name: invented(run, VALUES[run.objective] + (0.5 if run.objective == "WBSIM" else 1) * run.seed)
        for run in study.runs
    }
    return study, {name: result for name, result in found.items() if not any(part in name for part in missing)}


def test_tables_have_means_differences_and_costs() -> None:
    text = tables.render(*complete())
    assert "Complete; seeds 0, 1" in text
    assert "| MoCo v2 · SIM | 2 | 16 | 1.00 | 0.8 | 12 | 50.5 ± 0.7 |" in text
    assert "| MoCo v2 · SIM × 1.75 | 2 | 28 | 1.75 | 1.4 | 12 | 52.5 ± 0.7 |" in text
    assert "| MoCo v2 · WBSIM | 2 | 16 | 1.75 | 0.8 | 12 | 53.2 ± 0.4 |" in text
    assert "| random | 2 |  |  |  |  | 30.5 ± 0.7 |" in text
    steps, compute = text.split("Difference to SIM at equal steps")[1].split("Difference to SIM at equal compute")
    assert "| MoCo v2 · WBSIM | 2 | +2.8 [-0.4, +5.9] |" in steps
    assert "| MoCo v2 · WBSIM (vs. SIM × 1.75) | 2 | +0.8 [-2.4, +3.9] |" in compute
    assert "weight decay chosen" in text


def test_a_study_without_online_evaluation_has_no_rank() -> None:
    study, found = complete()
    text = tables.render(study, {name: replace(result, collapse_metrics={}) for name, result in found.items()})
    assert "| MoCo v2 · SIM | 2 | 16 | 1.00 | 0.8 | 50.5 ± 0.7 |" in text
    assert "rank" not in text.lower()


def test_baselines_that_hardly_learn_are_named() -> None:
    study, found = complete()
    rows = tables.rows_of(study, found)
    printed = tables.above_random(rows, "SIM", "k-NN")
    assert printed == ["Above the random encoder (k-NN): MoCo v2 · SIM +20.0.", ""]
    printed = tables.above_random(rows, "SIM", "k-NN", enough=25)
    assert "**Less than 25 points, too little for a comparison: MoCo v2 · SIM.**" in printed[0]
    assert tables.above_random(rows, None) == []
    assert tables.above_random(rows, "SIM", "linear") == []
    alone = [row for row in rows if row.objective != "random"]
    assert "is unknown: none was evaluated" in tables.above_random(alone, "SIM", "k-NN")[0]


def test_a_partial_table_says_how_partial_it_is() -> None:
    study, found = complete(missing=("wbsim-s1", "sim-1.75"))
    text = tables.render(study, found)
    assert "**Partial: 5 of 8 runs are done**" in text
    assert "| MoCo v2 · WBSIM | 1 of 2 |" in text
    assert "| MoCo v2 · SIM × 1.75 | 0 of 2 |  |  |  |  |" in text
    assert "equal compute" not in text  # nothing to compare with yet
    assert "| MoCo v2 · WBSIM | 1 of 2 | +3.0 |" in text
    assert "No results yet." in tables.render(study, {})


def test_pictures(tmp_path: Path) -> None:
    written = plots.draw(*complete(), tmp_path)
    assert {path.name: words for path, words in written.items()} == {
        "trial-scenes-training.png": "accuracy during training",
        "trial-scenes-compute.png": "accuracy against steps and compute",
        "trial-scenes-final.png": "accuracy at the end of training",
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        path.with_suffix(kind).name for path in written for kind in (".png", ".svg")
    )
    first = {path: path.with_suffix(".svg").read_bytes() for path in written}
    plots.draw(*complete(), tmp_path)
    assert all(path.with_suffix(".svg").read_bytes() == content for path, content in first.items())
    assert plots.draw(grid.expand("trial", trial()), {}, tmp_path) == {}


def drawn(objectives: list[str]) -> list[tuple[str, dict[str, list[int]]]]:
    """Titles of the panels of a study with variants, and the epochs that each line joins."""
    text = trial(variants={"longer": {"epochs": 8}, "hotter": {"method": {"temperature": 0.5}}}, seeds=[0])
    text["grids"] = [{"objectives": objectives, "variants": ["", "longer", "hotter"]}]
    text["variants"][""] = {}
    study = grid.expand("trial", text)
    rows = tables.rows_of(study, {run.name: invented(run, 50.0) for run in study.runs})
    return [
        (panel.title, {name: [row.runs[0].epochs for row in line] for name, line in panel.lines.items()})
        for panel in plots.panels_of(rows)
    ]


def test_a_panel_has_what_is_compared_and_its_lengths() -> None:
    assert drawn(["SIM", "WBSIM"]) == [
        ("MoCo v2", {"SIM": [4, 7, 8, 14], "WBSIM": [4, 8]}),
        ("MoCo v2\nhotter", {"SIM": [4, 7], "WBSIM": [4]}),
    ]
    assert drawn(["SIM"]) == [("MoCo v2", {"SIM": [4], "longer · SIM": [8], "hotter · SIM": [4]})]


def test_variants_that_share_a_panel_share_their_name() -> None:
    assert plots.join_variants(["500 images, 2 epochs", "500 images, 4 epochs"]) == "500 images, 2 epochs / 4 epochs"
    assert plots.join_variants(["as first tried", "twice as long, again"]) == "as first tried; twice as long, again"
    assert plots.join_variants(["hotter"]) == "hotter"


def test_rows_of_a_group_stand_below_its_name() -> None:
    rows = tables.rows_of(*complete())
    axis = plots.plot_final(rows, "SIM", "k-NN").axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == [
        "SIM (2)",
        "SIM × 1.75 (2)",
        "WBSIM (2)",
        "random (2)",
    ]
    assert list(axis.get_yticks()) == [1, 2, 3, 4]  # the name is on line 0
    assert [text.get_text() for text in axis.texts] == ["MoCo v2"]
    alone = plots.plot_final([rows[0]], "SIM", "k-NN").axes[0]
    assert [label.get_text() for label in alone.get_yticklabels()] == ["MoCo v2 · SIM (2)"]


def test_points_of_equal_cost_are_apart_around_it() -> None:
    drawn = plots.side_by_side([10.0, 20.0, 10.0, 20.0, 10.0, 30.0])
    assert drawn == pytest.approx([9.64, 19.82, 10.0, 20.18, 10.36, 30.0])
    assert plots.side_by_side([]) == []


def test_the_report_is_of_what_is_in_the_folder(tmp_path: Path) -> None:
    study, found = complete()
    for run in study.runs:
        results.append(found[run.name], results.path_of(study.name, tmp_path))
    (tmp_path / "trial" / "study.yaml").write_text(yaml.safe_dump(study.definition))
    written, page = write_report(tmp_path)
    text = written.read_text()
    assert "53.2 ± 0.4" in text
    assert "All studies together: 8 runs, 0.1 core-hours." in text
    shown = page.read_text()
    assert "<td>53.2 ± 0.4</td>" in shown
    assert shown.count('<img src="data:image/png;base64,') == 3
    assert '<a href="#trial">trial</a>' in shown
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "study.yaml").write_text(yaml.safe_dump(study.definition))
    assert "All studies together: 8 runs, 0.1 core-hours." in write_report(tmp_path)[0].read_text()  # they share them
    assert not re.search(r'(src|href)="(?!data:|#)', shown)  # it needs no other file
    assert "![trial: accuracy at the end of training](trial/trial-scenes-final.png)" in text
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "study.yaml").write_text("settings: {no_such: 1}\nmethods: {<script>: {}}\n")
    text = write_report(tmp_path)[0].read_text()
    assert "53.2 ± 0.4" in text  # one that cannot be read does not cost the others
    assert "**Cannot be shown**: there is no setting no_such" in text
    assert "(in broken/study.yaml)" in text


def test_another_evaluation_of_the_same_encoder_counts_twice(tmp_path: Path) -> None:
    supervised = {"protocol": "supervised", "metric": "top-1"}
    text = trial(seeds=[0], grids=[{"methods": [""], "objectives": ["random", "supervised"]}])
    text["objectives"] |= {"supervised": {"encoder": "random", "evaluate": {"k-NN": supervised}}}
    study = grid.expand("trial", text)
    for run in study.runs:
        results.append(invented(run, 50.0), results.path_of(study.name, tmp_path))
    (tmp_path / "trial" / "study.yaml").write_text(yaml.safe_dump(text))
    assert "All studies together: 2 runs" in write_report(tmp_path)[0].read_text()


def test_objectives_of_other_lengths_are_not_called_equal() -> None:
    text = trial(match_compute=False, grids=[{}], seeds=[0])
    text["objectives"] = {
        "SIM": {"objective": "sim"},
        "twice as long": {"objective": "bsim", "epochs": 8},
        "more images": {"objective": "bsim", "data_options": {"count": 128}},
        "BSIM × 2": {"objective": "bsim"},
    }
    study = grid.expand("trial", text)
    shown = tables.render(study, {run.name: invented(run, 50.0 + run.epochs) for run in study.runs})
    _, differences = shown.split("Difference to SIM at equal steps, which are equal compute")
    both, rest = differences.split("No SIM of equal compute")
    assert "Difference to SIM at equal compute" not in shown  # the same table, and once is enough
    assert "twice as long" not in both
    assert "more images" not in both
    assert "| MoCo v2 · BSIM × 2 | 1 | +0.0 |" in both
    assert " was run for: MoCo v2 · twice as long, MoCo v2 · more images." in rest


def test_every_way_of_measuring_is_listed_with_its_rows() -> None:
    study, found = complete()
    name = next(name for name in found if "random" in name)
    other = replace(found[name], descriptions={"k-NN": "trained with labels, 3 samples of seed 4."})
    text = tables.render(study, found | {name: other})
    assert "- k-NN (random): trained with labels, 3 samples." in text
    assert "- k-NN: described, weight decay chosen." in text


def test_images_and_versions_that_differ_are_warned_of() -> None:
    study, found = complete()
    strange = {
        name: replace(each, images={"fingerprint": f"{number // 4}" * 20}, versions={"torch": f"2.{number // 4}"})
        for number, (name, each) in enumerate(found.items())
    }
    text = tables.render(study, strange)
    assert (
        "- Warning: rows of scenes were trained on different images (fingerprints 000000000000, 111111111111)" in text
    )
    assert "- Warning: measured with torch 2.0 and 2.1" in text
    assert "Warning" not in tables.render(study, found)


def test_tables_say_whether_lam_is_per_image_or_per_batch() -> None:
    study, found = complete()
    mixed = [name for name, result in found.items() if result.objective == "WBSIM"]

    def sentence(*lam_per: str) -> str:
        own = [{"objective": "wbsim", "mixing.lam_per": each} for each in lam_per]
        changed = {
            name: replace(found[name], objective=f"WBSIM {number}", settings=settings)
            for number, (name, settings) in enumerate(zip(mixed, own, strict=True))
        }
        return next(line for line in tables.notes(study, [*found.values(), *changed.values()][-2:]) if "λ" in line)

    assert sentence("image", "image") == "Mixtures have one λ per image, not the paper's one λ per batch."
    assert sentence("batch", "batch") == "Mixtures have one λ per batch, as in the paper."
    assert sentence("image", "batch").endswith("; the exceptions, with one λ per batch: MoCo v2 · WBSIM 1.")
    unmixed = [result for result in found.values() if result.objective != "WBSIM"]
    assert not any("λ" in line for line in tables.notes(study, unmixed))


def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    (tmp_path / "results.md").write_text("# What\n\n## <script>alert(1)</script>\n\n| <b>x</b> |\n|---|\n| 1 |\n")
    page = write_page(tmp_path / "results.md").read_text()
    assert "<script>" not in page
    assert "<b>" not in page


def test_results_that_the_study_does_not_ask_for_are_printed(tmp_path: Path) -> None:
    """Nothing that was run is left out: neither what was run again nor what has other settings now."""
    _, found = complete()
    folder = tmp_path / "trial"
    folder.mkdir()
    (folder / "study.yaml").write_text(yaml.safe_dump(trial()))
    for result in found.values():
        results.append(result, folder / results.FILE)
    assert "outside the current study definition" not in write_report(tmp_path)[0].read_text()
    (first, *_) = found.values()
    other = replace(first, settings=first.settings | {"epochs": 9}, metrics={"k-NN": 12.34})
    again = replace(first, made="2099-01-01T00:00:00+00:00", metrics={"k-NN": 43.21})
    for result in (other, again):
        results.append(result, folder / results.FILE)
    shown = write_report(tmp_path)[0].read_text().partition("outside the current study definition")[2]
    rows = re.findall(r"\| scenes · MoCo v2 · SIM \| 0 \| [0-9-]+ \| (\S+) \|", shown)
    assert sorted(rows) == ["12.3", "50.0"]  # and 43.2 is in the tables of the study
