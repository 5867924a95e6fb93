"""VICReg: against lightly, against its paper's equations as loops, and its options."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightly.loss import VICRegLoss
from torch import Tensor, nn

from mixview import CutMix, Identity, Mixture, Mixup, bsim, mixture_generators, sim, wbsim
from mixview.losses import covariance_loss, invariance_loss, variance_loss
from mixview.methods import RunLength, VICReg, VICRegConfig, backward, cached_backward
from mixview.train.config import method_config
from tests import reference
from tests.methods.newer import assert_lam_one_is_sim_and_lam_zero_its_relabeling, assert_trains_alike, make
from tests.methods.test_barlow_twins import batches
from tests.methods.test_methods import two_views
from tests.networks import WIDTH, encoder
from tests.test_losses import assert_same_value_and_gradient, features

NAMES = ("vicreg", "vicreg-symmetric")
WEIGHTS = (25.0, 25.0, 1.0)


def vicreg(z1: Tensor, z2: Tensor, mixture: Mixture, weights: tuple[float, float, float] = WEIGHTS) -> Tensor:
    """The method's loss of two projections: an encoder that makes the one, and then the other, of nothing."""
    made = iter((z1, z2))
    method = VICReg(nn.Identity(), 1, nn.Identity(), *weights)
    images = torch.zeros(len(z1), 1, 1, 1, dtype=z1.dtype)
    return method.loss(lambda _: next(made), (images, images.clone()), [(1.0, mixture)])


@pytest.mark.parametrize("n", [2, 3, 8, 33])
@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
def test_sim_is_lightlys_loss(n: int, scale: float) -> None:
    z1, z2 = (scale * torch.randn(2, n, 16, generator=torch.Generator().manual_seed(0))).unbind()
    plain = Identity().draw(torch.zeros(n, 3, 4, 4))
    torch.testing.assert_close(vicreg(z1, z2, plain), VICRegLoss()(z1, z2), rtol=1e-6, atol=1e-6)


@given(mixture=batches(), d=st.integers(1, 5), scale=st.sampled_from((0.01, 0.3, 1.0)), seed=st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_the_loss_is_equation_6_between_both_parents(mixture: Mixture, d: int, scale: float, seed: int) -> None:
    weights = (3.0, 20.0, 0.7)
    assert_same_value_and_gradient(
        lambda a, b: vicreg(a, b, mixture, weights),
        lambda a, b: reference.vicreg(a, b, mixture, weights),
        scale * features(len(mixture), d, seed),
        scale * features(len(mixture), d, seed + 1),
    )


@pytest.mark.parametrize("parts", [2, 3, 7])
def test_parts_of_the_covariance_add_up(parts: int) -> None:
    z = features(6, 5, 0)
    total = sum(covariance_loss(z, dims=slice(k * 5 // parts, (k + 1) * 5 // parts)) for k in range(parts))
    torch.testing.assert_close(total, covariance_loss(z), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("objective", [sim, lambda: bsim(CutMix(lam_per="image")), wbsim], ids=["sim", "bsim", "wbsim"])
@pytest.mark.parametrize("name", NAMES)
def test_ten_steps_are_those_of_the_slow_reference(name: str, objective) -> None:
    def published(method, x1, x2, terms):
        z1, z2 = method.online(x1), method.online(x2)
        loss = torch.zeros((), dtype=torch.float64)
        for weight, mixture in terms:
            side = reference.vicreg(method.online(mixture(x1)), z2, mixture, WEIGHTS)
            if method.symmetric:
                side = (side + reference.vicreg(method.online(mixture(x2)), z1, mixture, WEIGHTS)) / 2
            loss = loss + weight * side
        return loss

    assert_trains_alike(name, objective, published)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mixer", [CutMix(lam_per="image"), Mixup(), CutMix(partner="permutation")], ids=repr)
def test_lam_1_is_sim_and_lam_0_its_relabeling(name: str, mixer: CutMix | Mixup) -> None:
    assert_lam_one_is_sim_and_lam_zero_its_relabeling(name, mixer)


@pytest.mark.parametrize("objective", [sim, bsim, wbsim])
@pytest.mark.parametrize("name", NAMES)
def test_cached_gradients_are_those_of_the_whole_batch(name: str, objective) -> None:
    full, cached, views = make(name, norm=False), make(name, norm=False), two_views(7, dtype=torch.float64)
    terms = objective().draw(views[0], mixture_generators(0, 0))
    expected, _ = backward(full, views, terms)
    loss, _ = cached_backward(cached, views, terms, micro_batch=3)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    for one, other in zip(full.parameters(), cached.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("objective", "expected"), [(sim, [2, 2]), (bsim, [2, 4]), (wbsim, [3, 4])])
def test_encoder_passes(objective, expected: list[int]) -> None:
    found = []
    for name in NAMES:
        method, views, passes = make(name), two_views(dtype=torch.float64), []
        method.encoder.register_forward_hook(lambda *_, passes=passes: passes.append(1))
        backward(method, views, objective().draw(views[0], mixture_generators(0, 0)))
        found.append(len(passes))
    assert found == expected


def test_the_published_settings() -> None:
    method = VICRegConfig().build(nn.Identity(), 2048, RunLength(4096, 2, 2048))
    layers = [layer for layer in method.online.projector if isinstance(layer, nn.Linear)]
    assert [layer.out_features for layer in layers] == [8192] * 3
    assert layers[-1].bias is None
    assert (method.invariance_weight, method.variance_weight, method.covariance_weight) == WEIGHTS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variance_weight": -1}, "--method.variance_weight must be a number, at least 0, got -1"),
        ({"hidden": 0}, "--method.hidden must be a whole number, at least 1 and at most 1048576, got 0"),
        ({"covariance": 1}, "there is no setting method.covariance: did you mean covariance_weight?"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        method_config({"name": "vicreg", **options})


def test_misuse_is_named() -> None:
    with pytest.raises(ValueError, match=r"VICReg's weights must be at least 0, got \(25.0, -1, 1.0\)"):
        VICReg(encoder(), WIDTH, variance_weight=-1)
    method, one = make("vicreg", norm=False), two_views(1, dtype=torch.float64)
    with pytest.raises(
        ValueError, match=r"statistics of a batch need .* at least 2 images, got \[1, 5\]: use a larger"
    ):
        method(one, sim().draw(one[0], mixture_generators(0, 0)))
    for loss in (variance_loss, covariance_loss):
        with pytest.raises(ValueError, match="statistics of a batch need"):
            loss(torch.zeros(4, 3, 2))
    with pytest.raises(ValueError, match=r"mixed_z and plain_z must both be \[N, D\]"):
        invariance_loss(torch.zeros(4, 3), torch.zeros(4, 2), Identity().draw(torch.zeros(4, 3, 2, 2)))
