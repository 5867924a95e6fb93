"""The parts of a training step besides the passes, and variants of the passes, side by side.

    python benchmarks/step.py [--backbones resnet18 resnet50] [--rounds 15] [--threads 1 2]

EMA, SGD, AdamW and LARS over a backbone's parameters; forward and backward contiguous and channels last, in float32 and
under bf16 autocast. Each form in turn, again and again: milliseconds (of CPU time with one thread), the median with the
least and the most, and the median over rounds of how many times as long as mixview's own it took. The first line says
which forms mixview uses.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from typing import TypeVar

import torch
from lightly.utils import lars as lightly
from timing import interleaved, row
from torch import Tensor, nn

from mixview.encoders import backbones
from mixview.lars import LARS, move_one_by_one, move_together
from mixview.methods import RunLength, SimCLRConfig
from mixview.nn import ema_update, momentum_copy
from mixview.train.build import build_method
from mixview.train.config import OptimizerConfig
from mixview.train.optim import build_optimizer

Module = TypeVar("Module", bound=nn.Module)
Forms = dict[str, Callable[[], object]]
MOMENTUM = 0.999


def with_gradients(network: Module) -> Module:
    """A copy whose parameters have gradients, small enough to change nothing."""
    network = copy.deepcopy(network)
    for weight in network.parameters():
        weight.grad = 1e-6 * torch.randn_like(weight)
    return network


def ema_forms(network: nn.Module) -> Forms:
    target = momentum_copy(network)
    pairs = list(zip(target.parameters(), network.parameters(), strict=True))
    targets, onlines = [t for t, _ in pairs], [o for _, o in pairs]
    m = MOMENTUM

    @torch.no_grad()
    def loop_of_mul_add() -> None:
        for t, o in pairs:
            t.data = t.data * m + o.data * (1.0 - m)

    @torch.no_grad()
    def loop_of_in_place() -> None:
        for t, o in pairs:
            t.mul_(m).add_(o, alpha=1 - m)

    @torch.no_grad()
    def loop_of_lerp() -> None:
        for t, o in pairs:
            t.lerp_(o, 1 - m)

    @torch.no_grad()
    def foreach_mul_add() -> None:
        torch._foreach_mul_(targets, m)
        torch._foreach_add_(targets, onlines, alpha=1 - m)

    return {
        "mixview": lambda: ema_update(target, network, m),
        "loop, t = m t + (1 - m) o (MoCo)": loop_of_mul_add,
        "loop, in place": loop_of_in_place,
        "loop, lerp": loop_of_lerp,
        "foreach, mul and add (lightly)": foreach_mul_add,
    }


def mixview_step(name: str, backbone: str) -> Callable[[], object]:
    """A step of the optimizer that `mixview pretrain` would build, with a head too small to count."""
    built = backbones.build(backbone, size=224)
    method = with_gradients(build_method(SimCLRConfig(hidden=8, dim=8), built, RunLength(1000, 10, 10)))
    return build_optimizer(method, OptimizerConfig(name=name), batch_size=256).step  # type: ignore[arg-type]


def torch_forms(name: str, network: nn.Module, backbone: str) -> Forms:
    kinds = {"sgd": (torch.optim.SGD, {"momentum": 0.9}), "adamw": (torch.optim.AdamW, {})}
    kind, options = kinds[name]
    forms: Forms = {"mixview": mixview_step(name, backbone)}
    for label, more in (
        ("torch's default", {}),
        ("loop", {"foreach": False}),
        ("foreach", {"foreach": True}),
        ("fused", {"fused": True}),
    ):
        weights = list(with_gradients(network).parameters())
        forms[label] = kind(weights, lr=1e-3, weight_decay=1e-4, **options, **more).step
    return forms


def lars_forms(network: nn.Module, backbone: str) -> Forms:
    weights: list[Tensor] = list(with_gradients(network).parameters())
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    velocity = [torch.zeros_like(weight) for weight in weights]
    group = {"lr": 0.3, "weight_decay": 1e-6, "momentum": 0.9, "trust_remote_code": 1e-3, "adapt": True}

    @torch.no_grad()
    def run(move: Callable[..., None]) -> None:
        move(weights, gradients, velocity, LARS.rates(group, weights, gradients), group)

    theirs = lightly.LARS(with_gradients(network).parameters(), lr=0.3, momentum=0.9, weight_decay=1e-6)
    return {
        "mixview": mixview_step("lars", backbone),
        "loop, in place": lambda: run(move_one_by_one),
        "foreach": lambda: run(move_together),
        "lightly's": theirs.step,
    }


def pass_forms(backbone: str, images: int, size: int) -> Forms:
    """Forward and backward of a batch."""

    def form(memory: torch.memory_format, half: bool) -> Callable[[], object]:
        network = backbones.build(backbone, size=224).encoder.to(memory_format=memory)
        batch = torch.rand(images, 3, size, size).contiguous(memory_format=memory)

        def run() -> None:
            network.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                loss = network(batch).float().square().mean()
            loss.backward()

        return run

    return {
        "mixview": form(torch.channels_last, False),
        "contiguous": form(torch.contiguous_format, False),
        "channels last, bf16 autocast": form(torch.channels_last, True),
    }


def table(title: str, forms: Forms, rounds: int) -> None:
    # One thread by the time that it ran, which a busy machine does not change; more by the clock on the wall.
    seconds = interleaved(forms, rounds, time.process_time if torch.get_num_threads() == 1 else time.perf_counter)
    print(f"\n{title}\n{'':34} {'median ms':>10}   (least – most){'times mixview':>24}")
    for name, times in seconds.items():
        ratio = statistics.median(each / ours for each, ours in zip(times, seconds["mixview"], strict=True))
        print(f"{row(name, times):68}{ratio:6.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbones", nargs="+", default=["resnet18", "resnet50"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--parts", nargs="+", default=["ema", "sgd", "adamw", "lars", "passes"])
    parser.add_argument("--images", type=int, default=4, help="of the passes")
    parser.add_argument("--size", type=int, default=96, help="of the passes")
    options = parser.parse_args()
    print(
        "mixview uses, on the CPU: EMA by foreach lerp; SGD and AdamW fused; LARS in a loop, in place; channels last;"
    )
    print("float32. On CUDA: the same, but LARS by foreach; --precision bf16-mixed is its user's choice.")
    for threads in options.threads:
        torch.set_num_threads(threads)
        for backbone in options.backbones:
            network = backbones.build(backbone, size=224).encoder
            where = f"{backbone}, {threads} thread{'s' * (threads > 1)}"
            if "ema" in options.parts:
                table(f"EMA, {where}", ema_forms(network), options.rounds)
            for name in ("sgd", "adamw"):
                if name in options.parts:
                    table(f"{name}, {where}", torch_forms(name, network, backbone), options.rounds)
            if "lars" in options.parts:
                table(f"lars, {where}", lars_forms(network, backbone), options.rounds)
            if "passes" in options.parts:
                title = f"forward and backward of {options.images} images of {options.size}², {where}"
                table(title, pass_forms(backbone, options.images, options.size), max(3, options.rounds // 3))


if __name__ == "__main__":
    main()
