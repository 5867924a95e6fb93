import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from mixview.study import grid
from tests.study.trials import trial


def test_every_combination_is_a_cell_and_seeds_come_one_after_the_other() -> None:
    study = grid.expand("trial", trial())
    assert [(cell.method, cell.objective, cell.seed) for cell in study.cells] == [
        (method, objective, seed)
        for seed in (0, 1)
        for method, objective in (("MoCo v2", "SIM"), ("MoCo v2", "WBSIM"), ("MoCo v2", "SIM × 1.75"), ("", "random"))
    ]
    assert len({cell.name for cell in study.cells}) == len(study.cells)


def test_the_baseline_of_equal_compute_is_trained_as_much_longer() -> None:
    cells = {cell.objective: cell for cell in grid.expand("trial", trial()).cells if cell.seed == 0}
    sim, wbsim, longer = cells["SIM"], cells["WBSIM"], cells["SIM × 1.75"]
    assert (sim.passes.work, wbsim.passes.work, wbsim.matched) == (4, 7, "SIM × 1.75")
    assert (sim.epochs, longer.epochs) == (4, 7)
    assert longer.settings == sim.settings | {"epochs": 7}


def test_what_costs_the_same_is_compared_with_the_baseline_itself() -> None:
    text = trial()
    text["objectives"]["WBSIM"] = {"objective": "bsim"}
    cells = grid.expand("trial", text).cells
    assert [cell.matched for cell in cells if cell.objective == "WBSIM"] == ["SIM", "SIM"]
    assert not [cell for cell in cells if "×" in cell.objective]


def test_levels_lay_their_settings_over_each_other() -> None:
    text = trial(knobs={"hot": {"head": {"temperature": 0.5}, "epochs": 9}})
    text["grids"] = [{"objectives": ["SIM"], "knobs": ["hot"], "seeds": [3]}]
    (cell,) = grid.expand("trial", text).cells
    assert cell.settings["head"] == {"queue_size": 64, "temperature": 0.5}
    assert (cell.settings["epochs"], cell.settings["seed"], cell.knob) == (9, 3, "hot")
    assert cell.pretraining.head.temperature == 0.5
    assert cell.name.startswith("scenes-moco-v2-hot-sim-s3-")


def test_the_key_is_of_the_settings_and_of_nothing_else() -> None:
    first, *_ = grid.expand("trial", trial()).cells
    again, *_ = grid.expand("another", trial()).cells
    assert again.key == first.key
    assert replace(first, evaluate={}).key == first.key  # judged otherwise, it is still the same run
    assert replace(first, settings=first.settings | {"accelerator": "cuda"}).key == first.key
    assert replace(first, settings=first.settings | {"batch": 8}).key != first.key
    assert "seed" in first.resolved()
    assert not {"out", "workers", "max_time"} & set(first.resolved())


def test_a_study_of_ones_own_changes_a_base(tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text(
        "base: paper-small\nsettings: {batch: 32}\nseeds: [7]\ngrids: [{methods: [MoCo v2], objectives: [SIM]}]\n"
    )
    study = grid.read(str(own))
    assert study.name == "mine"
    assert study.about == {}
    assert {cell.settings["batch"] for cell in study.cells} == {32}
    assert {cell.seed for cell in study.cells} == {7}


@pytest.mark.parametrize("name", grid.names())
def test_studies_that_come_with_mixview(name: str) -> None:
    study = grid.read(name)
    assert set(study.about) == {"what", "cost"}
    assert all(cell.pretraining.workers == 0 for cell in study.cells if cell.encoder is None)
    if study.baseline is not None:
        groups = {(*cell.group, cell.seed) for cell in study.cells if cell.encoder is None}
        bases = {(*cell.group, cell.seed) for cell in study.cells if cell.objective == study.baseline}
        assert groups == bases, "every cell has something to be compared with"


def test_choices_are_made_on_images_that_are_not_the_test_set() -> None:
    for name in ("tune", "search"):
        assert {cell.labelled["test"] for cell in grid.read(name).cells} == {"train[15000:20000]"}
    for name in ("paper-small", "ablations", "confirm"):
        assert {cell.labelled["test"] for cell in grid.read(name).cells} == {"test"}
    others = {cell.seed for name in ("paper-small", "search", "tune") for cell in grid.read(name).cells}
    fresh = {cell.seed for cell in grid.read("confirm").cells}
    assert len(fresh) >= 8
    assert not fresh & others
    chosen, reported = (grid.read(name).cells for name in ("detection-tune", "detection"))
    assert {cell.objective for cell in chosen} == {"SIM", "random"}
    assert not scenes_of(chosen) & scenes_of(reported)


def scenes_of(cells: Iterable[grid.Cell]) -> set[int]:
    return {cell.labelled["data_options"]["seed"] for cell in cells}


def test_the_main_table_is_whole() -> None:
    study = grid.read("paper-small")
    rows = {(cell.method, cell.objective) for cell in study.cells}
    assert {(method, objective) for method in ("SimCLR", "MoCo v2", "BYOL", "SimSiam")
            for objective in ("SIM", "BSIM", "WBSIM")} <= rows  # fmt: skip
    assert {("SimCLR", "BSIM, one-sided"), ("", "random")} <= rows
    for cell in study.cells:
        if cell.encoder is None and cell.objective not in ("SIM",) and "×" not in cell.objective:
            assert (cell.method, cell.matched) in rows


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no study paper-smal: did you mean paper-small"):
        grid.read("paper-smal")
    with pytest.raises(ValueError, match="there is no study file"):
        grid.read(str(tmp_path / "absent.yaml"))
    with pytest.raises(ValueError, match="no 'SIN' among its objectives: did you mean SIM"):
        grid.expand("trial", trial() | {"grids": [{"objectives": ["SIN"]}]})
    with pytest.raises(ValueError, match="there is no setting epoch: did you mean epochs"):
        grid.expand("trial", trial(settings={"epoch": 3}))
    with pytest.raises(ValueError, match=r"there is no setting head.temprature: did you mean temperature"):
        grid.expand("trial", trial(settings={"head": {"temprature": 3}}))
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
    "a level": ({"objectives": {"SIM": "sim"}}, "'SIM' among the objectives should be settings"),
    "a level that YAML took": ({"knobs": {False: {"epochs": 9}}}, "YAML reads a name among the knobs as False"),
    "a grid": (
        {"grids": [{"methods": "MoCo v2"}]},
        r"methods of a grid should be a list, such as \[MoCo v2\], got 'MoCo",
    ),
    "an untrained baseline": ({"baseline": "random"}, "the baseline 'random' is not trained"),
    "a baseline": ({"baseline": "SMI"}, "the baseline 'SMI' is none of the objectives: did you mean SIM"),
    "about": ({"about": "text"}, "about should be names"),
    "a batch": ({"settings": {"batch": "auto"}}, "give batch a number instead of auto"),
    "an objective": (
        {"objectives": {"SIM": {"objective": "simm"}}},
        "--objective must be sim, bsim, .* got 'simm'",
    ),
    "a method": ({"methods": {"MoCo v3": {"method": "mocov3"}}}, "--method must be simclr, .* got 'mocov3'"),
    "a mixer": (
        {"settings": {"mixing": {"mixer": "mix"}}},
        "--mixing.mixer must be cutmix, mixup or either, got 'mix'",
    ),
    "a column": ({"evaluate": {"k-NN": {"protocol": "knn"}}}, "k-NN needs a protocol and a metric"),
    "a protocol": (
        {"evaluate": {"k-NN": {"protocol": "kn", "metric": "top-1"}}},
        "k-NN has no protocol 'kn' to judge by: did you mean knn",
    ),
    "an option": (
        {"evaluate": {"k-NN": {"protocol": "knn", "metric": "top-1", "neighbours": 3}}},
        "k-NN: knn has no option 'neighbours': there are",
    ),
    "an option of detection": (
        {"evaluate": {"AP": {"protocol": "detection", "metric": "AP", "iteration": 3}}},
        "AP: detection has no option 'iteration': did you mean iterations",
    ),
    "a column of a level": (
        {"objectives": {"SIM": {"evaluate": {"AP": {"protocol": "no", "metric": "AP"}}}}},
        "'SIM' among the objectives: AP has no protocol 'no'",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named_before_anything_runs(name: str) -> None:
    changes, words = MISTAKES[name]
    with pytest.raises(ValueError, match=words):
        grid.expand("trial", trial(grids=[{"objectives": ["SIM"]}]) | changes)


def test_levels_that_yaml_reads_as_numbers_keep_their_settings() -> None:
    knobs = {0.1: {"head": {"temperature": 0.1}}, 64: {"batch": 64}}
    cells = grid.expand(
        "trial", trial(knobs=knobs, grids=[{"objectives": ["SIM"], "knobs": [0.1, 64]}], seeds=[0])
    ).cells
    assert [(cell.knob, cell.pretraining.head.temperature, cell.pretraining.batch) for cell in cells] == [
        ("0.1", 0.1, 16),
        ("64", None, 64),
    ]


def test_pixels_are_not_asked_for_what_trains_a_network() -> None:
    text = trial(grids=[{"methods": [""], "objectives": ["random", "pixels"]}], seeds=[0])
    text["objectives"]["pixels"] = {"encoder": "pixels"}
    text["evaluate"] |= {
        "fine-tuned": {"protocol": "semi", "metric": "1 % top-1"},
        "AP": {"protocol": "detection", "recipe": "small-fpn", "metric": "AP"},
    }
    random, pixels = grid.expand("trial", text).cells
    assert list(random.evaluate) == ["k-NN", "fine-tuned", "AP"]
    assert list(pixels.evaluate) == ["k-NN"]


def test_without_matching_only_what_costs_as_much_is_matched() -> None:
    text = trial(match_compute=False, seeds=[0], grids=[{}])
    text["objectives"] |= {"BSIM": {"objective": "bsim"}}
    matched = {cell.objective: cell.matched for cell in grid.expand("trial", text).cells}
    assert matched == {"SIM": None, "WBSIM": None, "BSIM": "SIM", "random": None}


@pytest.mark.parametrize("other", [{"size": 32}, {"data_options": {"count": 128}}, {"backbone": "resnet18"}])
def test_what_costs_more_than_its_passes_say_is_not_matched(other: dict[str, Any]) -> None:
    text = trial(seeds=[0], grids=[{"objectives": ["SIM", "larger"]}])
    text["objectives"] |= {"larger": {"objective": "bsim", **other}}
    sim, larger = grid.expand("trial", text).cells
    assert larger.matched is None
    assert (sim.objective, larger.objective) == ("SIM", "larger")


def test_the_documentation_has_every_study_and_its_size() -> None:
    page = (Path(__file__).parents[2] / "docs" / "study.md").read_text(encoding="utf-8")
    told = {name: int(cells) for name, cells in re.findall(r"^\| `([\w-]+)` \|.*\| (\d+) \|$", page, re.MULTILINE)}
    assert told == {name: len(grid.read(name).cells) for name in grid.names()}
