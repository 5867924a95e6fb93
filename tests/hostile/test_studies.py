"""Studies: odd labels, damaged results, damaged texts (items 5, 14 and 18)."""

import json
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped, unused-ignore]

from tests.hostile.harness import Sandbox, sometimes
from tests.hostile.test_damaged_runs import BYTES, ODD
from tests.hostile.writing import STUDY, planted, positions

LABELS = (
    "Ümlaut",
    "50 %",
    "a [b]",
    "{x}",
    "中文",
    "%s%d",
    "$x_1$",
    "a|b",
    "*",
    "a*b?",
    "[!x]",
    "",
    " ",
    "<b>",
    "#",
    "'",
    '"',
    "emoji 🐈",
    "\u202e",
    "a\tb",
    "\x1b[31m",
    "=1+1",
    "null",
    "1e999",
    "--help",
)


@pytest.mark.parametrize("label", LABELS, ids=ascii)
def test_labels(label: str, box: Sandbox) -> None:
    """Any text is a label: all four kinds at once, listed, run as far as that takes no time, and shown."""
    study = STUDY | {
        "data": {label: {"data": "scenes", "data_options": {"count": 32, "size": 16}}},
        "methods": {label: {"method": "simclr"}},
        "objectives": {label: {"encoder": "pixels"}},
        "evaluate": {label: {"protocol": "knn", "k": 5, "metric": "top-1"}},
        "baseline": label,
    }
    box.write("study.yaml", yaml.safe_dump(study, allow_unicode=True))
    box.run("study", "run", "study.yaml", "--out", "out", "--dry-run").answered()
    box.write("study/a/study.yaml", yaml.safe_dump(study))
    outcome = box.run("study", "show", "study", writes=["study"]).answered()
    assert not any(sign in outcome.stdout + outcome.stderr for sign in ("\x1b[31m", "\u202e"))


@pytest.mark.slow
@pytest.mark.parametrize("label", LABELS, ids=ascii)
def test_labels_when_it_runs(label: str, box: Sandbox) -> None:
    study = STUDY | {"objectives": {label: {"encoder": "pixels"}}, "baseline": None}
    box.write("study.yaml", yaml.safe_dump(study, allow_unicode=True))
    outcome = box.run(
        "study", "run", "study.yaml", "--out", "out", "--runs", "runs", writes=["out", "runs"], seconds=60
    )
    outcome.harmless(seconds=60)
    assert outcome.status in (0, 1)


POSITIONS = list(positions(STUDY))
VALUES = [(path, odd) for path in POSITIONS for odd in ODD if odd not in ("surrogate",)]


def name_of(case: tuple[tuple[Any, ...], str]) -> str:
    return f"{'.'.join(map(str, case[0]))}-{case[1]}"


@pytest.mark.parametrize("case", sometimes(VALUES, VALUES[::11]), ids=name_of)
def test_odd_values_in_a_study(case: tuple[tuple[Any, ...], str], box: Sandbox) -> None:
    box.write("study.yaml", yaml.safe_dump(planted(STUDY, case[0], ODD[case[1]])))
    box.run("study", "run", "study.yaml", "--out", "out", "--dry-run").answered()


@pytest.mark.parametrize("kind", BYTES)
def test_damaged_texts(kind: str, box: Sandbox) -> None:
    box.write("study/bad/study.yaml", BYTES[kind])
    box.write("study/good/study.yaml", yaml.safe_dump(STUDY))
    box.run("study", "show", "study", writes=["study"]).succeeded("good", "bad")


def sound_result(box: Sandbox) -> tuple[str, dict[str, Any]]:
    """The name of a file of results, and a sound result."""
    from dataclasses import asdict

    from mixview.experiments import spec as grid
    from mixview.experiments.results import RunResult

    run = grid.expand("a", json.loads(json.dumps(STUDY))).runs[0]
    made = RunResult(
        data=run.data,
        method=run.method,
        variant=run.variant,
        objective=run.objective,
        seed=0,
        metrics={"k-NN": 45.25},
        evaluate=run.evaluate,
        eval_data=run.eval_data,
        settings=run.resolved,
        curve=[(1, 40.0), (2, 45.0)],
        passes=(2, 0),
        steps=2,
        images_seen=32,
        cpu_seconds=3.0,
    )
    assert box.work.is_dir()
    return "study/a/results.jsonl", json.loads(json.dumps(asdict(made)))


def as_line(content: dict[str, Any]) -> str:
    return f"{json.dumps(content)}\n"


KEYS = (
    "version",
    "data",
    "method",
    "variant",
    "objective",
    "seed",
    "metrics",
    "evaluate",
    "eval_data",
    "evaluated",
    "steps",
    "images_seen",
    "passes",
    "cpu_seconds",
    "evaluation_seconds",
    "curve",
    "collapse_metrics",
    "descriptions",
    "warnings",
    "settings",
    "images",
    "versions",
    "cpu",
    "made",
    "unknown",
)
RESULTS = [(key, odd) for key in KEYS for odd in ODD]


def test_a_sound_result_is_shown(box: Sandbox) -> None:
    name, content = sound_result(box)
    box.write("study/a/study.yaml", yaml.safe_dump(STUDY))
    box.write(name, as_line(content))
    box.run("study", "show", "study", writes=["study"]).succeeded("45.2")


@pytest.mark.parametrize(
    ("key", "odd"),
    [
        pytest.param(*case, marks=() if n % 9 == 0 else pytest.mark.slow, id="-".join(case))
        for n, case in enumerate(RESULTS)
    ],
)
def test_odd_values_in_results(key: str, odd: str, box: Sandbox) -> None:
    name, content = sound_result(box)
    box.write("study/a/study.yaml", yaml.safe_dump(STUDY))
    box.write(name, as_line(content | {key: ODD[odd]}))
    outcome = box.run("study", "show", "study", writes=["study"]).succeeded()
    assert "\x1b[31m" not in outcome.stdout + outcome.stderr
    assert "<script>alert" not in (box.work / "study" / "results.html").read_text()


@pytest.mark.parametrize("kind", BYTES)
def test_damaged_results(kind: str, box: Sandbox) -> None:
    name, content = sound_result(box)
    box.write("study/a/study.yaml", yaml.safe_dump(STUDY))
    box.write(name, BYTES[kind] + b"\n" + as_line(content).encode())
    box.run("study", "show", "study", writes=["study"]).succeeded("45.2", "line 1 of study/a/results.jsonl")


def test_a_file_of_very_many_lines(box: Sandbox) -> None:
    name, _ = sound_result(box)
    box.write("study/a/study.yaml", yaml.safe_dump(STUDY))
    box.write(name, b"{}\n" * 20_000_000)
    box.run("study", "show", "study", writes=["study"]).succeeded("it has more than 100,000 lines")


@pytest.mark.parametrize("key", ["metrics", "curve", "collapse_metrics", "warnings", "descriptions"])
@pytest.mark.parametrize("inner", ["text", "nan", "infinite", "list", "null", "huge"])
def test_odd_values_deep_in_results(inner: str, key: str, box: Sandbox) -> None:
    name, content = sound_result(box)
    value = ODD[inner]
    odd: dict[str, Any] = {
        "metrics": {"k-NN": value},
        "curve": [[value, value]],
        "collapse_metrics": {"std": value},
        "warnings": [value],
        "descriptions": {"k-NN": value},
    }
    box.write("study/a/study.yaml", yaml.safe_dump(STUDY))
    box.write(name, as_line(content | {key: odd[key]}))
    box.run("study", "show", "study", writes=["study"]).succeeded()
