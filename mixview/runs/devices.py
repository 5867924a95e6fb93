"""Devices, processes and precision: a Fabric from what the user says and what has started this process."""

import inspect
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args
from weakref import WeakSet

import torch
from torch import nn

from mixview.options import Precision as Precision
from mixview.runs.checkpoints import Checkpoints
from mixview.runs.launching import exit_with_parent, launcher, reinit_process_group
from mixview.runs.run_directory import RunDirectoryError

if TYPE_CHECKING:  # it takes seconds to import
    from mixview.runs.fabric import Fabric, Strategy


ResolvedPrecision = Literal["32-true", "bf16-mixed", "16-mixed"]


def require_accelerator(name: str) -> None:
    """Raise if this machine does not have the requested accelerator."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    there["gpu"] = any(there.values())  # Lightning's name for either
    if not there.get(name, True):
        raise ValueError(
            f"there is no {name} device that torch can use here: choose cpu or auto, or install its driver"
        )


def make_fabric(
    *, devices: int | str = "auto", nodes: int | Literal["auto"] = "auto", accelerator: str, precision: Precision
) -> "Fabric":
    """A Fabric that has started nothing yet.

    Args:
        devices: on each machine; auto is what torchrun or srun started, else all accelerators, or one CPU process.
        nodes: machines; auto is as many as torchrun or srun started processes on.
        accelerator: cpu, cuda, mps, or auto.
        precision: 32-true, bf16-mixed, 16-mixed, or auto: bf16-mixed on an accelerator that computes in it.
    """
    from mixview.runs.fabric import DDPStrategy, Fabric

    require_accelerator(accelerator)
    if not re.fullmatch(r"auto|-1|[1-9]\d*", str(devices)):
        raise ValueError(
            f"--devices must be a number of devices or auto, got {devices!r}: to choose some of them, set "
            "CUDA_VISIBLE_DEVICES=0,1 before the command"
        )
    on_cpu = is_on_cpu(accelerator)
    started = launcher()
    if started is not None:
        started.check_agrees(devices, nodes)
        devices, nodes = started.devices, started.nodes
    else:
        devices = 1 if on_cpu and devices == "auto" else devices
        nodes = 1 if nodes == "auto" else nodes
    many = nodes > 1 or str(devices) not in ("1", "auto")
    strategy: Strategy | str = "auto"
    if many or (devices == "auto" and torch.cuda.device_count() > 1):
        # The queue and the statistics of batch norms need not be sent every step: only rank 0's are kept.
        names = inspect.signature(nn.parallel.DistributedDataParallel).parameters
        quiet = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"
        options: dict[str, Any] = {quiet: False}
        strategy = DDPStrategy(**options)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The `srun` command is available")  # and need not be used
        return Fabric(
            accelerator="cpu" if on_cpu else accelerator,
            devices=devices,
            num_nodes=nodes,
            strategy=strategy,
            precision=resolve_precision(precision, accelerator),
        )


def is_on_cpu(accelerator: str) -> bool:
    """Return True if the requested accelerator is the CPU on this machine."""
    return accelerator == "cpu" or (
        accelerator == "auto" and not torch.cuda.is_available() and not torch.backends.mps.is_available()
    )


def resolve_precision(precision: Precision, accelerator: str) -> ResolvedPrecision:
    """The precision to compute in on the requested accelerator: itself, or what "auto" means there."""
    return fastest_precision(is_on_cpu(accelerator) or accelerator == "mps") if precision == "auto" else precision


def fastest_precision(without_cuda: bool) -> Literal["bf16-mixed", "32-true"]:
    """bf16-mixed where the accelerator computes in it and does not emulate it, else 32-true."""
    bf16 = not without_cuda and torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16-mixed" if bf16 else "32-true"


def precision_of(fabric: "Fabric") -> ResolvedPrecision:
    """The precision that a Fabric computes in."""
    precision: Any = fabric.strategy.precision.precision
    return precision if precision in get_args(ResolvedPrecision) else "32-true"


def describe_precision(precision: ResolvedPrecision) -> str:
    """A sentence for the user about the precision of a run."""
    described = {
        "32-true": "float32 (--precision bf16-mixed is for accelerators that compute in it)",
        "bf16-mixed": "bfloat16 where that is safe (--precision 32-true is float32 everywhere)",
        "16-mixed": "float16 where that is safe (--precision 32-true is float32 everywhere)",
    }
    return f"Precision: {described[precision]}."


def grad_scaler(fabric: "Fabric") -> torch.amp.GradScaler | None:
    """The scaler of the loss, which keeps fp16 gradients from vanishing; None in other precisions."""
    return getattr(fabric.strategy.precision, "scaler", None)


def latest_state(fabric: "Fabric", out: str | Path) -> dict[str, Any] | None:
    """The state in the last checkpoint of a run, if there is one; raises if processes see different checkpoints."""
    state, step = Checkpoints(Path(out) / "checkpoints").load_latest(fabric.device) or (None, -1)
    last: Any = fabric.all_reduce(torch.tensor([step, -step], device=fabric.device), reduce_op="max")
    if int(last.sum()):  # the largest is not the smallest
        raise RunDirectoryError(
            f"not all processes see the same checkpoints in {out}: put --out on a disk that all machines see"
        )
    return state


LAUNCHED: "WeakSet[Fabric]" = WeakSet()
"""Fabrics whose processes have been started: several trainings of one command share them."""


def reset_grad_scaler(fabric: "Fabric") -> None:
    """Reset the loss scale of 16-mixed, for the next of several trainings."""
    scaler = grad_scaler(fabric)
    if scaler is not None and scaler.is_enabled():
        scaler.load_state_dict(scaler.state_dict() | {"scale": 2.0**16, "_growth_tracker": 0})


def launch_once(fabric: "Fabric") -> None:
    """Start the other processes of a Fabric, unless they are there already."""
    if fabric in LAUNCHED:
        return
    reinit_process_group(fabric.device.type)
    exit_with_parent()
    fabric.launch()
    LAUNCHED.add(fabric)
