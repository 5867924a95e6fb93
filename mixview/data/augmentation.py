"""The augmentations of the methods: named, typed groups of parameters, drawn first and applied afterwards.

    first, second = named("mocov2")                        # one a view; BYOL's differ
    draw = first.draw(height, width, generator)            # a Draw: plain numbers
    view = first.apply(image, draw)                        # [C, size, size]
    view1, view2 = views(image, seed, epoch, index, named("mocov2"))

A `Draw` is all that is random about a view, so it can be looked at, stored, tested and replayed. Its distribution is
torchvision's, and `apply` is torchvision's v2 functional, operation by operation: the plain reference. Every draw takes
the same `UNIFORMS` numbers from the generator whatever the augmentation, so that two augmentations under one seed make
the same choices wherever they share them.
"""

import difflib
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

Step = Literal["jitter", "grey", "blur", "solarise", "randaugment"]
Interpolation = Literal["bilinear", "bicubic"]

TRIES = 10
"""How often torchvision's random resized crop tries before it falls back on the middle of the image."""
MOST_OPERATIONS = 4
"""Of RandAugment, for which numbers are set aside."""
UNIFORMS = 2 * TRIES + 2 + 1 + 1 + 4 + 4 + 1 + 2 + 1 + 5 * MOST_OPERATIONS


@dataclass(frozen=True)
class Crop:
    """A random part of the image, resized to a square."""

    size: int = 224
    """Of the view, in pixels."""
    scale: tuple[float, float] = (0.08, 1.0)
    """The least and the largest share of the image's area."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """The least and the largest ratio of width to height."""
    interpolation: Interpolation = "bilinear"
    """Always antialiased."""

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"the size of a crop must be at least 1 pixel, got {self.size}")
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"the scale of a crop is two rising shares of the area within (0, 1], got {self.scale}")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ValueError(f"the ratio of a crop is two rising positive numbers, got {self.ratio}")
        if self.interpolation not in ("bilinear", "bicubic"):
            raise ValueError(f'interpolation must be "bilinear" or "bicubic", got {self.interpolation!r}')


@dataclass(frozen=True)
class Jitter:
    """Random brightness, contrast, saturation and hue, in random order."""

    brightness: float = 0.4
    """The factor is uniform in 1 ± this, and so on."""
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1
    """The shift is uniform in ± this, in turns of the colour circle; at most 0.5."""
    p: float = 0.8

    def __post_init__(self) -> None:
        check_share("p of the jitter", self.p)
        for name in ("brightness", "contrast", "saturation"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} of the jitter must not be negative, got {getattr(self, name)}")
        if not 0 <= self.hue <= 0.5:
            raise ValueError(f"hue of the jitter must be within [0, 0.5], got {self.hue}")


@dataclass(frozen=True)
class Blur:
    """A Gaussian blur."""

    p: float = 0.5
    sigma: tuple[float, float] = (0.1, 2.0)
    """In pixels of the view, uniform between the two."""
    kernel: int | None = None
    """Its width in pixels, odd; by default a tenth of the view, 23 at 224, as SimCLR and BYOL do."""

    def __post_init__(self) -> None:
        check_share("p of the blur", self.p)
        if not 0 < self.sigma[0] <= self.sigma[1]:
            raise ValueError(f"sigma of the blur is two rising positive numbers, got {self.sigma}")
        if self.kernel is not None and (self.kernel < 1 or self.kernel % 2 == 0):
            raise ValueError(
                f"the kernel of the blur must be odd and positive, got {self.kernel}: use {self.kernel + 1}"
            )

    def width(self, size: int) -> int:
        """The kernel for views of this size."""
        return self.kernel if self.kernel is not None else size // 20 * 2 + 1


@dataclass(frozen=True)
class RandAugment:
    """`operations` of the fifteen in `OPERATIONS`, each with probability `p`, at a noisy magnitude of 0 to 10.

    timm's `rand-n2-m10-mstd0.5`, with which InfoMin was published; its scales of magnitude are the TPU code's.
    """

    operations: int = 2
    magnitude: float = 10.0
    deviation: float = 0.5
    """Of the magnitude, normal, clipped to 0 … 10."""
    p: float = 0.5
    """Of each operation."""

    def __post_init__(self) -> None:
        check_share("p of RandAugment", self.p)
        if not 0 <= self.operations <= MOST_OPERATIONS:
            raise ValueError(f"RandAugment takes 0 to {MOST_OPERATIONS} operations, not {self.operations}")
        if not 0 <= self.magnitude <= 10 or self.deviation < 0:
            raise ValueError(
                f"RandAugment's magnitude is within [0, 10] and its deviation not negative, "
                f"got {self.magnitude} and {self.deviation}"
            )


@dataclass(frozen=True)
class Normalise:
    """Subtract `mean` and divide by `std`, channel by channel; images of other channels take the average of each."""

    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        if not self.mean or len(self.mean) != len(self.std) or min(self.std) <= 0:
            raise ValueError(f"mean and std must be as many, and std positive, got {self.mean} and {self.std}")

    def values(self, channels: int) -> tuple[list[float], list[float]]:
        if channels == len(self.mean):
            return list(self.mean), list(self.std)
        return [sum(self.mean) / len(self.mean)] * channels, [sum(self.std) / len(self.std)] * channels


class Draw(NamedTuple):
    """Everything random about one view, as plain numbers."""

    top: int
    left: int
    height: int
    width: int
    flip: bool
    jitter: bool
    """Whether the four factors are applied at all."""
    brightness: float
    contrast: float
    saturation: float
    hue: float
    order: tuple[int, int, int, int]
    """In which brightness (0), contrast (1), saturation (2) and hue (3) come."""
    grey: bool
    sigma: float
    """Of the blur; 0 is none."""
    solarise: bool
    operations: tuple[tuple[int, float], ...] = ()
    """RandAugment's: the index in `OPERATIONS`, and the signed magnitude of 0 … 10."""

    def pack(self) -> list[float]:
        """The draw as `PACKED` numbers, for a table of draws; operations that are not there are -1, 0."""
        plain = [float(value) for value in (*self[:10], *self.order, *self[11:14])]
        missing = [(-1, 0.0)] * (MOST_OPERATIONS - len(self.operations))
        return plain + [float(value) for operation in (*self.operations, *missing) for value in operation]

    @classmethod
    def unpack(cls, numbers: Sequence[float]) -> "Draw":
        """The draw that `pack` packed."""
        if len(numbers) != PACKED:
            raise ValueError(f"a packed draw is {PACKED} numbers, got {len(numbers)}")
        top, left, height, width = (int(number) for number in numbers[:4])
        brightness, contrast, saturation, hue = (float(number) for number in numbers[6:10])
        first, second, third, fourth = (int(number) for number in numbers[10:14])
        pairs = zip(numbers[17::2], numbers[18::2], strict=True)
        return cls(
            top=top,
            left=left,
            height=height,
            width=width,
            flip=bool(numbers[4]),
            jitter=bool(numbers[5]),
            brightness=brightness,
            contrast=contrast,
            saturation=saturation,
            hue=hue,
            order=(first, second, third, fourth),
            grey=bool(numbers[14]),
            sigma=float(numbers[15]),
            solarise=bool(numbers[16]),
            operations=tuple((int(operation), float(magnitude)) for operation, magnitude in pairs if operation >= 0),
        )


PACKED = 17 + 2 * MOST_OPERATIONS


@dataclass(frozen=True)
class Augmentation:
    """What becomes of an image on its way to a view: crop, flip, then `order`, then `normalise`.

    Colour operations happen where they mean something: hue, saturation and grey to three channels only, brightness,
    contrast, blur and solarisation to any number.
    """

    crop: Crop = Crop()
    flip: float = 0.5
    """Probability of a horizontal flip."""
    jitter: Jitter | None = None
    grey: float = 0.0
    """Probability of losing all colour."""
    blur: Blur | None = None
    solarise: float = 0.0
    """Probability of inverting whatever is brighter than a half."""
    randaugment: RandAugment | None = None
    order: tuple[Step, ...] = ("jitter", "grey", "blur", "solarise", "randaugment")
    """What comes after what; a step that is left out does not happen."""
    normalise: Normalise | None = Normalise()

    def __post_init__(self) -> None:
        for name in ("flip", "grey", "solarise"):
            check_share(name, getattr(self, name))
        unknown = [step for step in self.order if step not in STEPS]
        if unknown or len(set(self.order)) < len(self.order):
            raise ValueError(f"order must be of {', '.join(STEPS)}, each at most once, got {', '.join(self.order)}")

    def draw(self, height: int, width: int, generator: torch.Generator) -> Draw:
        """Draw the parameters of a view of an image of this size."""
        return self.choose(height, width, torch.rand(UNIFORMS, generator=generator, dtype=torch.float64).tolist())

    def choose(self, height: int, width: int, uniform: Sequence[float]) -> Draw:
        """The draw that `UNIFORMS` numbers in [0, 1) make."""
        if height < 1 or width < 1:
            raise ValueError(f"an image of {height} × {width} pixels has no views")
        top, left, crop_height, crop_width = choose_crop(self.crop, height, width, uniform)
        flip, jitter, b, c, s, h, *ranks, grey, blur, sigma, solarise = uniform[2 * TRIES + 2 : 2 * TRIES + 16]
        first, second, third, fourth = sorted(range(4), key=ranks.__getitem__)
        factors = self.jitter or Jitter(0, 0, 0, 0, 0)
        least, most = self.blur.sigma if self.blur else (0.0, 0.0)
        return Draw(
            top=top,
            left=left,
            height=crop_height,
            width=crop_width,
            flip=flip < self.flip,
            jitter=jitter < factors.p,
            brightness=between(max(0.0, 1 - factors.brightness), 1 + factors.brightness, b),
            contrast=between(max(0.0, 1 - factors.contrast), 1 + factors.contrast, c),
            saturation=between(max(0.0, 1 - factors.saturation), 1 + factors.saturation, s),
            hue=between(-factors.hue, factors.hue, h),
            order=(first, second, third, fourth),
            grey=grey < self.grey,
            sigma=between(least, most, sigma) if self.blur and blur < self.blur.p else 0.0,
            solarise=solarise < self.solarise,
            operations=choose_operations(self.randaugment, uniform[2 * TRIES + 16 :]),
        )

    def apply(self, image: Tensor, draw: Draw) -> Tensor:
        """The view of `image` [C, H, W] (uint8, or floating point in [0, 1]) that a draw makes: float [C, size, size].

        The plain reference, operation by operation.
        """
        if image.ndim != 3:
            raise ValueError(f"expected an image [C, H, W], got shape {list(image.shape)}")
        if draw.top + draw.height > image.shape[1] or draw.left + draw.width > image.shape[2]:
            raise ValueError(
                f"this draw crops {draw.height} × {draw.width} at ({draw.top}, {draw.left}), outside an image of "
                f"{image.shape[1]} × {image.shape[2]}: draw for the size of this image"
            )
        view: Tensor = F.crop(image, draw.top, draw.left, draw.height, draw.width)
        view = F.to_dtype(view, torch.float32, scale=True)
        size = [self.crop.size, self.crop.size]
        view = F.resize(view, size, interpolation=InterpolationMode(self.crop.interpolation), antialias=True)
        if self.crop.interpolation == "bicubic":
            view = view.clamp(0, 1)  # it overshoots
        if draw.flip:
            view = F.horizontal_flip(view)
        for step in self.order:
            view = STEPS[step](self, view, draw)
        if self.normalise is not None:
            view = F.normalize(view, *self.normalise.values(len(view)))
        return view


def between(low: float, high: float, uniform: float) -> float:
    return low + (high - low) * uniform


def check_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is a probability and must be within [0, 1], got {value}")


def choose_crop(crop: Crop, height: int, width: int, uniform: Sequence[float]) -> tuple[int, int, int, int]:
    """Top, left, height and width, as torchvision's RandomResizedCrop: ten tries, then the middle of the image."""
    low, high = math.log(crop.ratio[0]), math.log(crop.ratio[1])
    for attempt in range(TRIES):
        area = height * width * between(*crop.scale, uniform[2 * attempt])
        ratio = math.exp(between(low, high, uniform[2 * attempt + 1]))
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            vertical, horizontal = uniform[2 * TRIES : 2 * TRIES + 2]
            return int(vertical * (height - down + 1)), int(horizontal * (width - across + 1)), down, across
    across, down = width, height
    if width / height < crop.ratio[0]:
        down = min(height, max(1, round(width / crop.ratio[0])))
    elif width / height > crop.ratio[1]:
        across = min(width, max(1, round(height * crop.ratio[1])))
    return (height - down) // 2, (width - across) // 2, down, across


def choose_operations(randaugment: RandAugment | None, uniform: Sequence[float]) -> tuple[tuple[int, float], ...]:
    """RandAugment's operations and signed magnitudes."""
    if randaugment is None:
        return ()
    chosen = []
    for at in range(0, 5 * randaugment.operations, 5):
        which, happens, sign, radius, angle = uniform[at : at + 5]
        if happens >= randaugment.p:
            continue
        # Box and Muller's normal variable.
        normal = math.sqrt(-2 * math.log(1 - radius)) * math.cos(2 * math.pi * angle)
        magnitude = min(10.0, max(0.0, randaugment.magnitude + randaugment.deviation * normal))
        chosen.append((int(which * len(OPERATIONS)), magnitude if sign < 0.5 else -magnitude))
    return tuple(chosen)


def jitter_step(augmentation: Augmentation, view: Tensor, draw: Draw) -> Tensor:
    if not draw.jitter or augmentation.jitter is None:
        return view
    for which in draw.order:
        if which == 0 and augmentation.jitter.brightness:
            view = adjust_brightness(view, draw.brightness)
        elif which == 1 and augmentation.jitter.contrast:
            view = adjust_contrast(view, draw.contrast)
        elif which == 2 and augmentation.jitter.saturation and len(view) == 3:
            view = F.adjust_saturation(view, draw.saturation)
        elif which == 3 and augmentation.jitter.hue and len(view) == 3:
            view = F.adjust_hue(view, draw.hue)
    return view


def adjust_brightness(view: Tensor, factor: float) -> Tensor:
    """torchvision's, for any number of channels."""
    return (view * factor).clamp(0, 1)


def adjust_contrast(view: Tensor, factor: float) -> Tensor:
    """torchvision's, about the mean of the grey image; of other numbers of channels than three, of them all."""
    grey: Tensor = F.rgb_to_grayscale(view) if len(view) == 3 else view
    return torch.lerp(grey.mean().expand_as(view), view, factor).clamp(0, 1)


def grey_step(augmentation: Augmentation, view: Tensor, draw: Draw) -> Tensor:
    if draw.grey and len(view) == 3:
        view = F.rgb_to_grayscale(view, num_output_channels=3)
    return view


def blur_step(augmentation: Augmentation, view: Tensor, draw: Draw) -> Tensor:
    if draw.sigma == 0 or augmentation.blur is None:
        return view
    kernel = augmentation.blur.width(augmentation.crop.size)
    # Padding by reflection needs a view wider than half the kernel.
    kernel = min(kernel, 2 * augmentation.crop.size - 1)
    blurred: Tensor = F.gaussian_blur(view, [kernel, kernel], [draw.sigma, draw.sigma])
    return blurred


def solarise_step(augmentation: Augmentation, view: Tensor, draw: Draw) -> Tensor:
    return torch.where(view >= 0.5, 1 - view, view) if draw.solarise else view


def randaugment_step(augmentation: Augmentation, view: Tensor, draw: Draw) -> Tensor:
    for operation, magnitude in draw.operations:
        view = operate(view, OPERATIONS[operation], magnitude)
    return view


STEPS = {
    "jitter": jitter_step,
    "grey": grey_step,
    "blur": blur_step,
    "solarise": solarise_step,
    "randaugment": randaugment_step,
}

OPERATIONS = (
    "autocontrast",
    "equalise",
    "invert",
    "rotate",
    "posterise",
    "solarise",
    "solarise-add",
    "colour",
    "contrast",
    "brightness",
    "sharpness",
    "shear-x",
    "shear-y",
    "translate-x",
    "translate-y",
)


def operate(view: Tensor, operation: str, magnitude: float) -> Tensor:
    """One operation of RandAugment at a magnitude of 0 … 10, whose sign is for those that have a direction."""
    level, signed = abs(magnitude) / 10, magnitude / 10
    enhance = 1.8 * level + 0.1
    match operation:
        case "autocontrast" if len(view) in (1, 3):
            view = F.autocontrast(view)
        case "equalise" if len(view) in (1, 3):
            view = F.equalize(view)
        case "invert":
            view = 1 - view
        case "posterise":
            view = F.posterize(view, int(4 * level))
        case "solarise":
            # At the full magnitude the threshold is above white and nothing happens: so it was published.
            view = torch.where(view >= int(256 * level) / 255, 1 - view, view)
        case "solarise-add":
            view = torch.where(view < 128 / 255, (view + int(110 * level) / 255).clamp(max=1), view)
        case "colour" if len(view) == 3:
            view = F.adjust_saturation(view, enhance)
        case "contrast":
            view = adjust_contrast(view, enhance)
        case "brightness":
            view = adjust_brightness(view, enhance)
        case "sharpness" if len(view) in (1, 3):
            view = F.adjust_sharpness(view, enhance)
        case "rotate":
            view = warp(view, angle=30 * signed)
        case "shear-x":
            view = warp(view, shear=(math.degrees(math.atan(0.3 * signed)), 0.0))
        case "shear-y":
            view = warp(view, shear=(0.0, math.degrees(math.atan(0.3 * signed))))
        case "translate-x":
            view = warp(view, translate=(round(0.45 * signed * view.shape[2]), 0))
        case "translate-y":
            view = warp(view, translate=(0, round(0.45 * signed * view.shape[1])))
    return view


def warp(
    view: Tensor,
    angle: float = 0.0,
    translate: tuple[int, int] = (0, 0),
    shear: tuple[float, float] = (0.0, 0.0),
) -> Tensor:
    """Turn about the middle, shift, or shear about the corner; ImageNet's mean colour comes in from outside."""
    fill, _ = Normalise().values(len(view))
    centre = [0.0, 0.0] if any(shear) else None
    warped: Tensor = F.affine(
        view,
        angle=angle,
        translate=list(translate),
        scale=1.0,
        shear=list(shear),
        interpolation=InterpolationMode.BILINEAR,
        fill=fill,
        center=centre,
    )
    return warped


SIMCLR = Augmentation(jitter=Jitter(0.8, 0.8, 0.8, 0.2, p=0.8), grey=0.2, blur=Blur(p=0.5))
"""Chen et al., 2020 (SimCLR), appendix A: colour distortion of strength 1, blur half the time."""

MOCOV1 = Augmentation(
    crop=Crop(scale=(0.2, 1.0)), jitter=Jitter(0.4, 0.4, 0.4, 0.4, p=1.0), grey=0.2, order=("grey", "jitter")
)
"""He et al., 2020, and facebookresearch/moco `main_moco.py` without --aug-plus, which greys before it jitters."""

MOCOV2 = Augmentation(crop=Crop(scale=(0.2, 1.0)), jitter=Jitter(0.4, 0.4, 0.4, 0.1, p=0.8), grey=0.2, blur=Blur(p=0.5))
"""Chen et al., 2020 (MoCo v2), and facebookresearch/moco `main_moco.py --aug-plus`. SimSiam's are the same."""

BYOL = (
    Augmentation(
        crop=Crop(interpolation="bicubic"), jitter=Jitter(0.4, 0.4, 0.2, 0.1, p=0.8), grey=0.2, blur=Blur(p=1.0)
    ),
    Augmentation(
        crop=Crop(interpolation="bicubic"),
        jitter=Jitter(0.4, 0.4, 0.2, 0.1, p=0.8),
        grey=0.2,
        blur=Blur(p=0.1),
        solarise=0.2,
    ),
)
"""Grill et al., 2020, appendix B: T blurs always, T' seldom but solarises."""

INFOMIN = Augmentation(
    crop=Crop(scale=(0.2, 1.0)),
    jitter=Jitter(0.8, 0.8, 0.8, 0.2, p=0.8),
    grey=0.2,
    blur=Blur(p=0.5),
    randaugment=RandAugment(operations=2, magnitude=10, deviation=0.5, p=0.5),
    order=("jitter", "blur", "randaugment", "grey"),
)
"""Tian et al., 2020, and HobbitLong/PyContrast `datasets/util.py`, augmentation D (its jigsaw branch apart)."""


def shrink(augmentation: Augmentation) -> Augmentation:
    """For images of 32 pixels: no blur, as the methods' own experiments on CIFAR have it."""
    return replace(augmentation, crop=replace(augmentation.crop, size=32), blur=None)


_NAMED: dict[str, tuple[Augmentation, Augmentation]] = {
    "simclr": (SIMCLR, SIMCLR),
    "mocov1": (MOCOV1, MOCOV1),
    "mocov2": (MOCOV2, MOCOV2),
    "byol": BYOL,
    "simsiam": (MOCOV2, MOCOV2),
    "infomin": (INFOMIN, INFOMIN),
}
_NAMED |= {f"{name}-small": (shrink(first), shrink(second)) for name, (first, second) in _NAMED.items()}
# SimCLR, appendix B.9: on CIFAR-10 colour distortion of strength 0.5.
_NAMED["simclr-small"] = (replace(_NAMED["simclr-small"][0], jitter=Jitter(0.4, 0.4, 0.4, 0.1, p=0.8)),) * 2


def names() -> tuple[str, ...]:
    """The augmentations that have a name."""
    return tuple(_NAMED)


def named(name: str, size: int | None = None, smallest_crop: float | None = None) -> tuple[Augmentation, Augmentation]:
    """The augmentations of the two views of a method.

    Args:
        size: of the views in pixels; by default as published.
        smallest_crop: the smallest share of an image that a view shows; by default as published.
    """
    if name not in _NAMED:
        near = difflib.get_close_matches(name.lower(), _NAMED, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(_NAMED)}"
        raise ValueError(f"no augmentation is called {name!r}: {hint}")
    changes: dict[str, Any] = {} if size is None else {"size": size}
    if smallest_crop is not None:
        changes["scale"] = (smallest_crop, 1.0)
    first, second = (replace(each, crop=replace(each.crop, **changes)) for each in _NAMED[name])
    return first, second


def view_seed(seed: int, epoch: int, index: int) -> int:
    """The seed of an image's views: a function of (seed, epoch, index) and of nothing else."""
    digest = hashlib.blake2b(f"views/{seed}/{epoch}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def view_generator(seed: int, epoch: int, index: int) -> torch.Generator:
    """The generator of an image's views."""
    return torch.Generator().manual_seed(view_seed(seed, epoch, index))


def views(
    image: Tensor, seed: int, epoch: int, index: int, augmentations: tuple[Augmentation, Augmentation]
) -> tuple[Tensor, Tensor]:
    """Both views of an image [C, H, W], the same wherever and whenever they are made."""
    generator = view_generator(seed, epoch, index)
    height, width = image.shape[1:]
    first, second = (one.apply(image, one.draw(height, width, generator)) for one in augmentations)
    return first, second
