"""One odd file does not kill a page: reports, figures and tables of damaged runs and results (item 18)."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from mixview.evaluate.results import Result
from tests.hostile.harness import Sandbox
from tests.hostile.writing import SMALL

ODD: dict[str, Any] = {
    "null": None,
    "list": [],
    "nested": {"a": {"b": []}},
    "text": "x",
    "number": 3,
    "negative": -1,
    "huge": 10**400,
    "float": 1.5,
    "nan": float("nan"),
    "infinite": float("inf"),
    "true": True,
    "long": "x" * 100_000,
    "script": "<script>alert(1)</script>",
    "escape": "\x1b[31m\x07",
    "surrogate": "\ud800",
}
BYTES: dict[str, bytes] = {
    "empty": b"",
    "zeros": bytes(100),
    "half": b'{"state": "fin',
    "not-utf-8": b'{"a": "\xff\xfe"}',
    "list": b"[]",
    "deep": b"[" * 100_000,
    "number": b"3",
    "null": b"null",
    "huge-number": b'{"step": ' + b"9" * 5000 + b"}",
}
FILES = (
    "config.yaml",
    "data.json",
    "environment.json",
    "status.json",
    "metrics.jsonl",
    "images.npz",
    "encoder.safetensors",
    "views.png",
)
REPORT = ("report", "run", "--out", "out/a.html", *SMALL)


def quick(number: int) -> Any:
    """Every fourth case is for `make test`."""
    return () if number % 4 == 0 else pytest.mark.slow


CASES = [(name, kind) for name in FILES for kind in BYTES]


@pytest.mark.parametrize(
    ("name", "kind"), [pytest.param(*case, marks=quick(n), id="-".join(case)) for n, case in enumerate(CASES)]
)
def test_a_report_of_a_damaged_file(name: str, kind: str, box: Sandbox, run: Path) -> None:
    (run / name).write_bytes(BYTES[kind])
    box.run(*REPORT, writes=["out", "run"]).succeeded()
    assert (box.work / "out" / "a.html").is_file()


def keys_of(finished: str) -> list[str]:
    """What a file of a run says."""
    return {
        "status.json": ["state", "step", "epoch", "message", "cpu_seconds", "updated"],
        "data.json": ["kind", "count", "fingerprint"],
        "environment.json": ["versions", "platform", "host", "cpu", "devices", "command", "seed", "started", "resumed"],
        "config.yaml": [
            "data",
            "out",
            "method",
            "objective",
            "backbone",
            "split",
            "data_options",
            "validation",
            "augment",
            "size",
            "channels",
            "mixing",
            "epochs",
            "batch_size",
            "seed",
            "optimizer",
            "monitor",
            "min_crop_scale",
        ],
        "metrics.jsonl": ["step", "epoch", "loss", "lr", "knn", "std", "effective_rank", "non_finite"],
    }[finished]


SOUND = [("config.yaml", "data_options", "null")]  # all 5,000 scenes, which take a while to draw
VALUES = [(name, key, odd) for name in FILES[:5] for key in keys_of(name) for odd in ODD]
VALUES = [case for case in VALUES if case not in SOUND]
CHOSEN = dict.fromkeys(VALUES[::13])


@pytest.mark.parametrize(
    ("name", "key", "odd"),
    [pytest.param(*case, marks=() if case in CHOSEN else pytest.mark.slow, id="-".join(case)) for case in VALUES],
)
def test_a_report_of_an_odd_value(name: str, key: str, odd: str, box: Sandbox, run: Path) -> None:
    import yaml  # type: ignore[import-untyped, unused-ignore]

    path = run / name
    if name == "metrics.jsonl":
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(line | {key: ODD[odd]}) + "\n" for line in lines))
    else:
        content = yaml.safe_load(path.read_text()) if name.endswith(".yaml") else json.loads(path.read_text())
        path.write_text(json.dumps(content | {key: ODD[odd]}))
    box.run(*REPORT, writes=["out", "run"]).succeeded()
    page = (box.work / "out" / "a.html").read_text()
    assert "<script>alert" not in page


def result() -> dict[str, Any]:
    """A sound result of an evaluation."""
    from dataclasses import asdict

    about = {"method": "simclr", "objective": "sim", "epoch": "1", "seed": "0"}
    made = Result(
        protocol="knn",
        metrics={"top-1": 45.2},
        description="20 nearest.",
        encoder="run (simclr sim)",
        data="scenes",
        about=about,
    )
    return {"version": 1, **asdict(made)}


RESULTS = [(key, odd) for key in (*result(), "unknown") for odd in ODD]


@pytest.mark.parametrize(
    ("key", "odd"),
    [
        pytest.param(*case, marks=() if n % 12 == 0 else pytest.mark.slow, id="-".join(case))
        for n, case in enumerate(RESULTS)
    ],
)
@pytest.mark.parametrize("command", ["report", "show"])
def test_odd_values_in_results(command: str, key: str, odd: str, box: Sandbox, run: Path) -> None:
    """The good one is shown, the odd one named."""
    box.write("run/evaluations/knn-good.json", result())
    box.write("run/evaluations/knn-odd.json", result() | {key: ODD[odd]})
    lines = {"report": REPORT, "show": ("evaluate", "show", "run")}
    outcome = box.run(*lines[command], writes=["out", "run"]).succeeded()
    assert "\x1b[31m" not in outcome.stdout + outcome.stderr
    if command == "show":
        assert "45.2" in outcome.stdout


@pytest.mark.parametrize("kind", BYTES)
def test_damaged_results(kind: str, box: Sandbox, run: Path) -> None:
    box.write("run/evaluations/knn-good.json", result())
    box.write("run/evaluations/knn-odd.json", BYTES[kind])
    box.run("evaluate", "show", "run", writes=["run"]).succeeded("45.2", "knn-odd")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["missing", "folder", "fifo", "unreadable"])
def test_files_of_a_run_that_are_no_files(kind: str, name: str, box: Sandbox, run: Path) -> None:
    path = run / name
    path.unlink(missing_ok=True)
    match kind:
        case "folder":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case "unreadable":
            path.symlink_to(path.name)
    box.run(*REPORT, writes=["out", "run"]).answered()


@pytest.mark.parametrize("name", FILES[:5])
def test_a_damaged_run_beside_a_good_one(name: str, box: Sandbox, run: Path, finished: Path) -> None:
    box.copy(finished, "good")
    (run / name).write_bytes(b"\xff{")
    box.run("report", "run", "good", "--out", "out/a.html", *SMALL, writes=["out", "run", "good"]).succeeded()
    assert "good" in (box.work / "out" / "a.html").read_text()


@pytest.mark.parametrize("figure", ["beta", "alpha", "cost", "tsne-classes", "tsne-mixtures"])
@pytest.mark.parametrize("name", ["config.yaml", "encoder.safetensors", "metrics.jsonl"])
def test_figures_of_damaged_runs(name: str, figure: str, box: Sandbox, run: Path) -> None:
    (run / name).write_bytes(b"\xff{")
    workers = ["--workers", "0"] if figure.startswith("tsne") else []  # sockets of theirs need a shorter TMPDIR
    box.run("figure", figure, "run", "--out", "out/a", *workers, writes=["out", "run"]).answered()
