import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from mixview.experiments import definitions
from mixview.experiments import spec as grid
from mixview.experiments.study_run import StudyRun
from tests.experiments.trials import trial


def test_every_combination_is_a_run_and_seeds_come_one_after_the_other() -> None:
    study = grid.expand("trial", trial())
    assert [(run.method, run.objective, run.seed) for run in study.runs] == [
        (method, objective, seed)
        for seed in (0, 1)
        for method, objective in (("MoCo v2", "SIM"), ("MoCo v2", "WBSIM"), ("MoCo v2", "SIM × 1.75"), ("", "random"))
    ]
    assert len({run.name for run in study.runs}) == len(study.runs)


def test_the_baseline_of_equal_compute_is_trained_as_much_longer() -> None:
    runs = {run.objective: run for run in grid.expand("trial", trial()).runs if run.seed == 0}
    sim, wbsim, longer = runs["SIM"], runs["WBSIM"], runs["SIM × 1.75"]
    assert (sim.passes.work, wbsim.passes.work, wbsim.matched) == (4, 7, "SIM × 1.75")
    assert (sim.epochs, longer.epochs) == (4, 7)
    assert longer.settings == sim.settings | {"epochs": 7}


def test_what_costs_the_same_is_compared_with_the_baseline_itself() -> None:
    text = trial()
    text["objectives"]["WBSIM"] = {"objective": "bsim"}
    runs = grid.expand("trial", text).runs
    assert [run.matched for run in runs if run.objective == "WBSIM"] == ["SIM", "SIM"]
    assert not [run for run in runs if "×" in run.objective]


def test_values_lay_their_settings_over_each_other() -> None:
    text = trial(variants={"hot": {"method": {"temperature": 0.5}, "epochs": 9}})
    text["grids"] = [{"objectives": ["SIM"], "variants": ["hot"], "seeds": [3]}]
    (run,) = grid.expand("trial", text).runs
    assert run.settings["method"] == {"name": "mocov2", "queue_size": 64, "temperature": 0.5}
    assert (run.settings["epochs"], run.settings["seed"], run.variant) == (9, 3, "hot")
    assert run.pretraining.method.temperature == 0.5
    assert run.name.startswith("scenes-moco-v2-hot-sim-s3-")


def test_the_key_is_of_the_settings_and_of_nothing_else() -> None:
    first, *_ = grid.expand("trial", trial()).runs
    again, *_ = grid.expand("another", trial()).runs
    assert again.key == first.key
    assert replace(first, evaluate={}).key == first.key  # evaluated otherwise, it is still the same run
    assert replace(first, settings=first.settings | {"accelerator": "cuda"}).key == first.key
    assert replace(first, settings=first.settings | {"batch_size": 8}).key != first.key
    assert "seed" in first.resolved
    assert not {"out", "workers", "max_time"} & set(first.resolved)


def test_a_study_of_ones_own_changes_a_base(tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text(
        "base: paper-small\nsettings: {batch_size: 32}\nseeds: [7]\ngrids: [{methods: [MoCo v2], objectives: [SIM]}]\n"
    )
    study = grid.read(str(own))
    assert study.name == "mine"
    assert study.about == {}
    assert {run.settings["batch_size"] for run in study.runs} == {32}
    assert {run.seed for run in study.runs} == {7}


@pytest.mark.parametrize("name", definitions.names())
def test_studies_that_come_with_mixview(name: str) -> None:
    study = grid.read(name)
    assert set(study.about) == {"what", "cost", "runs"}
    if not study.waiting:  # `mixview study list` does not count them: that needs torch
        assert study.about["runs"] == len(study.runs)
    assert all(run.pretraining.workers == 0 for run in study.runs if run.encoder is None)
    if study.baseline is not None and study.definition["match_compute"] != "epochs":
        groups = {(*run.group, run.seed) for run in study.runs if run.encoder is None}
        bases = {(*run.group, run.seed) for run in study.runs if run.objective == study.baseline}
        assert groups == bases, "every run has something to be compared with"


def test_choices_are_made_on_images_that_are_not_the_test_set() -> None:
    for name in ("tune", "search"):
        assert {run.eval_data["test"] for run in grid.read(name).runs} == {"train[15000:20000]"}
    for name in ("second-tune", "second-screen"):
        for data in grid.read(name).definition["data"].values():
            assert data["evaluate"]["test"].startswith("train[") or data["evaluate"]["test"] in ("test", "val")
    for name in ("paper-small", "ablations", "confirm"):
        assert {run.eval_data["test"] for run in grid.read(name).runs} == {"test"}
    others = {run.seed for name in ("paper-small", "search", "tune") for run in grid.read(name).runs}
    fresh = {run.seed for run in grid.read("confirm").runs}
    assert len(fresh) >= 8
    assert not fresh & others
    chosen, reported = (grid.read(name).runs for name in ("detection-tune", "detection"))
    assert {run.objective for run in chosen} == {"SIM", "random"}
    assert not scenes_of(chosen) & scenes_of(reported)


def scenes_of(runs: Iterable[StudyRun]) -> set[int]:
    return {run.eval_data["data_options"]["seed"] for run in runs}


def test_the_main_table_is_complete() -> None:
    study = grid.read("paper-small")
    rows = {(run.method, run.objective) for run in study.runs}
    assert {(method, objective) for method in ("SimCLR", "MoCo v2", "BYOL", "SimSiam")
            for objective in ("SIM", "BSIM", "WBSIM")} <= rows  # fmt: skip
    assert {("SimCLR", "BSIM, one-sided"), ("", "random")} <= rows
    for run in study.runs:
        if run.encoder is None and run.objective not in ("SIM",) and "×" not in run.objective:
            assert (run.method, run.matched) in rows


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no study paper-smal: did you mean paper-small"):
        grid.read("paper-smal")
    with pytest.raises(ValueError, match="there is no study file"):
        grid.read(str(tmp_path / "absent.yaml"))
    with pytest.raises(ValueError, match="no 'SIN' among its objectives: did you mean SIM"):
        grid.expand("trial", trial() | {"grids": [{"objectives": ["SIN"]}]})
    with pytest.raises(ValueError, match="there is no setting epoch: did you mean epochs"):
        grid.expand("trial", trial(settings={"epoch": 3}))
    with pytest.raises(ValueError, match=r"there is no setting method.temprature: did you mean temperature"):
        grid.expand("trial", trial(settings={"method": {"temprature": 3}}))
    own = tmp_path / "own.yaml"
    own.write_text(yaml.safe_dump({"seting": {}}))
    with pytest.raises(ValueError, match="a study has no 'seting'"):
        grid.read(str(own))
    own.write_text(f"base: {own}\n")
    with pytest.raises(ValueError, match="is its own base"):
        grid.read(str(own))


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "seeds": ({"seeds": 5}, r"seeds should be a list of whole numbers, such as \[0, 1, 2\], got 5"),
    "a seed": ({"seeds": ["a"]}, "seeds should be a list of whole numbers"),
    "a list of methods": ({"methods": ["MoCo v2"]}, "methods should be names, each with what it means"),
    "a value": ({"objectives": {"SIM": "sim"}}, "'SIM' among the objectives should be settings"),
    "a value that YAML took": ({"variants": {False: {"epochs": 9}}}, "YAML reads a name among the variants as False"),
    "a grid": (
        {"grids": [{"methods": "MoCo v2"}]},
        r"methods of a grid should be a list, such as \[MoCo v2\], got 'MoCo",
    ),
    "an untrained baseline": ({"baseline": "random"}, "the baseline 'random' is not trained"),
    "a baseline": ({"baseline": "SMI"}, "the baseline 'SMI' is none of the objectives: did you mean SIM"),
    "about": ({"about": "text"}, "about should be names"),
    "a batch": ({"settings": {"batch_size": "auto"}}, "set batch_size to a number instead of auto"),
    "an objective": (
        {"objectives": {"SIM": {"objective": "simm"}}},
        "--objective must be sim, bsim, .* got 'simm'",
    ),
    "a method": ({"methods": {"MoCo v4": {"method": "mocov4"}}}, "there is no method 'mocov4': did you mean mocov3"),
    "a mixer": (
        {"settings": {"mixing": {"mixer": "mixu"}}},
        "there is no mixer 'mixu': did you mean mixup",
    ),
    "a column": ({"evaluate": {"k-NN": {"protocol": "knn"}}}, "k-NN needs a protocol and a metric"),
    "a protocol": (
        {"evaluate": {"k-NN": {"protocol": "kn", "metric": "top-1"}}},
        "k-NN has no protocol 'kn': did you mean knn",
    ),
    "an option": (
        {"evaluate": {"k-NN": {"protocol": "knn", "metric": "top-1", "xyz": 3}}},
        "k-NN: knn has no option 'xyz': there are",
    ),
    "an option of detection": (
        {"evaluate": {"AP": {"protocol": "detection", "metric": "AP", "iteration": 3}}},
        "AP: detection has no option 'iteration': did you mean iterations",
    ),
    "a column of a value": (
        {"objectives": {"SIM": {"evaluate": {"AP": {"protocol": "no", "metric": "AP"}}}}},
        "'SIM' among the objectives: AP has no protocol 'no'",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named_before_anything_runs(name: str) -> None:
    changes, words = MISTAKES[name]
    with pytest.raises(ValueError, match=words):
        grid.expand("trial", trial(grids=[{"objectives": ["SIM"]}]) | changes)


def test_values_that_yaml_reads_as_numbers_keep_their_settings() -> None:
    variants = {0.1: {"method": {"temperature": 0.1}}, 64: {"batch_size": 64}}
    runs = grid.expand(
        "trial", trial(variants=variants, grids=[{"objectives": ["SIM"], "variants": [0.1, 64]}], seeds=[0])
    ).runs
    assert [(run.variant, run.pretraining.method.temperature, run.pretraining.batch_size) for run in runs] == [
        ("0.1", 0.1, 16),
        ("64", 0.2, 64),
    ]


def test_pixels_are_not_evaluated_by_what_trains_a_network() -> None:
    text = trial(grids=[{"methods": [""], "objectives": ["random", "pixels"]}], seeds=[0])
    text["objectives"]["pixels"] = {"encoder": "pixels"}
    text["evaluate"] |= {
        "fine-tuned": {"protocol": "semi-supervised", "metric": "1 % top-1"},
        "AP": {"protocol": "detection", "recipe": "small-fpn", "metric": "AP"},
    }
    random, pixels = grid.expand("trial", text).runs
    assert list(random.evaluate) == ["k-NN", "fine-tuned", "AP"]
    assert list(pixels.evaluate) == ["k-NN"]


def test_without_matching_only_what_costs_as_much_is_matched() -> None:
    text = trial(match_compute=False, seeds=[0], grids=[{}])
    text["objectives"] |= {"BSIM": {"objective": "bsim"}}
    matched = {run.objective: run.matched for run in grid.expand("trial", text).runs}
    assert matched == {"SIM": None, "WBSIM": None, "BSIM": "SIM", "random": None}


@pytest.mark.parametrize("other", [{"size": 32}, {"data_options": {"count": 128}}, {"backbone": "resnet18"}])
def test_what_costs_more_than_its_passes_say_is_not_matched(other: dict[str, Any]) -> None:
    text = trial(seeds=[0], grids=[{"objectives": ["SIM", "larger"]}])
    text["objectives"] |= {"larger": {"objective": "bsim", **other}}
    sim, larger = grid.expand("trial", text).runs
    assert larger.matched is None
    assert (sim.objective, larger.objective) == ("SIM", "larger")


def test_the_documentation_has_every_study_and_its_size() -> None:
    """Studies in one line are counted together, and the runs that they share once."""
    page = (Path(__file__).parents[2] / "docs" / "study.md").read_text(encoding="utf-8")
    listed = []
    for names, runs in re.findall(r"^\| (`[\w-]+`(?:, `[\w-]+`)*) \|.*\| (\d+) \|$", page, re.MULTILINE):
        studies = [grid.read(name) for name in names.strip("`").split("`, `")]
        listed += [study.name for study in studies]
        distinct = {(run.key, repr(run.evaluate)) for study in studies for run in study.runs}
        waits = any(study.waiting for study in studies)  # for results that say what is run
        assert int(runs) == (studies[0].about["runs"] if waits else len(distinct)), names
    assert sorted(listed) == definitions.names()
