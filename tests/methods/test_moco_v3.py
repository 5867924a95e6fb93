"""MoCo v3: against its paper's Algorithm 1 as loops, its networks for transformers and ResNets, and its options."""

import pytest
import torch
from torch import nn

from mixview import CutMix, Identity, Mixup, bsim, mixture_generators, sim, wbsim
from mixview.encoders import backbones
from mixview.methods import MoCoV3, MoCoV3Config, RunLength, backward
from mixview.train.config import OptimizerConfig, method_config
from mixview.train.optim import build_optimizer
from tests import reference
from tests.methods.newer import assert_lam_one_is_sim_and_lam_zero_its_relabeling, assert_trains_alike, make
from tests.methods.test_methods import two_views
from tests.networks import WIDTH, encoder

RUN = RunLength(64, 8, 16)


@pytest.mark.parametrize("objective", [sim, lambda: bsim(CutMix(lam_per="image")), wbsim], ids=["sim", "bsim", "wbsim"])
def test_ten_steps_are_those_of_the_slow_reference(objective) -> None:
    """The target network follows after the step, which is in time for the next keys, as in the published code."""

    def published(method, x1, x2, terms):
        with torch.no_grad():
            k1, k2 = method.target(x1), method.target(x2)
        loss = torch.zeros((), dtype=torch.float64)
        for weight, mixture in terms:
            for x, k in ((x1, k2), (x2, k1)):
                q = method.predictor(method.online(mixture(x)))
                loss = loss + weight * reference.moco_v3(q, k, mixture, method.temperature)
        return loss

    assert_trains_alike("mocov3", objective, published)


def test_sim_is_the_published_loss() -> None:
    """builder.py's contrastive_loss, both ways: cross-entropy with the keys of the batch, times 2 tau."""
    method, twin, (x1, x2) = make("mocov3"), make("mocov3"), two_views(dtype=torch.float64)
    loss, _ = method((x1, x2), sim().draw(x1, mixture_generators(0, 0)))
    q1, q2 = (nn.functional.normalize(twin.predictor(twin.online(x))) for x in (x1, x2))
    k1, k2 = (nn.functional.normalize(twin.target(x)) for x in (x1, x2))
    tau, labels = 0.2, torch.arange(len(x1))
    expected = sum(nn.functional.cross_entropy(q @ k.T / tau, labels) * 2 * tau for q, k in ((q1, k2), (q2, k1)))
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("mixer", [CutMix(lam_per="image"), Mixup(), CutMix(partner="permutation")], ids=repr)
def test_lam_1_is_sim_and_lam_0_its_relabeling(mixer: CutMix | Mixup) -> None:
    assert_lam_one_is_sim_and_lam_zero_its_relabeling("mocov3", mixer)


@pytest.mark.parametrize(("objective", "expected"), [(sim, 2), (bsim, 2), (wbsim, 4)])
def test_encoder_passes(objective, expected: int) -> None:
    method, views, online, target = make("mocov3"), two_views(dtype=torch.float64), [], []
    method.encoder.register_forward_hook(lambda *_: online.append(1))
    method.target.encoder.register_forward_hook(lambda *_: target.append(1))
    _, keys = backward(method, views, objective().draw(views[0], mixture_generators(0, 0)))
    assert (len(online), len(target)) == (expected, 2)
    assert not any(key.requires_grad for key in keys)


def test_the_target_moves_by_a_cosine_to_standstill() -> None:
    method = make("mocov3")
    for progress, expected in ((0.0, 0.1), (0.5, 0.05), (1.0, 0.0)):
        target = method.target.encoder[0].weight.clone()
        with torch.no_grad():
            method.online.encoder[0].weight.copy_(target + 1)
        method.update(None, progress=progress)
        torch.testing.assert_close(method.target.encoder[0].weight, target + expected)


def heads(method: MoCoV3) -> tuple[list[str], list[str]]:
    def describe(layer: nn.Module) -> str:
        if isinstance(layer, nn.Linear):
            return f"{layer.in_features}-{layer.out_features}" + (" bias" if layer.bias is not None else "")
        if isinstance(layer, nn.BatchNorm1d):
            return "BN" if layer.affine else "plain BN"
        return type(layer).__name__

    return [describe(layer) for layer in method.online.projector], [describe(layer) for layer in method.predictor]


def test_the_published_heads() -> None:
    """facebookresearch/moco-v3 moco/builder.py: MoCo_ResNet and MoCo_ViT."""
    hidden = ["BN", "ReLU"]
    resnet = (
        ["2048-4096", *hidden, "4096-256", "plain BN"],
        ["256-4096", *hidden, "4096-256"],
    )
    assert heads(MoCoV3Config().build(nn.Identity(), 2048, RUN)) == resnet
    assert heads(MoCoV3(nn.Identity(), 2048)) == resnet
    backbone = backbones.build("timm/test_vit", size=32)
    width = backbone.feature_dim
    transformer = (
        [f"{width}-4096", *hidden, "4096-4096", *hidden, "4096-256", "plain BN"],
        ["256-4096", *hidden, "4096-256", "plain BN"],
    )
    method = MoCoV3Config().build(backbone.encoder, width, RUN)
    assert heads(method) == heads(MoCoV3(backbone.encoder, width)) == transformer
    assert (method.temperature, method.momentum) == (0.2, 0.99)
    narrow = MoCoV3Config(projector_layers=1, dim=8, hidden=4).build(nn.Identity(), 16, RUN)
    assert heads(narrow) == (["16-8", "plain BN"], ["8-4", *hidden, "4-8"])


@pytest.mark.parametrize("objective", [sim, wbsim])
@pytest.mark.parametrize("name", ["timm/test_vit", "torchvision/vit_b_16"])
def test_the_patch_embedding_stays_as_it_was(name: str, objective) -> None:
    torch.manual_seed(0)
    backbone = backbones.build(name, size=32)
    method = MoCoV3Config(hidden=8, dim=4).build(backbone.encoder, backbone.feature_dim, RUN)
    convolution = "conv_proj" if name.startswith("torchvision") else "patch_embed.proj"
    frozen = {f"{convolution}.weight", f"{convolution}.bias"}
    assert {key for key, p in backbone.encoder.named_parameters() if not p.requires_grad} == frozen
    before = {key: p.detach().clone() for key, p in backbone.encoder.named_parameters()}
    optimizer = build_optimizer(method, OptimizerConfig(lr=0.01, weight_decay=0.1), 16)
    views = torch.rand(2, 3, 3, 32, 32).unbind()
    _, targets = backward(method, views, objective().draw(views[0], mixture_generators(0, 0)))
    optimizer.step()
    method.update(targets, progress=0.0)
    changed = {key for key, p in backbone.encoder.named_parameters() if not torch.equal(p, before[key])}
    assert changed.isdisjoint(frozen)
    assert len(changed) > len(before) / 2
    for key, p in method.target.encoder.named_parameters():
        assert torch.equal(p, before[key]) == (key not in changed), key


def test_the_patch_embedding_learns_if_asked_to() -> None:
    backbone = backbones.build("timm/test_vit", size=32)
    MoCoV3Config(hidden=8, dim=4, freeze_patch_embed=False).build(backbone.encoder, backbone.feature_dim, RUN)
    assert all(p.requires_grad for p in backbone.encoder.parameters())
    resnet = backbones.build("small", size=32)
    MoCoV3Config(hidden=8, dim=4).build(resnet.encoder, resnet.feature_dim, RUN)
    assert all(p.requires_grad for p in resnet.encoder.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0}, "--method.temperature must be a number, more than 0, got 0"),
        ({"momentum": 2}, "--method.momentum must be a number, at least 0 and at most 1, got 2"),
        ({"projector_layers": 0}, "--method.projector_layers must be a whole number, at least 1 and at most 16, got 0"),
        ({"freeze": True}, "there is no setting method.freeze"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        method_config({"name": "mocov3", **options})


def test_misuse_is_named() -> None:
    with pytest.raises(ValueError, match="pass both, or neither"):
        MoCoV3(encoder(), WIDTH, projector=nn.Identity())
    with pytest.raises(ValueError, match="temperature must be a positive number, got 0"):
        MoCoV3(encoder(), WIDTH, temperature=0)
    with pytest.raises(ValueError, match=r"momentum must be within \[0, 1\], got 2"):
        MoCoV3(encoder(), WIDTH, momentum=2)
    with pytest.raises(ValueError, match="progress is the share of training"):
        make("mocov3").update(None, progress=3)
    one = two_views(1, dtype=torch.float64)
    with pytest.raises(ValueError, match="a batch of one image cannot be batch-normalized"):
        make("mocov3")(one, [(1.0, Identity().draw(one[0]))])
