"""Encoders by name: torchvision's, timm's, a small ResNet and ViT for CPUs, or your own; and their first weights.

    backbone = build("resnet50", size=32)          # CIFAR stem, because the images are small; backbone.notes says so
    features = backbone.encoder(images)            # [N, 3, 32, 32] -> [N, backbone.feature_dim]

Nothing that is read here can run code: torch files are opened with `weights_only=True`. Only a name that is an import
path (`package.module:factory`) does, as intended; code that takes such a name from a file calls
`require_consent` first.
"""

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast, get_args

import torch
from torch import Tensor, nn

from mixview.data.dataset import SMALL_IMAGE_SIZE
from mixview.encoders.optional import import_optional
from mixview.encoders.weights import (
    HEADS,
    first_convolution,
    first_line,
    load_weights,
    read_tensors,
    shorten,
    strip_prefixes,
    weights_file,
)
from mixview.extensions import import_object, names_code

Stem = Literal["auto", "small", "standard"]
Spec = dict[str, str | int]

BUILTIN = ("small", "small-vit")
"""The networks that are mixview's own."""

CANDIDATE_BACKBONES = ("resnet50", "resnet18", "small", "resnet34", "resnet101", "resnet152", "wide_resnet50_2")
"""The backbones that a file of tensors is tried on if it does not say its model."""


class Backbone(NamedTuple):
    """An encoder, ready to train."""

    encoder: nn.Module
    """Images [N, C, H, W] -> features [N, feature_dim]; no classifier."""

    feature_dim: int

    notes: tuple[str, ...]
    """The decisions that were made, in sentences for the user."""

    spec: Spec
    """Everything that rebuilds the encoder but its weights: name, size, channels, stem, feature_dim."""


def build(
    name: str,
    *,
    size: int,
    channels: int = 3,
    stem: Stem = "auto",
    weights: str | None = None,
    zero_init_residual: bool | None = False,
    drop_path: float = 0.0,
) -> Backbone:
    """The encoder of this name.

    Args:
        name: a torchvision model (`resnet50`), else a timm model (`vit_small_patch16_224`); `torchvision/NAME` or
            `timm/NAME` to say which; `small`, a ResNet of 0.3 M parameters for CPUs, or `small-vit`, a ViT of 0.8 M; or
            your own module by import path, `package.module:factory`, which is called with `channels` and `size` if it
            takes them.
        size: side of the images in pixels.
        channels: image channels.
        stem: stem of a ResNet: `small` is CIFAR's (3×3, stride 1, no max-pool), `standard` ImageNet's; of `small-vit`:
            patches of 4 or of 16 pixels. `auto` takes the small one for images of up to 64 pixels.
        weights: `imagenet`, a .safetensors or torch file, or the folder of an earlier mixview run; by
            default random.
        zero_init_residual: start the last batch norm of every residual block at zero (ResNets only); None does
            so where there are any.
        drop_path: stochastic depth of a timm model or `small-vit`: the probability that its last block is skipped in
            training, from 0 in the first on.

    Example:
        >>> backbone = build("small", size=32)
        >>> backbone.encoder(torch.rand(2, 3, 32, 32)).shape, backbone.feature_dim
        (torch.Size([2, 128]), 128)
    """
    encoder, full_name, resolved, notes = construct(
        name,
        size=size,
        channels=channels,
        stem=stem,
        zero_init_residual=zero_init_residual,
        pretrained=weights == "imagenet",
        drop_path=drop_path,
    )
    if weights is not None and weights != "imagenet":
        path = weights_file(weights)
        notes.append(load_weights(encoder, read_tensors(path), str(path), full_name))
    feature_dim = feature_width(encoder, full_name, size=size, channels=channels)
    millions = sum(parameter.numel() for parameter in encoder.parameters()) / 1e6
    notes.insert(0, f"Backbone {full_name}: {millions:.1f} M parameters, {feature_dim} features.")
    spec: Spec = {
        "name": full_name,
        "size": size,
        "channels": channels,
        "stem": resolved,
        "feature_dim": feature_dim,
    }
    return Backbone(encoder, feature_dim, tuple(notes), spec)


def construct(
    name: str,
    *,
    size: int,
    channels: int,
    stem: Stem = "auto",
    zero_init_residual: bool | None = False,
    pretrained: bool = False,
    drop_path: float = 0.0,
) -> tuple[nn.Module, str, Stem, list[str]]:
    """The module alone, not tried out: encoder, its full name, the stem it got, and notes. See `build`."""
    if size < 1 or channels < 1:
        raise ValueError(f"size and channels must be at least 1, got {size} and {channels}")
    if stem not in get_args(Stem):
        raise ValueError(f'stem must be "auto", "small" or "standard", got {stem!r}')
    if not 0 <= drop_path < 1:
        raise ValueError(f"drop_path is a probability, at least 0 and less than 1, got {drop_path}")
    library, short = resolve_name(name)
    if drop_path and library != "timm" and short != "small-vit":
        raise ValueError(f"drop_path is for timm's models and small-vit, and {name} is neither: set drop_path to 0")
    full_name = short if library in ("mixview", "own") else f"{library}/{short}"
    notes: list[str] = []
    wants_small = stem == "small" or (stem == "auto" and size <= SMALL_IMAGE_SIZE)
    zero_where_possible = zero_init_residual is not False

    if short == "small-vit":
        patch = 4 if wants_small else 16
        encoder: nn.Module = small_vit(channels, size, patch, drop_path)
        is_resnet = False
        notes.append(f"Patches of {patch} pixels, for images of {size}.")
    elif library == "mixview":
        encoder = SmallResNet(channels, zero_init_residual=zero_where_possible)
        is_resnet = True
        if stem == "standard":
            raise ValueError('the backbone "small" has only the small stem: leave stem at "auto", or use resnet18')
    elif library == "own":
        encoder, is_resnet = custom_module(short, size=size, channels=channels), False
    elif library == "torchvision":
        encoder, is_resnet = torchvision_model(short, size, zero_where_possible)
    else:
        encoder, is_resnet = timm_model(short, size, channels, zero_where_possible, pretrained, drop_path)
    if library != "own":
        check_patches(encoder, full_name, size)

    check_combination(
        full_name, library, is_resnet, stem=stem, zero_init=zero_init_residual is True, pretrained=pretrained
    )
    resolved, stem_notes = fit_stem(
        encoder, full_name, library, is_resnet, stem=stem, size=size, small=wants_small, pretrained=pretrained
    )
    notes += stem_notes

    if library == "torchvision":
        if channels != 3:
            change_channels(encoder, channels)
        if pretrained:
            notes.append(load_weights(encoder, imagenet_tensors(short, encoder), "ImageNet (torchvision)", full_name))
    elif pretrained:
        notes.append("Weights: ImageNet (timm).")
    return encoder, full_name, resolved, notes


def check_combination(
    full_name: str, library: str, is_resnet: bool, *, stem: Stem, zero_init: bool, pretrained: bool
) -> None:
    """Raise if a backbone has no such stem, initialization or weights."""
    if not is_resnet and zero_init:
        raise ValueError(
            f"zero_init_residual is for ResNets (torchvision's, timm's and small), and {full_name} is not one: "
            "set zero_init_residual to false"
        )
    if not is_resnet and stem == "small" and library != "mixview":
        raise ValueError(
            f"stem \"small\" is for ResNets (torchvision's, timm's and small), and {full_name} is not one: leave stem "
            'at "auto", and choose a backbone that is made for small images'
        )
    if pretrained and library in ("mixview", "own"):
        raise ValueError(
            f"{full_name} has no ImageNet weights: use a torchvision or timm backbone, or pass a file as weights"
        )


def fit_stem(
    encoder: nn.Module,
    full_name: str,
    library: str,
    is_resnet: bool,
    *,
    stem: Stem,
    size: int,
    small: bool,
    pretrained: bool,
) -> tuple[Stem, list[str]]:
    """Give a ResNet for small images the CIFAR stem; returns the stem that the encoder has, and notes about it."""
    notes: list[str] = []
    resolved: Stem = "small" if small and library == "mixview" else "standard"
    if is_resnet and small:
        resolved = "small"
        if library != "mixview":
            make_small_stem(encoder)
            reason = f"the images are {size} pixels" if stem == "auto" else "stem is small"
            other = '; stem="standard" keeps ImageNet\'s' if stem == "auto" else ""
            notes.append(f"CIFAR stem (3×3, stride 1, no max-pool), because {reason}{other}.")
            if pretrained:
                notes.append("The new stem is initialized randomly: the ImageNet weights are for the standard one.")
    elif is_resnet:
        notes.append(f"Standard stem (stride 2, max-pool), for images of {size} pixels.")
    elif library in ("torchvision", "timm") and size <= SMALL_IMAGE_SIZE and patch_of(encoder) is None:
        notes.append(
            f"{full_name} is made for large images and keeps its stem: a ResNet may do better at {size} pixels."
        )
    return resolved, notes


# Names


def resolve_name(name: str) -> tuple[str, str]:
    """The library of a name (`mixview`, `own`, `torchvision` or `timm`), and the name within it."""
    prefix, _, rest = name.partition("/")
    if prefix in ("torchvision", "timm") and rest:
        if rest in (torchvision_names() if prefix == "torchvision" else [rest] if is_timm(rest) else []):
            return prefix, rest
        raise unknown_backbone(name)
    if name in BUILTIN:
        return "mixview", name
    if names_code("backbone", name):
        return "own", name
    if name in torchvision_names():
        return "torchvision", name
    if is_timm(name):
        return "timm", name
    raise unknown_backbone(name)


def unknown_backbone(name: str) -> ValueError:
    """The error for an unknown name, with the nearest known ones."""
    names = {*torchvision_names(), *timm_names(), *BUILTIN}
    near = difflib.get_close_matches(name.rpartition("/")[2].partition(".")[0], sorted(names), n=5, cutoff=0.5)
    where = "torchvision or timm" if timm_names() else "torchvision (timm is not installed: pip install timm)"
    nearest = f"the nearest are {', '.join(near)}" if near else "for example resnet50, vit_small_patch16_224 or small"
    return ValueError(f"no backbone {name!r} in {where}: {nearest}; pass your own module as package.module:factory")


def torchvision_names() -> list[str]:
    models = import_optional("torchvision.models")
    return cast(list[str], models.list_models(module=models))


def timm_names() -> list[str]:
    try:
        return cast(list[str], import_optional("timm").list_models())
    except ModuleNotFoundError:
        return []


def is_timm(name: str) -> bool:
    try:
        return bool(import_optional("timm").is_model(name))
    except ModuleNotFoundError:
        return False


# The libraries' models


def torchvision_options(name: str, size: int) -> dict[str, Any]:
    """Arguments of torchvision's constructor besides the name, for images of this size."""
    if name.startswith("vit_"):
        return {"image_size": size}
    if name.startswith("maxvit"):
        return {"input_size": (size, size)}
    if name in ("googlenet", "inception_v3"):
        return {"aux_logits": False, "init_weights": True}
    return {}


def torchvision_model(name: str, size: int, zero_init_residual: bool) -> tuple[nn.Module, bool]:
    """A torchvision model without its classifier, and whether it is a ResNet."""
    models = import_optional("torchvision.models")
    options = torchvision_options(name, size)
    if is_resnet := name.startswith(("resnet", "resnext", "wide_resnet")):
        options["zero_init_residual"] = zero_init_residual
    try:
        model = cast(nn.Module, models.get_model(name, weights=None, **options))
    except (AssertionError, ValueError, RuntimeError) as error:
        raise size_error(f"torchvision/{name}", size, error) from error
    strip_classifier(model)
    return model, is_resnet


def is_timm_resnet(name: str) -> bool:
    """Return True if a timm model is a ResNet, whose stem can be changed."""
    return bool(import_optional("timm").models.is_model_in_modules(name, ("resnet", "resnest", "sknet", "res2net")))


def timm_options(name: str, size: int, channels: int) -> dict[str, Any]:
    """Arguments of timm's constructor besides the name, for images of this size and this number of channels."""
    options: dict[str, Any] = {"num_classes": 0, "in_chans": channels}
    config = import_optional("timm").get_pretrained_cfg(name)
    fixed = config is not None and config.fixed_input_size and config.input_size[-1] != size
    if fixed and not is_timm_resnet(name):
        options["img_size"] = size
    return options


def timm_model(
    name: str, size: int, channels: int, zero_init_residual: bool, pretrained: bool, drop_path: float
) -> tuple[nn.Module, bool]:
    """A timm model without its classifier, and whether it is a ResNet."""
    timm = import_optional("timm")
    architecture, _, tag = name.partition(".")
    if tag and not timm.models.is_model_pretrained(name):
        tags = [full.partition(".")[2] for full in timm.list_pretrained(architecture)]
        raise ValueError(f"timm has no weights {tag!r} of {architecture}: it has {', '.join(tags) or 'none'}")
    if pretrained and not timm.models.is_model_pretrained(name):
        raise ValueError(f"timm has no ImageNet weights of {name}: leave weights out, or pass a file")
    options = timm_options(name, size, channels) | {"pretrained": pretrained}
    options |= {"drop_path_rate": drop_path} if drop_path else {}
    if is_resnet := is_timm_resnet(name):
        options["zero_init_last"] = zero_init_residual
    try:
        try:
            model = create_timm_model(name, options)
        except TypeError as error:  # some models have no drop path, and some of a fixed size cannot be made for another
            if "drop_path_rate" in str(error):
                raise ValueError(f"timm/{name} has no drop path: set drop_path to 0") from error
            if "img_size" not in str(error):
                raise
            fixed = timm.get_pretrained_cfg(name).input_size[-1]
            raise ValueError(
                f"timm/{name} is made for images of {fixed} pixels only, not {size}: use size {fixed}"
            ) from error
    except ValueError:
        raise
    except Exception as error:
        if pretrained:
            raise download_error(f"timm/{name}", error) from error
        raise size_error(f"timm/{name}", size, error) from error
    return model, is_resnet


def create_timm_model(name: str, options: Mapping[str, Any]) -> nn.Module:
    """A timm model that takes images of other sizes than its own, such as local crops, where it can.

    ViTs then resize their position embeddings; at their own size they compute what they always do.
    """
    timm = import_optional("timm")
    config = timm.get_pretrained_cfg(name)
    if config is not None and config.fixed_input_size:
        try:
            return cast(nn.Module, timm.create_model(name, **options, dynamic_img_size=True))
        except TypeError as error:
            if "dynamic_img_size" not in str(error):
                raise
    return cast(nn.Module, timm.create_model(name, **options))


def strip_classifier(model: nn.Module) -> None:
    """Replace a torchvision model's last layer, and the dropout in front of it, by nothing."""
    head = next(child for child in HEADS if hasattr(model, child))
    layers = [(name, layer) for name, layer in model.named_modules() if name == head or name.startswith(f"{head}.")]
    last = max(index for index, (_, layer) in enumerate(layers) if isinstance(layer, nn.Linear | nn.Conv2d))
    model.set_submodule(layers[last][0], nn.Identity())
    if last and isinstance(layers[last - 1][1], nn.Dropout):
        model.set_submodule(layers[last - 1][0], nn.Identity())


def make_small_stem(resnet: nn.Module) -> None:
    """CIFAR's stem in a torchvision or timm ResNet: a 3×3 convolution of stride 1 first, no max-pool."""
    first = resnet.conv1
    if isinstance(first, nn.Conv2d):
        conv = nn.Conv2d(first.in_channels, first.out_channels, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
        resnet.conv1 = conv
    else:  # timm's deep stem is 3×3 convolutions already
        for layer in cast(nn.Module, first).modules():
            if isinstance(layer, nn.Conv2d):
                layer.stride = (1, 1)
    resnet.maxpool = nn.Identity()


def change_channels(model: nn.Module, channels: int) -> None:
    """Rebuild the first convolution of a torchvision model for this many channels; weights come later."""
    first = first_convolution(model)
    assert first is not None
    name, old = first
    new = nn.Conv2d(
        channels,
        old.out_channels,
        cast(tuple[int, int], old.kernel_size),
        cast(tuple[int, int], old.stride),
        cast(tuple[int, int], old.padding),
        bias=old.bias is not None,
    )
    nn.init.kaiming_normal_(new.weight, mode="fan_in", nonlinearity="relu")
    model.set_submodule(name, new)


def patch_of(encoder: nn.Module) -> int | None:
    """The side of a vision transformer's patches; None for other models."""
    patch = getattr(getattr(encoder, "patch_embed", None), "patch_size", getattr(encoder, "patch_size", None))
    if isinstance(patch, Sequence) and patch:
        patch = patch[0]
    return patch if isinstance(patch, int) else None


def check_patches(encoder: nn.Module, name: str, size: int) -> None:
    """Raise if a size is not a multiple of the patch: the pixels beyond the last patch would be dropped silently."""
    patch = patch_of(encoder)
    if patch is not None and size % patch:
        sizes = [multiple for multiple in (size // patch * patch, (size // patch + 1) * patch) if multiple]
        raise ValueError(
            f"{name} cuts images into patches of {patch} pixels, and {size} is not a multiple of it: use "
            f"{' or '.join(map(str, sizes))}"
        )


def check_crops(encoder: nn.Module, name: str, *, size: int, crop: int, channels: int) -> None:
    """Raise if an encoder that was made for images of `size` pixels cannot take local crops of another size."""
    check_patches(encoder, f"{name}, with local crops of {crop} pixels,", crop)
    try:
        feature_width(encoder, name, size=crop, channels=channels)
    except ValueError as error:
        raise ValueError(
            f"{name} was made for images of {size} pixels and cannot encode local crops of {crop}: use a ResNet or a "
            "ViT of timm's, or an augmentation without local crops"
        ) from error


def size_error(name: str, size: int, error: Exception) -> ValueError:
    return ValueError(
        f"{name} cannot be made for images of {size} pixels ({first_line(error)}): use another size (224 suits most "
        "models) or another backbone (ResNets take any)"
    )


def download_error(name: str, error: Exception) -> ConnectionError:
    return ConnectionError(
        f"the ImageNet weights of {name} could not be fetched ({first_line(error)}): check the connection, or "
        "fetch the file elsewhere and pass its path as weights"
    )


# One's own module


def custom_module(name: str, *, size: int, channels: int) -> nn.Module:
    """The module that `package.module:factory` makes; the factory is passed `channels` and `size` if it takes them."""
    factory = import_object(name, "backbone")
    if isinstance(factory, nn.Module):
        return factory
    encoder = call_factory(factory, name, {"channels": channels, "size": size})
    if not isinstance(encoder, nn.Module):
        raise ValueError(f"{name} made a {type(encoder).__name__}: it must return a torch.nn.Module")
    return encoder


def call_factory(factory: Callable[..., object], name: str, offered: Mapping[str, int]) -> object:
    """Call it with those of the offered arguments that it names."""
    if not callable(factory):
        raise ValueError(f"{name} is a {type(factory).__name__}: it must be a class or function that makes a module")
    parameters = inspect.signature(factory).parameters.values()
    missing = [
        p.name
        for p in parameters
        if p.default is p.empty and p.name not in offered and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if missing:
        raise ValueError(
            f"{name} needs {', '.join(missing)}, and is called with channels and size at most: give the rest defaults"
        )
    return factory(**{p.name: offered[p.name] for p in parameters if p.name in offered})


def feature_width(encoder: nn.Module, name: str, *, size: int, channels: int) -> int:
    """The encoder's feature width, by a pass of two images in evaluation mode; leaves no trace in the encoder."""
    training = {module: module.training for module in encoder.modules()}
    parameter = next(encoder.parameters(), torch.empty(0))
    images = torch.zeros(2, channels, size, size, device=parameter.device, dtype=parameter.dtype)
    encoder.eval()
    try:
        with torch.no_grad():
            features = encoder(images)
    except Exception as error:
        raise ValueError(
            f"{name} cannot encode images of {channels}×{size}×{size} ({first_line(error)}): check size and channels, "
            "or use another backbone (ResNets take any size)"
        ) from error
    finally:
        for module, mode in training.items():
            module.training = mode
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 2:
        output = f"shape {list(features.shape)}" if isinstance(features, Tensor) else f"type {type(features).__name__}"
        raise ValueError(
            f"{name} made an output of {output} of 2 images, expected [2, D]: end it in pooling and flattening, "
            "nn.AdaptiveAvgPool2d(1) and nn.Flatten(), and return that tensor alone"
        )
    return features.shape[1]


# Weights


def imagenet_tensors(name: str, encoder: nn.Module) -> dict[str, Tensor]:
    """Torchvision's best ImageNet weights; a ViT's position embeddings are resized to the encoder's."""
    models = import_optional("torchvision.models")
    choices = list(models.get_model_weights(name))
    if not choices:
        raise ValueError(f"torchvision has no ImageNet weights of {name}: leave weights out, or pass a file")
    try:
        tensors = dict(models.get_model_weights(name).DEFAULT.get_state_dict(progress=True, check_hash=True))
    except (OSError, RuntimeError) as error:
        raise download_error(f"torchvision/{name}", error) from error
    if isinstance(encoder, models.VisionTransformer):
        vision_transformer = import_optional("torchvision.models.vision_transformer")
        resized = vision_transformer.interpolate_embeddings(encoder.image_size, encoder.patch_size, tensors)
        tensors = dict(resized)
    return tensors


def guess_backbone(tensors: Mapping[str, Tensor], source: str) -> tuple[str, Stem]:
    """The ResNet and the stem that all of the tensors fit, of those that are usual."""
    for name in CANDIDATE_BACKBONES:
        stems: tuple[Stem, ...] = ("standard", "small") if name != "small" else ("small",)
        for stem in stems:
            with torch.device("meta"):
                encoder, *_ = construct(name, size=SMALL_IMAGE_SIZE, channels=3, stem=stem)
            own, children = encoder.state_dict(), [child for child, _ in encoder.named_children()]
            shapes = {strip_prefixes(key, own, children): value.shape for key, value in tensors.items()}
            expected = {key: value.shape for key, value in own.items() if not key.endswith("num_batches_tracked")}
            if all(shapes.get(key) == shape for key, shape in expected.items()):
                parts = {key.partition(".")[0] for key in own}
                foreign = [key for key in shapes if key.partition(".")[0] in parts and key not in own]
                if not foreign:
                    return name, stem
    raise ValueError(
        f"{source} fits none of {', '.join(CANDIDATE_BACKBONES)} (it starts with {shorten(tensors, 2)}): "
        "pass the backbone that it was made with as --backbone"
    )


# The small ViT and ResNet


def small_vit(channels: int, size: int, patch: int, drop_path: float = 0.0) -> nn.Module:
    """timm's vision transformer of width 128, 4 blocks and 4 heads; features [N, 128] are its class token.

    It takes images of any size that is a multiple of the patch, by resizing its position embeddings.
    """
    vision_transformer = import_optional("timm.models.vision_transformer")
    if size < patch:
        raise ValueError(f"small-vit cuts images into patches of {patch} pixels: use a size of at least {patch}")
    encoder = vision_transformer.VisionTransformer(
        img_size=size // patch * patch,
        patch_size=patch,
        in_chans=channels,
        num_classes=0,
        embed_dim=128,
        depth=4,
        num_heads=4,
        drop_path_rate=drop_path,
        dynamic_img_size=True,
    )
    return cast(nn.Module, encoder)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut (He et al., 2016)."""

    def __init__(self, width: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or width != planes:
            self.downsample = nn.Sequential(nn.Conv2d(width, planes, 1, stride, bias=False), nn.BatchNorm2d(planes))

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return cast(Tensor, self.relu(out + self.downsample(x)))


class SmallResNet(nn.Module):
    """A ResNet for small images on CPUs: CIFAR stem, one block per stage; its parts are named as torchvision's are.

    Images [N, C, H, W] -> features [N, widths[-1]].
    """

    def __init__(
        self, channels: int = 3, widths: Sequence[int] = (16, 32, 64, 128), zero_init_residual: bool = False
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, widths[0], 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = nn.Sequential(BasicBlock(widths[0], widths[0], 1))
        self.layer2 = nn.Sequential(BasicBlock(widths[0], widths[1], 2))
        self.layer3 = nn.Sequential(BasicBlock(widths[1], widths[2], 2))
        self.layer4 = nn.Sequential(BasicBlock(widths[2], widths[3], 2))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, BasicBlock) and zero_init_residual:
                nn.init.zeros_(module.bn2.weight)

    def forward(self, images: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(images)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return cast(Tensor, self.avgpool(x).flatten(1))
