from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from mixview import CutMix, Identity, MixAug, Mixture, Mixup, mixture_generators
from mixview.mixing import BetaMixer, Paste, cutmix_box, mix_strength_at, symmetric_beta
from tests.reference import count_unchanged


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def distinct(n: int, height: int, width: int, channels: int = 1) -> torch.Tensor:
    """Images no two of which have a pixel in common."""
    return torch.arange(n * channels * height * width, dtype=torch.float64).view(n, channels, height, width)


@given(
    n=st.integers(1, 5),
    height=st.integers(1, 12),
    width=st.integers(1, 12),
    alpha=st.sampled_from((1e-3, 0.25, 1.0, 4.0)),
    lam_per=st.sampled_from(["batch", "image"]),
    partner=st.sampled_from(("reversal", "permutation")),
    seed=st.integers(0, 10**9),
)
@settings(max_examples=1000, deadline=None)
def test_cutmix_lam_is_the_share_of_pixels_kept(n, height, width, alpha, lam_per, partner, seed) -> None:
    images = distinct(n, height, width)
    mixture = CutMix(alpha, lam_per=lam_per, partner=partner).draw(images, seeded(seed))
    mixed = mixture(images)
    for i in range(n):
        if mixture.partner[i] == i:
            assert torch.equal(mixed[i], images[i])
        else:
            assert float(mixture.lam[i]) == count_unchanged(images[i], mixed[i])
            taken = mixed[i] != images[i]
            assert torch.equal(mixed[i][taken], images[mixture.partner[i]][taken])


@pytest.mark.parametrize("alpha", [1e-3, 0.05, 0.25, 0.5, 0.75, 1.0, 3.0, 50.0])
def test_lam_before_clipping_is_beta(alpha: float) -> None:
    drawn = []

    class Spy(BetaMixer):
        def compose(self, images, partner, lam, uniform):
            drawn.append(lam)
            return Mixup.compose(self, images, partner, lam, uniform)

    Spy(alpha, lam_per="image").draw(torch.zeros(20_000, 1, 1, 1), seeded(7))
    lam, beta = drawn[0].numpy(), stats.beta(alpha, alpha)
    # A small alpha rounds to exactly 0 or 1 much of the time. So: both halves weigh the same; below what float64 can
    # tell from 0 there is as much as there should be; and between the two the distribution is the right one.
    tiny = 1e-300
    assert abs((lam > 0.5).mean() - 0.5) < 0.01
    assert abs((lam < tiny).mean() - beta.cdf(tiny)) < 0.01
    between = lam[(lam > tiny) & (lam < 0.5)]
    assert stats.kstest(between, lambda x: (beta.cdf(x) - beta.cdf(tiny)) / (0.5 - beta.cdf(tiny))).pvalue > 0.01
    upper = lam[lam > 0.5]
    resolved = upper[upper < 1 - 1e-9]
    assert stats.kstest(resolved, lambda x: (beta.cdf(x) - 0.5) / (beta.cdf(1 - 1e-9) - 0.5)).pvalue > 0.01
    if alpha == 1e-3:
        assert ((lam < 1e-6) | (lam > 1 - 1e-6)).mean() > 0.95


def test_symmetric_beta_stays_in_range_at_the_ends_of_its_uniforms() -> None:
    edge = 1 - torch.finfo(torch.float64).eps / 2
    corners = torch.cartesian_prod(*[torch.tensor([0.0, 0.5, edge], dtype=torch.float64)] * 4)
    for alpha in (1e-6, 1e-3, 0.5, 1.0, 1e6):
        lam = symmetric_beta(alpha, corners)
        assert ((lam >= 0) & (lam <= 1)).all()


def test_cutmix_at_a_tiny_alpha_is_all_of_one_parent_or_all_of_the_other() -> None:
    images = torch.rand(2000, 1, 8, 8)
    lam = CutMix(1e-3, lam_per="image").draw(images, seeded()).lam
    whole = (lam == 0) | (lam == 1)
    assert whole.float().mean() > 0.95
    assert abs((lam == 1).float().mean() - 0.5) < 0.05


def test_no_parent_has_an_invisible_weight() -> None:
    lam = Mixup(1e-3, lam_per="image").draw(torch.rand(5000, 1, 2, 2), seeded()).lam
    assert ((1 - lam == 1) == (lam == 0)).all()


def test_box_centers_are_uniform_and_sides_keep_the_aspect_ratio() -> None:
    height, width, n = 60, 200, 20_000
    uniform = torch.rand(n, 3, generator=seeded(), dtype=torch.float64)
    lam = 0.9 + 0.1 * uniform[:, 0]  # small boxes: those away from the border are not clipped
    top, bottom, left, right = cutmix_box(lam, uniform[:, 1:], height, width).double().unbind(1)
    inside = (top > 0) & (bottom < height) & (left > 0) & (right < width)
    for start, stop, size, position in ((top, bottom, height, uniform[:, 1]), (left, right, width, uniform[:, 2])):
        assert ((start + stop)[inside] / 2 - (position * size)[inside]).abs().max() <= 0.5 + 1e-9
        assert ((stop - start)[inside] - ((1 - lam).sqrt() * size)[inside]).abs().max() <= 1
    # The positions themselves, as CutMix draws them.
    centers = []

    class Spy(BetaMixer):
        def compose(self, images, partner, lam, uniform):
            centers.append(uniform)
            return CutMix.compose(self, images, partner, lam, uniform)

    Spy(lam_per="image").draw(torch.zeros(n, 1, 4, 4), seeded(11))
    for axis in range(2):
        assert stats.kstest(centers[0][:, axis].numpy(), "uniform").pvalue > 0.01
    # Away from the borders, the area is right on average.
    area = ((bottom - top) * (right - left))[inside] / (height * width)
    assert abs(float((area - (1 - lam)[inside]).mean())) < 1e-3


@pytest.mark.parametrize("mixer", [CutMix, Mixup])
@pytest.mark.parametrize("n", [1, 2, 7, 8])
def test_partners(mixer: type[BetaMixer], n: int) -> None:
    images = torch.rand(n, 3, 6, 6)
    reversal = mixer().draw(images, seeded())
    assert reversal.partner.tolist() == [n - 1 - i for i in range(n)]
    permutation = mixer(partner="permutation").draw(images, seeded())
    assert sorted(permutation.partner.tolist()) == list(range(n))
    if n % 2:
        middle = n // 2
        assert torch.equal(reversal(images)[middle], images[middle])


def test_one_lam_a_batch_or_one_a_sample() -> None:
    images = torch.rand(16, 3, 32, 32)
    assert len(set(Mixup().draw(images, seeded()).lam.tolist())) == 1
    assert len(set(Mixup(lam_per="image").draw(images, seeded()).lam.tolist())) == 16
    assert len(set(CutMix().draw(images, seeded()).lam.tolist())) == 1


def test_folding_keeps_the_larger_part() -> None:
    images = torch.rand(500, 1, 31, 31, dtype=torch.float64)
    folded = Mixup(lam_per="image", lam_at_least_half=True).draw(images, seeded())
    unfolded = Mixup(lam_per="image").draw(images, seeded())
    assert torch.equal(folded.lam, torch.maximum(unfolded.lam, 1 - unfolded.lam))
    for size in (1, 2, 5, 16, 31):  # whatever the rounding of the box
        for seed in range(20):
            assert (
                CutMix(lam_per="image", lam_at_least_half=True).draw(images[..., :size, :size], seeded(seed)).lam >= 0.5
            ).all()


def test_a_share_of_the_images_is_mixed_and_the_others_stay_whole() -> None:
    images = torch.rand(2000, 1, 16, 16, dtype=torch.float64)
    for make in (CutMix, Mixup):
        whole = make(lam_per="image", partner="permutation").draw(images, seeded())
        half = make(lam_per="image", partner="permutation", prob=0.5).draw(images, seeded())
        mixed = half.lam != 1
        assert 0.45 < mixed.double().mean() < 0.55
        assert torch.equal(half.partner, whole.partner)
        assert torch.equal(half.lam[mixed], whole.lam[mixed])  # the mixtures are those of prob = 1, a paired comparison
        assert torch.equal(half(images)[mixed], whole(images)[mixed])
        assert torch.equal(half(images)[~mixed], images[~mixed])
    batches = [Mixup(prob=0.25).draw(images[:4], seeded(seed)).lam for seed in range(200)]
    assert all(len(set(lam.tolist())) == 1 for lam in batches)  # one lam a batch: all of it, or nothing
    assert 30 < sum(bool((lam != 1).all()) for lam in batches) < 70
    for prob in (0.0, -0.5, 1.5, float("nan")):
        with pytest.raises(ValueError, match="prob"):
            CutMix(prob=prob)


@pytest.mark.parametrize(
    "mixer",
    [CutMix(lam_per="image", partner="permutation"), Mixup(), CutMix(), CutMix(lam_per="image", prob=0.5)],
    ids=repr,
)
def test_groups_mix_among_themselves_as_so_many_ranks(mixer: BetaMixer) -> None:
    images = torch.rand(12, 3, 16, 16)
    one_process = mixer.draw(images, mixture_generators(5, 9, mix_groups=3))
    mixed = one_process(images)
    for rank in range(3):
        rows = slice(4 * rank, 4 * rank + 4)
        alone = mixer.draw(images[rows], mixture_generators(5, 9, rank=rank))
        assert torch.equal(one_process.lam[rows], alone.lam)
        assert torch.equal(one_process.partner[rows], alone.partner + 4 * rank)
        assert torch.equal(mixed[rows], alone(images[rows]))


def test_one_generator_can_serve_several_groups() -> None:
    mixture = Mixup().draw(torch.rand(8, 3, 4, 4), seeded(), mix_groups=4)
    assert mixture.partner.tolist() == [1, 0, 3, 2, 5, 4, 7, 6]
    assert len(set(mixture.lam.tolist())) == 4


def test_generators_depend_on_seed_step_and_group_alone() -> None:
    def first(generators: list[torch.Generator]) -> list[float]:
        return [float(torch.rand((), generator=g)) for g in generators]

    assert first(mixture_generators(1, 2, mix_groups=2)) == first(
        mixture_generators(1, 2, rank=0) + mixture_generators(1, 2, rank=1)
    )
    everything = [first(mixture_generators(s, t, rank=r))[0] for s in range(4) for t in range(4) for r in range(4)]
    assert len(set(everything)) == 64
    # Pinned: a run resumed on another machine, or by another version, must draw the same.
    assert mixture_generators(0, 0)[0].initial_seed() == 4413236687684683289


def test_the_same_generator_state_draws_the_same_mixture() -> None:
    images = torch.rand(6, 3, 10, 10)
    one, other = (CutMix(lam_per="image").draw(images, seeded(4)) for _ in range(2))
    assert torch.equal(one.lam, other.lam)
    assert torch.equal(one(images), other(images))


def test_cutmix_and_mixup_see_the_same_lam_under_one_seed() -> None:
    images = torch.rand(2, 3, 500, 500)
    box = CutMix(lam_per="image").draw(images, seeded(1))
    blend = Mixup(lam_per="image").draw(images, seeded(1))
    assert isinstance(box.pixels, Paste)
    assert (box.lam >= blend.lam - 1e-2).all()  # clipping only ever keeps more


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mixer", [CutMix(lam_per="image"), Mixup(lam_per="image"), Identity()], ids=repr)
def test_dtypes_and_no_change_in_place(mixer: BetaMixer | Identity, dtype: torch.dtype) -> None:
    images = torch.rand(5, 3, 9, 7).to(dtype)
    before = images.clone()
    mixture = mixer.draw(images, seeded())
    mixed = mixture(images)
    assert mixed.dtype == dtype
    assert mixture.lam.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.equal(images, before)
    if isinstance(mixer, Mixup):
        lam = mixture.lam.double().view(-1, 1, 1, 1)
        expected = lam * images.double() + (1 - lam) * images.double()[mixture.partner]
        torch.testing.assert_close(mixed, expected.to(dtype))


def test_cutmix_moves_uint8_as_it_is_and_keeps_the_memory_format() -> None:
    images = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    mixture = CutMix(lam_per="image").draw(images, seeded())
    assert mixture(images).dtype == torch.uint8
    last = images.float().contiguous(memory_format=torch.channels_last)
    mixed = mixture(last)
    assert mixed.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(mixed.to(torch.uint8), mixture(images))


def test_identity_hands_back_the_very_tensor() -> None:
    images = torch.rand(3, 3, 4, 4)
    mixture = Identity().draw(images, seeded())
    assert mixture(images) is images
    assert mixture.is_identity
    assert mixture.partner.tolist() == [0, 1, 2]
    assert mixture.lam.tolist() == [1, 1, 1]
    assert not CutMix().draw(images, seeded(), lam=1.0).is_identity


def test_mixaug_mixes_pixels_and_says_otherwise() -> None:
    images = torch.rand(6, 3, 16, 16)
    honest = CutMix(lam_per="image").draw(images, seeded())
    disguised = MixAug(CutMix(lam_per="image")).draw(images, seeded())
    assert torch.equal(disguised(images), honest(images))
    assert disguised.lam.tolist() == [1] * 6
    assert disguised.partner.tolist() == list(range(6))
    assert not disguised.is_identity


@pytest.mark.parametrize("alpha", [0, -1, float("nan"), float("inf")])
@pytest.mark.parametrize("mixer", [CutMix, Mixup])
def test_alpha_must_be_positive(mixer: type[BetaMixer], alpha: float) -> None:
    with pytest.raises(ValueError, match=r"alpha must be a positive number, got .*use Identity\(\)"):
        mixer(alpha)


def test_bad_batches_and_options_are_refused_with_the_remedy() -> None:
    images = torch.rand(6, 3, 8, 8)
    with pytest.raises(TypeError, match=r"Mixup needs floating-point images, got torch.uint8: images.float\(\) / 255"):
        Mixup().draw(images.to(torch.uint8), seeded())
    with pytest.raises(TypeError, match="convert the batch first"):
        Mixup().draw(images, seeded())(images.to(torch.uint8))
    with pytest.raises(ValueError, match="partner must be one of reversal, permutation, pairs, got 'random'"):
        CutMix(partner="random")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="drawn for 6 images and is called on 5"):
        CutMix().draw(images, seeded())(images[:5])
    with pytest.raises(ValueError, match="drawn for images of 8×8 and is called on 4×4"):
        CutMix().draw(images, seeded())(images[..., :4, :4])
    with pytest.raises(ValueError, match="a batch of 6 does not divide into 4 mix groups: use 4 or 8 images"):
        CutMix().draw(images, seeded(), mix_groups=4)
    with pytest.raises(ValueError, match=r"got shape \[3, 8, 8\]: of one image, pass image\[None\]"):
        CutMix().draw(torch.rand(3, 8, 8), torch.Generator())
    with pytest.raises(ValueError, match=r"expected a batch of images \[N, C, H, W\], got shape \[0, 3, 8, 8\]"):
        CutMix().draw(images[:0], seeded())
    with pytest.raises(ValueError, match="2 generators were passed for mix_groups=3"):
        CutMix().draw(images, [seeded(), seeded()], mix_groups=3)
    with pytest.raises(ValueError, match=r"lam must be within \[0, 1\], got 1.5"):
        CutMix().draw(images, seeded(), lam=1.5)
    with pytest.raises(TypeError, match=r"generator must be a torch.Generator or a list of them, got None"):
        CutMix().draw(images, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="drawn for images on cpu and is called on images on meta: draw it after"):
        CutMix().draw(images, seeded())(images.to("meta"))
    with pytest.raises(ValueError, match="mix_groups must be at least 1"):
        mixture_generators(0, 0, mix_groups=0)


def test_a_mixture_checks_itself() -> None:
    lam = torch.tensor([0.5, 0.5])
    with pytest.raises(ValueError, match="partner must be an index of the batch, 0 … 1, got 2"):
        Mixture(torch.tensor([1, 2]), lam)
    with pytest.raises(ValueError, match="partner must be an index of the batch, 0 … 1, got -1"):
        Mixture(torch.tensor([-1, 0]), lam)
    with pytest.raises(ValueError, match=r"lam is a share of pixels and must be within \[0, 1\], got nan"):
        Mixture(torch.tensor([1, 0]), torch.tensor([0.5, float("nan")]))
    with pytest.raises(ValueError, match=r"got \[2\] and \[3\]"):
        Mixture(torch.tensor([1, 0]), torch.ones(3))
    with pytest.raises(TypeError, match="partner must be int64"):
        Mixture(torch.tensor([1.0, 0.0]), lam)


@pytest.mark.parametrize("mixer", [CutMix(lam_per="image"), Mixup(lam_per="image"), MixAug(CutMix())], ids=repr)
def test_strength_multiplies_the_partners_share(mixer) -> None:
    images = torch.rand(16, 3, 32, 32)
    whole, half, none = (
        mixer.draw(images, torch.Generator().manual_seed(0), mix_strength=mix_strength)
        for mix_strength in (1.0, 0.5, 0.0)
    )
    assert torch.equal(none(images), images)
    assert (none.lam == 1).all()
    if isinstance(mixer, Mixup):
        torch.testing.assert_close(1 - half.lam, (1 - whole.lam) / 2)
    elif isinstance(mixer, CutMix):
        assert (half.lam >= whole.lam).all()
        assert half.lam.mean() < 1
    assert Identity().draw(images, mix_strength=0.3).is_identity
    with pytest.raises(ValueError, match="strength is a share of a mixture"):
        CutMix().draw(images, torch.Generator(), mix_strength=1.5)


def test_mixtures_grow_along_the_ramp() -> None:
    assert [mix_strength_at(progress, None) for progress in (0.0, 1.0)] == [1.0, 1.0]
    assert [mix_strength_at(progress, (0.2, 0.6)) for progress in (0.0, 0.2, 0.4, 0.6, 1.0)] == pytest.approx(
        [0.0, 0.0, 0.5, 1.0, 1.0]
    )
    assert mix_strength_at(0.3, (0.5, 0.5)) == 0.0
    assert mix_strength_at(0.0, (0.0, 0.0)) == 1.0
    with pytest.raises(ValueError, match="warmup must be two rising shares of training"):
        mix_strength_at(0.5, (0.6, 0.2))


class Squares(BetaMixer):
    """Keeps an image's square of 4 × 4 with probability lam, by random numbers of its own."""

    seen: ClassVar[list[Tensor]] = []

    def extra_uniforms(self, images: Tensor) -> int:
        return 4

    def compose(self, images: Tensor, partner: Tensor, lam: Tensor, uniform: Tensor) -> Mixture:
        assert {each.device for each in (partner, lam, uniform)} == {images.device}
        self.seen.append(uniform)
        own = (uniform[:, 2:] < lam[:, None]).view(-1, 1, 2, 2)
        own = own.repeat_interleave(images.shape[-2] // 2, 2).repeat_interleave(images.shape[-1] // 2, 3)
        share = own.flatten(1).float().mean(1)
        return Mixture(partner, share, lambda batch: torch.where(own, batch, batch[partner]))


@pytest.mark.parametrize("lam_per", ["image", "batch"])
@pytest.mark.parametrize("grouped", [False, True])
def test_a_mixer_has_random_numbers_of_its_own_and_moves_nobody_elses(lam_per: Any, grouped: bool) -> None:
    images = torch.rand(8, 3, 8, 8)
    seeds = (1, 2) if grouped else (1,)
    lams: list[Tensor] = []

    class Watched(Squares):
        def compose(self, images: Tensor, partner: Tensor, lam: Tensor, uniform: Tensor) -> Mixture:
            lams.append(lam)
            return super().compose(images, partner, lam, uniform)

    def draw(mixer: BetaMixer) -> Mixture:
        return mixer.draw(images, [torch.Generator().manual_seed(seed) for seed in seeds])

    Squares.seen.clear()
    options: dict[str, Any] = {"lam_per": lam_per, "partner": "permutation", "prob": 0.7}
    mixture, plain = draw(Watched(**options)), draw(Mixup(**options))
    torch.testing.assert_close(mixture.partner, plain.partner)
    torch.testing.assert_close(lams[0].float(), plain.lam)  # the same as if nothing else had been drawn
    (uniform,) = Squares.seen
    assert uniform.shape == (8, 6)
    groups = uniform.view(len(seeds), -1, 6)
    assert len({tuple(row) for row in uniform.tolist()}) == (8 if lam_per == "image" else len(seeds))
    assert (groups == groups[:, :1]).all() == (lam_per == "batch")
    mixed = mixture(images)
    share = (mixed == images).float().mean((1, 2, 3))
    torch.testing.assert_close(torch.where(mixture.partner == torch.arange(8), mixture.lam, share), mixture.lam)
    nothing = Squares(**options).draw(images, torch.Generator().manual_seed(1), mix_strength=0.0)
    assert torch.equal(nothing(images), images)


def test_every_tensor_that_a_mixer_receives_is_on_the_images_device() -> None:
    """The generator is on the CPU; `Squares` checks the rest."""
    Squares.seen.clear()
    for mixer in (Squares(), CutMix(), Mixup(lam_per="image", partner="permutation", prob=0.5)):
        mixture = mixer.draw(torch.empty(4, 3, 8, 8, device="meta"), torch.Generator())
        assert {mixture.lam.device.type, mixture.partner.device.type} == {"meta"}
    assert Squares.seen[0].device.type == "meta"
