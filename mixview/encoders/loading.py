"""Load an encoder from one string: a run, a model by name, weights, random initialization, or raw pixels.

    loaded = load("runs/first", natural_size=32)                  # a run's folder, or its encoder.safetensors
    loaded = load("resnet50", natural_size=224, weights="imagenet")
    loaded = load("moco_v2_200ep_pretrain.pth.tar", natural_size=224)
    loaded = load("random", natural_size=32, backbone="small", seed=1)

Nothing in a file is executed: torch files are opened with `weights_only=True`.
"""

import hashlib
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixview.data.augment.policies import Normalize
from mixview.data.dataset import SMALL_IMAGE_SIZE, ImageDataset, decoder_for, find_range, natural_size
from mixview.data.decode import Decoder
from mixview.data.sources.base import Source
from mixview.data.value_range import ValueRange, parse_value_range
from mixview.encoders import backbones
from mixview.encoders.backbones import Spec
from mixview.encoders.encoder_file import load_encoder, read_header
from mixview.encoders.optional import import_optional
from mixview.encoders.provenance import with_settings
from mixview.encoders.transforms import IMAGENET
from mixview.encoders.weights import read_safetensors, read_safetensors_header, read_tensors, weights_file
from mixview.options import NON_EMPTY, Channels, Count, Side, Workers, check_options

DEFAULT_SIZE = 224
"""The input size of encoders from elsewhere, in pixels."""


@dataclass(frozen=True)
class LoadedEncoder:
    """An encoder, with what is known about it."""

    encoder: nn.Module
    """Images [N, channels, size, size] -> features [N, feature_dim], in evaluation mode."""
    name: str
    size: int
    channels: int
    feature_dim: int
    normalize: Normalize = IMAGENET
    value_range: ValueRange | None = None
    """Black and white of images of more than 8 bits, where it was trained on such."""
    spec: Spec | None = None
    """Rebuilds the encoder without its weights; raw pixels have none."""
    run: Path | None = None
    """The folder of the run that trained it."""
    metadata: dict[str, str] = field(default_factory=dict)
    """The run's own record: method, objective, epoch, seed."""
    notes: tuple[str, ...] = ()
    """Decisions that the user should know about, one sentence each."""

    def check_weights(self, file: Path) -> "LoadedEncoder":
        """Return it, or raise if its weights are not finite."""
        for name, tensor in self.encoder.state_dict().items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise ValueError(
                    f"the weights {name} in {file} contain NaN or infinity, as after a loss that diverged: pass an "
                    "earlier encoder, or train it again with a lower learning rate"
                )
        return self

    def decoder(self, source: Source, *, eight_bits: bool = False) -> Decoder:
        """The decoder of a source's images for the encoder.

        Args:
            source: the images; their range is measured where the encoder knows none.
            eight_bits: true for 8 bits, for pictures of them.
        """
        return decoder_for(self.channels, self.value_range or find_range(source, quiet=True), eight_bits=eight_bits)

    def weights_key(self) -> str:
        """A hash of the weights and the architecture."""
        digest = hashlib.blake2b(f"{type(self.encoder)} {self.spec}".encode(), digest_size=16)
        for name, tensor in self.encoder.state_dict().items():
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """An encoder: the options of every command that uses one."""

    encoder: str
    """A run's folder, a file of weights, a model by name, random, or pixels."""
    backbone: str | None = None
    """Model, for random and for weights that do not name it; by default the ResNet that fits, or resnet50."""
    weights: str | None = None
    """Weights for a model by name: imagenet, or a file; random by default."""
    size: Side | None = None
    """Input size in pixels; by default the encoder's own, or that of the images if they are small."""
    channels: Channels = 3
    """Image channels, for an encoder that does not say: 3 for color, 1 for grayscale."""
    value_range: Annotated[str, NON_EMPTY] | None = None
    """Black and white of images of more than 8 bits: LO,HI, percentiles such as p1,p99, window, or auto (measured on a
    sample); by default as the encoder was trained."""
    trust_remote_code: bool = False
    """Call the factory of a custom backbone that a run's file names. That runs its code."""

    def __post_init__(self) -> None:
        check_options(self)
        if self.value_range is not None:
            parse_value_range(self.value_range)

    def load(self, natural_size: int = DEFAULT_SIZE, seed: int = 0) -> LoadedEncoder:
        """Load the encoder, for images of this size where nothing else says one."""
        return load(
            self.encoder,
            natural_size=natural_size,
            backbone=self.backbone,
            weights=self.weights,
            size=self.size,
            channels=self.channels,
            seed=seed,
            trust_remote_code=self.trust_remote_code,
        )

    def load_for(self, source: Source, seed: int = 0) -> LoadedEncoder:
        """Load the encoder for the images of a source."""
        value_range = find_range(source, self.value_range or "auto", quiet=True)
        size = natural_size(ImageDataset(source, decoder_for(self.channels, value_range)))
        loaded = self.load(size, seed)
        if value_range is None or (self.value_range is None and loaded.value_range is not None):
            return loaded
        find_range(source, self.value_range or "auto")  # this one is used, and printed
        return replace(loaded, value_range=value_range)


@dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """The hardware an encoder runs on."""

    device: str = "auto"
    """Device: cpu, cuda, mps, or auto, which takes an accelerator where there is one."""
    devices: Count = 1
    """Processes per machine, one per accelerator; torchrun can start them instead."""
    workers: Workers | None = None
    """Data-loading processes per device; by default its share of the cores, minus one."""


class Pixels(nn.Module):
    """The images themselves, shrunk to at most `side` pixels, as features: the baseline every encoder has to beat."""

    side = 32

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[-1] > self.side:
            images = F.interpolate(images, size=self.side, mode="bilinear", antialias=True)
        return images.flatten(1)


def load(
    text: str,
    *,
    natural_size: int,
    backbone: str | None = None,
    weights: str | None = None,
    size: int | None = None,
    channels: int = 3,
    seed: int = 0,
    trust_remote_code: bool = False,
) -> LoadedEncoder:
    """Load the encoder that a string names.

    Args:
        text: the folder of a run; a .safetensors or torch file; a torchvision or timm model by name; random; pixels.
        natural_size: size of the images, used where nothing else says an input size.
        backbone: the model, for a file that does not say it and for random.
        weights: imagenet, or a file, for a model by name.
        size: input size; by default the one it was trained with.
        channels: image channels, where the file does not say.
        seed: the seed of random initialization.
        trust_remote_code: call the factory of a custom backbone that a run's file names.
    """
    if text == "pixels":
        side = size or natural_size
        encoder = Pixels()
        wide = channels * min(side, encoder.side) ** 2
        return LoadedEncoder(encoder.eval(), "raw pixels", side, channels, wide)
    path = Path(text).expanduser()
    if path.exists():
        file = weights_file(path)
        if file.suffix == ".safetensors" and "mixview" in read_safetensors(file)[1]:
            return load_run(file, size, trust_remote_code).check_weights(file)
        return load_file(file, backbone, size or DEFAULT_SIZE, channels).check_weights(file)
    if os.sep in text and not text.startswith(("torchvision/", "timm/")):
        raise FileNotFoundError(f"there is no run or file {text}: check the path, or name a model such as resnet50")
    if text == "random":
        text, weights = backbone or "resnet50", None
    elif backbone is not None:
        raise ValueError(f"{text} is a backbone itself: leave --backbone {backbone} out")
    side = size or (natural_size if weights is None else DEFAULT_SIZE)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        built = backbones.build(text, size=side, channels=channels, weights=weights)
    full_name = str(built.spec["name"])
    name = f"{full_name}, {weights}" if weights else f"random {full_name}, seed {seed}"
    return LoadedEncoder(
        built.encoder.eval(),
        name,
        side,
        channels,
        built.feature_dim,
        weights_normalize(full_name, weights),
        spec=built.spec,
        notes=built.notes,
    )


def load_run(file: Path, size: int | None, trust_remote_code: bool) -> LoadedEncoder:
    """Load an encoder that mixview saved."""
    encoder, header = load_encoder(file, trust_remote_code=trust_remote_code)
    spec = cast(Spec, header["spec"])
    side, channels = size or int(spec["size"]), int(spec["channels"])
    width = backbones.feature_width(encoder, str(spec["name"]), size=side, channels=channels)
    metadata = {str(key): str(value) for key, value in header["metadata"].items()}
    what = " ".join(metadata[key] for key in ("method", "objective") if key in metadata)
    run = file.parent if (file.parent / "config.yaml").is_file() else None
    metadata = with_settings(metadata, run) if run else metadata
    where = file.parent.name if run else file.name
    name = f"{where} ({what})" if what else where
    return LoadedEncoder(
        encoder, name, side, channels, width, read_normalize(metadata), read_range(metadata), spec, run, metadata
    )


def read_normalize(metadata: dict[str, str]) -> Normalize:
    """The normalization an encoder was trained with; ImageNet's where its file says nothing."""
    try:
        mean, std = (tuple(float(part) for part in metadata[key].split()) for key in ("mean", "std"))
    except (KeyError, ValueError):
        return IMAGENET
    return Normalize(mean, std)


def read_range(metadata: dict[str, str]) -> ValueRange | None:
    """The range of values an encoder was trained with; None of 8 bits, or where its file says nothing."""
    try:
        value_range = parse_value_range(metadata.get("value_range", "auto"))
    except ValueError:
        return None
    return value_range if isinstance(value_range, ValueRange) else None


def describe_normalize(normalize: Normalize) -> dict[str, str]:
    """The record that `read_normalize` reads."""
    return {key: " ".join(repr(float(part)) for part in getattr(normalize, key)) for key in ("mean", "std")}


def load_file(file: Path, backbone: str | None, size: int, channels: int) -> LoadedEncoder:
    """Load another program's weights into the named backbone or, among the usual ResNets, the one that fits."""
    tensors = read_tensors(file)
    stem: backbones.Stem = "standard"
    notes: tuple[str, ...] = ()
    if backbone is None:
        backbone, stem = backbones.guess_backbone(tensors, str(file))
        notes = (f"{file.name} fits {backbone} (stem {stem}): it is loaded as one.",)
    elif size <= SMALL_IMAGE_SIZE or backbone in backbones.BUILTIN:
        stem = "auto"
    built = backbones.build(backbone, size=size, channels=channels, stem=stem, weights=str(file))
    loaded = LoadedEncoder(
        built.encoder.eval(), file.name, size, channels, built.feature_dim, IMAGENET, spec=built.spec,
        notes=notes + built.notes,
    )  # fmt: skip
    # Files of the same name are not the same encoder: many checkpoints are called checkpoint_0199.pth.tar.
    return replace(loaded, metadata={"weights": loaded.weights_key()[:12]})


def weights_normalize(full_name: str, weights: str | None) -> Normalize:
    """The normalization that weights were trained with: the library's own record, or that of a file of mixview's.

    Files of other programs do not say, and nearly all are of ImageNet.

    Args:
        full_name: the network, as in `Spec`.
        weights: imagenet, a file, or the folder of a run; None for random ones.
    """
    if weights is None:
        return IMAGENET
    library, _, name = full_name.partition("/")
    if weights == "imagenet":
        if library == "timm":
            config = import_optional("timm").get_pretrained_cfg(name)
        else:
            choices: Any = (
                import_optional("torchvision.models").get_model_weights(name) if library == "torchvision" else ()
            )
            config = choices.DEFAULT.transforms() if len(choices) else None
        return IMAGENET if config is None else Normalize(tuple(config.mean), tuple(config.std))
    file = weights_file(weights)
    if file.suffix == ".safetensors" and "mixview" in (text := read_safetensors_header(file)):
        return read_normalize({key: str(value) for key, value in read_header(file, text)["metadata"].items()})
    return IMAGENET
