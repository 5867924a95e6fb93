"""Mixtures of images: who is mixed with whom, how much of each is kept, and the mixed pixels.

A *mixer* (`Identity`, `CutMix`, `Mixup`, `ResizeMix`, `FMix`, `PatchMix`, `MixAug`) draws a `Mixture` for a batch. A
`Mixture` holds the parents of every mixture and their shares, and, called on a batch, returns the mixed batch. The
losses read nothing but parents and shares, so a new mixture works with every method. Needs torch and nothing else.

    mixture = CutMix(alpha=1.0, lam_per="image").draw(images, generator)
    mixed = mixture(images)          # lam[i] of image i, 1 - lam[i] of image partner[i]

Everything random comes from the generator that is passed, in a fixed number of draws, on the generator's own device:
a CPU generator gives the same mixtures whatever device the images are on. Nothing here waits for an accelerator.
"""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Self, final, get_args

import torch
from torch import Tensor

from mixview.rng import seed_from

Partner = Literal["reversal", "permutation", "pairs"]
LamPer = Literal["batch", "pair", "image"]
Anchors = Literal["all", "one_per_pair"]
Generators = torch.Generator | Sequence[torch.Generator]

# Four uniforms make a lam (see `symmetric_beta`) and two the center of a box. Every mixer draws all six, so that CutMix
# and Mixup see the same lam under the same seed and a comparison of the two is a paired one.
LAM_UNIFORMS, UNIFORMS = 4, 6


def mixture_generators(seed: int, step: int, *, rank: int = 0, mix_groups: int = 1) -> list[torch.Generator]:
    """One generator for each group that this rank mixes, a function of (seed, step, group) and of nothing else.

    A group is what mixes together. Rank r of many with `mix_groups=1` owns group r; one process with `mix_groups=G`
    owns groups 0 … G-1 and so draws bit for bit what G ranks would. When gradients accumulate, micro-batch m of M on
    rank r is a group of its own: `rank=r * M + m`.

    Example:
        >>> generators = mixture_generators(seed=0, step=7, mix_groups=2)
        >>> mixture = CutMix().draw(torch.rand(8, 3, 4, 4), generators)
        >>> mixture.partner.tolist()  # reversed within each group
        [3, 2, 1, 0, 7, 6, 5, 4]
    """
    if mix_groups < 1 or rank < 0:
        raise ValueError(f"mix_groups must be at least 1 and rank at least 0, got {mix_groups} and {rank}")
    generators = []
    for group in range(rank * mix_groups, (rank + 1) * mix_groups):
        generators.append(torch.Generator().manual_seed(seed_from("mixture", seed, step, group)))
    return generators


def check_values(good: Tensor, values: Tensor, rule: str) -> None:
    """Raise `rule` when a value is not `good`: at once on the CPU, by a device-side assertion (no sync) on CUDA."""
    if torch.compiler.is_compiling():
        return
    if good.device.type == "cpu":
        if not bool(good.all()):
            raise ValueError(f"{rule}, got {values[~good][0].item()}")
    elif good.device.type == "cuda":
        torch._assert_async(good.all(), rule)


def check_mixture(partner: Tensor, lam: Tensor, anchors: int, images: int | None = None) -> None:
    """Raise if a partner is no index of an image, a lam is outside [0, 1] or NaN, or their length is not `anchors`."""
    count = anchors if images is None else images
    if partner.shape != (anchors,) or lam.shape != (anchors,):
        raise ValueError(
            f"a mixture of {anchors} images needs partner and lam of shape [{anchors}], "
            f"got {list(partner.shape)} and {list(lam.shape)}: draw it for this very batch"
        )
    if partner.dtype != torch.int64 or not lam.is_floating_point():
        raise TypeError(f"partner must be int64 and lam floating point, got {partner.dtype} and {lam.dtype}")
    if partner.device != lam.device:
        raise ValueError(f"partner is on {partner.device} and lam on {lam.device}: put both on one device")
    check_values((partner >= 0) & (partner < count), partner, f"partner must be an index of the batch, 0 … {count - 1}")
    check_values((lam >= 0) & (lam <= 1), lam, "lam is a share of pixels and must be within [0, 1]")


@final
class Mixture:
    """A drawn mixture of N images: A anchors, each of a few of them. A is N, or with one anchor per pair about N / 2.

    Anchor `a` is `lam[a]` of image `own[a]` and `1 - lam[a]` of image `partner[a]`. Losses should read `parts` or
    `interpolate`, which hold for mixtures of more than two parents, too.

    Args:
        partner: [A] int64, the index of the image that is mixed into each anchor.
        lam: [A] floating point, the share of pixels that is really image `own[a]`'s.
        pixels: a function of all N images that returns the A anchors, which mixes a batch; by default the linear
            blend of Mixup.
        own: [A] int64, the first parent of each anchor; by default image a is that of anchor a.
        images: N; by default as many as there are anchors.
        further: (index [A], share [A]) of every parent beyond two, whose shares `1 - lam` includes.

    Example:
        >>> mixture = Mixture(torch.tensor([1, 0]), torch.tensor([0.75, 0.5]))
        >>> mixture(torch.tensor([[[[0.0]]], [[[1.0]]]])).flatten().tolist()
        [0.25, 0.5]
    """

    # Not a dataclass: Lightning rebuilds (or refuses) dataclasses that pass through a wrapped module's forward.
    def __init__(
        self,
        partner: Tensor,
        lam: Tensor,
        pixels: Callable[[Tensor], Tensor] | None = None,
        *,
        own: Tensor | None = None,
        images: int | None = None,
        further: Sequence[tuple[Tensor, Tensor]] = (),
    ) -> None:
        count = partner.numel() if images is None else images
        check_mixture(partner, lam, partner.numel(), count)
        for index, share in further:
            check_mixture(index, share, partner.numel(), count)
        self.images = count
        self.own = torch.arange(len(partner), device=partner.device) if own is None else own
        self.partner = partner
        self.lam = lam
        self.further = tuple(further)
        self.pixels = Blend(partner, lam) if pixels is None else pixels

    def __len__(self) -> int:
        """The number of anchors."""
        return len(self.partner)

    def parts(self, dtype: torch.dtype | None = None, rows: slice | None = None) -> list[tuple[Tensor, Tensor]]:
        """Index [A] and share [A] of each parent; the shares of an anchor sum to 1.

        Args:
            dtype: the type of the shares; by default that of `lam`.
            rows: the anchors, all by default.
        """
        rows = slice(None) if rows is None else rows
        lam = self.lam[rows] if dtype is None else self.lam[rows].to(dtype)
        further = [(index[rows], share[rows].to(lam.dtype)) for index, share in self.further]
        second = 1 - lam
        for _, share in further:
            second = second - share
        if further:  # what rounding leaves of a parent without a pixel is no share
            second = second.masked_fill(second.abs() < 64 * torch.finfo(self.lam.dtype).eps, 0)
        return [(self.own[rows], lam), (self.partner[rows], second), *further]

    def interpolate(self, targets: Tensor) -> Tensor:
        """Targets [N, …] of the unmixed images -> [A, …]: those of the parents, weighted by their shares."""
        (own, lam), *others = self.parts(targets.dtype)
        shape = (-1, *[1] * (targets.ndim - 1))
        mixed = lam.view(shape) * targets[own]
        for index, share in others:
            mixed = mixed + share.view(shape) * targets[index]
        return mixed

    def __call__(self, images: Tensor) -> Tensor:
        """The anchors [A, …] of a batch [N, …], a new tensor; under `Identity` the very tensor that came in."""
        if len(images) != self.images:
            raise ValueError(f"this mixture was drawn for {self.images} images and is called on {len(images)}")
        if images.device != self.lam.device:
            raise ValueError(
                f"this mixture was drawn for images on {self.lam.device} and is called on images on {images.device}: "
                "draw it after moving them"
            )
        return self.pixels(images)

    def only(self, anchors: Tensor) -> "Mixture":
        """The mixture with a part of its anchors, by their indices.

        The pixels of all are mixed, and then those of the others dropped: mixing costs next to nothing, and so every
        mixer can be used with one anchor per pair.
        """
        pixels = self.pixels
        return Mixture(
            self.partner[anchors],
            self.lam[anchors],
            lambda images: pixels(images)[anchors],
            own=self.own[anchors],
            images=self.images,
            further=[(index[anchors], share[anchors]) for index, share in self.further],
        )

    @property
    def is_identity(self) -> bool:
        """True if the mixed batch is the batch itself (known without looking at any value)."""
        return self.pixels is unmixed

    def __repr__(self) -> str:
        return f"Mixture(partner={self.partner.tolist()}, lam={self.lam.tolist()})"


def unmixed(images: Tensor) -> Tensor:
    """The pixels of `Identity`: the same tensor, so that an encoder memoized per tensor runs once."""
    return images


@final
class Blend:
    """The pixels of Mixup: `lam x_i + (1 - lam) x_j`, exact at lam = 0 and 1 and where an image is its own partner."""

    def __init__(self, partner: Tensor, lam: Tensor) -> None:
        self.partner = partner
        self.lam = lam

    def __call__(self, images: Tensor) -> Tensor:
        if not images.is_floating_point():
            raise TypeError(
                f"Mixup blends pixel values and cannot do so in {images.dtype}: convert the batch first "
                "(images.float() / 255), or use CutMix, which moves pixels as they are"
            )
        # Half precision would round lam to 8 or 11 bits and the pixels would disagree with the loss: blend in float32.
        exact = torch.promote_types(images.dtype, torch.float32)
        weight = self.lam.to(exact).view(-1, *[1] * (images.ndim - 1))
        return torch.lerp(images[self.partner].to(exact), images.to(exact), weight).to(images.dtype)


def check_size(images: Tensor, size: tuple[int, int]) -> None:
    """Raise if a mixture that was drawn for images of one size is called on images of another."""
    if tuple(images.shape[-2:]) != size:
        raise ValueError(
            f"this mixture was drawn for images of {size[0]}×{size[1]} and is called on "
            f"{images.shape[-2]}×{images.shape[-1]}: it would cover another share of them; draw it again"
        )


def inside_boxes(box: Tensor, size: tuple[int, int]) -> Tensor:
    """True where a pixel is in the box (top, bottom, left, right) of its image. [N, 4] -> [N, H, W]"""
    top, bottom, left, right = box.unsqueeze(-1).unbind(1)
    row = torch.arange(size[0], device=box.device)
    column = torch.arange(size[1], device=box.device)
    in_rows = (row >= top) & (row < bottom)
    in_columns = (column >= left) & (column < right)
    return in_rows.unsqueeze(2) & in_columns.unsqueeze(1)


@final
class Paste:
    """The pixels of CutMix: image `i` with `box[i]` = (top, bottom, left, right) filled from image `partner[i]`."""

    def __init__(self, partner: Tensor, box: Tensor, size: tuple[int, int]) -> None:
        self.partner = partner
        self.box = box
        self.size = size

    def __call__(self, images: Tensor) -> Tensor:
        check_size(images, self.size)
        inside = inside_boxes(self.box, self.size).view(-1, *[1] * (images.ndim - 3), *self.size)
        return torch.where(inside, images[self.partner], images)


@final
class PasteResized:
    """The pixels of ResizeMix: image `i` with the whole of image `partner[i]`, shrunk, in `box[i]`."""

    def __init__(self, partner: Tensor, box: Tensor, size: tuple[int, int]) -> None:
        self.partner = partner
        self.box = box
        self.size = size

    def __call__(self, images: Tensor) -> Tensor:
        check_size(images, self.size)
        if not images.is_floating_point():
            raise TypeError(f"ResizeMix needs floating-point images, got {images.dtype}: images.float() / 255")
        exact = torch.promote_types(images.dtype, torch.float32)
        top, bottom, left, right = self.box.unbind(1)
        down = resize_weights(top, bottom, self.size[0], exact)  # [N, H, H]
        across = resize_weights(left, right, self.size[1], exact).transpose(1, 2)  # [N, W, W]
        shape = (-1, *[1] * (images.ndim - 3), *self.size)
        partners = images[self.partner].to(exact)
        resized = down.view(*shape[:-2], *down.shape[1:]) @ partners @ across.view(*shape[:-2], *across.shape[1:])
        inside = inside_boxes(self.box, self.size).view(shape)
        return torch.where(inside, resized.to(images.dtype), images)


def resize_weights(start: Tensor, stop: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Weights that shrink `size` pixels to those from `start` to `stop`: antialiased bilinear, as torch's interpolate.

    [N] and [N] -> [N, size, size]: the row of an output pixel weighs all input pixels and sums to 1. Rows outside of
    the box are finite and mean nothing. As matrices, boxes of all sizes are resized at once, without a host sync.
    """
    out = torch.arange(size, device=start.device, dtype=dtype)
    scale = size / (stop - start).clamp(min=1).to(dtype).view(-1, 1, 1)
    center = (out.view(1, -1, 1) - start.view(-1, 1, 1) + 0.5) * scale
    weights = (1 - (out.view(1, 1, -1) + 0.5 - center).abs() / scale).clamp(min=0)
    return weights / weights.sum(2, keepdim=True).clamp(min=torch.finfo(dtype).tiny)


@final
class Select:
    """The pixels of FMix and PatchMix: each pixel from one of the parents.

    Args:
        others: [N] int64 each, the parents of image i besides itself.
        chosen: [N, H, W], what each pixel is from: 0 for image i itself, 1 for the first of the others, and so on.
    """

    def __init__(self, others: Sequence[Tensor], chosen: Tensor) -> None:
        self.others = tuple(others)
        self.chosen = chosen

    def __call__(self, images: Tensor) -> Tensor:
        size = (self.chosen.shape[-2], self.chosen.shape[-1])
        check_size(images, size)
        chosen = self.chosen.view(-1, *[1] * (images.ndim - 3), *size)
        mixed = images
        for number, other in enumerate(self.others, start=1):
            mixed = torch.where(chosen == number, images[other], mixed)
        return mixed


class Mixer(ABC):
    """Draws mixtures. To make a new one: subclass, implement `draw`, return a `Mixture`.

    For one that mixes pairs with lam from a Beta distribution, subclass `BetaMixer`. Your own is used in training by
    its import path: `mixview pretrain --mixing.mixer mine.FMix`.

    Example:
        >>> class Average(Mixer):
        ...     def draw(self, images, generator, *, mix_groups=1, mix_strength=1.0):
        ...         partner = torch.arange(len(images)).flip(0)
        ...         return Mixture(partner, torch.full((len(images),), 1 - mix_strength / 2))
        >>> Average().draw(torch.rand(2, 3, 4, 4), torch.Generator())
        Mixture(partner=[1, 0], lam=[0.5, 0.5])
    """

    @classmethod
    def from_options(cls, **options: Any) -> Self:
        """A mixer with those of the settings in `mixing` that its constructor takes."""
        parameters = inspect.signature(cls).parameters
        return cls(**{name: value for name, value in options.items() if name in parameters})

    @abstractmethod
    def draw(self, images: Tensor, generator: Generators, *, mix_groups: int = 1, mix_strength: float = 1.0) -> Mixture:
        """A mixture for this batch.

        Args:
            images: [N, C, …, H, W]; only its shape, device and dtype are read.
            generator: the generator of everything random; a list of G mixes the batch in G groups, one from each.
            mix_groups: the number of groups that the batch is mixed in, with one generator: image i finds its partner
                within its group, and a lam per batch is one per group.
            mix_strength: the factor of the partner's share, 1 - lam: 0 mixes nothing (see `mix_strength_at`).
        """


@final
class Identity(Mixer):
    """No mixture: lam = 1, every image its own partner, and the batch handed back untouched.

    Example:
        >>> images = torch.rand(2, 3, 4, 4)
        >>> mixture = Identity().draw(images)
        >>> mixture, mixture(images) is images
        (Mixture(partner=[0, 1], lam=[1.0, 1.0]), True)
    """

    def __repr__(self) -> str:
        return "Identity()"

    def draw(
        self, images: Tensor, generator: Generators | None = None, *, mix_groups: int = 1, mix_strength: float = 1.0
    ) -> Mixture:
        check_batch(images)
        count = len(images)
        own = torch.arange(count, device=images.device)
        return Mixture(own, torch.ones(count, device=images.device, dtype=lam_dtype(images)), unmixed)


class BetaMixer(Mixer):
    """Mixes pairs with lam ~ Beta(alpha, alpha); a subclass says in `compose` what becomes of the pixels.

    One that needs random numbers of its own says in `extra_uniforms` how many, and finds them in `compose`:

        class Checkerboard(BetaMixer):
            def extra_uniforms(self, images: Tensor) -> int:
                return 64                                                           # one per square of 8 × 8

            def compose(self, images: Tensor, partner: Tensor, lam: Tensor, uniform: Tensor) -> Mixture:
                own = (uniform[:, 2:] < lam[:, None]).view(-1, 1, 8, 8)             # True: the square stays image i's
                own = F.interpolate(own.to(images.dtype), images.shape[-2:]) > 0.5
                share = own.flatten(1).to(torch.float32).mean(1)
                return Mixture(partner, share, lambda batch: torch.where(own, batch, batch[partner]))

    Args:
        alpha: parameter of the Beta distribution. 1 is uniform; toward 0 every lam is 0 or 1, and nothing is mixed.
        lam_per: `"image"`, one lam (and one box) per image; `"pair"`, one for both images of a pair, whose mixtures
            then hold every pixel of both exactly once; or `"batch"`, one per batch or group, as in the paper.
        partner: `"reversal"`, image i with image N-1-i; `"pairs"`, mutual pairs at random; or `"permutation"`, at
            random, and so not mutual.
        lam_at_least_half: lam becomes max(lam, 1 - lam), so that image i is always the larger part.
        prob: the probability that an image (with one lam per pair or batch: the pair, the batch) is mixed at all; the
            others have lam = 1. Half of a batch mixed has both terms of WBSIM in the passes of one.
        anchors: `"all"`, one mixture per image, or `"one_per_pair"`, only that of the smaller index of each mutual
            pair: half the passes. The middle image of an odd batch is a pair by itself.
    """

    parents: int = 2
    """Images per mixture."""

    def __init__(
        self,
        alpha: float = 1.0,
        lam_per: LamPer = "batch",
        partner: Partner = "reversal",
        lam_at_least_half: bool = False,
        prob: float = 1.0,
        anchors: Anchors = "all",
    ) -> None:
        if not (math.isfinite(alpha) and alpha > 0):
            raise ValueError(f"alpha must be a positive number, got {alpha}: for no mixture at all use Identity()")
        for name, value, choices in (
            ("partner", partner, get_args(Partner)),
            ("lam_per", lam_per, get_args(LamPer)),
            ("anchors", anchors, get_args(Anchors)),
        ):
            if value not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
        if partner == "permutation" and (lam_per == "pair" or anchors == "one_per_pair"):
            named = 'lam_per="pair"' if lam_per == "pair" else 'anchors="one_per_pair"'
            raise ValueError(f'{named} needs mutual partners: use partner="reversal" or "pairs", not "permutation"')
        if not 0 < prob <= 1:
            raise ValueError(f"prob must be in (0, 1], got {prob}: for no mixture use Identity()")
        self.alpha = float(alpha)
        self.lam_per: LamPer = lam_per
        self.partner: Partner = partner
        self.lam_at_least_half = lam_at_least_half
        self.prob = prob
        self.anchors: Anchors = anchors

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(alpha={self.alpha:g}, lam_per={self.lam_per!r}, partner={self.partner!r}, "
            f"lam_at_least_half={self.lam_at_least_half}, prob={self.prob:g}, anchors={self.anchors!r})"
        )

    @final
    def draw(
        self,
        images: Tensor,
        generator: Generators,
        *,
        mix_groups: int = 1,
        mix_strength: float = 1.0,
        lam: float | Tensor | None = None,
    ) -> Mixture:
        """A mixture for this batch (see `Mixer.draw`); `lam`, one value or [N], sets lam instead of drawing it.

        Random numbers are drawn in rows, one row per lam, on the generator's device. `spread` gives every image the row
        of its batch or pair, or its own.
        """
        check_batch(images)
        if not 0 <= mix_strength <= 1:
            raise ValueError(f"mix_strength is a share of a mixture, 0 to 1, got {mix_strength}")
        generators = list_generators(generator, mix_groups)
        count, groups = len(images), len(generators)
        if count % groups:
            raise ValueError(
                f"a batch of {count} does not divide into {groups} mix groups: "
                f"use {count // groups * groups or groups} or {(count // groups + 1) * groups} images"
            )
        each = count // groups
        rows = {"image": each, "pair": (each + 1) // 2, "batch": 1}[self.lam_per]
        uniform, permutation, chance = self._draw_numbers(images, generators, each, rows)
        order = torch.stack(permutation) if permutation else torch.arange(each).expand(groups, each)
        place = order.argsort(1)  # where each image stands in the order of pairs: p is paired with each - 1 - p
        row = torch.minimum(place, each - 1 - place) if self.lam_per == "pair" else torch.arange(each) % rows

        def spread(values: Tensor) -> Tensor:
            """[groups, rows, …] -> [N, …]"""
            index = row.to(values.device).expand(groups, each).view(groups, each, *[1] * (values.ndim - 2))
            return values.gather(1, index.expand(groups, each, *values.shape[2:])).reshape(count, *values.shape[2:])

        draws = spread(torch.stack(uniform))
        first = torch.arange(groups, device=images.device) * each  # of each group
        local = order if self.partner == "permutation" else order.gather(1, each - 1 - place)
        if self.parents > 2:  # the next ones in the order
            local = torch.stack([order.gather(1, (place + step) % each) for step in range(1, self.parents)], dim=2)
        partner = first.view(-1, *[1] * (local.ndim - 1)) + local.to(images.device, non_blocking=True)
        partner = partner.reshape(count, *local.shape[2:])

        drawn = symmetric_beta(self.alpha, draws[:, :LAM_UNIFORMS])
        if self.parents > 2:  # all of them alike
            drawn = torch.full_like(drawn, 1 / self.parents)
        if self.lam_at_least_half:
            drawn = torch.maximum(drawn, 1 - drawn)
        if chance:
            drawn = drawn.masked_fill(spread(torch.stack(chance)) >= self.prob, 1)
        if mix_strength < 1:
            drawn = 1 - mix_strength * (1 - drawn)
        if lam is not None:
            drawn = torch.as_tensor(lam, dtype=drawn.dtype, device=drawn.device).expand(count)
            check_values((drawn >= 0) & (drawn <= 1), drawn, "lam must be within [0, 1]")
        exact = torch.float32 if images.device.type == "mps" else torch.float64
        drawn, uniforms = (
            each.to(images.device, exact, non_blocking=True) for each in (drawn, draws[:, LAM_UNIFORMS:])
        )
        mixture = self.compose(images, partner, drawn, uniforms)
        if self.anchors == "all":
            return mixture
        pairs = order[:, : (each + 1) // 2]
        smaller = torch.minimum(pairs, order.flip(1)[:, : (each + 1) // 2]).sort(1).values
        return mixture.only((first.unsqueeze(1) + smaller.to(images.device, non_blocking=True)).reshape(-1))

    def _draw_numbers(
        self, images: Tensor, generators: Sequence[torch.Generator], each: int, rows: int
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Everything random, a tensor per group: uniforms [rows, …], the order [each], a chance [rows] if prob < 1."""
        uniform, permutation, chance = [], [], []
        for source in generators:
            # MPS has no float64; everywhere else 53 random bits keep the tails of a small alpha.
            dtype = torch.float32 if source.device.type == "mps" else torch.float64
            uniform.append(torch.rand(rows, UNIFORMS, generator=source, device=source.device, dtype=dtype))
            if self.partner != "reversal":
                permutation.append(torch.randperm(each, generator=source, device=source.device))
            if self.prob < 1:  # drawn last: lam, boxes and partners are those of prob = 1
                chance.append(torch.rand(rows, generator=source, device=source.device, dtype=dtype))
        if extra := self.extra_uniforms(images):  # after all groups: lam, boxes and partners are those of CutMix
            for group, source in enumerate(generators):
                own_draws = torch.rand(rows, extra, generator=source, device=source.device, dtype=uniform[group].dtype)
                uniform[group] = torch.cat([uniform[group], own_draws], dim=1)
        return uniform, permutation, chance

    def extra_uniforms(self, images: Tensor) -> int:
        """The number of random numbers per image that `compose` needs, beyond two."""
        return 0

    @abstractmethod
    def compose(self, images: Tensor, partner: Tensor, lam: Tensor, uniform: Tensor) -> Mixture:
        """The mixture of these partners at this lam. All tensors are on the images' device.

        Args:
            images: [N, C, …, H, W]; only its shape, device and dtype are read.
            partner: [N] int64; [N, parents - 1] for a mixer of more than two parents.
            lam: [N] in the highest precision that the device has. The lam of the mixture is the share of pixels that
                is really image i's.
            uniform: [N, 2 + extra_uniforms(images)] in [0, 1); the first two are the center of CutMix's box. With one
                lam per batch, all images of a group have the same.
        """


@final
class Mixup(BetaMixer):
    """`lam x_i + (1 - lam) x_j` (Zhang et al., 2018).

    Example:
        >>> images = torch.rand(4, 3, 8, 8)
        >>> mixture = Mixup(alpha=1.0).draw(images, torch.Generator().manual_seed(0))
        >>> lam = mixture.lam[0]
        >>> torch.allclose(mixture(images)[0], lam * images[0] + (1 - lam) * images[3])
        True
    """

    name: ClassVar[str] = "mixup"

    def compose(self, images: Tensor, partner: Tensor, lam: Tensor, uniform: Tensor) -> Mixture:
        if not images.is_floating_point():
            raise TypeError(f"Mixup needs floating-point images, got {images.dtype}: images.float() / 255, or CutMix")
        lam = lam.to(lam_dtype(images))
        # A lam too small to tell from 0 at the other end, 1 - lam, is 0: neither parent may have an invisible weight.
        return Mixture(partner, 1 - (1 - lam))


@final
class CutMix(BetaMixer):
    """Image `i` with a box filled from image `j` (Yun et al., 2019); `lam` is the share of pixels outside the box.

    Example:
        >>> images = torch.rand(4, 3, 8, 8)
        >>> mixture = CutMix(lam_per="image").draw(images, torch.Generator().manual_seed(0))
        >>> mixed = mixture(images)
        >>> torch.equal((mixed == images).all(1).float().mean((1, 2)), mixture.lam)
        True
    """

    name: ClassVar[str] = "cutmix"

    def compose(self, images: Tensor, partner: Tensor, lam: Tensor, uniform: Tensor) -> Mixture:
        height, width = images.shape[-2:]
        box = cutmix_box(lam, uniform[:, :2], height, width, inwards=self.lam_at_least_half)
        top, bottom, left, right = box.unbind(1)
        pasted = (bottom - top) * (right - left)
        kept = (height * width - pasted).to(lam.dtype) / (height * width)
        return Mixture(partner, kept.to(lam_dtype(images)), Paste(partner, box, (height, width)))


@final
class ResizeMix(BetaMixer):
    """Image `i` with the whole of image `j`, shrunk, pasted into a box (Qin et al., 2020).

    Example:
        >>> images = torch.rand(4, 3, 8, 8)
        >>> mixture = ResizeMix().draw(images, torch.Generator(), lam=0.75)
        >>> mixture.lam.tolist(), mixture(images).shape
        ([0.75, 0.75, 0.75, 0.75], torch.Size([4, 3, 8, 8]))
    """

    name: ClassVar[str] = "resizemix"

    def compose(self, images: Tensor, partner: Tensor, lam: Tensor, uniform: Tensor) -> Mixture:
        size = (images.shape[-2], images.shape[-1])
        half = torch.sqrt(1 - lam)
        box = []
        for side, position in zip(size, uniform[:, :2].unbind(1), strict=True):
            length = (half * side).floor() if self.lam_at_least_half else (half * side).round()
            start = (position * (side - length + 1)).floor()  # all of the box is in the image
            box += [start, start + length]
        boxes = torch.stack(box, dim=1).long()
        top, bottom, left, right = boxes.unbind(1)
        share = 1 - ((bottom - top) * (right - left)).to(lam.dtype) / (size[0] * size[1])
        return Mixture(partner, share.to(lam_dtype(images)), PasteResized(partner, boxes, size))


@final
class FMix(BetaMixer):
    """Masks of low-frequency noise, of which the larger part `lam` stays image `i` (Harris et al., 2020).

    The spectrum of the noise falls with the third power of the frequency, as published. Frequencies above `MAX_CYCLES`
    per image, whose amplitude is below a thousandth of the lowest, are left out: 1,122 random numbers make a mask of
    any size.

    Example:
        >>> images = torch.rand(4, 3, 8, 8)
        >>> mixture = FMix().draw(images, torch.Generator(), lam=0.75)
        >>> mixture.lam.tolist(), mixture(images).shape
        ([0.75, 0.75, 0.75, 0.75], torch.Size([4, 3, 8, 8]))
    """

    name: ClassVar[str] = "fmix"
    DECAY: ClassVar[int] = 3
    MAX_CYCLES: ClassVar[int] = 16

    def cycles(self, images: Tensor) -> tuple[int, int]:
        """The highest frequencies of the mask, down and across."""
        height, width = ((min(2 * self.MAX_CYCLES, side - 1)) // 2 for side in images.shape[-2:])
        return height, width

    def extra_uniforms(self, images: Tensor) -> int:
        down, across = self.cycles(images)
        return 2 * (2 * down + 1) * (across + 1)

    def compose(self, images: Tensor, partner: Tensor, lam: Tensor, uniform: Tensor) -> Mixture:
        height, width = images.shape[-2:]
        down, across = self.cycles(images)
        draws = uniform[:, 2:].view(-1, 2, 2 * down + 1, across + 1)
        radius = torch.sqrt(-2 * torch.log(1 - draws[:, 0]))  # Box-Muller: a complex normal number per frequency
        noise = torch.polar(radius, 2 * math.pi * draws[:, 1])
        rows = torch.arange(2 * down + 1, device=images.device)
        rows = torch.where(rows > down, rows - 2 * down - 1, rows)  # 0 … down, -down … -1, as fft has them
        columns = torch.arange(across + 1, device=images.device)
        frequency = torch.sqrt((rows / height).square().unsqueeze(1) + (columns / width).square().unsqueeze(0))
        decay = frequency.clamp(min=1 / max(height, width)).to(draws.dtype) ** -self.DECAY
        spectrum = noise.new_zeros(len(noise), height, width // 2 + 1)
        spectrum[:, rows % height, : across + 1] = noise * decay
        smooth = torch.fft.irfft2(spectrum, s=(height, width)).flatten(1).to(torch.float32)
        count = lam * (height * width)
        count = (count.ceil() if self.lam_at_least_half else count.round()).long()
        kept = largest(smooth, count)
        share = kept.to(lam.dtype).mean(1).to(lam_dtype(images))
        return Mixture(partner, share, Select([partner], ~kept.view(-1, height, width)))


def largest(values: Tensor, count: Tensor) -> Tensor:
    """True for the `count` [N] largest of the float32 values [N, P] of each row, and for equals of the last of them.

    The last one is found bit by bit, faster than by sorting: floats are in the order of the integers of their bits.
    """
    bits = values.contiguous().view(torch.int32)
    bits = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    least = torch.full_like(count, -(2**31))
    for bit in reversed(range(32)):
        higher = least + (1 << bit)
        enough = (bits >= higher.to(torch.int32).unsqueeze(1)).sum(1) >= count
        least = torch.where(enough, higher, least)
    return (bits >= least.to(torch.int32).unsqueeze(1)) & (count > 0).unsqueeze(1)


@final
class PatchMix(BetaMixer):
    """A grid of cells, each taken at random from one of `parents` images (Shen et al., 2023).

    Of two images, image i has `lam` of the cells. Of more, all have the same chance at each cell, whatever `alpha` is,
    and the parents besides image i are the next ones in the batch, or in a random order of it.

    Args:
        grid: cells per side.
        parents: images per mixture.

    Example:
        >>> images = torch.rand(4, 3, 8, 8)
        >>> mixture = PatchMix(lam_per="image", grid=2, parents=3).draw(images, torch.Generator())
        >>> len(mixture.parts()), mixture(images).shape  # three images in each mixture
        (3, torch.Size([4, 3, 8, 8]))
    """

    name: ClassVar[str] = "patchmix"

    def __init__(
        self,
        alpha: float = 1.0,
        lam_per: LamPer = "batch",
        partner: Partner = "reversal",
        lam_at_least_half: bool = False,
        prob: float = 1.0,
        anchors: Anchors = "all",
        grid: int = 4,
        parents: int = 2,
    ) -> None:
        super().__init__(alpha, lam_per, partner, lam_at_least_half, prob, anchors)
        if grid < 1 or parents < 2:
            raise ValueError(f"a grid needs at least 1 cell per side and 2 parents, got {grid} and {parents}")
        if parents > 2 and (self.lam_per == "pair" or self.anchors == "one_per_pair"):
            raise ValueError(f"mixtures of {parents} images are not of pairs: set lam_per to image, and anchors to all")
        if parents > 2 and self.lam_at_least_half:
            raise ValueError(f"lam_at_least_half is for mixtures of 2 images, not of {parents}: leave it out")
        self.grid = grid
        self.parents = parents

    def extra_uniforms(self, images: Tensor) -> int:
        return self.grid * self.grid

    def compose(self, images: Tensor, partner: Tensor, lam: Tensor, uniform: Tensor) -> Mixture:
        height, width = images.shape[-2:]
        if self.grid > min(height, width):
            raise ValueError(f"a grid of {self.grid}×{self.grid} does not fit images of {height}×{width}")
        cells = uniform[:, 2:]
        if self.parents == 2:
            kept = lam * self.grid**2
            kept = kept.ceil() if self.lam_at_least_half else kept.round()
            chosen = (cells.argsort(1).argsort(1) >= kept.unsqueeze(1)).long()
        else:
            lam = lam.unsqueeze(1)  # the chance that a cell is image i's own; the others share the rest
            other = (cells - lam) / (1 - lam).clamp(min=torch.finfo(lam.dtype).tiny) * (self.parents - 1)
            chosen = (1 + other.long().clamp(max=self.parents - 2)).masked_fill(cells < lam, 0)
        rows, columns = (torch.arange(side, device=images.device) * self.grid // side for side in (height, width))
        cell = rows.unsqueeze(1) * self.grid + columns.unsqueeze(0)
        chosen = chosen[:, cell]  # [N, H, W]
        shares = [(chosen == number).to(lam.dtype).mean((1, 2)).to(lam_dtype(images)) for number in range(self.parents)]
        others = [partner] if self.parents == 2 else list(partner.unbind(1))
        further = list(zip(others[1:], shares[2:], strict=True))
        return Mixture(others[0], shares[0], Select(others, chosen), further=further)


@final
class MixAug(Mixer):
    """Mixes the pixels but tells the loss lam = 1, partner = self: mixture as augmentation, the ablation that hurts.

    Example:
        >>> images = torch.rand(4, 3, 8, 8)
        >>> mixture = MixAug(Mixup()).draw(images, torch.Generator().manual_seed(0))
        >>> mixture.lam.tolist(), torch.equal(mixture(images), images)  # mixed, and the loss does not know
        ([1.0, 1.0, 1.0, 1.0], False)
    """

    def __init__(self, mixer: Mixer) -> None:
        self.mixer = mixer

    def draw(self, images: Tensor, generator: Generators, *, mix_groups: int = 1, mix_strength: float = 1.0) -> Mixture:
        hidden = self.mixer.draw(images, generator, mix_groups=mix_groups, mix_strength=mix_strength)
        return Mixture(hidden.own, torch.ones_like(hidden.lam), hidden.pixels, own=hidden.own, images=hidden.images)

    def __repr__(self) -> str:
        return f"MixAug({self.mixer!r})"


@final
class RandomChoice(Mixer):
    """One mixer or the other, at random, for a whole batch: Un-Mix's CutMix or Mixup.

    Args:
        first: drawn from with probability `p`.
        second: drawn from otherwise.
        p: the probability of the first.

    Example:
        >>> mixer = RandomChoice(Mixup(), CutMix(), p=0.5)
        >>> mixture = mixer.draw(torch.rand(4, 3, 8, 8), torch.Generator().manual_seed(0))
        >>> mixture.partner.tolist()
        [3, 2, 1, 0]
    """

    name: ClassVar[str] = "random_choice"

    @classmethod
    def from_options(cls, **options: Any) -> Self:
        """Mixup or CutMix with these settings, as in Un-Mix."""
        return cls(Mixup.from_options(**options), CutMix.from_options(**options))

    def __init__(self, first: Mixer, second: Mixer, p: float = 0.5) -> None:
        if not 0 <= p <= 1:
            raise ValueError(f"p is a probability, 0 to 1, got {p}")
        self.first = first
        self.second = second
        self.p = p

    def draw(self, images: Tensor, generator: Generators, *, mix_groups: int = 1, mix_strength: float = 1.0) -> Mixture:
        source = list_generators(generator, mix_groups)[0]
        chosen = float(torch.rand((), generator=source, device=source.device)) < self.p
        mixer = self.first if chosen else self.second
        return mixer.draw(images, generator, mix_groups=mix_groups, mix_strength=mix_strength)

    def __repr__(self) -> str:
        return f"RandomChoice({self.first!r}, {self.second!r}, p={self.p:g})"


def mix_strength_at(progress: float, warmup: tuple[float, float] | None) -> float:
    """The strength of mixtures when this share of training is done: 0 before `warmup[0]`, 1 from `warmup[1]` on."""
    if warmup is None:
        return 1.0
    start, stop = warmup
    if not 0 <= start <= stop <= 1:
        raise ValueError(f"warmup must be two rising shares of training, such as (0.1, 0.5), got {warmup}")
    if progress >= stop:
        return 1.0
    return (progress - start) / (stop - start) if progress > start else 0.0


def symmetric_beta(alpha: float, uniform: Tensor) -> Tensor:
    """Beta(alpha, alpha) of any alpha > 0 from four uniforms in [0, 1): no rejection, no underflow. [..., 4] -> [...]

    Gamma(a) is Gamma(a + 1) U^(1/a), so logit Beta(a, a) is logit Beta(a + 1, a + 1) plus (log U - log V) / a; and
    Beta(b, b) with b > 1/2 is 1/2 + 1/2 sqrt(1 - S^(2 / (2b - 1))) cos(2 pi T) (Ulrich, 1984). In logits a tiny alpha
    lands on 0 or 1, where a ratio of underflowing gammas would land on 0.5.
    """
    u, v, s, t = (1 - uniform).unbind(-1)  # in (0, 1]: the logarithms stay finite
    radius = torch.sqrt(-torch.expm1(torch.log(s) * (2 / (2 * alpha + 1))))
    center = 0.5 + 0.5 * radius * torch.cos(2 * math.pi * t)
    tiny = torch.finfo(uniform.dtype).eps
    return torch.sigmoid(torch.logit(center, eps=tiny) + (torch.log(u) - torch.log(v)) / alpha)


def cutmix_box(lam: Tensor, center: Tensor, height: int, width: int, *, inwards: bool = False) -> Tensor:
    """CutMix's boxes: area ratio 1 - lam, the image's aspect ratio, center uniform over the image, clipped at its edge.

    Rounding the two ends of each side, not its length, keeps the expected area of an unclipped box at (1 - lam) H W.
    A lam of less than half a pixel keeps nothing at all: the mixture is the partner, and alpha -> 0 ends at SIM. (The
    clip would otherwise leave half of image `i` outside a box as large as the image.)

    Args:
        lam: [N] before clipping.
        center: [N, 2] in [0, 1), of the vertical and the horizontal position.
        inwards: round towards the smaller box, so that what is kept is never less than lam (and a lam of at least half
            stays one).

    Returns:
        [N, 4] int64: top, bottom, left, right, half-open.
    """
    half = torch.sqrt(1 - lam) / 2
    whole = lam * (height * width) < 0.5
    box = []
    for position, size in ((center[:, 0], height), (center[:, 1], width)):
        start, stop = (position - half) * size, (position + half) * size
        start, stop = (start.ceil(), stop.floor()) if inwards else (start.round(), stop.round())
        start, stop = start.clamp(0, size), torch.maximum(start, stop).clamp(0, size)
        box += [start.masked_fill(whole, 0), stop.masked_fill(whole, size)]
    return torch.stack(box, dim=1).long()


def list_generators(generator: Generators, mix_groups: int) -> list[torch.Generator]:
    """One generator per group: the list that was passed, or the same one `mix_groups` times, drawn from in turn."""
    if mix_groups < 1:
        raise ValueError(f"mix_groups must be at least 1, got {mix_groups}")
    if isinstance(generator, torch.Generator):
        return [generator] * mix_groups
    if not isinstance(generator, Sequence) or not all(isinstance(each, torch.Generator) for each in generator):
        raise TypeError(
            f"generator must be a torch.Generator or a list of them, got {generator!r}: "
            "torch.Generator().manual_seed(0), or mixture_generators(seed, step)"
        )
    generators = list(generator)
    if not generators or mix_groups not in (1, len(generators)):
        raise ValueError(f"{len(generators)} generators were passed for mix_groups={mix_groups}: pass one per group")
    return generators


def check_batch(images: Tensor) -> None:
    """Raise if this is not a batch of images."""
    if images.ndim < 4 or images.numel() == 0:
        one = ": of one image, pass image[None]" if images.ndim == 3 and images.numel() else ""
        raise ValueError(f"expected a batch of images [N, C, H, W], got shape {list(images.shape)}{one}")


def lam_dtype(images: Tensor) -> torch.dtype:
    """lam is float32 whatever the images are, so that it stays the true share of pixels; float64 with float64."""
    return torch.float64 if images.dtype == torch.float64 else torch.float32
