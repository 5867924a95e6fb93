"""Nothing is lost: resuming, mistakes with it, and signals (items 7 to 10, and 14 in part)."""

import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import yaml  # type: ignore[import-untyped, unused-ignore]

from tests.data.writing import encode
from tests.hostile.conftest import PRETRAIN
from tests.hostile.harness import Sandbox, sometimes
from tests.hostile.writing import pretraining, write_photos

RESUME = ("pretrain", "--resume", "--out", "run")
KEPT = ("encoder.safetensors", "metrics.jsonl", "config.yaml", "status.json")


def contents(run: Path) -> dict[str, bytes]:
    """What a mistake must not change."""
    return {name: (run / name).read_bytes() for name in KEPT}


def break_checkpoints(run: Path, how: str) -> None:
    """Lose the checkpoints of a run."""
    folder = run / "checkpoints"
    match how:
        case "gone":
            shutil.rmtree(folder)
        case "empty":
            shutil.rmtree(folder)
            folder.mkdir()
        case "file":
            shutil.rmtree(folder)
            folder.write_text("")
        case "truncated":
            for path in folder.glob("*.pt"):
                path.write_bytes(path.read_bytes()[:100])
        case "zeroed":
            for path in folder.glob("*.pt"):
                path.write_bytes(bytes(path.stat().st_size))
        case "renamed":
            for path in folder.glob("*.pt"):
                path.rename(path.with_suffix(".bak"))


@pytest.mark.parametrize("more", [(), ("--epochs", "2")], ids=["as-it-was", "extended"])
@pytest.mark.parametrize("how", ["gone", "empty", "file", "truncated", "zeroed", "renamed"])
def test_resuming_without_checkpoints(how: str, more: tuple[str, ...], box: Sandbox, run: Path) -> None:
    break_checkpoints(run, how)
    before = contents(run)
    box.run(*RESUME, *more, writes=["run"]).rejected("checkpoint")
    assert contents(run) == before


WRONG = (
    ("--batch_size", "0"),
    ("--batch_size", "33"),
    ("--batch_size", "-1"),
    ("--epochs", "0"),
    ("--epochs", "-3"),
    ("--monitor.log_every", "0"),
    ("--monitor.images", "-1"),
    ("--monitor.keep", "0"),
    ("--device", "cuda"),
    ("--accelerator", "cuda"),
    ("--accelerator", "tpux"),
    ("--devices", "0"),
    ("--devices", "0,1"),
    ("--precision", "8"),
    ("--method", "byol"),
    ("--backbone", "resnet18"),
    ("--size", "8"),
    ("--seed", "7"),
    ("--optimizer.lr", "-1"),
    ("--workers", "-2"),
    ("--max_time", "soon"),
    ("--data", "absent"),
    ("--data_options", '{"count": 16}'),
    ("--epochs", "many"),
    ("--nodes", "0"),
    ("--monitor.checkpoint_every", "-1"),
    ("--method.dim", "0"),
    ("--mixing.alpha", "nan"),
    ("--weights", "absent.pth"),
)


@pytest.mark.parametrize("wrong", sometimes(WRONG, WRONG[::2]), ids=lambda wrong: "=".join(wrong))
def test_a_wrong_option_while_resuming(wrong: tuple[str, str], box: Sandbox, run: Path) -> None:
    """It raises an error before anything is written: the finished run stays what it was."""
    before = contents(run)
    box.run(*RESUME, *wrong, writes=["run"]).rejected()
    assert contents(run) == before
    assert json.loads((run / "status.json").read_text())["state"] == "finished"


def test_resuming_without_out(box: Sandbox) -> None:
    box.run("pretrain", "--resume").rejected("--out")


@pytest.mark.parametrize("out", ["absent", "out", "file.txt"])
def test_resuming_what_is_no_run(out: str, box: Sandbox) -> None:
    box.write("file.txt", "x")
    box.run("pretrain", "--resume", "--out", out).rejected(out)


def test_a_finished_run_resumes_to_what_it_was(box: Sandbox, run: Path) -> None:
    encoder = (run / "encoder.safetensors").read_bytes()
    box.run(*RESUME, writes=["run"]).succeeded()
    assert (run / "encoder.safetensors").read_bytes() == encoder


def test_a_run_into_the_folder_of_its_own_images(box: Sandbox) -> None:
    """`--data .` with the default `--out`: the run's pictures are no data, and it resumes."""
    for number in range(16):
        box.write(f"{number}.png", encode(number, height=16, width=16))
    line = (*pretraining(8), ".")
    box.run(*line, writes=["runs"]).succeeded()
    box.run("pretrain", "--resume", "--out", "runs/first", "--epochs", "2", writes=["runs"]).succeeded()
    box.run(*line, "--out", "runs/second", writes=["runs"]).succeeded()
    counts = [json.loads((box.work / "runs" / name / "data.json").read_text())["count"] for name in ("first", "second")]
    assert counts == [16, 16]


def write_labels(box: Sandbox, labels: list[int]) -> None:
    """An .npz with these labels."""
    images = np.random.default_rng(0).integers(0, 255, (len(labels), 16, 16, 3), dtype=np.uint8)
    arrays = {f"{split}_images": images + number for number, split in enumerate(("train", "test"))}
    np.savez(box.work / "a.npz", train_labels=np.array(labels), test_labels=np.array(labels), **arrays)


@pytest.mark.parametrize("mistake", ["label -1", "no images", "one class", "huge label"])
def test_an_evaluation_that_fails_does_not_cost_the_run(mistake: str, box: Sandbox) -> None:
    labels = {"label -1": [-1, 0, 1, 2] * 8, "one class": [0] * 32, "huge label": [0, 1, 2, 2**62] * 8}.get(
        mistake, [0, 1] * 16
    )
    write_labels(box, labels)
    images = "0" if mistake == "no images" else "32"
    outcome = box.run(
        *(*pretraining(16), "a.npz"),
        *("--monitor.eval_every", "1", "--monitor.images", images, "--out", "out"),
    )
    if mistake in ("no images", "huge label") and outcome.status:
        outcome.rejected("monitor.images|label")
        assert not (box.work / "out" / "config.yaml").exists()
        return
    outcome.succeeded()
    assert list((box.work / "out" / "checkpoints").glob("*.pt"))
    assert (box.work / "out" / "encoder.safetensors").is_file()


LONG = (*PRETRAIN, "--epochs", "2000", "--out", "out", "--monitor.log_every", "1")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM], ids=["interrupt", "terminate"])
def test_the_exit_status_after_a_signal(sent: signal.Signals, box: Sandbox) -> None:
    metrics = box.work / "out" / "metrics.jsonl"
    outcome = box.run(*LONG, signal=sent, signal_when=metrics, signal_after=0.2, seconds=20).harmless(
        signal=sent, seconds=20
    )
    assert outcome.status in (128 + sent, -sent), outcome.story
    assert json.loads((box.work / "out" / "status.json").read_text())["state"] == "interrupted"
    assert list((box.work / "out" / "checkpoints").glob("*.pt"))


def test_a_killed_run_resumes(box: Sandbox) -> None:
    checkpoints = box.work / "out" / "checkpoints" / "step-000000002.pt"
    box.run(*LONG, signal=signal.SIGKILL, signal_when=checkpoints, signal_after=0.1, seconds=20).harmless(
        signal=signal.SIGKILL
    )
    box.run("pretrain", "--resume", "--out", "out", "--max_time", "1s").harmless()


def test_a_full_disk(box: Sandbox) -> None:
    box.run(*PRETRAIN, "--out", "out", file_size=100_000).rejected("out", lines=8)
    box.run("pretrain", "--resume", "--out", "out").answered()


@pytest.mark.slow
def test_a_run_folder_that_is_deleted_while_it_trains(box: Sandbox) -> None:
    import threading
    import time

    def remove() -> None:
        while not (box.work / "out" / "metrics.jsonl").exists():
            time.sleep(0.01)
        while (box.work / "out").exists():  # a file that is written meanwhile keeps its folder
            shutil.rmtree(box.work / "out", ignore_errors=True)

    thread = threading.Thread(target=remove)
    thread.start()
    outcome = box.run(*PRETRAIN, "--epochs", "60", "--out", "out", seconds=60)
    thread.join()
    assert outcome.status == 1, outcome.story
    assert "Done" not in outcome.stdout + outcome.stderr


DAMAGED = {
    "config.yaml": ("", "[]", "null", "a: [", "data: 3\n", "\tdata: x\n", "data: {a: 1}\n", "epochs: -1\n", "x" * 1000),
    "data.json": ("", "[]", "{", '{"count": "x"}', '{"fingerprint": 3}', '{"count": 1e999}'),
    "environment.json": ("", "[]", "{", '{"resumed": 3}', '{"resumed": {"a": 1}}', '{"versions": 3}'),
    "status.json": (
        "",
        "[]",
        "{",
        '{"state": 3, "step": "x"}',
        '{"state": "finished", "step": -1, "epoch": "x"}',
        '{"state": "failed", "step": 1e999}',
        '{"state": "x", "step": 1, "cpu_seconds": "y"}',
    ),
    "metrics.jsonl": (
        "",
        "x\n",
        '{"step": 1',
        '{"step": -5}\n',
        '{"step": 1e99}\n',
        "[]\n" * 10,
        '{"step": 1, "loss": "x"}\n',
    ),
}
CASES = [(name, text) for name, texts in DAMAGED.items() for text in texts]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param(name, text, id=f"{name}-{number}", marks=() if number % 2 == 0 else pytest.mark.slow)
        for number, (name, text) in enumerate(CASES)
    ],
)
def test_resuming_a_damaged_run(name: str, text: str, box: Sandbox, run: Path) -> None:
    encoder = (run / "encoder.safetensors").read_bytes()
    (run / name).write_text(text)
    outcome = box.run(*RESUME, writes=["run"])
    outcome.answered()
    assert (run / "encoder.safetensors").read_bytes() == encoder


def test_two_runs_into_one_folder(box: Sandbox, run: Path) -> None:
    box.run(*PRETRAIN, "--out", "run", writes=["run"]).rejected("already holds a run", "--resume")


def test_a_changed_data_set(box: Sandbox) -> None:
    write_photos(box.work / "photos", 16)
    line = (*pretraining(8), "photos")
    box.run(*line, "--out", "out").succeeded()
    next((box.work / "photos" / "cat").iterdir()).unlink()
    box.run("pretrain", "--resume", "--out", "out", "--epochs", "2").rejected("data has changed")


def test_the_configuration_of_a_run_is_what_yaml_reads(run: Path) -> None:
    assert yaml.safe_load((run / "config.yaml").read_text())["backbone"] == "small"
