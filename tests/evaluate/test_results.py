"""Results on disk, over seeds, and beside the paper's."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from mixview.evaluate.results import Result, figure, read, save, show, summarise

BSIM = Result(
    protocol="linear",
    metrics={"top-1": 50.0},
    words="a linear classifier.",
    encoder="first (mocov2 bsim)",
    data="imagenette, train 4, test 2",
    about={"method": "mocov2", "objective": "bsim", "epoch": "200"},
    notes=("A note.",),
    warnings=("Beware.",),
)


def printed(*results: Result) -> str:
    stream = io.StringIO()
    show(results, Console(file=stream, width=200, highlight=False))
    return stream.getvalue()


def test_what_is_saved_is_read_again_and_seeds_accumulate(tmp_path: Path) -> None:
    path = save(BSIM, tmp_path)
    assert path.parent == tmp_path / "evaluations"
    assert read(tmp_path) == [BSIM]
    save(replace(BSIM, metrics={"top-1": 51.0}), tmp_path)  # the same again replaces
    assert [result.metrics for result in read(tmp_path)] == [{"top-1": 51.0}]
    save(replace(BSIM, seed=1), tmp_path)
    save(replace(BSIM, settings={"fast": True}), tmp_path)
    assert len(read(tmp_path)) == 3
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_damaged_result_is_named(tmp_path: Path) -> None:
    path = save(BSIM, tmp_path)
    path.write_text("{")
    with pytest.raises(ValueError, match=rf"the result .*{path.name} cannot be read .*: remove it, and evaluate again"):
        read(tmp_path)


def test_mean_and_deviation_over_seeds_and_runs() -> None:
    others = [
        replace(BSIM, seed=1, metrics={"top-1": 54.0}, encoder="second (mocov2 bsim)"),
        replace(BSIM, seed=2, metrics={"top-1": 52.0}),
        replace(BSIM, about=BSIM.about | {"objective": "sim"}),
        replace(BSIM, settings={"fast": True}),
        replace(BSIM, about={}, encoder="random small, seed 0", metrics={"top-1": 10.0}),
        replace(BSIM, about={}, encoder="random small, seed 1", metrics={"top-1": 12.0}, seed=1),
    ]
    rows = summarise([BSIM, *others])
    assert [(row.runs, row.mean) for row in rows] == [(3, 52.0), (1, 50.0), (1, 50.0), (2, 11.0)]
    assert rows[0].std == pytest.approx(2.0)
    assert rows[1].std is None
    own = summarise([replace(BSIM, spread={"top-1": 0.3})])
    assert own[0].std == 0.3


def test_the_paper_s_figure_stands_beside_and_is_marked_as_its_own() -> None:
    text = printed(BSIM)
    lines = text.splitlines()
    assert "the paper's" in lines[0]
    assert "50.0 %" in lines[1]
    assert "68.0 (+0.5↑) [T5]" in lines[1]
    assert "[T5] The paper's: Table 5, MoCoV2-BSIM, 200 epochs of ImageNet, ResNet-50" in text
    assert "linear: a linear classifier. On imagenette, train 4, test 2." in text
    assert "A note." in text
    assert "warning: Beware." in text
    assert "paper" not in printed(replace(BSIM, protocol="knn"))
    several = printed(BSIM, replace(BSIM, seed=1, metrics={"top-1": 52.0}))
    assert "51.0 ± 1.4 %" in several
    assert "mocov2 bsim" in several


def test_figures() -> None:
    assert figure(45.25, None) == "45.2 %"
    assert figure(45.25, 0.31) == "45.2 ± 0.3 %"
    assert figure(float("nan"), None) == "undefined"
