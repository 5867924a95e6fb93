import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightly.loss import NegativeCosineSimilarity, NTXentLoss
from torch import Tensor

from mixview import CutMix, Identity, Mixture, Mixup
from mixview.losses import byol_loss, info_nce, nt_xent
from tests import reference

LAMS = ("any", "one", "zero", "bits", "constant")


def features(n: int, d: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    # Lengths far from one: the losses must not care.
    generator = torch.Generator().manual_seed(seed)
    scale = torch.rand(n, 1, generator=generator, dtype=dtype) * 10 + 0.1
    return torch.randn(n, d, generator=generator, dtype=dtype) * scale


def any_mixture(n: int, seed: int, lams: str, partners: str) -> Mixture:
    generator = torch.Generator().manual_seed(seed)
    lam = {
        "any": torch.rand(n, generator=generator, dtype=torch.float64),
        "one": torch.ones(n, dtype=torch.float64),
        "zero": torch.zeros(n, dtype=torch.float64),
        "bits": torch.randint(0, 2, (n,), generator=generator).double(),
        "constant": torch.full((n,), 0.3, dtype=torch.float64),
    }[lams]
    partner = {
        "reversal": torch.arange(n).flip(0),
        "permutation": torch.randperm(n, generator=generator),
        "anything": torch.randint(0, n, (n,), generator=generator),
    }[partners]
    return Mixture(partner, lam)


mixtures = st.builds(
    any_mixture,
    n=st.integers(1, 9),
    seed=st.integers(0, 10**6),
    lams=st.sampled_from(LAMS),
    partners=st.sampled_from(("reversal", "permutation", "anything")),
)


def assert_same_value_and_gradient(fast, slow, *inputs: Tensor) -> None:
    results = []
    for function in (fast, slow):
        leaves = [x.detach().clone().requires_grad_() for x in inputs]
        value = function(*leaves)
        gradients = torch.autograd.grad(value, leaves)
        results.append((value.detach(), *gradients))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@given(mixture=mixtures, d=st.integers(1, 6), tau=st.floats(0.05, 2), seed=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_nt_xent_is_equation_1(mixture: Mixture, d: int, tau: float, seed: int) -> None:
    n = len(mixture)
    assert_same_value_and_gradient(
        lambda a, b: nt_xent(a, b, mixture, tau),
        lambda a, b: reference.nt_xent(a, b, mixture, tau),
        features(n, d, seed),
        features(n, d, seed + 1),
    )


@given(mixture=mixtures, k=st.integers(1, 7), tau=st.floats(0.05, 2), seed=st.integers(0, 10**6), other=st.booleans())
@settings(max_examples=60, deadline=None)
def test_info_nce_is_equation_3(mixture: Mixture, k: int, tau: float, seed: int, other: bool) -> None:
    n = len(mixture)
    assert_same_value_and_gradient(
        lambda q, key, queue: info_nce(q, key, queue, mixture, tau, other_parent=other),
        lambda q, key, queue: reference.info_nce(q, key, queue, mixture, tau, other),
        features(n, 4, seed),
        features(n, 4, seed + 1),
        features(k, 4, seed + 2),
    )


@given(mixture=mixtures, seed=st.integers(0, 10**6), interpolated=st.booleans())
@settings(max_examples=60, deadline=None)
def test_regression_is_equation_4(mixture: Mixture, seed: int, interpolated: bool) -> None:
    n = len(mixture)
    assert_same_value_and_gradient(
        lambda p, z: byol_loss(p, z, mixture, interpolated=interpolated),
        lambda p, z: reference.byol_loss(p, z, mixture, interpolated),
        features(n, 5, seed),
        features(n, 5, seed + 1),
    )


@pytest.mark.parametrize("n", [2, 3, 8, 33])
@pytest.mark.parametrize("tau", [0.01, 0.1, 0.5])
def test_identity_is_lightlys_nt_xent(n: int, tau: float) -> None:
    z1, z2 = features(n, 16, 0, torch.float32), features(n, 16, 1, torch.float32)
    mixture = Identity().draw(torch.zeros(n, 3, 4, 4))
    ours = (nt_xent(z1, z2, mixture, tau) + nt_xent(z2, z1, mixture, tau)) / 2
    torch.testing.assert_close(ours, NTXentLoss(tau)(z1, z2), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("tau", [0.07, 0.2])
def test_identity_is_lightlys_nt_xent_with_a_memory_bank(tau: float) -> None:
    criterion = NTXentLoss(tau, memory_bank_size=(32, 16))
    query, keys = features(8, 16, 0, torch.float32), features(8, 16, 1, torch.float32)
    mixture = Identity().draw(torch.zeros(8, 3, 4, 4))
    ours = info_nce(query, keys, criterion.memory_bank.bank, mixture, tau)
    torch.testing.assert_close(ours, criterion(query, keys), rtol=1e-6, atol=1e-6)


def test_identity_is_lightlys_negative_cosine_similarity() -> None:
    p, z = features(8, 16, 0, torch.float32), features(8, 16, 1, torch.float32)
    mixture = Identity().draw(torch.zeros(8, 3, 4, 4))
    torch.testing.assert_close(byol_loss(p, z, mixture), 2 + 2 * NegativeCosineSimilarity()(p, z), rtol=1e-6, atol=1e-6)


def losses_of(mixture: Mixture, anchors: Tensor, targets: Tensor, queue: Tensor) -> list[Tensor]:
    return [
        nt_xent(anchors, targets, mixture, 0.1),
        info_nce(anchors, targets, queue, mixture, 0.1),
        info_nce(anchors, targets, queue, mixture, 0.1, other_parent=True),
        byol_loss(anchors, targets, mixture),
        byol_loss(anchors, targets, mixture, interpolated=True),
    ]


@pytest.mark.parametrize("mixer", [CutMix(), CutMix(lam_per="image"), Mixup(), Mixup(partner="permutation")], ids=repr)
@pytest.mark.parametrize("n", [1, 7, 8])
def test_lam_1_is_identity_and_lam_0_its_relabeling(mixer: CutMix | Mixup, n: int) -> None:
    generator = torch.Generator().manual_seed(3)
    images = torch.rand(n, 3, 16, 16)
    targets, queue = features(n, 4, 1), features(6, 4, 2)
    encode = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, 4)).double()
    plain = losses_of(Identity().draw(images), encode(images.double()), targets, queue)

    one = mixer.draw(images, generator, lam=1.0)
    assert torch.equal(one(images), images)
    assert losses_of(one, encode(one(images).double()), targets, queue) == plain

    zero = mixer.draw(images, generator, lam=0.0)
    assert torch.equal(zero(images), images[zero.partner])
    relabeled = losses_of(zero, encode(zero(images).double()), targets, queue)
    torch.testing.assert_close(relabeled, plain, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_and_autocast_at_a_low_temperature(dtype: torch.dtype) -> None:
    # Lengths beyond float16's range once squared, logits up to 100: nothing may overflow.
    anchors, targets, queue = (features(8, 64, s, torch.float32) * 100 for s in range(3))
    mixture = Mixup(lam_per="image").draw(torch.zeros(8, 3, 4, 4), torch.Generator().manual_seed(0))
    low = [x.to(dtype).requires_grad_() for x in (anchors, targets, queue)]
    exact = [x.detach().double() for x in low]
    for function in (
        lambda a, b, c: nt_xent(a, b, mixture, 0.01),
        lambda a, b, c: info_nce(a, b, c, mixture, 0.01),
        lambda a, b, c: byol_loss(a, b, mixture),
    ):
        with torch.autocast("cpu", dtype=dtype):
            loss = function(*low)
            under_autocast = function(anchors, targets, queue)
        assert loss.dtype == torch.float32
        torch.testing.assert_close(loss.double(), function(*exact), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(under_autocast, function(anchors, targets, queue))
        assert torch.isfinite(torch.autograd.grad(loss, low[0])[0]).all()


def test_features_of_two_precisions() -> None:
    anchors, targets = features(4, 3, 0, torch.float32), features(4, 3, 1, torch.float64)
    mixture = any_mixture(4, 0, "any", "reversal")
    for one, other in ((anchors, targets), (targets, anchors)):
        expected = nt_xent(one.double(), other.double(), mixture, 0.2)
        torch.testing.assert_close(nt_xent(one, other, mixture, 0.2).double(), expected, rtol=1e-5, atol=1e-6)


def test_rows_are_the_anchors_to_average_over() -> None:
    mixed, plain = features(8, 4, 0), features(8, 4, 1)
    mixture = any_mixture(8, 0, "any", "permutation")
    parts = [nt_xent(mixed, plain, mixture, 0.1, rows=slice(a, a + 4)) for a in (0, 4)]
    torch.testing.assert_close(sum(parts) / 2, nt_xent(mixed, plain, mixture, 0.1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("tau", [0, -0.1, float("nan"), float("inf")])
def test_a_temperature_must_be_positive(tau: float) -> None:
    z, mixture = features(4, 3, 0), any_mixture(4, 0, "any", "reversal")
    with pytest.raises(ValueError, match="temperature must be a positive number"):
        nt_xent(z, z, mixture, tau)
    with pytest.raises(ValueError, match="temperature must be a positive number"):
        info_nce(z, z, z, mixture, tau)


def test_shapes_that_disagree_are_refused() -> None:
    z, mixture = features(4, 3, 0), any_mixture(4, 0, "any", "reversal")
    with pytest.raises(ValueError, match="plain_z has 5 rows, and the mixture is of 4 images"):
        nt_xent(z, features(5, 3, 0), mixture, 0.1)
    with pytest.raises(ValueError, match=r"got \[4, 3\] and \[4, 2\]"):
        byol_loss(z, features(4, 2, 0), mixture)
    with pytest.raises(ValueError, match=r"queue must be \[K, 3\]"):
        info_nce(z, z, features(6, 2, 0), mixture, 0.1)
    with pytest.raises(ValueError, match=r"a mixture of 4 images needs partner and lam of shape \[4\], got \[5\]"):
        nt_xent(z, features(5, 3, 0), any_mixture(5, 0, "any", "reversal"), 0.1)


def test_a_mixture_gone_bad_is_refused_by_the_losses_too() -> None:
    z, mixture = features(4, 3, 0), any_mixture(4, 0, "any", "reversal")
    mixture.lam[2] = float("nan")
    with pytest.raises(ValueError, match=r"lam is a share of pixels and must be within \[0, 1\], got nan"):
        byol_loss(z, z, mixture)
