"""Tiny runs that the tests of training share: in this process, or in real ones that can be signalled and killed."""

import contextlib
import dataclasses
import json
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import mixview
from mixview import extensions
from mixview.encoders.backbones import Backbone
from mixview.methods import Method, MethodConfig, moco_v2
from mixview.runs.checkpoints import Checkpoints
from mixview.runs.graceful_stop import GracefulStop
from mixview.train.config import MonitorConfig, method_config
from tests.networks import METHODS, WIDTH, encoder
from tests.processes import context

QUIET: dict[str, Any] = {"estimate": False, "eval_every": 0, "loggers": "none", "log_every": 1}
SMALL = {"hidden": 16, "dim": 8, "queue_size": 64}
METHOD_NAMES = ("simclr", "mocov2", "byol", "simsiam")


def backbone() -> nn.Module:
    """The backbone `tests.train.running:backbone`, with batch norm."""
    torch.manual_seed(0)
    return encoder()


class Viewing(nn.Module):
    """Refuses feature maps in channels_last, as many a network does that ends in `view`."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 4, 3, 8, 1)

    def forward(self, images: Tensor) -> Tensor:
        return self.body(images).view(len(images), -1)


def viewing_backbone() -> nn.Module:
    """The backbone `tests.train.running:viewing_backbone`."""
    torch.manual_seed(0)
    return Viewing()


def plain_backbone() -> nn.Module:
    """The backbone `tests.train.running:plain_backbone`, without."""
    torch.manual_seed(0)
    return encoder(norm=False)


def tiny(out: Path | str, watch: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """The settings of a run of 2 epochs of 4 steps."""
    settings: dict[str, Any] = {
        "data": "scenes",
        "data_options": {"count": 64, "size": 16},
        "backbone": "tests.train.running:backbone",
        "size": 16,
        "batch_size": 16,
        "epochs": 2,
        "workers": 0,
        "out": str(out),
        "monitor": MonitorConfig(**(QUIET | (watch or {}))),
    }
    return settings | options | {"method": small_method(options.get("method", "simclr"))}


def small_method(method: Any, small: dict[str, Any] = SMALL) -> MethodConfig:
    """A method as small as its options allow, unless they are given."""
    config = method_config(method)
    if not isinstance(method, str):
        return config
    names = {field.name for field in dataclasses.fields(config)}
    return dataclasses.replace(config, **{name: value for name, value in small.items() if name in names})


def resume(out: Path | str, **changes: Any) -> Path:
    """Go on with a run of these, whose file names a backbone that is code of the tests."""
    return mixview.resume(out, trust_remote_code=True, **changes)


def command(out: Path | str, *more: str) -> list[str]:
    """The same as arguments of `mixview`."""
    method = more[more.index("--method") + 1] if "--method" in more else "simclr"
    options = dataclasses.asdict(small_method(method)) if method in extensions.METHODS.names() else {}
    small = {name: value for name, value in options.items() if name in SMALL}
    return [
        "pretrain",
        *("--data", "scenes", "--data-options", '{"count": 64, "size": 16}', "--size", "16", "--batch_size", "16"),
        *("--backbone", "tests.train.running:backbone", "--epochs", "2", "--workers", "0", "--out", str(out)),
        *(each for name, value in small.items() for each in (f"--method.{name}", str(value))),
        *("--no_monitor.estimate", "--monitor.eval_every", "0", "--monitor.loggers", "none"),
        *("--monitor.log_every", "1", *more),
    ]


class StopAt(GracefulStop):
    """Stops after a given step, as a signal would."""

    step = 0

    def stop_reason(self, step: int) -> str | None:
        return "the test" if step == type(self).step else super().stop_reason(step)


@contextlib.contextmanager
def stopped_at(step: int) -> Iterator[None]:
    """Runs within this stop after so many steps."""
    from mixview.train import loop

    StopAt.step = step
    original = loop.GracefulStop
    loop.GracefulStop = StopAt  # type: ignore[misc]
    try:
        yield
    finally:
        loop.GracefulStop = original  # type: ignore[misc]


def assert_same(one: Any, other: Any, name: str = "state") -> None:
    """Bit for bit."""
    assert type(one) is type(other), name
    if isinstance(one, Tensor):
        assert one.dtype == other.dtype, name
        assert torch.equal(one, other), name
    elif isinstance(one, dict):
        assert list(one) == list(other), name
        for key in one:
            assert_same(one[key], other[key], f"{name}[{key!r}]")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), name
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_same(left, right, f"{name}[{index}]")
    else:
        assert one == other, name


def assert_same_runs(one: Path, other: Path, metrics: bool = True) -> None:
    """The same weights, the same state of everything else, the same exported file, the same metrics."""
    (left, step), (right, other_step) = (last_state(out) for out in (one, other))
    assert step == other_step
    assert_same(left, right)
    assert (one / "encoder.safetensors").read_bytes() == (other / "encoder.safetensors").read_bytes()
    if metrics:
        assert metrics_of(one) == metrics_of(other)


def metrics_of(out: Path) -> list[str]:
    """The lines of a run's metrics, without the times in them, which are no two runs' alike."""
    records = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [json.dumps({name: value for name, value in each.items() if "time/" not in name}) for each in records]


def last_state(out: Path) -> tuple[dict[str, Any], int]:
    found = Checkpoints(out / "checkpoints").load_latest()
    assert found is not None
    return found


# --- real processes ---------------------------------------------------------------------------------------------------


def run_command(arguments: list[str], log: str, variables: dict[str, str], limit: int | None) -> None:
    """What a started process does: become `mixview`."""
    from mixview.cli import main

    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.setpgid(0, 0)
    os.environ.update(variables)
    multiprocessing.set_start_method("fork", force=True)  # for data loaders, as ever
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if limit is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    main(arguments)


def start(arguments: list[str], log: Path, variables: dict[str, str] | None = None, limit: int | None = None) -> Any:
    """`mixview` with these arguments as a process (and process group) of its own, and all it says in `log`."""
    process = context.Process(target=run_command, args=(arguments, str(log), variables or {}, limit))
    process.start()
    return process


def start_ranks(arguments: list[str], log: Path, world: int = 2, restart: int = 0) -> list[BaseProcess]:
    """`mixview` as torchrun would start it: so many processes that know each other."""
    port = free_port()
    ranks = []
    for rank in range(world):
        variables = torchrun_variables(rank, world, port) | {"TORCHELASTIC_RESTART_COUNT": str(restart)}
        ranks.append(start(arguments, log.with_name(f"{log.name}.{rank}"), variables))
    return ranks


def torchrun_variables(rank: int, world: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "test",
    }


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_for(condition: Any, seconds: float = 60, what: str = "it") -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} took more than {seconds} s"
        time.sleep(0.01)


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


# --- two processes against one ----------------------------------------------------------------------------------------


def build_plain_method(config: MethodConfig, *_: Any) -> Method:
    """In place of `build_method`: without batch norm, which would make ranks differ from groups."""
    torch.manual_seed(0)
    if config.name == "mocov2":
        return moco_v2(encoder(False), WIDTH, dim=5, queue_size=256, momentum=0.9)
    return METHODS[config.name](False)


def build_tiny_method(config: MethodConfig, backbone: Backbone, *_: Any) -> Method:
    """In place of `build_method`: with batch norm in all networks where the backbone has it, else in none."""
    if not any(isinstance(layer, nn.BatchNorm2d) for layer in backbone.encoder.modules()):
        return build_plain_method(config)
    torch.manual_seed(0)
    return METHODS[config.name](True)


def run_plain(many: list[dict[str, Any]], variables: dict[str, str], log: str) -> None:
    """What a started process does: these runs one after the other, of methods that `build_tiny_method` builds."""
    from mixview.train import build
    from mixview.train.pretraining import pretrain

    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(variables)
    torch.set_num_threads(1)
    build.build_method = build_tiny_method  # type: ignore[assignment]
    for options in many:
        pretrain(**options)
