"""Mixtures beyond the paper: lam per pair, one anchor per pair, ResizeMix, FMix, PatchMix of two images and more."""

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from mixview import CutMix, FMix, MixAug, Mixture, Mixup, PatchMix, ResizeMix
from mixview.losses import byol_loss, info_nce, nt_xent
from mixview.mixing import largest
from tests.test_mixing import distinct, seeded

SELECTING: dict[str, Any] = {"cutmix": CutMix, "fmix": FMix, "patchmix": PatchMix}
"""Mixers that take every pixel from one image or the other."""
ALL: dict[str, Any] = SELECTING | {"mixup": Mixup, "resizemix": ResizeMix}
SHAPES = {
    "n": st.integers(1, 7),
    "height": st.integers(4, 13),
    "width": st.integers(4, 13),
    "alpha": st.sampled_from((1e-3, 0.25, 1.0, 4.0)),
    "seed": st.integers(0, 10**9),
}


@pytest.mark.parametrize("name", [*SELECTING, "resizemix", "patchmix of 3"])
def test_shares_are_those_of_the_pixels_for_a_thousand_shapes(name: str) -> None:
    """Image i has values from 10 i to 10 i + 1: what a pixel is from can be seen, resized or not."""
    mixer = PatchMix(lam_per="image", parents=3) if name == "patchmix of 3" else ALL[name](lam_per="image")
    shapes = random.Random(0)
    for seed in range(1000):
        n, height, width = shapes.randint(2, 6), shapes.randint(4, 40), shapes.randint(4, 40)
        images = torch.rand(n, 1, height, width, generator=seeded(seed), dtype=torch.float64)
        images += 10 * torch.arange(n).view(n, 1, 1, 1)
        mixture = mixer.draw(images, seeded(seed))
        origin = (mixture(images) / 10).floor().long().flatten(1)
        counted = torch.zeros(n, n, dtype=torch.float64)
        counted.scatter_add_(1, origin, torch.ones_like(origin, dtype=torch.float64))
        shares = torch.zeros(n, n, dtype=torch.float64)
        for index, share in mixture.parts():
            shares.scatter_add_(1, index.unsqueeze(1), share.unsqueeze(1))
        torch.testing.assert_close(shares * height * width, counted, rtol=0, atol=1e-9)


@given(**SHAPES, name=st.sampled_from([*SELECTING]), lam_per=st.sampled_from(("batch", "pair", "image")))
@settings(max_examples=300, deadline=None)
def test_lam_is_the_share_of_pixels_kept(n, height, width, alpha, seed, name, lam_per) -> None:
    images = distinct(n, height, width)
    mixture = SELECTING[name](alpha, lam_per=lam_per).draw(images, seeded(seed))
    mixed = mixture(images)
    for i in range(n):
        kept = mixed[i] == images[i]
        assert torch.equal(mixed[i][~kept], images[mixture.partner[i]][~kept])
        if mixture.partner[i] != i:
            assert float(mixture.lam[i]) == pytest.approx(int(kept.sum()) / (height * width), abs=1e-12)


@given(**SHAPES, parents=st.integers(3, 5))
@settings(max_examples=300, deadline=None)
def test_the_shares_of_several_parents_are_those_of_their_pixels(n, height, width, alpha, seed, parents) -> None:
    images = distinct(n, height, width)
    mixture = PatchMix(alpha, lam_per="image", parents=parents).draw(images, seeded(seed))
    mixed = mixture(images)
    for i in range(n):
        shares = dict.fromkeys(range(n), 0.0)
        for index, share in mixture.parts():
            shares[int(index[i])] += float(share[i])
        for image, share in shares.items():
            assert share == pytest.approx(int((mixed[i] == images[image]).sum()) / (height * width), abs=1e-9)


def test_cells_divide_both_sides_of_the_image() -> None:
    images = torch.arange(50.0).view(-1, 1, 1, 1).expand(-1, 1, 8, 4)
    mixed = PatchMix(lam_per="image", grid=2).draw(images, seeded())(images)
    cells = mixed.view(-1, 2, 4, 2, 2).transpose(2, 3).flatten(3)
    assert torch.equal(cells, cells[..., :1].expand_as(cells))
    assert (cells[:, 0, :, 0] != cells[:, 1, :, 0]).any()
    assert (cells[:, :, 0, 0] != cells[:, :, 1, 0]).any()


def test_a_parent_without_a_pixel_has_no_share() -> None:
    """Whatever rounding leaves of 1: a parent with a share, however small, competes in the denominator of a loss."""
    mixer, without = PatchMix(lam_per="image", parents=3, grid=3), 0
    for seed in range(40):
        mixture = mixer.draw(torch.zeros(16, 3, 100, 100), seeded(seed))
        for number, (_, share) in enumerate(mixture.parts()):
            pixels = (mixture.pixels.chosen == number).flatten(1).sum(1)
            assert torch.equal(share > 0, pixels > 0)
            assert (share >= 0).all()
            without += int((pixels == 0).sum())
    assert without > 20


def test_mixtures_of_several_parents_grow() -> None:
    """Each of k parents has 1/k of the cells; of a partner's share, only as much as the strength is there."""
    images, mixer = torch.zeros(500, 1, 12, 12), PatchMix(lam_per="image", parents=3)
    for strength in (0.0, 0.25, 1.0):
        shares = [share.mean() for _, share in mixer.draw(images, seeded(), mix_strength=strength).parts()]
        assert shares == pytest.approx([1 - strength * 2 / 3, strength / 3, strength / 3], abs=0.01)
    assert (mixer.draw(images, seeded(), lam=0.0).lam == 0).all()
    half = PatchMix(lam_per="image", parents=3, prob=0.5).draw(images, seeded())
    assert (half.lam == 1).double().mean() == pytest.approx(0.5, abs=0.06)


@given(**SHAPES, name=st.sampled_from([*SELECTING]), partner=st.sampled_from(("reversal", "pairs")))
@settings(max_examples=300, deadline=None)
def test_the_mixtures_of_a_pair_hold_every_pixel_of_both_images_once(n, height, width, alpha, seed, name, partner):
    images = distinct(n, height, width)
    for prob in (1.0, 0.5):
        mixture = SELECTING[name](alpha, lam_per="pair", partner=partner, prob=prob).draw(images, seeded(seed))
        assert torch.equal(mixture(images).flatten().sort().values, images.flatten())
        assert torch.equal(mixture.partner[mixture.partner], torch.arange(n)), "mutual"
        assert torch.equal(mixture.lam[mixture.partner], mixture.lam), "one lam per pair"


def test_pairs_have_lams_of_their_own() -> None:
    mixture = CutMix(lam_per="pair", partner="pairs").draw(torch.zeros(64, 1, 32, 32), seeded())
    assert mixture.lam.unique().numel() > 24
    assert not torch.equal(mixture.partner, torch.arange(64).flip(0))
    assert (mixture.partner != torch.arange(64)).all()


def test_prob_is_drawn_per_pair() -> None:
    drawn = [CutMix(1.0, lam_per="pair", prob=0.3).draw(torch.zeros(8, 1, 32, 32), seeded(s)) for s in range(400)]
    mixed = torch.stack([mixture.lam < 1 for mixture in drawn])
    assert torch.equal(mixed, mixed.flip(1))
    assert mixed.double().mean() == pytest.approx(0.3, abs=0.06)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("partner", ["reversal", "pairs"])
@pytest.mark.parametrize("n", [1, 2, 7, 8])
def test_one_anchor_per_pair_is_a_part_of_all(name: str, partner: Any, n: int) -> None:
    images = torch.rand(n, 3, 16, 16)
    options = {"lam_per": "pair", "partner": partner}
    every = ALL[name](**options).draw(images, seeded(3))
    half = ALL[name](**options, anchors="one_per_pair").draw(images, seeded(3))
    assert len(half) == (n + 1) // 2
    assert half.images == n
    assert torch.equal(half(images), every(images)[half.own])
    assert (half.own <= half.partner).all(), "the smaller index of the pair"
    assert sorted({*half.own.tolist(), *half.partner.tolist()}) == list(range(n)), "all images are trained on"
    for mine, whole in zip(half.parts(), every.parts(), strict=True):
        assert torch.equal(mine[1], whole[1][half.own])


def test_groups_have_anchors_of_their_own() -> None:
    images = torch.rand(12, 3, 8, 8)
    options = {"lam_per": "pair", "partner": "pairs", "anchors": "one_per_pair"}
    mixture = CutMix(**options).draw(images, [seeded(1), seeded(2)])
    parts = [CutMix(**options).draw(images[:6], seeded(seed)) for seed in (1, 2)]
    assert torch.equal(mixture.own, torch.cat([parts[0].own, parts[1].own + 6]))
    assert torch.equal(mixture(images), torch.cat([parts[0](images[:6]), parts[1](images[6:])]))
    several = PatchMix(lam_per="image", parents=3).draw(images, [seeded(1), seeded(2)])
    part = PatchMix(lam_per="image", parents=3).draw(images[:6], seeded(2))
    assert torch.equal(several(images)[6:], part(images[6:]))


def test_mixaug_keeps_the_anchors() -> None:
    images = torch.rand(6, 3, 8, 8)
    mixture = MixAug(CutMix(lam_per="pair", anchors="one_per_pair")).draw(images, seeded())
    assert mixture(images).shape == (3, 3, 8, 8)
    assert mixture.own.tolist() == mixture.partner.tolist() == [0, 1, 2]
    assert mixture.lam.tolist() == [1, 1, 1]


def shrinking(before: int, after: int) -> Tensor:
    """Torch's antialiased resize of one dimension as a matrix. (Of two, it is wrong where one becomes 1.)"""
    rows = torch.eye(before, dtype=torch.float64)[None, None]
    return F.interpolate(rows, (after, before), mode="bilinear", antialias=True)[0, 0]


@given(**SHAPES)
@settings(max_examples=100, deadline=None)
def test_resizemix_pastes_what_torch_resizes(n, height, width, alpha, seed) -> None:
    images = torch.rand(n, 3, height, width, generator=seeded(seed), dtype=torch.float64)
    mixture = ResizeMix(alpha, lam_per="image").draw(images, seeded(seed))
    mixed = mixture(images)
    for i, (top, bottom, left, right) in enumerate(mixture.pixels.box.tolist()):
        expected = images[i].clone()
        if bottom > top and right > left:
            down, across = shrinking(height, bottom - top), shrinking(width, right - left)
            expected[:, top:bottom, left:right] = down @ images[mixture.partner[i]] @ across.T
        assert torch.allclose(mixed[i], expected, atol=1e-12)
        assert float(mixture.lam[i]) == pytest.approx(1 - (bottom - top) * (right - left) / (height * width))


def test_the_largest_are_those_of_sorting() -> None:
    values = torch.randn(300, 40, generator=seeded())
    values[::3] = values[::3].round() + 0.0  # with equals; a zero has no sign
    count = torch.arange(300) % 41
    least = values.sort(dim=1, descending=True).values.gather(1, (count - 1).clamp(min=0).unsqueeze(1))
    expected = (values >= least) & (count > 0).unsqueeze(1)
    assert torch.equal(largest(values, count), expected)


def test_fmix_masks_are_smooth() -> None:
    """As published: neighbors are nearly always alike, and no two masks are the same."""
    chosen = FMix(lam_per="image").draw(torch.zeros(32, 3, 64, 64), seeded()).pixels.chosen
    changes = (chosen[:, 1:] != chosen[:, :-1]).double().mean()
    assert changes < 0.05
    assert len({tuple(mask.flatten().tolist()) for mask in chosen}) > 28


@pytest.mark.parametrize("lam", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("name", [*SELECTING, "resizemix"])
def test_lam_can_be_set(name: str, lam: float) -> None:
    images = torch.rand(4, 3, 32, 32)
    mixture = ALL[name](lam_per="image").draw(images, seeded(), lam=lam)
    assert mixture.lam.mean() == pytest.approx(lam, abs=0.35 if name == "cutmix" else 0.05)
    if lam in (0, 1):
        assert torch.allclose(mixture(images), images if lam else images.flip(0), atol=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_lam_at_least_half(name: str) -> None:
    mixture = ALL[name](lam_per="image", lam_at_least_half=True).draw(torch.rand(200, 1, 15, 17), seeded())
    assert (mixture.lam >= 0.5).all()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("anchors", ["all", "one_per_pair"])
@pytest.mark.parametrize("lam_per", ["batch", "pair", "image"])
def test_no_host_sync(name: str, anchors: str, lam_per: str) -> None:
    with FakeTensorMode():
        images = torch.rand(6, 3, 16, 16, device="cuda")
        mixture = ALL[name](lam_per=lam_per, partner="pairs", anchors=anchors).draw(images, torch.Generator())
        assert mixture(images).device == mixture.lam.device == mixture.own.device == images.device


def features(n: int, seed: int) -> Tensor:
    return torch.randn(n, 5, dtype=torch.float64, generator=seeded(seed))


MIXTURES = {
    "one per pair": lambda: CutMix(lam_per="pair", partner="pairs", anchors="one_per_pair"),
    "one per pair, some alone": lambda: Mixup(0.3, lam_per="pair", anchors="one_per_pair", prob=0.5),
    "three parents": lambda: PatchMix(lam_per="image", parents=3),
    "five parents": lambda: PatchMix(lam_per="image", partner="permutation", parents=5, grid=2),
}


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("n", [5, 8])
@pytest.mark.parametrize("seed", range(4))
def test_losses_are_weighted_by_the_shares_of_all_parents(name: str, n: int, seed: int) -> None:
    """Float64 loops over anchors and parents, from the equations."""
    mixture = MIXTURES[name]().draw(torch.zeros(n, 3, 8, 8, dtype=torch.float64), seeded(seed))
    count = len(mixture)
    anchors, targets, queue = (F.normalize(features(rows, seed + k), dim=1) for k, rows in enumerate((count, n, 9)))
    weights = [{} for _ in range(count)]
    for index, share in mixture.parts():
        for a in range(count):
            parent, weight = int(index[a]), float(share[a])
            weights[a][parent] = weights[a].get(parent, 0.0) + weight
    tau, nce, byol, xent = 0.2, 0.0, 0.0, 0.0
    for a in range(count):
        assert sum(weights[a].values()) == pytest.approx(1)
        own = {parent for parent, weight in weights[a].items() if weight > 1e-12}
        denominator = sum(torch.exp(anchors[a] @ target / tau) for target in targets)
        for b in range(count):
            if not own & {parent for parent, weight in weights[b].items() if weight > 1e-12}:
                denominator = denominator + torch.exp(anchors[a] @ anchors[b] / tau)
        negatives = sum(torch.exp(anchors[a] @ key / tau) for key in queue)
        for parent, weight in weights[a].items():
            cosine = anchors[a] @ targets[parent]
            xent = xent + weight * (torch.log(denominator) - cosine / tau) / count
            nce = nce + weight * (torch.log(torch.exp(cosine / tau) + negatives) - cosine / tau) / count
            byol = byol + weight * (2 - 2 * cosine) / count
    assert float(nt_xent(anchors, targets, mixture, tau)) == pytest.approx(float(xent), abs=1e-10)
    assert float(info_nce(anchors, targets, queue, mixture, tau)) == pytest.approx(float(nce), abs=1e-10)
    assert float(byol_loss(anchors, targets, mixture)) == pytest.approx(float(byol), abs=1e-10)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match='lam_per="pair" needs mutual partners: use partner="reversal" or "pairs"'):
        CutMix(lam_per="pair", partner="permutation")
    with pytest.raises(ValueError, match='anchors="one_per_pair" needs mutual partners'):
        Mixup(anchors="one_per_pair", partner="permutation")
    with pytest.raises(ValueError, match="anchors must be one of all, one_per_pair, got 'half'"):
        CutMix(anchors="half")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mixtures of 3 images are not of pairs"):
        PatchMix(lam_per="pair", parents=3)
    with pytest.raises(ValueError, match="lam_at_least_half is for mixtures of 2 images, not of 3: leave it out"):
        PatchMix(lam_per="image", parents=3, lam_at_least_half=True)
    with pytest.raises(ValueError, match="at least 1 cell per side and 2 parents, got 0 and 2"):
        PatchMix(grid=0)
    with pytest.raises(ValueError, match="a grid of 4×4 does not fit images of 3×3"):
        PatchMix().draw(torch.zeros(2, 3, 3, 3), seeded())
    with pytest.raises(TypeError, match="ResizeMix needs floating-point images"):
        ResizeMix().draw(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), seeded())(torch.zeros(2, 3, 8, 8).byte())
    with pytest.raises(ValueError, match="drawn for images of 8×8 and is called on 9×9"):
        FMix().draw(torch.zeros(2, 3, 8, 8), seeded())(torch.zeros(2, 3, 9, 9))
    with pytest.raises(ValueError, match="the mixture is of 6 images"):
        byol_loss(torch.rand(3, 4), torch.rand(3, 4), Mixture(torch.zeros(3).long(), torch.ones(3), images=6))
