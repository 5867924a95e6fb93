"""No step may wait for the accelerator, and none may change what a graph of its kernels would miss.

Fake CUDA tensors have shapes and no values: reading one is an error. A CUDA graph repeats kernels on the same memory;
so does `Recorder`, with the operations of a CPU.
"""

import copy
from contextlib import nullcontext
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from mixview import CutMix, Identity, MixAug, Mixup, mixture_generators
from mixview.extensions import MIXERS
from mixview.losses import byol_loss, info_nce, nt_xent
from mixview.methods import MoCo, backward
from mixview.train.build import build_mixer
from mixview.train.config import MixingConfig
from tests.networks import METHODS, OBJECTIVES, RELATIVES


def test_fake_tensors_catch_a_sync() -> None:
    with FakeTensorMode(), pytest.raises(DataDependentOutputException):
        torch.rand(3, device="cuda")[0].item()


@pytest.mark.parametrize("lam_per", ["image", "batch"])
@pytest.mark.parametrize("partner", ["reversal", "permutation"])
def test_drawing_and_mixing(lam_per: Literal["batch", "image"], partner: Literal["reversal", "permutation"]) -> None:
    with FakeTensorMode():
        images = torch.rand(6, 3, 8, 8, device="cuda")
        mixers = [mixer(0.5, lam_per, partner, True) for mixer in (CutMix, Mixup)]
        for mixer in (*mixers, Identity(), MixAug(mixers[0])):
            mixture = mixer.draw(images, torch.Generator(), mix_groups=2)
            assert mixture(images).device == images.device
            assert mixture.lam.device == mixture.partner.device == images.device


class ReadOnTheCPU(TorchFunctionMode):
    """A number that the CPU has drawn for itself, which is read without waiting for the accelerator."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value
        self.reads = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__float__ and args[0].device.type == "cpu":
            self.reads += 1
            return self.value
        return func(*args, **(kwargs or {}))


READERS = ("random_choice",)
"""They read a number, on the CPU: which of two mixers a batch is mixed by."""


@pytest.mark.parametrize(
    ("name", "drawn"),
    [
        *((name, None) for name in MIXERS.names() if name not in READERS),
        *((name, drawn) for name in READERS for drawn in (0.2, 0.8)),
    ],
)
def test_every_mixer_and_its_losses(name: str, drawn: float | None) -> None:
    """With all their options that change what is drawn."""
    cpu = nullcontext() if drawn is None else ReadOnTheCPU(drawn)
    with FakeTensorMode(), cpu:
        images = torch.rand(6, 3, 16, 16, device="cuda")
        settings = [MixingConfig(mixer=name), MixingConfig(mixer=name, prob=0.5, partner="pairs", lam_per="pair")]
        if name == "patchmix":
            settings.append(MixingConfig(mixer=name, parents=3))
        for each in settings:
            mixture = build_mixer(each).draw(images, torch.Generator(), mix_strength=0.5)
            anchors, targets = mixture(images).flatten(1), images.flatten(1)
            for loss in (byol_loss(anchors, targets, mixture), info_nce(anchors, targets, targets, mixture, 0.1)):
                assert loss.device == images.device
        if isinstance(cpu, ReadOnTheCPU):
            assert cpu.reads == len(settings)  # once per batch


def test_losses() -> None:
    with FakeTensorMode():
        images, z = torch.rand(6, 3, 8, 8, device="cuda"), torch.rand(6, 4, device="cuda")
        mixture = CutMix(lam_per="image").draw(images, torch.Generator())
        losses = nt_xent(z, z, mixture, 0.1), info_nce(z, z, z, mixture, 0.1), byol_loss(z, z, mixture)
        assert all(loss.device == z.device for loss in losses)


def put_on_fake_cuda(module: nn.Module) -> None:
    # By hand: neither `to` nor a deep copy takes fake tensors.
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                fake = torch.empty(parameter.shape, device="cuda")
                part._parameters[name] = nn.Parameter(fake, requires_grad=parameter.requires_grad)
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device="cuda")


@pytest.mark.parametrize(
    ("name", "objective"),
    [*((name, objective) for name in METHODS for objective in OBJECTIVES), *((name, "wbsim") for name in RELATIVES)],
)
def test_a_step_of_every_method(name: str, objective: str) -> None:
    method = (METHODS | RELATIVES)[name](True)
    with FakeTensorMode(allow_non_fake_inputs=True):  # the CPU counts the steps for itself
        put_on_fake_cuda(method)
        views = torch.rand(6, 3, 16, 16, device="cuda"), torch.rand(6, 3, 16, 16, device="cuda")
        terms = OBJECTIVES[objective]().draw(views[0], mixture_generators(0, 0))
        # Autograd itself wants a real device; nothing of ours runs in the backward.
        _, targets = backward(method, views, terms, call=lambda loss: None)
        method.update(targets, progress=0.5)
        assert not isinstance(method, MoCo) or method.queue.keys.device.type == "cuda"


class Recorder(TorchDispatchMode):
    """Records the operations of a block, to repeat them on the same memory without the Python around them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, result in self.calls:
            for memory, value in zip(tree_leaves(result), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(memory, Tensor) and memory is not value:
                    memory.copy_(value)


@pytest.mark.parametrize("name", [*METHODS, *RELATIVES])
def test_a_replayed_update_is_that_of_its_step(name: str) -> None:
    torch.manual_seed(0)
    method = (METHODS | RELATIVES)[name](True)
    views = torch.rand(6, 3, 16, 16), torch.rand(6, 3, 16, 16)
    _, targets = method(views, OBJECTIVES["wbsim"]().draw(views[0], mixture_generators(0, 0)))
    targets = tree_map(lambda each: each.detach().clone() if isinstance(each, Tensor) else each, targets)
    expected, progress, recorder = copy.deepcopy(method), torch.tensor(0.0), Recorder()
    for step in range(4):
        progress.fill_(step / 4)
        with torch.no_grad():
            for each in tree_leaves(targets):
                if isinstance(each, Tensor):
                    each.copy_(torch.nn.functional.normalize(torch.rand_like(each), dim=-1))
            for one, other in zip(method.parameters(), expected.parameters(), strict=True):
                if one.requires_grad:
                    other.copy_(one.add_(torch.randn_like(one)))
        if step:
            recorder.replay()
        else:
            with recorder:
                method.update(targets, progress=progress)
        expected.update(targets, progress=step / 4)
        replayed, right = (dict(each.named_buffers()) | dict(each.named_parameters()) for each in (method, expected))
        torch.testing.assert_close(replayed, right)
