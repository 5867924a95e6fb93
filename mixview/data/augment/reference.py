"""The plain reference: views made by torchvision's v2 functionals, one operation after the other.

    view = apply(image, augmentation, params)                        # [C, S, S] of an image [C, H, W]
    views = make_views(image, seed, epoch, index, load_policy("mocov2"))

The other backends are held against it. It also makes the views of the user's own callables (`CustomView`).
"""

import math

import torch
from torch import Tensor

from mixview.data.augment.params import AugmentParams, sample_params
from mixview.data.augment.policies import RANDAUGMENT_OPERATIONS, Augmentation, CustomView, Normalize, Policy
from mixview.lazy import Module
from mixview.rng import seed_from

F = Module("torchvision.transforms.v2.functional")


def make_views(
    image: Tensor, seed: int, epoch: int, index: int, policy: Policy, full_size: tuple[int, int] | None = None
) -> tuple[Tensor, ...]:
    """All views of an image [C, H, W], a function of (seed, epoch, index) and of nothing else.

    Args:
        full_size: height and width of the image that this is a smaller copy of, if it is one.
    """
    image_seed = seed_from("views", seed, epoch, index)
    generator = torch.Generator().manual_seed(image_seed)
    height, width = image.shape[1:]
    full_size = full_size or (height, width)
    return tuple(
        apply_custom(image, view, image_seed, number)
        if isinstance(view, CustomView)
        else apply(image, view, sample_params(view, *full_size, generator).scaled(full_size, (height, width)))
        for number, view in enumerate(policy)
    )


def apply(image: Tensor, augmentation: Augmentation, params: AugmentParams) -> Tensor:
    """The view of an image [C, H, W] (uint8, or floating point in [0, 1]) under sampled parameters: float [C, S, S]."""
    if image.ndim != 3:
        raise ValueError(f"expected an image [C, H, W], got shape {list(image.shape)}")
    if params.top + params.height > image.shape[1] or params.left + params.width > image.shape[2]:
        raise ValueError(
            f"these parameters crop {params.height} × {params.width} at ({params.top}, {params.left}), outside an "
            f"image of {image.shape[1]} × {image.shape[2]}: sample them for the size of this image"
        )
    view: Tensor = F.crop(image, params.top, params.left, params.height, params.width)
    view = F.to_dtype(view, torch.float32, scale=True)
    crop = augmentation.crop
    view = F.resize(view, [crop.size, crop.size], interpolation=F.InterpolationMode(crop.interpolation), antialias=True)
    if crop.interpolation == "bicubic":
        view = view.clamp(0, 1)  # it overshoots
    if params.flip:
        view = F.horizontal_flip(view)
    for step in augmentation.order:
        view = STEPS[step](augmentation, view, params)
    if augmentation.normalize is not None:
        view = F.normalize(view, *augmentation.normalize.values(len(view)))
    return view


def apply_custom(image: Tensor, custom: CustomView, image_seed: int, number: int) -> Tensor:
    """The view that the user's own function makes of an image [C, H, W]: float [C, S, S].

    A function without a `generator` uses torch's global one, which is seeded for it and restored afterwards.

    Args:
        image_seed: seed of the image's views.
        number: the index of the view.
    """
    seed = seed_from("custom view", image_seed, number)
    if custom.takes_generator:
        view = custom.function(image, generator=torch.Generator().manual_seed(seed))
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            view = custom.function(image)
    expected = (len(image), custom.size, custom.size)
    if not isinstance(view, Tensor) or tuple(view.shape) != expected:
        got = f"shape {list(view.shape)}" if isinstance(view, Tensor) else f"a {type(view).__name__}"
        raise ValueError(
            f"the augmentation {describe(custom)} must return a tensor of shape {list(expected)}, got {got}: return "
            f"that, or set the size of views with --size"
        )
    if view.is_floating_point():
        return view.float()
    scaled: Tensor = F.to_dtype(view, torch.float32, scale=True)
    if custom.normalize is not None:
        scaled = F.normalize(scaled, *custom.normalize.values(len(scaled)))
    return scaled


def describe(custom: CustomView) -> str:
    """The name of a user's own function."""
    return str(getattr(custom.function, "__qualname__", type(custom.function).__name__))


def jitter_step(augmentation: Augmentation, view: Tensor, params: AugmentParams) -> Tensor:
    if not params.jitter or augmentation.jitter is None:
        return view
    for which in params.order:
        if which == 0 and augmentation.jitter.brightness:
            view = adjust_brightness(view, params.brightness)
        elif which == 1 and augmentation.jitter.contrast:
            view = adjust_contrast(view, params.contrast)
        elif which == 2 and augmentation.jitter.saturation and len(view) == 3:
            view = F.adjust_saturation(view, params.saturation)
        elif which == 3 and augmentation.jitter.hue and len(view) == 3:
            view = F.adjust_hue(view, params.hue)
    return view


def adjust_brightness(view: Tensor, factor: float) -> Tensor:
    """torchvision's, for any number of channels."""
    return (view * factor).clamp(0, 1)


def adjust_contrast(view: Tensor, factor: float) -> Tensor:
    """torchvision's, about the mean of the gray image; of other numbers of channels than three, of them all."""
    gray: Tensor = F.rgb_to_grayscale(view) if len(view) == 3 else view
    return torch.lerp(gray.mean().expand_as(view), view, factor).clamp(0, 1)


def grayscale_step(augmentation: Augmentation, view: Tensor, params: AugmentParams) -> Tensor:
    if params.grayscale and len(view) == 3:
        view = F.rgb_to_grayscale(view, num_output_channels=3)
    return view


def blur_step(augmentation: Augmentation, view: Tensor, params: AugmentParams) -> Tensor:
    if params.sigma == 0 or augmentation.blur is None:
        return view
    kernel = augmentation.blur.width(augmentation.crop.size)
    # Padding by reflection needs a view wider than half the kernel.
    kernel = min(kernel, 2 * augmentation.crop.size - 1)
    blurred: Tensor = F.gaussian_blur(view, [kernel, kernel], [params.sigma, params.sigma])
    return blurred


def solarize_step(augmentation: Augmentation, view: Tensor, params: AugmentParams) -> Tensor:
    return torch.where(view >= 0.5, 1 - view, view) if params.solarize else view


def randaugment_step(augmentation: Augmentation, view: Tensor, params: AugmentParams) -> Tensor:
    for operation, magnitude in params.operations:
        view = operate(view, RANDAUGMENT_OPERATIONS[operation], magnitude)
    return view


STEPS = {
    "jitter": jitter_step,
    "grayscale": grayscale_step,
    "blur": blur_step,
    "solarize": solarize_step,
    "randaugment": randaugment_step,
}


def operate(view: Tensor, operation: str, magnitude: float) -> Tensor:
    """One operation of RandAugment at a magnitude of 0 … 10, whose sign is for those that have a direction."""
    level, signed = abs(magnitude) / 10, magnitude / 10
    enhance = 1.8 * level + 0.1
    match operation:
        case "autocontrast" if len(view) in (1, 3):
            view = F.autocontrast(view)
        case "equalize" if len(view) in (1, 3):
            view = F.equalize(view)
        case "invert":
            view = 1 - view
        case "posterize":
            view = F.posterize(view, int(4 * level))
        case "solarize":
            # At the full magnitude the threshold is above white and nothing happens: so it was published.
            view = torch.where(view >= int(256 * level) / 255, 1 - view, view)
        case "solarize-add":
            view = torch.where(view < 128 / 255, (view + int(110 * level) / 255).clamp(max=1), view)
        case "color" if len(view) == 3:
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
    """Turn about the middle, shift, or shear about the corner; ImageNet's mean color comes in from outside."""
    fill, _ = Normalize().values(len(view))
    center = [0.0, 0.0] if any(shear) else None
    warped: Tensor = F.affine(
        view,
        angle=angle,
        translate=list(translate),
        scale=1.0,
        shear=list(shear),
        interpolation=F.InterpolationMode.BILINEAR,
        fill=fill,
        center=center,
    )
    return warped
