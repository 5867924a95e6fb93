"""`mixview pretrain`: what a run leaves, and that a resumed one is the uninterrupted one, bit for bit."""

import os
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import mixview
from mixview import recipes
from mixview.cli import main
from mixview.encoders.backbones import build
from mixview.encoders.encoder_file import load_encoder, save_encoder
from mixview.extensions import METHODS
from mixview.methods import BarlowTwinsConfig, MoCo, MoCoV2Config, SwAVConfig, VICRegConfig, Views
from mixview.runs.checkpoints import Checkpoints
from mixview.runs.run_directory import RunDirectory, RunDirectoryError, read_metrics
from mixview.train.config import MixingConfig, OptimizerConfig, PretrainConfig, to_plain
from mixview.train.loop import Engine
from tests.train.running import (
    METHOD_NAMES,
    assert_same,
    assert_same_runs,
    command,
    last_state,
    metrics_of,
    resume,
    small_method,
    stopped_at,
    tiny,
)


def test_a_run_leaves_everything(tmp_path: Path) -> None:
    out = mixview.pretrain(
        **tiny(
            tmp_path / "run",
            {"eval_every": 1, "loggers": "tensorboard", "estimate": True, "log_every": 3},
            backbone="small",
            objective="wbsim",
        )
    )
    run = RunDirectory.open(out)
    assert run.config["method"]["name"] == "simclr"
    assert run.config["augment"] == "simclr-small"
    assert run.data["count"] == 64
    assert run.data["fingerprint"]
    assert {"torch", "mixview", "python"} <= run.environment["versions"].keys()
    assert run.environment["seed"] == 0
    assert {"state": "finished", "step": 8, "epoch": 2.0}.items() <= run.status.items()
    records = read_metrics(out)
    assert [each["step"] for each in records if "loss" in each] == [3, 4, 6, 8]
    looks = [each for each in records if "knn" in each]
    assert [each["step"] for each in looks] == [4, 8]
    assert {"effective_rank", "alignment", "uniformity"} <= looks[0].keys()
    assert list((out / "tensorboard").glob("events*"))
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["step-000000004.pt", "step-000000008.pt"]
    assert (out / "views.png").stat().st_size > 1000
    encoder, header = load_encoder(out)
    assert header["metadata"]["method"] == "simclr"
    assert header["metadata"]["step"] == "8"
    features = encoder(torch.rand(2, 3, 16, 16))
    assert features.shape == (2, 128)
    assert features.isfinite().all()
    assert last_state(out)[1] == 8


@pytest.mark.parametrize(
    ("method", "objective", "workers"),
    [
        ("simclr", "wbsim", 2),
        ("mocov2", "wbsim", 0),
        ("byol", "wbsim", 0),
        ("simsiam", "wbsim", 0),
        ("simclr", "sim", 0),
    ],
)
def test_resumed_in_the_middle_of_an_epoch_is_the_uninterrupted_run(
    method: Any, objective: Any, workers: int, tmp_path: Path
) -> None:
    """Step 6 of 2 × 4, and once more at 7; the lines of the interrupted steps are no different from any others'."""
    watch = {"log_every": 2, "eval_every": 2}
    options = {"method": method, "objective": objective}
    whole = mixview.pretrain(**tiny(tmp_path / "whole", watch, **options))
    with stopped_at(5):
        broken = mixview.pretrain(**tiny(tmp_path / "broken", watch, **options, workers=workers))
    assert RunDirectory.open(broken).status["state"] == "interrupted"
    assert last_state(broken)[1] == 5
    with stopped_at(7):
        resume(broken)
    resume(broken)
    assert RunDirectory.open(broken).status["state"] == "finished"
    assert len(RunDirectory.open(broken).environment["resumed"]) == 2
    assert_same_runs(whole, broken)


@pytest.mark.parametrize("stop", [4])
def test_a_stop_at_the_end_of_an_epoch_adds_no_look(stop: int, tmp_path: Path) -> None:
    watch = {"eval_every": 2}
    whole = mixview.pretrain(**tiny(tmp_path / "whole", watch))
    with stopped_at(stop):
        broken = mixview.pretrain(**tiny(tmp_path / "broken", watch))
    resume(broken)
    assert_same_runs(whole, broken)


def test_a_finished_run_is_extended(tmp_path: Path) -> None:
    out = mixview.pretrain(**tiny(tmp_path / "run", epochs=1))
    resume(out)  # nothing to do, and nothing lost
    assert RunDirectory.open(out).status["state"] == "finished"
    main(command(out, "--resume", "--epochs", "3"))
    assert {"state": "finished", "step": 12}.items() <= RunDirectory.open(out).status.items()
    assert [each["step"] for each in read_metrics(out)] == list(range(1, 13))
    assert RunDirectory.open(out).config["epochs"] == 3
    with pytest.raises(RunDirectoryError, match=r"has done 3 epochs already.*epochs 1"):
        resume(out, epochs=1)


def test_a_schedule_without_an_end_makes_an_extended_run_equal_a_long_one(tmp_path: Path) -> None:
    settings = OptimizerConfig(schedule="constant")
    long = mixview.pretrain(**tiny(tmp_path / "long", optimizer=settings))
    short = mixview.pretrain(**tiny(tmp_path / "short", optimizer=settings, epochs=1))
    resume(short, epochs=2)
    assert_same(last_state(long), last_state(short))
    assert metrics_of(long) == metrics_of(short)


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_accumulation(method: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EMA and queue move once an optimizer step, with the keys of all micro-batches."""
    engines: list[Engine] = []
    updated: list[int] = []
    take_step = Engine.take_step

    def watched(engine: Engine, views: Views) -> tuple[torch.Tensor, float]:
        if engine not in engines:
            engines.append(engine)
            update = engine.method.update
            engine.method.update = lambda *targets, progress: (  # type: ignore[method-assign]
                updated.append(len(targets)),
                update(*targets, progress=progress),
            )[1]
        return take_step(engine, views)

    monkeypatch.setattr(Engine, "take_step", watched)
    monkeypatch.setattr(Engine, "__hash__", object.__hash__, raising=False)
    out = mixview.pretrain(**tiny(tmp_path / "run", method=method, epochs=1, accumulate_grad_batches=2))
    assert updated == [2] * 4
    state, step = last_state(out)
    assert step == 4
    if isinstance(engines[0].method, MoCo):
        assert state["method"]["queue.pointer"] == 4 * 16 % 64
        assert int(state["method"]["_extra_state"]) == 4


def test_swav_freezes_and_queues_across_micro_batches_and_resumes(tmp_path: Path) -> None:
    """Frozen for the first of three epochs of 4 steps; the queue of 32 fills from the second on, 16 per step."""
    method = SwAVConfig(hidden=16, dim=8, prototypes=12, queue_size=32, epoch_queue_starts=1)
    watch = {"checkpoint_every": 1, "keep": 12}
    options: dict[str, Any] = {
        "method": method,
        "objective": "wbsim",
        "accumulate_grad_batches": 2,
        "epochs": 3,
    }
    whole = mixview.pretrain(**tiny(tmp_path / "whole", watch, **options))
    states = [Checkpoints.load(path)[0]["method"] for path in sorted((whole / "checkpoints").iterdir())]
    assert [each["_extra_state"].tolist() for each in states] == [
        [step, min(32, 16 * max(0, step - 4))] for step in range(1, 13)
    ]
    assert [int(each["queues.1.pointer"]) for each in states] == [0] * 4 + [16, 0] * 4
    first = states[0]["prototypes.weight"]
    kept = [torch.allclose(each["prototypes.weight"], first, atol=1e-6) for each in states]
    assert kept == [True] * 4 + [False] * 8
    assert not torch.allclose(states[0]["online.projector.0.weight"], states[3]["online.projector.0.weight"])
    for queue in ("queues.0.keys", "queues.1.keys"):
        assert torch.equal(states[0][queue], states[3][queue])
        assert torch.equal(states[5][queue][16:], states[6][queue][16:])  # half of it is new, half stays
        assert not torch.allclose(states[5][queue][:16], states[6][queue][:16])
    broken = tmp_path / "broken"
    for stop in (3, 6, 9):
        with stopped_at(stop):
            resume(broken) if broken.exists() else mixview.pretrain(**tiny(broken, watch, **options))
    resume(broken)
    assert_same_runs(whole, broken)


def test_exact_batch_is_the_full_batch(tmp_path: Path) -> None:
    """Without batch norm; MoCo and the others have no such thing."""
    from tests.train import running

    patch = pytest.MonkeyPatch()
    patch.setattr("mixview.train.build.build_method", running.build_plain_method)
    try:
        full = mixview.pretrain(**tiny(tmp_path / "full"))
        exact = mixview.pretrain(**tiny(tmp_path / "exact", accumulate_grad_batches=4, grad_cache=True))
        other = mixview.pretrain(**tiny(tmp_path / "other", accumulate_grad_batches=4))
    finally:
        patch.undo()
    losses = [[each["loss"] for each in read_metrics(out)] for out in (full, exact, other)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0] != pytest.approx(losses[2], rel=1e-2)
    with pytest.raises(
        ValueError,
        match="grad_cache is for methods whose negatives are the batch, such as simclr and imix, not for byol",
    ):
        mixview.pretrain(**tiny(tmp_path / "byol", method="byol", grad_cache=True))


def test_what_fits_the_length_of_a_run_stays_when_it_is_extended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More steps would have another momentum by default, and the checkpoint's network none of it."""
    monkeypatch.setattr("mixview.nn.SHORT_RUN", 10)
    out = mixview.pretrain(**tiny(tmp_path / "run", method=MoCoV2Config(hidden=16, dim=8)))
    method = RunDirectory.open(out).config["method"]
    assert (method["name"], method["momentum"], method["queue_size"]) == ("mocov2", 0.99, 32)
    resume(out, epochs=5)
    assert RunDirectory.open(out).config["method"] == method


def test_a_backbone_that_cannot_have_channels_last_does_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mixview.pretrain(**tiny(tmp_path / "run", backbone="tests.train.running:viewing_backbone"))
    assert "calls view on feature maps, so it runs without channels_last" in capsys.readouterr().err


@pytest.mark.parametrize(("method", "zero_init", "zeros"), [("simsiam", None, True), ("simsiam", False, False)])
def test_residual_blocks_start_as_shortcuts_where_asked(
    method: Any, zero_init: bool | None, zeros: bool, tmp_path: Path
) -> None:
    still = OptimizerConfig("sgd", lr=1e-12)
    options = tiny(tmp_path / "run", method=method, backbone="small", zero_init=zero_init, optimizer=still, epochs=1)
    encoder, _ = load_encoder(mixview.pretrain(**options))
    assert (encoder.get_submodule("layer1.0.bn2").weight.abs().max().item() < 1e-6) is zeros


def test_number_of_workers_changes_nothing(tmp_path: Path) -> None:
    none = mixview.pretrain(**tiny(tmp_path / "none", epochs=1))
    two = mixview.pretrain(**tiny(tmp_path / "two", epochs=1, workers=2))
    assert_same_runs(none, two)


def test_views_made_on_the_device(tmp_path: Path) -> None:
    """Resumed and with workers it is the same run, and it begins as one whose views the workers make."""
    options: dict[str, Any] = {"method": "byol", "augment_device": "device"}
    whole = mixview.pretrain(**tiny(tmp_path / "whole", **options))
    with stopped_at(5):
        broken = mixview.pretrain(**tiny(tmp_path / "broken", **options, workers=2))
    resume(broken)
    assert_same_runs(whole, broken)
    usual = mixview.pretrain(**tiny(tmp_path / "usual", method="byol", epochs=1))
    assert read_metrics(usual)[0]["loss"] == pytest.approx(read_metrics(whole)[0]["loss"], abs=1e-4)


def test_a_try_leaves_no_trace(tmp_path: Path) -> None:
    plain = mixview.pretrain(**tiny(tmp_path / "plain", method="mocov2", epochs=1))
    tried = mixview.pretrain(**tiny(tmp_path / "tried", {"estimate": True}, method="mocov2", epochs=1))
    assert_same_runs(plain, tried)


def test_mixtures_grow_with_training(tmp_path: Path) -> None:
    def losses(name: str, objective: str, warmup: tuple[float, float] | None) -> list[float]:
        mixing = MixingConfig(warmup=warmup)
        out = mixview.pretrain(**tiny(tmp_path / name, method="mocov2", objective=objective, mixing=mixing))
        return [record["loss"] for record in read_metrics(out)]

    plain, mixed = losses("sim", "sim", None), losses("bsim", "bsim", None)
    grown = losses("grown", "bsim", (0.5, 0.5))  # 8 steps: the first four mix nothing
    assert grown[:4] == plain[:4] != mixed[:4]
    assert grown[4] != plain[4]


@pytest.mark.parametrize(("objective", "parents_known"), [("sim", False), ("bsim", True), ("mixaug", False)])
def test_a_look_asks_after_parents_where_there_are_any(objective: Any, parents_known: bool, tmp_path: Path) -> None:
    options = {"method": "mocov2", "objective": objective, "epochs": 1}
    looked = read_metrics(mixview.pretrain(**tiny(tmp_path / "run", {"eval_every": 1}, **options)))[-1]
    assert "effective_rank" in looked
    assert any(name.startswith("mixture") for name in looked) == parents_known


@pytest.mark.parametrize("objective", ["wbsim", "unmix"])
@pytest.mark.parametrize("method", ["imix", "imix-moco", "mixco", "mochi", "swav", "barlow-twins", "vicreg", "mocov3"])
def test_related_methods_train_and_resume(method: Any, objective: Any, tmp_path: Path) -> None:
    options = {"method": method, "objective": objective, "mixing": MixingConfig(lam_per="batch"), "epochs": 1}
    run = mixview.pretrain(**tiny(tmp_path / "run", **options))
    assert RunDirectory.open(resume(run, epochs=2)).status["step"] == 8


@pytest.mark.parametrize(
    "method", [BarlowTwinsConfig(hidden=16, dim=8, mix_regularizer=4.0), VICRegConfig(hidden=16, dim=8), "mocov3"]
)
def test_newer_methods_resume_bit_for_bit(method: Any, tmp_path: Path) -> None:
    options = {"method": method, "objective": "wbsim", "accumulate_grad_batches": 2}
    whole = mixview.pretrain(**tiny(tmp_path / "whole", **options))
    with stopped_at(3):
        mixview.pretrain(**tiny(tmp_path / "broken", **options))
    assert_same_runs(whole, resume(tmp_path / "broken"))


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_takes_a_step(name: str, tmp_path: Path) -> None:
    """Its settings go through the command line as they are, but for their size and that of the network."""
    settings = recipes.read(name).settings
    vit = settings["backbone"].startswith("timm/vit")
    backbone = "small-vit" if vit else "small" if "weights" in settings else "tests.train.running:backbone"
    arguments = ["pretrain", "--recipe", name, "--out", str(tmp_path / "run")]
    size = 28 if vit else 16  # local crops of 12 pixels, three patches wide
    arguments += ["--data", "scenes", "--data-options", f'{{"count": 16, "size": {size}}}']
    arguments += ["--size", str(size), "--batch_size", "16"]
    arguments += ["--epochs", "1", "--backbone", backbone, "--workers", "0"]
    if "weights" in settings:  # ImageNet's, or those of an earlier run
        start = build(backbone, size=size)
        save_encoder(tmp_path / "start.safetensors", start.encoder, start.spec, {})
        arguments += ["--weights", str(tmp_path / "start.safetensors")]
    arguments += ["--optimizer.warmup_epochs", "0", "--no_monitor.estimate", "--monitor.loggers", "none"]
    arguments += ["--monitor.eval_every", "0", "--monitor.log_every", "1", "--monitor.keep", "1"]
    options = {field.name for field in fields(METHODS.load(settings["method"]["name"]))}
    for option, value in (("queue_size", 32), ("hidden", 16), ("dim", 8), ("bn_splits", 1)):
        arguments += [f"--method.{option}", str(value)] if option in options else []
    main(arguments)
    run = RunDirectory.open(tmp_path / "run")
    assert {"state": "finished", "step": 1}.items() <= run.status.items()
    assert read_metrics(run.path)[0]["loss"] is not None
    assert run.config["method"]["name"] == settings["method"]["name"]
    assert run.config["objective"] == settings["objective"]
    changed = ("warmup_epochs",)
    for key, value in settings["optimizer"].items():
        assert key in changed or run.config["optimizer"][key] == value


def test_recipes_are_listed_and_a_wrong_name_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="there is no recipe paper/mocov3: did you mean paper/mocov"):
        main(["pretrain", "--recipe", "paper/mocov3", "--data", "scenes"])
    main(["recipes"])
    text = capsys.readouterr().out
    assert all(name.split("/")[1][:8] in text for name in recipes.names())


def test_help_fits_80_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as caught:
        main(["pretrain", "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert max(len(line) for line in text.splitlines()) <= 80
    for word in ("--data", "--method", "--objective", "--backbone", "--resume", "--devices", "--monitor", "--recipe"):
        assert word in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--epohcs", "3"], ["--epohcs", "did you mean --epochs?"]),
        (["--optimizer.rl", "3"], ["--optimizer.rl", "did you mean --optimizer.lr?"]),
        (["--method", "mocov4"], ["method", "mocov4", "mocov3"]),
        (["--objective", "bsin"], ["objective", "sim", "bsim", "wbsim"]),
        (["--precision", "16"], ["precision", "32-true", "bf16-mixed", "16-mixed"]),
        (["--epochs", "many"], ["--epochs", "many", "a whole number, at least 1"]),
        (["--mixing.partner", "self"], ["reversal", "permutation"]),
        (["--optimizer.name", "adam"], ["sgd", "lars", "adamw"]),
    ],
)
def test_mistakes_name_what_is_allowed(
    arguments: list[str], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(command(tmp_path / "run", *arguments))
    text = str(caught.value.code) + capsys.readouterr().err
    assert all(word in text for word in words), text
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"data": None}, "no training data: pass --data FOLDER"),
        ({"data": "absent/folder"}, "there is neither a path nor a source named absent/folder"),
        (
            {"batch_size": 128},
            "64 training images do not fill a batch of 128: pass --batch_size 64, or use more images",
        ),
        ({"backbone": "resnet51"}, "the nearest are"),
        ({"augment": "simcrl"}, "simclr"),
        ({"max_time": "soon"}, "a time limit is a number of seconds, or such as 45m, 1h30m, 2d; got 'soon'"),
        ({"epochs": 0}, "epochs"),
        ({"accumulate_grad_batches": 0}, "accumulate_grad_batches"),
        ({"accumulate_grad_batches": 32}, "accumulate_grad_batches"),
    ],
)
def test_what_cannot_work_says_so_and_can_be_corrected(options: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    """The folder of a run that never began is no unsupported_reason to the corrected one."""
    with pytest.raises((ValueError, OSError, RuntimeError), match=re.escape(sentence)):
        mixview.pretrain(**tiny(tmp_path / "run", **options))
    if "batch_size" in options or "backbone" in options:
        mixview.pretrain(**tiny(tmp_path / "run", epochs=1))


def test_python_takes_what_the_command_takes(tmp_path: Path) -> None:
    main(command(tmp_path / "command", "--epochs", "1", "--method", "byol"))
    mixview.pretrain(**tiny(tmp_path / "python", epochs=1, method="byol"))
    assert_same_runs(tmp_path / "command", tmp_path / "python")
    configs = [yaml.safe_load((tmp_path / name / "config.yaml").read_text()) for name in ("command", "python")]
    for config in configs:
        config.pop("out")
    assert_same(*configs)
    assert os.environ.get("WORLD_SIZE") is None
    assert to_plain(PretrainConfig(method=small_method("mocov2")))["method"]["queue_size"] == 64


def test_an_encoder_that_a_kill_kept_from_the_disk_is_written_on_resuming(tmp_path: Path) -> None:
    settings = tiny(tmp_path / "run", epochs=1)
    mixview.pretrain(**settings)
    exported = tmp_path / "run" / "encoder.safetensors"
    content = exported.read_bytes()
    exported.write_bytes(b"of an earlier checkpoint")
    folder = RunDirectory.open(tmp_path / "run")
    folder.set_status("running", folder.status["step"], folder.status["epoch"])
    mixview.pretrain(**(settings | {"resume": True}))
    assert exported.read_bytes() == content
    assert RunDirectory.open(tmp_path / "run").status["state"] == "finished"
