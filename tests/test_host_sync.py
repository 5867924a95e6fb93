"""No step may wait for the accelerator. Fake CUDA tensors have shapes and no values: reading one is an error."""

from typing import Literal

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from mixview import CutMix, Identity, MixAug, Mixup, mixture_generators
from mixview.losses import byol_loss, info_nce, nt_xent
from mixview.methods import MoCo, backward
from tests.networks import METHODS, OBJECTIVES


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


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", METHODS)
def test_a_step_of_every_method(name: str, objective: str) -> None:
    method = METHODS[name](True)
    with FakeTensorMode():
        put_on_fake_cuda(method)
        views = torch.rand(6, 3, 16, 16, device="cuda"), torch.rand(6, 3, 16, 16, device="cuda")
        terms = OBJECTIVES[objective]().draw(views[0], mixture_generators(0, 0))
        # Autograd itself wants a real device; nothing of ours runs in the backward.
        _, targets = backward(method, views, terms, call=lambda loss: None)
        method.update(targets, progress=0.5)
        assert not isinstance(method, MoCo) or method.queue.keys.device.type == "cuda"
