"""Mixtures of images: who is mixed with whom, how much of each is kept, and the mixed pixels.

A *mixer* (`Identity`, `CutMix`, `Mixup`, `MixAug`) draws a `Mixture` for a batch. A `Mixture` holds `partner` and
`lam`, one value per image, and, called on a batch, returns the mixed batch. The losses read nothing but `partner` and
`lam`, so a new mixture works with every method. Needs torch and nothing else.

    mixture = CutMix(alpha=1.0, lam_per="image").draw(images, generator)
    mixed = mixture(images)          # lam[i] of image i, 1 - lam[i] of image partner[i]

Everything random comes from the generator that is passed, in a fixed number of draws, on the generator's own device:
a CPU generator gives the same mixtures whatever device the images are on. Nothing here waits for an accelerator.
"""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Self, final

import torch
from torch import Tensor

from mixview.rng import seed_from

Partner = Literal["reversal", "permutation"]
LamPer = Literal["batch", "image"]
Generators = torch.Generator | Sequence[torch.Generator]

# Four uniforms make a lam (see `symmetric_beta`) and two the center of a box. Every mixer draws all six, so that CutMix
# and Mixup see the same lam under the same seed and a comparison of the two is a paired one.
LAM_UNIFORMS, UNIFORMS = 4, 6


def mixture_generators(seed: int, step: int, *, rank: int = 0, mix_groups: int = 1) -> list[torch.Generator]:
    """One generator for each group that this rank mixes, a function of (seed, step, group) and of nothing else.

    A group is what mixes together. Rank r of many with `mix_groups=1` owns group r; one process with `mix_groups=G`
    owns groups 0 … G-1 and so draws bit for bit what G ranks would. When gradients accumulate, micro-batch m of M on
    rank r is a group of its own: `rank=r * M + m`.
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


def check_mixture(partner: Tensor, lam: Tensor, count: int) -> None:
    """Raise if a partner is out of range, a lam is outside [0, 1] or NaN, or their length is not `count`."""
    if partner.shape != (count,) or lam.shape != (count,):
        raise ValueError(
            f"a mixture of {count} images needs partner and lam of shape [{count}], "
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
    """A drawn mixture of N images: `lam[i]` of image `i` and `1 - lam[i]` of image `partner[i]`.

    Args:
        partner: [N] int64, the index of the image that each image is mixed with.
        lam: [N] floating point, the share of pixels that is really image `i`'s.
        pixels: how a batch is mixed, a function of the batch; by default the linear blend of Mixup.
    """

    # Not a dataclass: Lightning rebuilds (or refuses) dataclasses that pass through a wrapped module's forward.
    def __init__(self, partner: Tensor, lam: Tensor, pixels: Callable[[Tensor], Tensor] | None = None) -> None:
        check_mixture(partner, lam, partner.numel())
        self.partner = partner
        self.lam = lam
        self.pixels = Blend(partner, lam) if pixels is None else pixels

    def __len__(self) -> int:
        return len(self.partner)

    def __call__(self, images: Tensor) -> Tensor:
        """The mixed batch, a new tensor; under `Identity` the very tensor that came in."""
        if len(images) != len(self):
            raise ValueError(f"this mixture was drawn for {len(self)} images and is called on {len(images)}")
        if images.device != self.lam.device:
            raise ValueError(
                f"this mixture was drawn for images on {self.lam.device} and is called on images on {images.device}: "
                "draw it after moving them"
            )
        return self.pixels(images)

    @property
    def is_identity(self) -> bool:
        """Whether the mixed batch is the batch itself (known without looking at any value)."""
        return self.pixels is unmixed

    def __repr__(self) -> str:
        return f"Mixture(partner={self.partner.tolist()}, lam={self.lam.tolist()})"


def unmixed(images: Tensor) -> Tensor:
    """The pixels of `Identity`: the same tensor, so that whoever encodes a tensor once a step encodes it once."""
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


@final
class Paste:
    """The pixels of CutMix: image `i` with `box[i]` = (top, bottom, left, right) filled from image `partner[i]`."""

    def __init__(self, partner: Tensor, box: Tensor, size: tuple[int, int]) -> None:
        self.partner = partner
        self.box = box
        self.size = size

    def __call__(self, images: Tensor) -> Tensor:
        if tuple(images.shape[-2:]) != self.size:
            raise ValueError(
                f"this CutMix was drawn for images of {self.size[0]}×{self.size[1]} and is called on "
                f"{images.shape[-2]}×{images.shape[-1]}: its box would cover another share of them; draw it again"
            )
        top, bottom, left, right = self.box.unsqueeze(-1).unbind(1)
        row = torch.arange(self.size[0], device=images.device)
        column = torch.arange(self.size[1], device=images.device)
        in_rows = (row >= top) & (row < bottom)
        in_columns = (column >= left) & (column < right)
        inside = in_rows.unsqueeze(2) & in_columns.unsqueeze(1)
        inside = inside.view(len(images), *[1] * (images.ndim - 3), *self.size)
        return torch.where(inside, images[self.partner], images)


class Mixer(ABC):
    """Draws mixtures. To make a new one: subclass, implement `draw`, return a `Mixture`.

    For one that mixes pairs with lam from a Beta distribution, subclass `BetaMixer`. Your own is used in training by
    its import path: `mixview pretrain --mixing.mixer mine.FMix`.
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
            generator: where everything random comes from; a list of G mixes the batch in G groups, one from each.
            mix_groups: with one generator, the number of groups that the batch is mixed in: image i finds its partner
                within its group, and a lam per batch is one per group.
            mix_strength: what the partner's share, 1 - lam, is multiplied by: 0 mixes nothing (see `mix_strength_at`).
        """


@final
class Identity(Mixer):
    """No mixture: lam = 1, every image its own partner, and the batch handed back untouched."""

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
        alpha: parameter of the Beta distribution. 1 is uniform; towards 0 every lam is 0 or 1, and nothing is mixed.
        lam_per: `"image"`, one lam (and one box) per image, or `"batch"`, one per batch or group, as in the paper.
        partner: `"reversal"`, image i with image N-1-i, or `"permutation"`, at random.
        lam_at_least_half: lam becomes max(lam, 1 - lam), so that image i is always the larger part.
        prob: the probability that an image (with one lam per batch, the batch) is mixed at all; the others have
            lam = 1. Half of a batch mixed has both terms of WBSIM in the passes of one.
    """

    def __init__(
        self,
        alpha: float = 1.0,
        lam_per: LamPer = "batch",
        partner: Partner = "reversal",
        lam_at_least_half: bool = False,
        prob: float = 1.0,
    ) -> None:
        if not (math.isfinite(alpha) and alpha > 0):
            raise ValueError(f"alpha must be a positive number, got {alpha}: for no mixture at all use Identity()")
        if partner not in ("reversal", "permutation"):
            raise ValueError(f'partner must be "reversal" or "permutation", got {partner!r}')
        if lam_per not in ("batch", "image"):
            raise ValueError(f'lam_per must be "batch" or "image", got {lam_per!r}')
        if not 0 < prob <= 1:
            raise ValueError(f"prob must be in (0, 1], got {prob}: for no mixture use Identity()")
        self.alpha = float(alpha)
        self.lam_per: LamPer = lam_per
        self.partner: Partner = partner
        self.lam_at_least_half = lam_at_least_half
        self.prob = prob

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(alpha={self.alpha:g}, lam_per={self.lam_per!r}, "
            f"partner={self.partner!r}, lam_at_least_half={self.lam_at_least_half}, prob={self.prob:g})"
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
        """A mixture for this batch (see `Mixer.draw`); `lam`, one value or [N], sets lam instead of drawing it."""
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
        rows = each if self.lam_per == "image" else 1
        uniform, permutation, chance = [], [], []
        for source in generators:
            # MPS has no float64; everywhere else 53 random bits keep the tails of a small alpha.
            dtype = torch.float32 if source.device.type == "mps" else torch.float64
            uniform.append(torch.rand(rows, UNIFORMS, generator=source, device=source.device, dtype=dtype))
            if self.partner == "permutation":
                permutation.append(torch.randperm(each, generator=source, device=source.device))
            if self.prob < 1:  # drawn last: lam, boxes and partners are those of prob = 1
                chance.append(torch.rand(rows, generator=source, device=source.device, dtype=dtype))
        if extra := self.extra_uniforms(images):  # after all groups: lam, boxes and partners are those of CutMix
            for group, source in enumerate(generators):
                own_draws = torch.rand(rows, extra, generator=source, device=source.device, dtype=uniform[group].dtype)
                uniform[group] = torch.cat([uniform[group], own_draws], dim=1)
        draws = torch.stack(uniform).expand(groups, each, UNIFORMS + extra).reshape(count, UNIFORMS + extra)

        own = torch.arange(count, device=images.device).view(groups, each)
        if self.partner == "reversal":
            partner = own.flip(1).reshape(count)
        else:
            order = torch.stack(permutation).to(images.device, non_blocking=True)
            partner = (own[:, :1] + order).reshape(count)

        drawn = symmetric_beta(self.alpha, draws[:, :LAM_UNIFORMS])
        if self.lam_at_least_half:
            drawn = torch.maximum(drawn, 1 - drawn)
        if chance:
            left_alone = torch.stack(chance).expand(groups, each).reshape(count) >= self.prob
            drawn = drawn.masked_fill(left_alone, 1)
        if mix_strength < 1:
            drawn = 1 - mix_strength * (1 - drawn)
        if lam is not None:
            drawn = torch.as_tensor(lam, dtype=drawn.dtype, device=drawn.device).expand(count)
            check_values((drawn >= 0) & (drawn <= 1), drawn, "lam must be within [0, 1]")
        exact = torch.float32 if images.device.type == "mps" else torch.float64
        drawn, uniforms = (
            each.to(images.device, exact, non_blocking=True) for each in (drawn, draws[:, LAM_UNIFORMS:])
        )
        return self.compose(images, partner, drawn, uniforms)

    def extra_uniforms(self, images: Tensor) -> int:
        """How many random numbers `compose` needs per image, beyond two."""
        return 0

    @abstractmethod
    def compose(self, images: Tensor, partner: Tensor, lam: Tensor, uniform: Tensor) -> Mixture:
        """The mixture of these partners at this lam. All tensors are on the images' device.

        Args:
            images: [N, C, …, H, W]; only its shape, device and dtype are read.
            partner: [N] int64.
            lam: [N] in the highest precision that the device has. The lam of the mixture is the share of pixels that
                is really image i's.
            uniform: [N, 2 + extra_uniforms(images)] in [0, 1); the first two are the center of CutMix's box. With one
                lam per batch, all images of a group have the same.
        """


@final
class Mixup(BetaMixer):
    """`lam x_i + (1 - lam) x_j` (Zhang et al., 2018)."""

    name: ClassVar[str] = "mixup"

    def compose(self, images: Tensor, partner: Tensor, lam: Tensor, uniform: Tensor) -> Mixture:
        if not images.is_floating_point():
            raise TypeError(f"Mixup needs floating-point images, got {images.dtype}: images.float() / 255, or CutMix")
        lam = lam.to(lam_dtype(images))
        # A lam too small to tell from 0 at the other end, 1 - lam, is 0: neither parent may have an invisible weight.
        return Mixture(partner, 1 - (1 - lam))


@final
class CutMix(BetaMixer):
    """Image `i` with a box filled from image `j` (Yun et al., 2019); `lam` is the share of pixels outside the box."""

    name: ClassVar[str] = "cutmix"

    def compose(self, images: Tensor, partner: Tensor, lam: Tensor, uniform: Tensor) -> Mixture:
        height, width = images.shape[-2:]
        box = cutmix_box(lam, uniform[:, :2], height, width, inwards=self.lam_at_least_half)
        top, bottom, left, right = box.unbind(1)
        pasted = (bottom - top) * (right - left)
        kept = (height * width - pasted).to(lam.dtype) / (height * width)
        return Mixture(partner, kept.to(lam_dtype(images)), Paste(partner, box, (height, width)))


@final
class MixAug(Mixer):
    """Mixes the pixels but tells the loss lam = 1, partner = self: mixture as augmentation, the ablation that hurts."""

    def __init__(self, mixer: Mixer) -> None:
        self.mixer = mixer

    def draw(self, images: Tensor, generator: Generators, *, mix_groups: int = 1, mix_strength: float = 1.0) -> Mixture:
        hidden = self.mixer.draw(images, generator, mix_groups=mix_groups, mix_strength=mix_strength)
        own = torch.arange(len(images), device=images.device)
        return Mixture(own, torch.ones_like(hidden.lam), hidden.pixels)

    def __repr__(self) -> str:
        return f"MixAug({self.mixer!r})"


@final
class RandomChoice(Mixer):
    """One mixer or the other, at random, for a whole batch: Un-Mix's CutMix or Mixup.

    Args:
        first: drawn from with probability `p`.
        second: drawn from otherwise.
        p: the probability of the first.
    """

    name: ClassVar[str] = "random_choice"

    @classmethod
    def from_options(cls, **options: Any) -> Self:
        """Mixup or CutMix with these settings, as in Un-Mix."""
        return cls(Mixup(**options), CutMix(**options))

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
    """How strong mixtures are when this share of training is done: 0 before `warmup[0]`, 1 from `warmup[1]` on."""
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
    """lam is float32 whatever the images are, so that it stays the true share of pixels; float64 beside float64."""
    return torch.float64 if images.dtype == torch.float64 else torch.float32
