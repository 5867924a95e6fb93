"""The trained protocols as runs: stopped, killed and resumed, on two processes as on one, in mixed precision."""

import json
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from mixview.cli import main
from mixview.evaluate import evaluate, evaluate_all, results
from mixview.evaluate import training_loop as supervised
from mixview.evaluate.base import TrainingStopped
from mixview.runs.run_directory import RunDirectory, RunDirectoryError, read_metrics
from tests.evaluate.small_encoders import colors, run_folder
from tests.train.running import StopAt, assert_same, last_state, lines, start, start_ranks
from tests.train.test_scale_out import launch, mixview_command

OPTIONS = {
    "linear": ["--epochs", "4", "--batch_size", "16"],
    "probe": ["--epochs", "4", "--batch_size", "16"],
    "semi-supervised": ["--epochs", "4", "--batch_size", "8", "--fractions", "[0.5]", "--head_rate", "10"],
    "supervised": ["--epochs", "4", "--batch_size", "16", "--lr", "0.01"],
}
"""Twelve steps each; of linear, which takes the short last batch too, sixteen."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seventeen images of each of three colors to train on: the last batch of 16 is of three images."""
    return colors(tmp_path_factory.mktemp("colors") / "set", 17, 8)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_folder(tmp_path_factory.mktemp("encoder") / "run")


def command(protocol: str, encoder: Path, folder: Path, out: Path, *more: str) -> list[str]:
    """The arguments of `mixview` for a short training that logs and saves often."""
    return [
        *("evaluate", protocol, str(encoder), "--data", str(folder), "--device", "cpu", "--workers", "0"),
        *("--out", str(out), "--logging.log_every", "1", "--logging.checkpoint_every", "3", *OPTIONS[protocol], *more),
    ]


def training(out: Path) -> Path:
    """The folder of the one training that was kept there."""
    (config,) = (out / results.FOLDER).rglob("config.yaml")
    return config.parent


def assert_same_trainings(one: Path, other: Path) -> None:
    """The same weights and optimizer state, metrics, accuracies and results, bit for bit."""
    assert_same(last_state(training(one)), last_state(training(other)))
    for name in ("metrics.jsonl", "accuracy.json"):
        assert (training(one) / name).read_bytes() == (training(other) / name).read_bytes()
    (left,), (right,) = results.read(one), results.read(other)
    assert left.metrics == right.metrics
    assert left.file_name() == right.file_name()


@pytest.fixture(scope="module")
def whole(encoder: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every protocol, uninterrupted."""
    outs = {protocol: tmp_path_factory.mktemp(protocol) / "out" for protocol in OPTIONS}
    for protocol, out in outs.items():
        main(command(protocol, encoder, folder, out))
    return outs


@pytest.mark.parametrize("protocol", OPTIONS)
def test_a_stopped_training_raises_until_it_is_resumed_and_then_ends_as_if_never_stopped(
    protocol: str, whole: dict[str, Path], encoder: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = command(protocol, encoder, folder, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(StopAt, "step", 5)  # between two checkpoints, in the middle of an epoch
        patch.setattr(supervised, "GracefulStop", StopAt)
        with pytest.raises(SystemExit) as caught:
            main(arguments)
    assert "was stopped at step 5 of" in str(caught.value.code)
    assert "the same command with --resume continues it" in str(caught.value.code)
    assert results.read(tmp_path) == []
    assert RunDirectory.open(training(tmp_path)).status["state"] == "interrupted"
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert "already holds a run, interrupted at step 5: continue it with --resume" in str(caught.value.code)
    main([*arguments, "--resume"])
    assert RunDirectory.open(training(tmp_path)).status["state"] == "finished"
    assert_same_trainings(whole[protocol], tmp_path)


def test_what_is_finished_is_not_trained_again_by_resume_and_is_without(
    whole: dict[str, Path], encoder: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = command("linear", encoder, folder, tmp_path)
    main(arguments)
    began = RunDirectory.open(training(tmp_path)).environment["started"]
    (training(tmp_path) / "accuracy.json").write_text('{"avgpool": {"top-1": 0.125}}')
    main([*arguments, "--resume"])
    assert [result.metrics for result in results.read(tmp_path)] == [{"top-1": 12.5}]
    monkeypatch.setattr("mixview.runs.run_directory.describe_environment", lambda seed: {"started": "later"})
    main(arguments)
    assert RunDirectory.open(training(tmp_path)).environment["started"] == "later" != began
    assert_same_trainings(whole["linear"], tmp_path)


def test_a_restart_by_torchrun_keeps_what_is_finished(
    encoder: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command is the same, without --resume."""
    arguments = command("linear", encoder, folder, tmp_path)
    main(arguments)
    (training(tmp_path) / "accuracy.json").write_text('{"avgpool": {"top-1": 0.125}}')
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    main(arguments)
    assert [result.metrics for result in results.read(tmp_path)] == [{"top-1": 12.5}]


def test_killed_after_the_last_evaluation_was_logged(
    whole: dict[str, Path], encoder: Path, folder: Path, tmp_path: Path
) -> None:
    main(command("linear", encoder, folder, tmp_path))
    (training(tmp_path) / "accuracy.json").unlink()
    main(command("linear", encoder, folder, tmp_path, "--resume"))
    assert_same_trainings(whole["linear"], tmp_path)


def test_resuming_nothing_is_said_and_other_test_images_are_noticed(
    encoder: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "set"
    shutil.copytree(folder, data)
    main(command("linear", encoder, data, tmp_path / "out", "--resume"))
    assert "There is nothing to resume in" in " ".join(capsys.readouterr().err.split())
    Image.new("RGB", (20, 20), "red").save(data / "val" / "red" / "000.png")
    with pytest.raises(SystemExit, match=r"the data has changed since the run in .* began"):
        main(command("linear", encoder, data, tmp_path / "out", "--resume"))


def test_another_encoder_of_the_same_name_is_noticed(
    encoder: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(**options: Any) -> None:
        evaluate(
            str(encoder),
            "linear",
            data=str(folder),
            workers=0,
            device="cpu",
            out=str(tmp_path),
            epochs=1,
            batch_size=16,
            **options,
        )

    run()
    monkeypatch.setattr("mixview.encoders.loading.LoadedEncoder.weights_key", lambda subject: "other")
    with pytest.raises(RunDirectoryError, match=r"weights_key was .* when the run in .* began and is other now"):
        run(resume=True)


def test_a_time_limit_stops_all_protocols_and_resume_finishes_them(
    encoder: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"data": str(folder), "workers": 0, "device": "cpu", "out": str(tmp_path)}
    options |= {"epochs": 2, "batch_size": 16, "skip": ["svm", "low-shot"]}
    with pytest.raises(TrainingStopped, match="was stopped at step 1 of"):
        evaluate_all(str(encoder), max_time="0.001s", **options)
    assert [result.protocol for result in results.read(tmp_path)] == ["knn"]  # kept, although linear did not end
    assert "knn" in capsys.readouterr().out
    found = evaluate_all(str(encoder), resume=True, **options)
    assert [result.protocol for result in found] == ["knn", "linear", "probe", "semi-supervised", "supervised"]


def close(one: Any, other: Any, name: str = "state") -> None:
    """The same up to the order of summation."""
    assert type(one) is type(other), name
    if isinstance(one, torch.Tensor):
        distance, norm = (one.double() - other).norm(), one.double().norm()
        assert float(distance) <= 1e-4 * float(norm) + 1e-6, f"{name}: {distance:.3g} apart, norm {norm:.3g}"
    elif isinstance(one, dict):
        assert list(one) == list(other), name
        for key in one:
            close(one[key], other[key], f"{name}[{key!r}]")
    elif isinstance(one, list | tuple):
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            close(left, right, f"{name}[{index}]")
    else:
        assert one == other, name


def finish(processes: list[Any], log: Path) -> None:
    for process in processes:
        process.join(120)
        assert process.exitcode == 0, "".join(each.read_text() for each in sorted(log.parent.glob(f"{log.name}*")))


@pytest.mark.parametrize("protocol", OPTIONS)
def test_two_processes_are_one(protocol: str, encoder: Path, folder: Path, tmp_path: Path) -> None:
    """After one epoch: from then on differences in the last digit grow, as they do between any two machines."""
    alone, out, log = tmp_path / "alone", tmp_path / "out", tmp_path / "log"
    main(command(protocol, encoder, folder, alone, "--epochs", "1"))
    finish(start_ranks(command(protocol, encoder, folder, out, "--epochs", "1"), log), log)
    (left, step), (right, other_step) = last_state(training(alone)), last_state(training(out))
    assert step == other_step == (4 if protocol == "linear" else 3)
    close(left, right)
    (one,), (two,) = results.read(alone), results.read(out)
    assert one.metrics == two.metrics
    printed = (tmp_path / "log.0").read_text()
    assert ("Batch norm is synchronized over 2 processes" in printed) == (protocol != "linear")
    assert "wrote" not in (tmp_path / "log.1").read_text()


@pytest.mark.slow
def test_devices_2_is_two_processes(whole: dict[str, Path], encoder: Path, folder: Path, tmp_path: Path) -> None:
    """Started by mixview itself, in the middle of all protocols: features first, then two trainings."""
    out, log = tmp_path / "out", tmp_path / "log"
    arguments = command(
        "linear", encoder, folder, out, "--devices", "2", "--skip", '["svm", "low-shot", "semi-supervised"]'
    )
    arguments[1] = "all"
    assert launch(mixview_command(arguments), log).wait(180) == 0, log.read_text()
    by_name = {result.protocol: result for result in results.read(out)}
    assert sorted(by_name) == ["knn", "linear", "probe", "supervised"]
    (expected,) = results.read(whole["linear"])
    assert by_name["linear"].metrics == expected.metrics
    assert log.read_text().count("wrote") == 1


def test_mixed_precision(encoder: Path, folder: Path, tmp_path: Path, whole: dict[str, Path]) -> None:
    main(command("semi-supervised", encoder, folder, tmp_path, "--precision", "bf16-mixed"))
    (result,) = results.read(tmp_path)
    assert result.settings["precision"] == "bf16-mixed"
    assert all(weight.dtype != torch.bfloat16 for weight in last_state(training(tmp_path))[0]["network"].values())
    exact, mixed = (read_metrics(training(out))[0]["loss"] for out in (whole["semi-supervised"], tmp_path))
    assert exact != mixed == pytest.approx(exact, rel=0.05)


def test_precision_is_chosen_and_stored(
    encoder: Path,
    folder: Path,
    tmp_path: Path,
    whole: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (on_a_cpu,) = results.read(whole["semi-supervised"])
    assert on_a_cpu.settings["precision"] == "32-true"
    monkeypatch.setattr("mixview.runs.devices.fastest_precision", lambda without_cuda: "bf16-mixed")
    main(command("semi-supervised", encoder, folder, tmp_path))
    printed = "".join(capsys.readouterr())
    assert "Precision: bfloat16 where that is safe" in printed
    (result,) = results.read(tmp_path)
    assert result.settings["precision"] == "bf16-mixed"
    exact, mixed = (read_metrics(training(out))[0]["loss"] for out in (whole["semi-supervised"], tmp_path))
    assert exact != mixed == pytest.approx(exact, rel=0.05)


def test_micro_batches_are_the_batch_where_nothing_depends_on_their_size(
    encoder: Path, folder: Path, tmp_path: Path, whole: dict[str, Path]
) -> None:
    main(command("linear", encoder, folder, tmp_path, "--accumulate_grad_batches", "4"))
    left, right = (last_state(training(out))[0] for out in (whole["linear"], tmp_path))
    close(left["network"], right["network"])
    with pytest.raises(SystemExit, match="--accumulate_grad_batches must be a whole number, at least 1, got 0"):
        main(command("linear", encoder, folder, tmp_path, "--accumulate_grad_batches", "0"))


def test_without_a_place_nothing_is_left_behind(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    evaluate("small", "linear", data=str(folder), workers=0, device="cpu", size=16, epochs=1)
    assert list(tmp_path.iterdir()) == []
    assert "results not saved" in capsys.readouterr().out
    with pytest.raises(TrainingStopped, match="small has no folder to keep checkpoints in: with --out FOLDER"):
        evaluate("small", "linear", data=str(folder), workers=0, device="cpu", size=16, epochs=2, max_time="0.001s")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("protocol", OPTIONS)
def test_killed_ten_times(protocol: str, whole: dict[str, Path], encoder: Path, folder: Path, tmp_path: Path) -> None:
    """With SIGKILL at random moments: starting, training, saving, evaluating; the end is the uninterrupted run's."""
    rng = random.Random(protocol)
    out, log = tmp_path / "out", tmp_path / "log"
    more = ("--epochs", "16", "--logging.checkpoint_every", "2")
    expected = tmp_path / "expected"
    main(command(protocol, encoder, folder, expected, *more))
    steps = [json.loads(line)["step"] for line in (training(expected) / "metrics.jsonl").read_text().splitlines()][-1]
    killed_at = []
    for kill in range(10):
        process = start(command(protocol, encoder, folder, out, *more, "--resume"), log)
        target = (killed_at[-1] if killed_at else 0) + rng.uniform(0, 1.6 * steps / 10)
        end = time.monotonic() + 60
        while process.is_alive() and time.monotonic() < end:
            metrics = list((out / results.FOLDER).rglob("metrics.jsonl"))
            if kill % 4 == 3 or (metrics and lines(metrics[0]) >= target):
                break
            time.sleep(0.002)
        time.sleep(rng.uniform(0.0, 0.05 if kill % 4 != 3 else 1.5))
        process.kill()
        process.join()
        found = list((out / results.FOLDER).rglob("step-*.pt"))
        killed_at.append(max((int(path.stem[5:]) for path in found), default=0))
    print(f"{protocol}: last checkpoints at steps {killed_at} of {steps}")
    assert len(set(killed_at)) > 3, killed_at
    finish([start(command(protocol, encoder, folder, out, *more, "--resume"), log)], log)
    assert_same_trainings(expected, out)
