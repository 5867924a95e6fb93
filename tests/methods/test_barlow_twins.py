"""Barlow Twins and Mixed Barlow Twins: against lightly, against their papers' equations as loops, and their options."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightly.loss import BarlowTwinsLoss
from torch import nn

from mixview import CutMix, Identity, Mixture, Mixup, bsim, mixture_generators, sim, wbsim
from mixview.losses import barlow_twins_loss
from mixview.methods import BarlowTwins, BarlowTwinsConfig, RunLength, backward, cached_backward
from mixview.methods.barlow_twins import mixed_correlation_loss
from mixview.train.config import method_config
from tests import reference
from tests.methods.newer import assert_lam_one_is_sim_and_lam_zero_its_relabeling, assert_trains_alike, make
from tests.methods.test_methods import two_views
from tests.networks import WIDTH, encoder
from tests.test_losses import any_mixture, assert_same_value_and_gradient, features


def batches(lowest: int = 2) -> st.SearchStrategy[Mixture]:
    return st.builds(
        any_mixture,
        n=st.integers(lowest, 7),
        seed=st.integers(0, 10**6),
        lams=st.sampled_from(("any", "one", "zero", "bits", "constant")),
        partners=st.sampled_from(("reversal", "permutation")),
    )


@pytest.mark.parametrize("n", [2, 3, 8, 33])
def test_sim_is_lightlys_loss(n: int) -> None:
    z1, z2 = torch.randn(2, n, 16, generator=torch.Generator().manual_seed(0)).unbind()
    plain = Identity().draw(torch.zeros(n, 3, 4, 4))
    ours, theirs = barlow_twins_loss(z1, z2, plain, 0.0051), BarlowTwinsLoss(0.0051)(z1, z2)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


@given(mixture=batches(3), d=st.integers(1, 5), lambda_bt=st.floats(1e-3, 2), seed=st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_the_loss_is_equation_1_with_interpolated_targets(
    mixture: Mixture, d: int, lambda_bt: float, seed: int
) -> None:
    assert_same_value_and_gradient(
        lambda a, b: barlow_twins_loss(a, b, mixture, lambda_bt),
        lambda a, b: reference.barlow_twins(a, b, mixture, lambda_bt),
        features(len(mixture), d, seed),
        features(len(mixture), d, seed + 1),
    )


@given(n=st.integers(3, 7), d=st.integers(1, 5), lam=st.floats(0, 1), seed=st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_the_regularizer_is_mixed_barlow_twins(n: int, d: int, lam: float, seed: int) -> None:
    partner = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    assert_same_value_and_gradient(
        lambda m, a, b: mixed_correlation_loss(m, a, b, partner, lam),
        lambda m, a, b: reference.mixed_barlow_twins(m, a, b, partner, lam),
        *(features(n, d, seed + each) for each in range(3)),
    )


@pytest.mark.parametrize("parts", [2, 3, 7])
def test_parts_of_the_matrix_add_up(parts: int) -> None:
    z1, z2, z3 = (features(6, 5, seed) for seed in range(3))
    mixture, partner = any_mixture(6, 0, "any", "permutation"), torch.randperm(6)
    slices = [slice(each * 5 // parts, (each + 1) * 5 // parts) for each in range(parts)]
    for whole, part in (
        (barlow_twins_loss(z1, z2, mixture, 0.1), lambda dims: barlow_twins_loss(z1, z2, mixture, 0.1, dims=dims)),
        (
            mixed_correlation_loss(z1, z2, z3, partner, 0.3),
            lambda dims: mixed_correlation_loss(z1, z2, z3, partner, 0.3, dims=dims),
        ),
    ):
        torch.testing.assert_close(sum(part(dims) for dims in slices), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("objective", [sim, lambda: bsim(CutMix(lam_per="image")), wbsim], ids=["sim", "bsim", "wbsim"])
@pytest.mark.parametrize("name", ["barlow-twins", "barlow-twins-symmetric"])
def test_ten_steps_are_those_of_the_slow_reference(name: str, objective) -> None:
    def published(method, x1, x2, terms):
        z1, z2 = method.online(x1), method.online(x2)
        loss = torch.zeros((), dtype=torch.float64)
        for weight, mixture in terms:
            side = reference.barlow_twins(method.online(mixture(x1)), z2, mixture, method.lambda_bt)
            if method.symmetric:
                side = (side + reference.barlow_twins(method.online(mixture(x2)), z1, mixture, method.lambda_bt)) / 2
            loss = loss + weight * side
        return loss

    assert_trains_alike(name, objective, published)


def test_ten_steps_of_mixed_barlow_twins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of a step is Barlow Twins' and lambda_reg lambda_bt times the regularizer's, of one further pass."""
    drawn = []
    from mixview.methods import barlow_twins

    def watched(z_m, z_a, z_b, partner, lam, *, dims):
        drawn.append((partner, lam))
        return mixed_correlation_loss(z_m, z_a, z_b, partner, lam, dims=dims)

    monkeypatch.setattr(barlow_twins, "mixed_correlation_loss", watched)

    def published(method, x1, x2, terms):
        partner, lam = drawn.pop(0)
        z1, z2 = method.online(x1), method.online(x2)
        z_m = method.online(lam * x1 + (1 - lam) * x2[partner])
        ((weight, mixture),) = terms
        loss = weight * reference.barlow_twins(z1, z2, mixture, method.lambda_bt)
        return loss + 4.0 * method.lambda_bt * reference.mixed_barlow_twins(z_m, z1, z2, partner, lam)

    assert_trains_alike("barlow-twins-mixed", sim, published)


def test_the_regularizers_mixture_changes_by_the_step_and_survives_a_resume() -> None:
    method, views = make("barlow-twins-mixed"), two_views(dtype=torch.float64)
    terms = sim().draw(views[0], mixture_generators(0, 0))
    losses = []
    for _ in range(2):
        losses.append(backward(copy.deepcopy(method), views, terms)[0])
        method.update(None, progress=0)
    assert losses[0] != losses[1]
    again = make("barlow-twins-mixed")
    assert backward(copy.deepcopy(again), views, terms)[0] == losses[0]
    again.load_state_dict(method.state_dict())
    assert again.steps == 2
    assert backward(again, views, terms)[0] == backward(method, views, terms)[0]


@pytest.mark.parametrize("name", ["barlow-twins", "barlow-twins-symmetric", "barlow-twins-mixed"])
@pytest.mark.parametrize("mixer", [CutMix(lam_per="image"), Mixup(), CutMix(partner="permutation")], ids=repr)
def test_lam_1_is_sim_and_lam_0_its_relabeling(name: str, mixer: CutMix | Mixup) -> None:
    assert_lam_one_is_sim_and_lam_zero_its_relabeling(name, mixer)


@pytest.mark.parametrize("objective", [sim, bsim, wbsim])
@pytest.mark.parametrize("name", ["barlow-twins", "barlow-twins-symmetric", "barlow-twins-mixed"])
def test_cached_gradients_are_those_of_the_whole_batch(name: str, objective) -> None:
    full, cached, views = make(name, norm=False), make(name, norm=False), two_views(7, dtype=torch.float64)
    terms = objective().draw(views[0], mixture_generators(0, 0))
    expected, _ = backward(full, views, terms)
    loss, _ = cached_backward(cached, views, terms, micro_batch=3)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    for one, other in zip(full.parameters(), cached.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-12)


PASSES = {"sim": (sim, 2, 2, 3), "bsim": (bsim, 2, 4, 4), "wbsim": (wbsim, 3, 4, 4)}


@pytest.mark.parametrize("objective", PASSES)
def test_encoder_passes(objective: str) -> None:
    draw, *expected = PASSES[objective]
    found = []
    for name in ("barlow-twins", "barlow-twins-symmetric", "barlow-twins-mixed"):
        method, views, passes = make(name), two_views(dtype=torch.float64), []
        method.encoder.register_forward_hook(lambda *_, passes=passes: passes.append(1))
        backward(method, views, draw().draw(views[0], mixture_generators(0, 0)))
        found.append(len(passes))
    assert found == expected


def test_the_published_projector() -> None:
    method = BarlowTwinsConfig().build(nn.Identity(), 2048, RunLength(4096, 2, 2048))
    layers = [layer for layer in method.online.projector if isinstance(layer, nn.Linear)]
    assert [layer.out_features for layer in layers] == [8192] * 3
    assert not any(layer.bias is not None for layer in layers)
    assert [type(layer) for layer in method.online.projector][-2:] == [nn.ReLU, nn.Linear]
    assert (method.lambda_bt, method.mix_regularizer, method.symmetric) == (0.0051, 0.0, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lambda_bt": 0}, "--method.lambda_bt must be a number, more than 0, got 0"),
        ({"mix_regularizer": -1}, "--method.mix_regularizer must be a number, at least 0, got -1"),
        ({"symmetric": 1}, "--method.symmetric must be true or false, got 1"),
        ({"lambda": 1}, "there is no setting method.lambda: did you mean lambda_bt?"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        method_config({"name": "barlow-twins", **options})


def test_misuse_is_named() -> None:
    with pytest.raises(ValueError, match="lambda_bt must be more than 0 and mix_regularizer at least 0, got nan and 0"):
        BarlowTwins(encoder(), WIDTH, lambda_bt=float("nan"))
    method, one = make("barlow-twins", norm=False), two_views(1, dtype=torch.float64)
    with pytest.raises(
        ValueError, match=r"statistics of a batch need .* at least 2 images, got \[1, 5\]: use a larger"
    ):
        method(one, sim().draw(one[0], mixture_generators(0, 0)))
