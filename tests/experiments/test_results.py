import json
import multiprocessing
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mixview.evaluate.knn import KNN
from mixview.experiments import definitions, renames, results
from mixview.experiments import spec as grid
from mixview.experiments.cost import DEFAULT_IMAGES, Estimate, SlowdownTracker
from mixview.experiments.study_run import StudyRun
from tests.experiments.trials import invented, trial

ROOT = Path(__file__).parents[2]


def saved(out: Path) -> tuple[StudyRun, results.RunResult]:
    run = grid.expand("trial", trial()).runs[0]
    result = invented(run, 50.0)
    results.append(result, results.path_of("trial", out))
    return run, result


def fits(result: results.RunResult, run: StudyRun) -> bool:
    return results.match_one(run, {"trial": [result]}) is not None


def test_a_result_is_found_again(tmp_path: Path) -> None:
    run, result = saved(tmp_path)
    assert results.find(run, tmp_path) == result
    assert results.match(grid.expand("trial", trial()).runs, results.read_all(tmp_path)) == {run.name: result}


def test_the_newest_result_counts(tmp_path: Path) -> None:
    run, result = saved(tmp_path)
    newest = replace(result, metrics={"k-NN": 51.0})
    results.append(newest, results.path_of("trial", tmp_path))
    results.append(result, results.path_of("another", tmp_path))
    assert results.find(run, tmp_path) == newest


def test_studies_share_what_both_ask_for_under_their_own_names(tmp_path: Path) -> None:
    run, result = saved(tmp_path)
    other = replace(run, study="other", method="MoCo", objective="plain", evaluate={"5-NN": run.evaluate["k-NN"]})
    shared = results.find(other, tmp_path)
    assert shared is not None
    assert (shared.method, shared.objective, shared.metrics) == ("MoCo", "plain", {"5-NN": 50.0})
    assert shared.identity == result.identity
    asks_more = replace(run, evaluate=run.evaluate | {"linear": {"protocol": "linear", "metric": "top-1"}})
    assert results.find(asks_more, tmp_path) is None
    evaluated_otherwise = replace(run, evaluate={"k-NN": run.evaluate["k-NN"] | {"k": 3}})
    assert results.find(evaluated_otherwise, tmp_path) is None
    other_images = replace(run, eval_data=run.eval_data | {"test": "test"})
    assert results.find(other_images, tmp_path) is None
    on_cuda = run.settings | {"accelerator": "cuda"}
    assert results.find(replace(run, settings=on_cuda | {"precision": "32-true"}), tmp_path) is not None
    assert results.find(replace(run, settings=on_cuda), tmp_path) is None  # its precision is another


def test_a_changed_default_makes_a_result_stale_and_a_new_option_does_not() -> None:
    run = grid.expand("trial", trial()).runs[0]
    result = invented(run, 50.0)
    without = {name: value for name, value in result.settings.items() if name != "mixing.alpha"}
    assert fits(replace(result, settings=without), run)
    assert not fits(replace(result, settings=result.settings | {"mixing.alpha": 0.5}), run)


def test_a_new_option_that_is_used_makes_a_result_stale() -> None:
    """A result from before an option existed is one of its default."""
    run = grid.expand("trial", trial()).runs[0]
    settings = invented(run, 50.0).settings
    without = replace(
        invented(run, 50.0), settings={name: value for name, value in settings.items() if name != "mixing.alpha"}
    )
    assert not fits(without, replace(run, settings=run.settings | {"mixing": {"alpha": 0.5}}))
    assert fits(without, replace(run, settings=run.settings | {"mixing": {"alpha": 1.0}}))


def test_a_default_that_was_not_set_makes_a_result_stale_once_it_is() -> None:
    run = grid.expand("trial", trial()).runs[0]
    result = invented(run, 50.0)
    assert result.settings["optimizer.clip"] is None
    clipped = replace(run, settings=run.settings | {"optimizer": {"clip": 1.0}})
    assert fits(result, run)
    assert not fits(result, clipped)


def test_a_setting_that_is_gone_makes_a_result_stale_unless_it_was_not_set() -> None:
    run = grid.expand("trial", trial()).runs[0]
    result = invented(run, 50.0)
    assert fits(replace(result, settings=result.settings | {"gone": None}), run)
    assert not fits(replace(result, settings=result.settings | {"gone": 1}), run)
    other_methods = result.settings | {"method.gone": 1}
    assert fits(replace(result, settings=other_methods, version=1), run)  # every method had the options of all
    assert not fits(replace(result, settings=other_methods), run)


def test_a_changed_default_of_a_protocol_makes_a_result_stale() -> None:
    run = grid.expand("trial", trial()).runs[0]
    result = invented(run, 50.0)
    evaluated = {"k": 5, "temperature": KNN.temperature, "size": 16}
    assert fits(replace(result, evaluated={"k-NN": evaluated}), run)
    assert not fits(replace(result, evaluated={"k-NN": evaluated | {"temperature": 0.5}}), run)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    run, result = saved(tmp_path)
    path = results.path_of("trial", tmp_path)
    sound = path.read_bytes()
    path.write_bytes(b"{\n" + sound + b'{"version": 99}\n' + b"[]\n" * 9 + b'{"ver')
    faults: list[str] = []
    assert results.read(path, faults) == [result]
    assert faults[0].startswith(f"line 1 of {path} cannot be read (it is not JSON")
    assert faults[1] == f"line 3 of {path} cannot be read (it was written by a later mixview)"
    assert faults[-1] == f"7 further lines of {path} cannot be read"
    assert len(faults) == results.MAX_FAULTS + 1
    assert results.find(run, tmp_path) == result


def test_half_a_line_costs_no_other(tmp_path: Path) -> None:
    run, result = saved(tmp_path)
    path = results.path_of("trial", tmp_path)
    sound = path.read_bytes()
    path.write_bytes(sound + sound[: len(sound) // 2])  # killed while it was written
    faults: list[str] = []
    assert results.read(path, faults) == [result]
    assert faults == [f"the last line of {path} is incomplete: it is being written, or its process was killed"]
    newest = replace(result, metrics={"k-NN": 51.0})
    results.append(newest, path)
    faults.clear()
    assert results.read(path, faults) == [result, newest]
    assert len(faults) == 1
    assert faults[0].startswith(f"line 2 of {path} cannot be read")
    assert results.find(run, tmp_path) == newest


def append_many(path: Path, result: results.RunResult, seeds: range) -> None:
    for seed in seeds:
        results.append(replace(result, seed=seed, warnings=["x" * 20_000]), path)


def test_several_processes_append_at_once(tmp_path: Path) -> None:
    _, result = saved(tmp_path)
    path = tmp_path / "many" / results.FILE
    context = multiprocessing.get_context("fork" if os.name == "posix" else "spawn")
    processes = [
        context.Process(target=append_many, args=(path, result, range(25 * number, 25 * number + 25)))
        for number in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    faults: list[str] = []
    assert sorted(each.seed for each in results.read(path, faults)) == list(range(100))
    assert faults == []


OLD = json.loads((Path(__file__).parent / "format_1.json").read_text(encoding="utf-8"))
"""Records of the first format, as mixview 0.1.0 wrote them, by study."""


def test_results_outlive_renamed_settings() -> None:
    path = Path("results.jsonl")
    for study, record in OLD.items():
        result = results.parse_line(path, json.dumps(record).encode())
        assert result.version == 1
        assert result.metrics == record["metrics"]
        matched = results.match(grid.read(study).runs, {study: [result]})
        assert len(matched) == 1
        changed = replace(result, settings=result.settings | {"seed": 17})
        assert not results.match(grid.read(study).runs, {study: [changed]})


def test_old_names_and_values_are_translated() -> None:
    settings = renames.translate(OLD["related"], 1)["settings"]
    assert settings["mixing.lam_per"] == "batch"
    assert settings["mixing.mixer"] == "random_choice"
    assert settings["mixing.lam_at_least_half"] is False
    assert settings["mixing.prob"] == 1.0
    assert settings["batch_size"] == 64
    assert settings["monitor.eval_every"] == OLD["related"]["settings"]["watch.look_every"]
    assert settings["monitor.keep"] == 1
    assert not any(name.startswith("watch.") for name in settings)
    record = renames.translate(OLD["paper-small"], 1)
    assert record["evaluate"]["1 % fine-tuned"]["batch_size"] == 16
    assert record["evaluated"]["SVM"]["resize"] == "squash"
    assert record["evaluation_seconds"] == OLD["paper-small"]["judging_seconds"]
    assert renames.translate(record, renames.FORMAT) == record  # of the newest format: not touched


def test_old_descriptions_are_reworded() -> None:
    old, record = OLD["paper-small"], renames.translate(OLD["paper-small"], 1)
    assert "centre crop" in old["protocols"]["k-NN 20"]
    assert "a center crop of 16 pixels" in record["descriptions"]["k-NN 20"]
    assert (
        "one linear SVM per class (squared hinge, L2, intercept regularized) on L2-normalized"
        in (record["descriptions"]["SVM"])
    )
    for column, description in record["descriptions"].items():
        assert numbers(description) == numbers(old["protocols"][column])
    assert renames.RENAMES[1].reword(None) is None  # what is no text is left to the check of the record


def numbers(text: str) -> list[str]:
    return re.findall(r"[0-9.]+", text)


def test_names_of_groups_and_protocols_are_translated() -> None:
    change = renames.Renames(
        settings={"method": "method.name", "head.": "method.", "sync_bn": None},
        unset=("method.",),
        protocols={"semi": "semi-supervised"},
        options={"": {"batch": "batch_size"}, "detection": {"protocol": "recipe"}},
    )
    record = {
        "settings": {"method": "mocov2", "head.queue_size": 64, "head.dim": None, "sync_bn": True, "clip": None},
        "evaluate": {
            "AP": {"protocol": "detection", "recipe": "small-fpn", "batch": 2, "metric": "AP"},
            "1 %": {"protocol": "semi", "metric": "1 % top-1"},
        },
        "evaluated": {"AP": {"protocol": "small-fpn", "batch": 2}},
    }
    assert change.apply(record) == {
        "settings": {"method.name": "mocov2", "method.queue_size": 64, "clip": None},
        "evaluate": {
            "AP": {"protocol": "detection", "recipe": "small-fpn", "batch_size": 2, "metric": "AP"},
            "1 %": {"protocol": "semi-supervised", "metric": "1 % top-1"},
        },
        "evaluated": {"AP": {"recipe": "small-fpn", "batch_size": 2}},
    }


@pytest.mark.parametrize("odd", [None, 7, "text", [], {"a": 7}, {"a": {"protocol": []}}, [[]]])
def test_records_of_odd_forms_are_translated(odd: object) -> None:
    for name in ("settings", "evaluate", "judged"):
        renames.translate({"version": 1, "evaluate": {"a": {"protocol": "knn"}}, name: odd}, 1)


def test_no_committed_result_is_lost() -> None:
    """Each result counts for a run of a study that comes with mixview. Only the second study still lacks some."""
    faults: dict[str, list[str]] = {}
    records = results.read_all(ROOT / "study", faults)
    assert not any(faults.values())
    every = {result.identity for study in records.values() for result in study}
    assert sum(map(len, records.values())) == len(every)
    assert sum(len(each) for name, each in records.items() if not name.startswith("second-")) == 449
    used = set()
    runs = [run for name in definitions.names() for run in grid.read(name, records).runs]
    options = {name for run in runs for name in run.resolved}
    for run in runs:
        result = results.match_one(run, records)
        if result is None and run.study.startswith("second-"):
            continue
        assert result is not None, (run.study, run.name)
        used.add(result.identity)
        # An option that the run's method does not have is one of another method, and not one that was renamed.
        assert {name for name, value in result.settings.items() if value is not None} <= options
    assert used == every


def test_the_estimate_learns_from_what_is_done() -> None:
    runs = grid.expand("trial", trial()).runs
    by_name = {run.objective: run for run in runs if run.seed == 0}
    estimate = Estimate(runs, {by_name["SIM"].name: invented(by_name["SIM"], 50.0)})
    assert estimate.seconds([by_name["SIM"]]) == pytest.approx(1 + 3 * 16)
    assert estimate.seconds([by_name["WBSIM"]]) == pytest.approx(1 + 3 * 16 * 7 / 4)
    assert estimate.seconds([by_name["random"]]) == pytest.approx(1)
    assert Estimate(runs, {}).seconds(runs) > 0


def test_estimates_are_within_a_fifth_of_what_was_measured() -> None:
    """Each seed of the first study's main tables, estimated from the other seeds; and whole rows of one seed."""
    records = results.read_all(ROOT / "study")
    total, right = 0, 0
    for name in ("paper-small", "paper-small-imagenette", "confirm"):
        study = grid.read(name)
        done = results.match([run for run in study.runs if run.encoder is None], records)
        for seed in sorted({run.seed for run in study.runs}):
            others = {key: each for key, each in done.items() if each.seed != seed}
            estimate = Estimate(study.runs, others)
            runs = [run for run in study.runs if run.name in done and run.seed == seed]
            spent = [done[run.name].cpu_seconds + done[run.name].evaluation_seconds for run in runs]
            assert estimate.seconds(runs) == pytest.approx(sum(spent), rel=0.2), (name, seed)
            total += len(runs)
            right += sum(abs(estimate.seconds([run]) / each - 1) < 0.2 for run, each in zip(runs, spent, strict=True))
    assert right > 0.9 * total


def test_the_estimate_counts_the_images_of_a_split_that_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MIXVIEW_DATA", raising=False)

    def seen(**data: Any) -> float:
        run = grid.expand("trial", trial(data={"a": data})).runs[0]
        return Estimate([run], {}).images_seen(run) / run.epochs

    assert seen(data="scenes", data_options={"count": 64, "size": 16}) == 64
    assert seen(data="cifar10", split="train[500:2000]") == 1500
    assert seen(data="cifar10", split="train") == DEFAULT_IMAGES  # it is not there


def test_the_pace_is_that_of_the_machine() -> None:
    now = 0.0
    tracker = SlowdownTracker(clock=lambda: now)
    tracker.begin("a")
    assert tracker.slowdown({"a": 0.0}, {"a": 100.0}) == 1.0
    now = 60.0
    assert tracker.slowdown({"a": 0.3}, {"a": 100.0}) == pytest.approx(2.0)
    tracker.begin("b", share=0.5)
    tracker.end("a", 100.0, finished=False)  # what was stopped says nothing
    now = 210.0
    assert tracker.slowdown({"b": 1.0}, {"b": 100.0}) == pytest.approx(3.0)
    tracker.end("b", 100.0, finished=True)
    assert tracker.slowdown({}, {}) == pytest.approx(3.0)
