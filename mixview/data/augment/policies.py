"""Augmentation policies: how each view of an image is made, as plain values that are checked by type.

    policy = load_policy("mocov2")                     # built in: mixview/data/augment/builtin/mocov2.yaml
    policy = load_policy("mine.yaml", size=96)         # a file of your own, written like the built-in ones
    policy = load_policy("mine.policy")                # import path of a factory, or of a callable on images
    policy = load_policy([Augmentation(), Augmentation(blur=Blur())])

A policy is a tuple with one entry per view: two for most methods, more (and smaller) ones for multi-crop. In YAML, the
settings at the top level hold for all views; `views` is their number, or a list of what differs between them:

    base: mocov2                                       # start from a built-in policy
    views:
      - {count: 2, crop: {size: 224, scale: [0.14, 1.0]}}
      - {count: 6, crop: {size: 96, scale: [0.05, 0.14]}}

`params` samples what is random about a view; `reference`, `numba_backend` and `torch_backend` then make it. Nothing
here imports torch, so that policies can be listed and checked at once.
"""

import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, final, get_args, get_type_hints

from mixview.extensions import import_object, is_import_path
from mixview.io.environment import process_rank
from mixview.io.terminal import say
from mixview.io.yaml_files import SettingsError, read_yaml
from mixview.options import (
    AtLeast,
    AtMost,
    NonNegativeFloat,
    Positive,
    Share,
    Side,
    check_options,
    suggestion,
    truncated_repr,
)

BUILTIN = Path(__file__).parent / "builtin"
MAX_OPERATIONS = 4
"""The most operations of RandAugment, for which random numbers are set aside."""
MAX_VIEWS = 64

Step = Literal["jitter", "grayscale", "blur", "solarize", "randaugment"]
Interpolation = Literal["bilinear", "bicubic"]


def check_increasing(name: str, limits: tuple[float, float]) -> None:
    """Raise if the first of two limits is larger than the second."""
    if limits[0] > limits[1]:
        raise ValueError(f"{name} must be the smaller and the larger limit, got {list(limits)}: swap them")


@dataclass(frozen=True)
class Crop:
    """A random part of the image, resized to a square.

    Example:
        >>> Crop(size=96, scale=(0.2, 1.0)).interpolation
        'bilinear'
    """

    size: Side = 224
    """Size of the view in pixels."""
    scale: tuple[Positive, Share] = (0.08, 1.0)
    """The smallest and largest share of the image's area."""
    ratio: tuple[Positive, Positive] = (3 / 4, 4 / 3)
    """The smallest and largest ratio of width to height."""
    interpolation: Interpolation = "bilinear"
    """Always antialiased."""

    def __post_init__(self) -> None:
        check_options(self, "crop", prefix="")
        for name in ("scale", "ratio"):
            check_increasing(f"crop.{name}", getattr(self, name))


@dataclass(frozen=True)
class Jitter:
    """Random brightness, contrast, saturation and hue, in random order.

    Example:
        >>> Jitter(brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2).p
        0.8
    """

    brightness: NonNegativeFloat = 0.4
    """The factor is uniform in 1 ± this; likewise for contrast and saturation."""
    contrast: NonNegativeFloat = 0.4
    saturation: NonNegativeFloat = 0.4
    hue: Annotated[float, AtLeast(0), AtMost(0.5)] = 0.1
    """The shift is uniform in ± this, in turns of the color wheel."""
    p: Share = 0.8
    """Probability of any jitter."""

    def __post_init__(self) -> None:
        check_options(self, "jitter", prefix="")


@dataclass(frozen=True)
class Blur:
    """A Gaussian blur.

    Example:
        >>> Blur(p=1.0).width(224)
        23
    """

    p: Share = 0.5
    """Probability."""
    sigma: tuple[Positive, Positive] = (0.1, 2.0)
    """Pixels of the view, uniform between the two."""
    kernel: Annotated[int, AtLeast(1)] | None = None
    """Width in pixels, odd; by default a tenth of the view (23 at 224), as in SimCLR and BYOL."""

    def __post_init__(self) -> None:
        check_options(self, "blur", prefix="")
        check_increasing("blur.sigma", self.sigma)
        if self.kernel is not None and self.kernel % 2 == 0:
            raise ValueError(f"blur.kernel must be odd, got {self.kernel}: use {self.kernel + 1}")

    def width(self, size: int) -> int:
        """The kernel's width for views of this size."""
        return self.kernel if self.kernel is not None else size // 20 * 2 + 1


@dataclass(frozen=True)
class RandAugment:
    """Some of the fifteen `RANDAUGMENT_OPERATIONS`, each with probability `p`, at a noisy magnitude of 0 to 10.

    timm's `rand-n2-m10-mstd0.5`, with which InfoMin was published; its scales of magnitude are the TPU code's.

    Example:
        >>> RandAugment(operations=3, magnitude=5.0).p
        0.5
    """

    operations: Annotated[int, AtLeast(0), AtMost(MAX_OPERATIONS)] = 2
    """Operations per view."""
    magnitude: Annotated[float, AtLeast(0), AtMost(10)] = 10.0
    magnitude_std: NonNegativeFloat = 0.5
    """Standard deviation of the magnitude, which is normal and clipped to 0 … 10."""
    p: Share = 0.5
    """Probability of each operation."""

    def __post_init__(self) -> None:
        check_options(self, "randaugment", prefix="")


RANDAUGMENT_OPERATIONS = (
    "autocontrast",
    "equalize",
    "invert",
    "rotate",
    "posterize",
    "solarize",
    "solarize-add",
    "color",
    "contrast",
    "brightness",
    "sharpness",
    "shear-x",
    "shear-y",
    "translate-x",
    "translate-y",
)


@dataclass(frozen=True)
class Normalize:
    """Subtract `mean` and divide by `std` per channel; images with other channels take the average of each.

    Example:
        >>> Normalize(mean=(0.5,), std=(0.25,)).values(channels=2)
        ([0.5, 0.5], [0.25, 0.25])
    """

    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[Positive, ...] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        check_options(self, "normalize", prefix="")
        if not self.mean or len(self.mean) != len(self.std):
            raise ValueError(f"normalize.mean and std must have one value per channel, got {self.mean} and {self.std}")

    @classmethod
    def parse(cls, text: str) -> "Normalize":
        """Parse `MEAN,STD`: means and then as many standard deviations, in the numbers of images from 0 to 1.

        Example:
            >>> Normalize.parse("0.5,0.25")
            Normalize(mean=(0.5,), std=(0.25,))
        """
        try:
            numbers = [float(each) for each in text.split(",")]
        except ValueError:
            raise ValueError(
                f"{truncated_repr(text)} is not a normalization: pass imagenet, weights, measured, or MEAN,STD such as "
                "0.5,0.25"
            ) from None
        if len(numbers) % 2:
            raise ValueError(
                f"{truncated_repr(text)} has {len(numbers)} numbers: pass as many means as standard deviations, first "
                "all means, such as 0.5,0.25"
            )
        half = len(numbers) // 2
        return cls(tuple(numbers[:half]), tuple(numbers[half:]))

    @property
    def text(self) -> str:
        """The text that `parse` reads, to the last digit."""
        return ",".join(repr(float(each)) for each in (*self.mean, *self.std))

    def values(self, channels: int) -> tuple[list[float], list[float]]:
        """Mean and std of each channel."""
        if channels == len(self.mean):
            return list(self.mean), list(self.std)
        return [sum(self.mean) / len(self.mean)] * channels, [sum(self.std) / len(self.std)] * channels


@dataclass(frozen=True)
class Augmentation:
    """The augmentation of one view: crop, flip, then the steps of `order`, then `normalize`.

    Color operations apply where they are defined: hue, saturation and grayscale to three channels only, brightness,
    contrast, blur and solarization to any number.

    Example:
        >>> Augmentation(Crop(96), jitter=Jitter(), grayscale=0.2, blur=Blur(p=1.0)).size
        96
    """

    crop: Crop = Crop()
    flip: Share = 0.5
    """Probability of a horizontal flip."""
    jitter: Jitter | None = None
    grayscale: Share = 0.0
    """Probability of losing all color."""
    blur: Blur | None = None
    solarize: Share = 0.0
    """Probability of inverting everything that is brighter than one half."""
    randaugment: RandAugment | None = None
    order: tuple[Step, ...] = ("jitter", "grayscale", "blur", "solarize", "randaugment")
    """The order of the steps; one that is left out does not happen."""
    normalize: Normalize | None = Normalize()

    def __post_init__(self) -> None:
        check_options(self, prefix="")
        if len(set(self.order)) < len(self.order):
            raise ValueError(f"order may hold each step at most once, got {', '.join(self.order)}")

    @property
    def size(self) -> int:
        """Size of the view in pixels."""
        return self.crop.size


@final
@dataclass(frozen=True)
class CustomView:
    """A view that a function of the user's own makes, one image at a time."""

    function: Callable[..., Any]
    """Takes an image [C, H, W] of type uint8, and a `generator` if it has such a parameter; returns a view [C, S, S].
    Floating point views are used as they are; views of type uint8 are scaled and normalized."""
    size: int = 224
    """Size S of the view in pixels, which the result must have."""
    normalize: Normalize | None = Normalize()

    @functools.cached_property
    def takes_generator(self) -> bool:
        """True if random numbers come from a generator that is passed, False if from torch's global one."""
        return "generator" in parameters_of(self.function)


Policy = tuple[Augmentation | CustomView, ...]
"""The augmentation of each view, one entry per view."""


# Policies by name.


@functools.cache
def names() -> tuple[str, ...]:
    """The names of the built-in policies: every file in `builtin/`, and its variant for small images."""
    own = sorted(path.stem for path in BUILTIN.glob("[!_]*.yaml"))
    return (*own, *(f"{name}-small" for name in own))


def load_policy(
    policy: str | os.PathLike[str] | Augmentation | Sequence[Any] | Callable[..., Any],
    size: int | None = None,
    min_crop_scale: float | None = None,
    normalize: Normalize | None = None,
) -> Policy:
    """The augmentations of all views.

    Args:
        policy: a built-in name, a YAML file, an import path (which is imported, see `mixview.extensions`), or in Python
            the policy itself: augmentations, or callables on images.
        size: size of the largest views in pixels; smaller ones shrink in proportion. By default as published.
        min_crop_scale: the smallest share of an image that one of the largest views shows. By default as published.
        normalize: the normalization of all views; by default that of the policy, which is ImageNet's.

    Example:
        >>> first, second = load_policy("byol", size=96)
        >>> first.crop.size, first.solarize, second.solarize
        (96, 0.0, 0.2)
        >>> policy = load_policy([Augmentation(Crop(96), blur=Blur()), Augmentation(Crop(96))])
    """
    if not isinstance(policy, str | os.PathLike):
        views = from_python(policy, size, "the policy")
    elif (name := os.fspath(policy)) in names():
        views = builtin(name)
    elif name.endswith((".yaml", ".yml")):
        views = from_yaml(Path(name))
    elif is_import_path(name):
        views = from_python(import_object(name, "augmentation"), size, name)
        if any(isinstance(view, CustomView) for view in views):
            announce_slow_path(name)
    else:
        raise ValueError(
            f"there is no augmentation {name!r}{suggestion(name.lower(), names(), cutoff=0.4)}; pass your own "
            "as a YAML file, such as mine.yaml, or as package.module:factory"
        )
    largest = max(view.size for view in views)
    views = tuple(resize(view, largest, size or largest, min_crop_scale) for view in views)
    return views if normalize is None else tuple(replace(view, normalize=normalize) for view in views)


@functools.cache
def builtin(name: str) -> Policy:
    """A built-in policy by name."""
    return build_views(read_builtin(name))


def from_yaml(path: Path) -> Policy:
    """The policy of a YAML file."""
    try:
        return build_views(read_policy(path))
    except SettingsError:
        raise
    except ValueError as error:
        raise SettingsError(f"{path}: {error}") from None


def read_policy(path: Path) -> dict[str, Any]:
    """The settings in a YAML file, on top of those of its `base`."""
    settings = read_yaml(path)
    if not isinstance(settings, dict):
        raise SettingsError(f"{path} is not a policy: write `crop: {{scale: [0.2, 1.0]}}` and the like")
    base = settings.pop("base", None)
    if base is None:
        return settings
    if base not in names():
        raise SettingsError(f"{path} has base {base!r}, which must be one of {', '.join(names())}")
    return merge(read_builtin(base), settings)


def read_builtin(name: str) -> dict[str, Any]:
    """The settings of a built-in policy; those of a small variant are in every view of it."""
    settings = read_policy(BUILTIN / f"{name.removesuffix('-small')}.yaml")
    small = settings.pop("small", None) or {}
    if name.endswith("-small"):
        changes = merge(read_policy(BUILTIN / "_small.yaml"), small)
        settings = merge(settings, changes)
        if isinstance(settings.get("views"), list) and "views" not in changes:  # which say what they are themselves
            settings["views"] = [merge(view, changes) for view in settings["views"]]
    return settings


def build_views(settings: dict[str, Any]) -> Policy:
    """The views that a policy's settings describe."""
    shared = {key: value for key, value in settings.items() if key != "views"}
    listed = settings.get("views", 2)
    if not isinstance(listed, list):
        listed = [{"count": listed}]
    views: list[Augmentation] = []
    for entry in listed:
        if not isinstance(entry, dict):
            raise ValueError(f"views must be a number or a list of settings, got {entry!r}")
        count = entry.get("count", 1)
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_VIEWS - len(views):
            raise ValueError(f"the number of views must be 1 to {MAX_VIEWS} in all, got {count!r}")
        own = {key: value for key, value in entry.items() if key != "count"}
        views += [build(Augmentation, merge(shared, own))] * count
    if not views:
        raise ValueError("views is empty: a policy needs at least one view")
    return tuple(views)


def merge(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with changes, group by group: a group that changes keeps what it does not mention."""
    merged = dict(settings)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def build(kind: type[Any], settings: object, group: str = "") -> Any:
    """A dataclass from plain settings; its own checks find values of the wrong type."""
    if not isinstance(settings, dict):
        raise ValueError(f"{group} must be a group of settings such as {{p: 0.5}}, got {settings!r}")
    hints, values = get_type_hints(kind), {}
    own = [field.name for field in fields(kind)]
    for key, value in settings.items():
        if key not in own:
            where = f"{group}.{key}" if group else str(key)
            raise ValueError(f"there is no setting {where}{suggestion(key, own)}")
        groups = [each for each in (hints[key], *get_args(hints[key])) if each in GROUPS]
        if groups and value is not None:
            value = build(groups[0], value, str(key))
        values[key] = tuple(value) if isinstance(value, list) else value
    return kind(**values)


GROUPS = (Crop, Jitter, Blur, RandAugment, Normalize)


def resize(
    view: Augmentation | CustomView, largest: int, size: int, min_crop_scale: float | None
) -> Augmentation | CustomView:
    """A view of a policy whose largest views get another size, and another smallest crop."""
    own_size = max(1, round(view.size * size / largest))
    if isinstance(view, CustomView):
        return replace(view, size=own_size)
    changes: dict[str, Any] = {"size": own_size}
    if min_crop_scale is not None and view.size == largest:
        changes["scale"] = (min_crop_scale, 1.0)
    return replace(view, crop=replace(view.crop, **changes))


# Policies in Python.


def from_python(policy: Any, size: int | None, name: str) -> Policy:
    """The policy that an object stands for.

    Augmentations stand for themselves. A class, or a function that takes no image, is a factory: it is called, with
    `size` if it has such a parameter. Any other callable makes the views itself. A single one makes both views.
    """
    views = policy if isinstance(policy, list | tuple) else (policy, policy)
    if not isinstance(policy, Augmentation | CustomView | list | tuple):
        if not callable(policy):
            raise ValueError(
                f"{name} is a {type(policy).__name__}: pass augmentations, a function that returns them, or a function "
                "that makes a view of an image"
            )
        if is_factory(policy):
            options = {"size": size} if size is not None and "size" in parameters_of(policy) else {}
            result = policy(**options)
            if callable(result) and not isinstance(result, Augmentation | CustomView) and is_factory(result):
                raise ValueError(f"{name} returns a function that takes no image: return augmentations")
            return from_python(result, size, name)
    if not 1 <= len(views) <= MAX_VIEWS:
        raise ValueError(f"{name} has {len(views)} views, and must have 1 to {MAX_VIEWS}")
    if wrong := [each for each in views if not isinstance(each, Augmentation | CustomView) and not callable(each)]:
        raise ValueError(f"{name} holds a {type(wrong[0]).__name__}: pass augmentations, or callables on images")
    default = CustomView.size if size is None else size
    return tuple(each if isinstance(each, Augmentation | CustomView) else CustomView(each, default) for each in views)


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters of a callable, by name; of one whose signature cannot be read, none."""
    # A module's own signature says nothing: it passes everything on to `forward`.
    function = getattr(function, "forward", function) if not inspect.isroutine(function) else function
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def is_factory(function: Callable[..., Any]) -> bool:
    """Return True if a callable is to be called without an image: a class, or a function that takes none."""
    if isinstance(function, type):
        return True
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.isroutine(function) and not any(
        each.kind is inspect.Parameter.VAR_POSITIONAL or (each.kind in positional and each.default is each.empty)
        for each in parameters_of(function).values()
    )


@functools.cache
def announce_slow_path(name: str) -> None:
    """Say once that views are made by a function of the user's own."""
    if process_rank() == 0:
        say(f"mixview: {name} makes the views one image at a time, which is slower than a policy in YAML", sys.stderr)
