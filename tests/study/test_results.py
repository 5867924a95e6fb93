from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mixview.evaluate.judging import Knn
from mixview.study import grid, results
from mixview.study.estimate import IMAGES, Estimate, Pace
from tests.study.trials import invented, trial


def saved(out: Path) -> tuple[grid.Cell, results.CellResult]:
    cell = grid.expand("trial", trial()).cells[0]
    result = invented(cell, 50.0)
    results.save(result, results.path_of(cell, out))
    return cell, result


def test_a_result_is_found_again(tmp_path: Path) -> None:
    cell, result = saved(tmp_path)
    assert results.find(cell, tmp_path) == result
    assert results.found(grid.expand("trial", trial()).cells, tmp_path) == {cell.name: result}


def test_studies_share_what_both_ask_for_under_their_own_names(tmp_path: Path) -> None:
    cell, result = saved(tmp_path)
    other = replace(cell, study="other", method="MoCo", objective="plain")
    found = results.find(other, tmp_path)
    assert found is not None
    assert (found.method, found.objective, found.metrics) == ("MoCo", "plain", result.metrics)
    asks_more = replace(cell, evaluate=cell.evaluate | {"linear": {"protocol": "linear", "metric": "top-1"}})
    assert results.find(asks_more, tmp_path) is None
    judged_otherwise = replace(cell, evaluate={"k-NN": cell.evaluate["k-NN"] | {"k": 3}})
    assert results.find(judged_otherwise, tmp_path) is None


def test_a_changed_default_makes_a_result_stale_and_a_new_option_does_not(tmp_path: Path) -> None:
    cell, result = saved(tmp_path)
    path = results.path_of(cell, tmp_path)
    without = {name: value for name, value in result.settings.items() if name != "mixing.alpha"}
    results.save(replace(result, settings=without), path)
    assert results.find(cell, tmp_path) is not None
    results.save(replace(result, settings=result.settings | {"mixing.alpha": 0.5}), path)
    assert results.find(cell, tmp_path) is None


def test_a_default_that_was_not_set_makes_a_result_stale_once_it_is(tmp_path: Path) -> None:
    cell, result = saved(tmp_path)
    assert result.settings["optimizer.clip"] is None
    clipped = replace(cell, settings=cell.settings | {"optimizer": {"clip": 1.0}})
    assert results.fits(result, cell)
    assert not results.fits(result, clipped)


def test_a_changed_default_of_a_protocol_makes_a_result_stale() -> None:
    cell = grid.expand("trial", trial()).cells[0]
    result = invented(cell, 50.0)
    judged = {"k": 5, "temperature": Knn.temperature, "size": 16}
    assert results.fits(replace(result, judged={"k-NN": judged}), cell)
    assert not results.fits(replace(result, judged={"k-NN": judged | {"temperature": 0.5}}), cell)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    cell, _ = saved(tmp_path)
    results.path_of(cell, tmp_path).write_text("{")
    with pytest.raises(ValueError, match=r"cannot be read .*remove it, and run its study again"):
        results.find(cell, tmp_path)


def test_the_estimate_learns_from_what_is_done() -> None:
    cells = grid.expand("trial", trial()).cells
    by_name = {cell.objective: cell for cell in cells if cell.seed == 0}
    estimate = Estimate(cells, [invented(by_name["SIM"], 50.0)])
    assert estimate.seconds([by_name["SIM"]]) == pytest.approx(1 + 3 * 16)
    assert estimate.seconds([by_name["WBSIM"]]) == pytest.approx(1 + 3 * 16 * 7 / 4)
    assert estimate.seconds([by_name["random"]]) == pytest.approx(1)
    assert Estimate(cells, []).seconds(cells) > 0


def test_the_estimate_counts_the_images_of_a_split_that_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MIXVIEW_DATA", raising=False)

    def seen(**data: Any) -> float:
        cell = grid.expand("trial", trial(data={"a": data})).cells[0]
        return Estimate([cell], []).images_seen(cell) / cell.epochs

    assert seen(data="scenes", data_options={"count": 64, "size": 16}) == 64
    assert seen(data="cifar10", split="train[500:2000]") == 1500
    assert seen(data="cifar10", split="train") == IMAGES  # it is not there


def test_the_pace_is_that_of_the_machine() -> None:
    now = 0.0
    pace = Pace(clock=lambda: now)
    pace.begin("a")
    assert pace.slowdown({"a": 0.0}, {"a": 100.0}) == 1.0
    now = 60.0
    assert pace.slowdown({"a": 0.3}, {"a": 100.0}) == pytest.approx(2.0)
    pace.begin("b", share=0.5)
    pace.end("a", 100.0, finished=False)  # what was stopped says nothing
    now = 210.0
    assert pace.slowdown({"b": 1.0}, {"b": 100.0}) == pytest.approx(3.0)
    pace.end("b", 100.0, finished=True)
    assert pace.slowdown({}, {}) == pytest.approx(3.0)
