"""The memory estimate: against the paper's cost tables, against a measured step, and for every recipe of the paper."""

import weakref
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.step_memory import RESERVE, encoder_cost, step_memory
from mixview import recipes
from mixview.encoders import backbones
from mixview.methods import RunLength, backward
from mixview.mixing import mixture_generators
from mixview.train.build import build_method, build_objective
from mixview.train.config import (
    MixingConfig,
    OptimizerConfig,
    PretrainConfig,
    from_plain,
)
from mixview.train.optim import build_optimizer
from tests.train.running import small_method

IMAGENET = 1_281_167
GIB = 2**30
BATCH = 16
PUBLISHED = [name for name in recipes.names() if name.startswith(("paper/", "related/"))]


def settings(name: str, **changes: Any) -> PretrainConfig:
    return replace(from_plain(recipes.read(name).settings), **changes)


@lru_cache
def needed_memory(run: PretrainConfig, devices: int) -> int:
    return step_memory(run, devices=devices, images=IMAGENET).total


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_recipe_fits_the_hardware_that_it_names(name: str) -> None:
    """With a tenth to spare, which is how far the estimate is from the paper's tables."""
    hardware = recipes.read(name).hardware
    assert hardware is not None
    run = settings(name)
    alike = replace(run, epochs=200, mixing=replace(run.mixing, alpha=1.0))  # many differ in nothing else
    needed = needed_memory(alike, hardware.devices)
    assert needed <= 0.9 * hardware.gigabytes * 1e9, f"{name} needs {needed / 1e9:.1f} GB per device"


def test_what_did_not_fit() -> None:
    """BYOL in batches of 4096 on 8 GPUs without accumulation: 512 images twice, of 86 MB each."""
    memory = step_memory(settings("paper/byol", accumulate_grad_batches=1), devices=8, images=IMAGENET)
    assert memory.activations == pytest.approx(88e9, rel=0.01)


@pytest.mark.parametrize(
    ("name", "changes", "joint", "gigabytes"),
    [
        ("paper/mocov2", {}, False, 5.5),
        ("paper/mocov2-bsim", {}, False, 5.5),
        ("paper/mocov2-wbsim", {}, True, 8.2),
        # Twice 2048 images. In float32 they would take 48 GB, more than a V100 has: the paper's are in half precision.
        ("paper/byol", {"batch_size": 2048, "accumulate_grad_batches": 1, "precision": "16-mixed"}, False, 216 / 8),
        ("paper/byol-wbsim", {"precision": "16-mixed"}, True, 200 / 8),
    ],
)
def test_the_papers_cost_tables(name: str, changes: dict[str, Any], joint: bool, gigabytes: float) -> None:
    """Memory per GPU in tab:moco-mem-cost; its code held the activations of both terms of WBSIM."""
    memory = step_memory(settings(name, **changes), devices=8, images=IMAGENET, joint=joint)
    assert memory.total / GIB == pytest.approx(gigabytes, rel=0.12)


class AliveBytes(TorchDispatchMode):
    """Measures the peak of all tensors that are alive, of whatever kind: what an allocator would report."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.now = self.peak = 0

    def count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.sizes:
            self.sizes[storage._cdata] = storage.nbytes()
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.forget, storage._cdata)

    def forget(self, key: int) -> None:
        self.now -= self.sizes.pop(key)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor):
                self.count(leaf)
        return output


@pytest.mark.parametrize(
    ("method", "objective", "optimizer", "accumulate_grad_batches"),
    [("mocov2", "wbsim", "sgd", 1), ("byol", "bsim", "adamw", 2), ("simclr", "wbsim", "lars", 1)],
)
def test_a_measured_step_of_a_small_network(
    method: Any, objective: Any, optimizer: Any, accumulate_grad_batches: int
) -> None:
    run = PretrainConfig(
        method=small_method(method, {"hidden": 64, "dim": 32, "queue_size": 256}),
        objective=objective,
        backbone="small",
        size=32,
        batch_size=BATCH,
        accumulate_grad_batches=accumulate_grad_batches,
        optimizer=OptimizerConfig(optimizer, lr=0.01),
        mixing=MixingConfig(lam_per="batch"),
    )
    alive = AliveBytes()
    with alive:
        backbone = backbones.build("small", size=32)
        built = build_method(run.method, backbone, RunLength(1000, 100, BATCH), objective)
        for tensor in (*built.parameters(), *built.buffers()):
            alive.count(tensor)
        steps = build_optimizer(built, run.optimizer, BATCH)
        for _ in range(2):
            first, second = torch.rand(2, BATCH, 3, 32, 32).unbind()
            for views in zip(first.chunk(accumulate_grad_batches), second.chunk(accumulate_grad_batches), strict=True):
                terms = build_objective(objective, run.mixing).draw(views[0], mixture_generators(0, 0))
                backward(built, views, terms)
            steps.step()
            steps.zero_grad()
    estimate = step_memory(run, devices=1, images=1000)
    assert estimate.total - RESERVE == pytest.approx(alive.peak, rel=0.1)


def test_the_encoder_is_counted_as_it_is() -> None:
    cost = encoder_cost("resnet50", 224, 3, "auto")
    assert cost.matrices + cost.vectors == 25_557_032 - 2048 * 1000 - 1000  # torchvision's, less its classifier
    assert cost.feature_dim == 2048
    assert cost.saved == pytest.approx(86e6, rel=0.01)


def test_more_devices_and_micro_batches_need_less() -> None:
    run = settings("paper/mocov2", batch_size=64)
    one, two = (step_memory(run, devices=devices, images=IMAGENET) for devices in (1, 2))
    assert two.activations == pytest.approx(one.activations / 2, rel=0.01)
    assert two.gradients == 2 * one.gradients  # and their buckets
    cut = step_memory(replace(run, accumulate_grad_batches=2), devices=1, images=IMAGENET)
    assert (cut.activations, cut.views) == (two.activations, one.views)
    with pytest.raises(ValueError, match="depends on the batch"):
        step_memory(replace(run, batch_size="auto"), devices=1, images=IMAGENET)
