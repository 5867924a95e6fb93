"""What goes wrong around a run: each fault gets one clear sentence, and none costs the last good state."""

import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import mixview
from mixview.cli import main
from mixview.runs.checkpoints import CheckpointError, Checkpoints
from mixview.runs.finite import NonFiniteLoss
from mixview.runs.launching import one_training_per_process
from mixview.runs.run_directory import RunDirectory, RunDirectoryError
from mixview.train.config import MonitorConfig
from mixview.train.loop import Engine
from mixview.train.monitor import Monitor
from tests.data.writing import write_classes
from tests.train.running import assert_same_runs, command, last_state, lines, resume, start, stopped_at, tiny, wait_for


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to."""
    return mixview.pretrain(**tiny(tmp_path_factory.mktemp("whole") / "run"))


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A longer one."""
    return mixview.pretrain(**tiny(tmp_path_factory.mktemp("long") / "run", epochs=10))


@pytest.mark.parametrize(
    ("number", "workers", "everyone"),
    [(signal.SIGINT, 0, False), (signal.SIGTERM, 2, True)],
)
def test_a_signal_saves_and_ends_the_run_and_resume_goes_on(
    number: signal.Signals, workers: int, everyone: bool, long: Path, tmp_path: Path
) -> None:
    """Also when it goes to the workers too, as a terminal's Ctrl-C and a scheduler's SIGTERM do."""
    out, log = tmp_path / "run", tmp_path / "log"
    process = start(command(out, "--epochs", "10", "--workers", str(workers)), log)
    wait_for(lambda: lines(out / "metrics.jsonl") >= 3, what=log.read_text() if log.exists() else "the first steps")
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)  # it must not come to its end meanwhile
    with pytest.raises(SystemExit, match=rf"process {process.pid} on .* is training into .* right now: wait for it"):
        main(command(out, "--resume"))
    if everyone:
        os.killpg(process.pid, number)
    else:
        os.kill(process.pid, number)
    os.kill(process.pid, signal.SIGCONT)
    process.join(30)
    said = log.read_text()
    assert process.exitcode == 128 + number, said
    name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
    assert f"Stopped by {name} at step" in said
    assert "Traceback" not in said
    status = RunDirectory.open(out).status
    assert status["state"] == "interrupted"
    assert 3 <= status["step"] == last_state(out)[1] < 40
    resume(out)
    assert_same_runs(long, out)


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_loss_that_is_not_finite_keeps_the_last_good_checkpoint(
    where: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is a step saved whose gradient overflowed while its loss did not."""
    original = Engine.accumulate_gradient

    def broken(engine: Engine, views: Any) -> Any:
        loss, targets = original(engine, views)
        if engine.step == 5 and where == "loss":
            loss = loss * torch.nan
        elif engine.step == 5:
            next(engine.method.parameters()).grad.fill_(torch.inf)
        return loss, targets

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "accumulate_gradient", broken)
        with pytest.raises(NonFiniteLoss, match=r"not finite at or before step 6 .*nothing was saved.*optimizer\.lr"):
            mixview.pretrain(**tiny(out, {"checkpoint_every": 1}))
    assert last_state(out)[1] == 5
    status = RunDirectory.open(out).status
    assert status["state"] == "failed"
    assert "not finite" in status["message"]
    resume(out)
    assert_same_runs(whole, out)


def test_a_learning_rate_that_explodes_is_reported_by_the_command(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"mixview: the loss was not finite at or before step \d"):
        main(command(tmp_path / "run", "--optimizer.name", "sgd", "--optimizer.lr", "1e30", "--method", "byol"))
    mixview.pretrain(**tiny(tmp_path / "run", epochs=1, method="byol"))  # nothing was saved, nothing is in the way


def test_a_full_disk_costs_nothing_but_the_checkpoint(whole: Path, tmp_path: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    with stopped_at(4):
        mixview.pretrain(**tiny(out))
    size = (out / "checkpoints" / "step-000000004.pt").stat().st_size
    process = start(command(out, "--resume"), log, limit=size // 2)
    process.join(30)
    said = log.read_text()
    assert process.exitcode == 1
    assert said.splitlines()[-1].startswith(f"mixview: could not write the checkpoint {out}/checkpoints/step-000000008")
    assert "free some space on that disk" in said
    assert "the last good checkpoint, of step 4, is intact" in said
    assert "Traceback" not in said
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["step-000000004.pt"]
    assert RunDirectory.open(out).status["state"] == "failed"
    resume(out)
    assert_same_runs(whole, out)


def test_a_disk_that_is_full_from_the_start(tmp_path: Path) -> None:
    process = start(command(tmp_path / "run"), tmp_path / "log", limit=2500)
    process.join(60)
    said = (tmp_path / "log").read_text()
    assert process.exitcode == 1, said
    assert said.splitlines()[-1].startswith("mixview: cannot draw the views of the run in"), said
    assert "free some space" in said.splitlines()[-1]


@pytest.mark.slow
def test_a_disk_that_is_full_for_the_metrics(tmp_path: Path) -> None:
    """TensorBoard is a copy for looking at: it may not hide what happened."""
    words = ("--epochs", "300", "--monitor.checkpoint_every", "10000", "--monitor.loggers", "tensorboard")
    process = start(command(tmp_path / "run", *words), tmp_path / "log", limit=21000)
    process.join(200)
    said = (tmp_path / "log").read_text()
    assert process.exitcode == 1, said
    assert "TensorBoard and W&B are left out from step" in said
    assert said.splitlines()[-1].startswith("mixview: cannot write the metrics of the run in"), said


@pytest.mark.parametrize("place", ["file/run", "/proc/mixview/run"])
def test_an_output_that_cannot_be_written(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SystemExit, match=r"mixview: cannot make the run folder .*run: .*; .*choose another --out$"):
        main(command(tmp_path / place))


def test_an_existing_run_is_not_overwritten(whole: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    with pytest.raises(SystemExit, match=r"already holds a run, finished at step 8: continue it with --resume"):
        main(command(whole))
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.name != ".lock"} == {
        path: when for path, when in before.items() if path.name != ".lock"
    }
    with pytest.raises(SystemExit, match="does not exist; name the --out of an earlier run"):
        main(command(whole / "absent", "--resume"))


def test_data_that_changed_is_not_trained_on(tmp_path: Path) -> None:
    write_classes(tmp_path / "photos", {"cat": 20, "dog": 20})
    options = tiny(tmp_path / "run", data=str(tmp_path / "photos"), data_options=None, epochs=1)
    out = mixview.pretrain(**options)
    write_classes(tmp_path / "more", {"cat": 21})
    shutil.copy(next((tmp_path / "more").rglob("*.*g")), tmp_path / "photos" / "cat" / "new.png")
    with pytest.raises(
        RunDirectoryError, match=r"the data has changed since .* \(40 images then, 41 now\): restore it"
    ):
        resume(out, epochs=2)
    (tmp_path / "photos" / "cat" / "new.png").unlink()
    (tmp_path / "photos").rename(tmp_path / "moved")
    resume(out, epochs=2, data=str(tmp_path / "moved"))
    assert last_state(out)[1] == 2 * last_state(out)[1] // 2


def copy_of(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "copy"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": "byol"}, "method.name was simclr when the run in .* began and is byol now"),
        ({"batch_size": 32}, "batch_size was 16 when"),
        ({"seed": 1}, "seed was 0 when"),
    ],
)
def test_another_experiment_is_not_a_resume(change: dict[str, Any], words: str, whole: Path, tmp_path: Path) -> None:
    out = copy_of(whole, tmp_path)
    with pytest.raises(RunDirectoryError, match=words):
        resume(out, epochs=3, **change)
    assert_same_runs(whole, out)


def test_a_checkpoint_of_another_method_is_refused(whole: Path, tmp_path: Path) -> None:
    out = copy_of(whole, tmp_path)
    other = mixview.pretrain(**tiny(tmp_path / "other", method="byol", epochs=1))
    shutil.rmtree(out / "checkpoints")
    shutil.copytree(other / "checkpoints", out / "checkpoints")
    with pytest.raises(
        SystemExit, match=r"mixview: the checkpoint does not fit this SimCLR: it is from another method"
    ):
        main(command(out, "--resume", "--epochs", "3"))
    assert Checkpoints(out / "checkpoints").steps() == [4]


@pytest.mark.parametrize("damage", ["truncated", "tampered"])
def test_a_damaged_checkpoint_is_passed_over(damage: str, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with stopped_at(7):
        mixview.pretrain(**tiny(out, {"checkpoint_every": 3}))
    newest = out / "checkpoints" / "step-000000007.pt"
    content = bytearray(newest.read_bytes())
    if damage == "truncated":
        del content[len(content) // 2 :]
    else:
        content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    with pytest.warns(UserWarning, match=r"step-000000007.pt is (cut|damaged).*resuming from the .*step 6 instead"):
        resume(out, monitor=tiny(out)["monitor"])
    assert_same_runs(whole, out)


def test_without_a_good_checkpoint_a_run_is_not_begun_anew(whole: Path, tmp_path: Path) -> None:
    out = copy_of(whole, tmp_path)
    for path in (out / "checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be used: .*; restore one from a copy"):
        resume(out, epochs=3)
    assert len(list((out / "checkpoints").iterdir())) == 2


def files(folder: Path) -> dict[str, bytes]:
    """What a run's folder holds, apart from its lock."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def test_a_run_whose_checkpoints_are_gone_is_not_begun_anew(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    shutil.rmtree(out / "checkpoints")
    before = files(out)
    with pytest.raises(RunDirectoryError, match=r"had reached step 8, and its checkpoints are gone: put .*s back"):
        resume(out, epochs=3)
    (out / "status.json").unlink()  # the encoder tells of it too
    with pytest.raises(RunDirectoryError, match="had reached step 8"):
        resume(out, epochs=3)
    assert files(out) == {name: content for name, content in before.items() if name != "status.json"}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"seed": 5}, "seed was 0"),
        ({"epochs": 1}, "has done 2 epochs already"),
        ({"workers": -1}, "--workers must be a whole number, at least 0 and at most 1024, got -1"),
        ({"devices": "0,1"}, "CUDA_VISIBLE_DEVICES=0,1"),
        ({"epochs": 3, "data": "absent"}, "neither a path nor a source"),
        ({"epochs": 3, "max_time": "soon"}, "a time limit"),
    ],
)
def test_a_wrong_resume_changes_nothing(change: dict[str, Any], sentence: str, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    before = files(out)
    with pytest.raises((ValueError, RuntimeError), match=sentence):
        resume(out, **change)
    assert files(out) == before


def test_an_evaluation_that_fails_is_reported_and_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(self: Monitor, *_: object) -> None:
        raise IndexError("Target -1 is out of bounds.")

    whole = mixview.pretrain(**tiny(tmp_path / "whole"))
    monkeypatch.setattr(
        Monitor, "knn_accuracy", fail
    )  # in the middle of an evaluation, which must leave no trace in the network
    out = mixview.pretrain(**tiny(tmp_path / "run", {"eval_every": 1}))
    assert_same_runs(whole, out)
    said = " ".join(capsys.readouterr().err.split())
    assert "The evaluation after step 4 failed; training continues: IndexError: Target -1 is out of bounds." in said


def test_killed_between_a_checkpoint_and_its_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint is written first, and a resumed run evaluates again: its metrics are those of a whole one."""
    whole = mixview.pretrain(**tiny(tmp_path / "whole", {"eval_every": 1}))

    def die(self: Monitor) -> None:
        raise KeyboardInterrupt

    out, evaluate = tmp_path / "run", Monitor.evaluate
    monkeypatch.setattr(Monitor, "evaluate", die)
    with pytest.raises(KeyboardInterrupt):
        mixview.pretrain(**tiny(out, {"eval_every": 1}))
    assert last_state(out)[1] == 4
    monkeypatch.setattr(Monitor, "evaluate", evaluate)
    with stopped_at(6):
        resume(out)
    monkeypatch.setattr(Monitor, "evaluate", die)
    with pytest.raises(KeyboardInterrupt):
        resume(out)
    assert last_state(out)[1] == 8
    monkeypatch.setattr(Monitor, "evaluate", evaluate)
    resume(out)
    assert_same_runs(whole, out)


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl", "checkpoints", "tensorboard", "evaluations", "views.png"])
def test_nothing_is_written_through_a_link(name: str, whole: Path, tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    shutil.copytree(whole, out)
    elsewhere.mkdir()
    target = elsewhere / "kept"
    if "." in name:
        target.write_text("mine")
        (out / name).unlink(missing_ok=True)
    else:
        target.mkdir()
        if name == "checkpoints":
            shutil.copytree(out / name, target, dirs_exist_ok=True)
            shutil.rmtree(out / name)
    (out / name).symlink_to(target)
    before = files(elsewhere)
    if name in ("metrics.jsonl", "views.png"):
        resume(out, epochs=3)  # the file is replaced, and with it the link
    else:
        with pytest.raises((RunDirectoryError, CheckpointError), match="is a link, which is not followed"):
            resume(out, epochs=3, monitor=MonitorConfig(**tiny(out)["monitor"].__dict__ | {"loggers": "tensorboard"}))
    assert files(elsewhere) == before


def test_a_folder_that_is_deleted_meanwhile_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    take_step = Engine.take_step

    def delete(self: Engine, *views: Any) -> Any:
        if self.step == 2:
            shutil.rmtree(out)
        return take_step(self, *views)

    monkeypatch.setattr(Engine, "take_step", delete)
    with pytest.raises(
        (RunDirectoryError, CheckpointError), match="No such file or directory; put the run's folder back"
    ):
        mixview.pretrain(**tiny(out))
    assert not out.exists()


def test_two_trainings_in_one_process_are_refused(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def second() -> None:
        try:
            mixview.pretrain(**tiny(tmp_path / "second"))
        except ValueError as error:
            errors.append(error)

    thread = threading.Thread(target=second)
    with one_training_per_process():
        thread.start()
        thread.join()
    assert "this process is training already" in str(errors[0])
    assert not (tmp_path / "second").exists()


def test_a_backbone_that_a_file_names_needs_consent(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    with pytest.raises(
        ValueError, match=r"config.yaml names the backbone .* would run its code: add --trust_remote_code"
    ):
        mixview.resume(out, epochs=3)
    with pytest.raises(SystemExit, match=r"names the backbone 'tests\.train.running:backbone'"):
        main(["pretrain", "--resume", "--out", str(out), "--epochs", "3"])
    main(["pretrain", "--resume", "--out", str(out), "--epochs", "3", "--trust_remote_code"])
    assert RunDirectory.open(out).status["step"] == 12


def test_the_folder_of_the_images_is_not_that_of_the_run(tmp_path: Path) -> None:
    write_classes(tmp_path / "photos", {"cat": 10, "dog": 10})
    with pytest.raises(ValueError, match="--out is the folder of the images"):
        mixview.pretrain(**tiny(tmp_path / "photos", data=str(tmp_path / "photos"), data_options=None))


def test_a_path_is_a_folder_too(tmp_path: Path) -> None:
    assert mixview.pretrain(**(tiny("") | {"out": tmp_path / "run", "epochs": 1, "max_time": 90})) == tmp_path / "run"
