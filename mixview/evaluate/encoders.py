"""What is judged, from one string: a run of mixview, a model by name, a file of anybody's weights, chance, or pixels.

    subject = load("runs/first", natural_size=32)                  # a run's folder, or its encoder.safetensors
    subject = load("resnet50", natural_size=224, weights="imagenet")
    subject = load("moco_v2_200ep_pretrain.pth.tar", natural_size=224)
    subject = load("random", natural_size=32, backbone="small", seed=1)

Nothing that a file holds is run: torch files are opened with `weights_only=True`.
"""

import hashlib
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixview import backbones
from mixview.backbones import Spec
from mixview.data.augmentation import Normalise
from mixview.data.reading import Reader, decoder_for, natural_size
from mixview.data.source import Source
from mixview.evaluate.provenance import with_settings
from mixview.evaluate.transforms import IMAGENET
from mixview.export import load_encoder
from mixview.options import Channels, Count, Side, Workers, check_options

USUAL_SIZE = 224
"""What encoders from elsewhere were trained on."""


@dataclass(frozen=True)
class Subject:
    """An encoder that is judged, and what is known of it."""

    encoder: nn.Module
    """Images [N, channels, size, size] -> features [N, feature_dim], in evaluation mode."""
    name: str
    size: int
    channels: int
    feature_dim: int
    normalise: Normalise = IMAGENET
    spec: Spec | None = None
    """What rebuilds the encoder without its weights; raw pixels have none."""
    run: Path | None = None
    """The folder of the run that it comes from."""
    about: dict[str, str] = field(default_factory=dict)
    """What a run wrote of itself: method, objective, epoch, seed."""
    notes: tuple[str, ...] = ()
    """What was decided, in sentences for the user."""

    def check_weights(self, file: Path) -> "Subject":
        """The same, unless its weights are not finite: what it says of any image would be nothing."""
        for name, tensor in self.encoder.state_dict().items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise ValueError(
                    f"the weights {name} in {file} contain NaN or infinity, as after a loss that diverged: give an "
                    "earlier encoder, or train it again with a lower learning rate"
                )
        return self

    def weights_key(self) -> str:
        """A hash of the weights and of what they are the weights of."""
        digest = hashlib.blake2b(f"{type(self.encoder)} {self.spec}".encode(), digest_size=16)
        for name, tensor in self.encoder.state_dict().items():
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which encoder: what every command that uses one asks for."""

    encoder: str
    """A run's folder, a file of weights, a model by name, random, or pixels."""
    backbone: str | None = None
    """The model of a file that does not say it, or of random; by default the ResNet that fits, or resnet50."""
    weights: str | None = None
    """Of a model by name: imagenet, or a file; by default random ones."""
    size: Side | None = None
    """Of the images that the encoder is shown; by default what it was trained on, or theirs if they are small."""
    channels: Channels = 3
    """Of the images, for an encoder that does not say: 3 for colour, 1 for greyscale."""
    trust: bool = False
    """Call the factory of a backbone of your own, which a run's file names. That runs its code."""

    def __post_init__(self) -> None:
        check_options(self)

    def load(self, natural_size: int = USUAL_SIZE, seed: int = 0) -> Subject:
        """The encoder, for images of this size where nothing else says one."""
        return load(
            self.encoder,
            natural_size=natural_size,
            backbone=self.backbone,
            weights=self.weights,
            size=self.size,
            channels=self.channels,
            seed=seed,
            trust=self.trust,
        )


@dataclass(frozen=True, kw_only=True)
class Encoding(Choice):
    """Which encoder, and where it works."""

    device: str = "auto"
    """cpu, cuda, mps, or auto: an accelerator where there is one."""
    devices: Count = 1
    """Processes per machine, an accelerator each; torchrun starts them as well."""
    workers: Workers | None = None
    """Processes that read images, for each of these; by default its share of the cores, less one."""

    def load_for(self, source: Source, seed: int = 0) -> Subject:
        """The encoder, for the images of a source."""
        return self.load(natural_size(Reader(source, decoder_for(self.channels))), seed)


class Pixels(nn.Module):
    """The images themselves, shrunk to at most `side` pixels, as features: what every encoder has to beat."""

    def __init__(self, side: int = 32) -> None:
        super().__init__()
        self.side = side

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
    trust: bool = False,
) -> Subject:
    """The encoder that a string means.

    Args:
        text: the folder of a run; a .safetensors or torch file; a torchvision or timm model by name; random; pixels.
        natural_size: of the images that it will be shown, where nothing else says a size.
        backbone: the model of a file that does not say it, or of random.
        weights: of a model by name: imagenet, or a file.
        size: of the images it is shown; by default what it was trained on.
        channels: of the images it is shown, where the file does not say.
        seed: of a random initialisation.
        trust: call the factory of a backbone of one's own, which a run's file names.
    """
    if text == "pixels":
        side = size or natural_size
        encoder = Pixels()
        wide = channels * min(side, encoder.side) ** 2
        return Subject(encoder.eval(), "raw pixels", side, channels, wide)
    path = Path(text).expanduser()
    if path.exists():
        file = backbones.weights_file(path)
        if file.suffix == ".safetensors" and "mixview" in backbones.read_safetensors(file)[1]:
            return load_run(file, size, trust).check_weights(file)
        return load_file(file, backbone, size or USUAL_SIZE, channels).check_weights(file)
    if os.sep in text and not text.startswith(("torchvision/", "timm/")):
        raise FileNotFoundError(f"there is no run or file {text}: check the path, or name a model such as resnet50")
    if text == "random":
        text, weights = backbone or "resnet50", None
    elif backbone is not None:
        raise ValueError(f"{text} is a backbone itself: leave --backbone {backbone} out")
    side = size or (natural_size if weights is None else USUAL_SIZE)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        built = backbones.build(text, size=side, channels=channels, weights=weights)
    full_name = str(built.spec["name"])
    name = f"{full_name}, {weights}" if weights else f"random {full_name}, seed {seed}"
    return Subject(
        built.encoder.eval(),
        name,
        side,
        channels,
        built.feature_dim,
        published_normalise(full_name, weights),
        built.spec,
        notes=built.notes,
    )


def load_run(file: Path, size: int | None, trust: bool) -> Subject:
    """An encoder that mixview exported."""
    encoder, header = load_encoder(file, trust=trust)
    spec = cast(Spec, header["spec"])
    side, channels = size or int(spec["size"]), int(spec["channels"])
    width = backbones.measure(encoder, str(spec["name"]), size=side, channels=channels)
    about = {str(key): str(value) for key, value in header["metadata"].items()}
    what = " ".join(about[key] for key in ("method", "objective") if key in about)
    run = file.parent if (file.parent / "config.yaml").is_file() else None
    about = with_settings(about, run) if run else about
    where = file.parent.name if run else file.name
    name = f"{where} ({what})" if what else where
    return Subject(encoder, name, side, channels, width, read_normalise(about), spec, run, about)


def read_normalise(about: dict[str, str]) -> Normalise:
    """The colours that an encoder was trained with, ImageNet's where its file says no others."""
    try:
        mean, std = (tuple(float(part) for part in about[key].split()) for key in ("mean", "std"))
    except (KeyError, ValueError):
        return IMAGENET
    return Normalise(mean, std)


def normalise_words(normalise: Normalise) -> dict[str, str]:
    """What `read_normalise` reads: nothing for ImageNet's."""
    if normalise == IMAGENET:
        return {}
    return {key: " ".join(f"{part:g}" for part in getattr(normalise, key)) for key in ("mean", "std")}


def load_file(file: Path, backbone: str | None, size: int, channels: int) -> Subject:
    """Anybody's weights, in the backbone that is named or, among the usual ResNets, guessed."""
    tensors = backbones.read_tensors(file)
    stem: backbones.Stem = "standard"
    notes: tuple[str, ...] = ()
    if backbone is None:
        backbone, stem = backbones.guess_backbone(tensors, str(file))
        notes = (f"{file.name} fits {backbone} (stem {stem}): it is judged as one.",)
    elif size <= backbones.SMALL_IMAGE or backbone == "small":
        stem = "auto"
    built = backbones.build(backbone, size=size, channels=channels, stem=stem, weights=str(file))
    subject = Subject(
        built.encoder.eval(), file.name, size, channels, built.feature_dim, IMAGENET, built.spec,
        notes=notes + built.notes,
    )  # fmt: skip
    # Files of one name are not one encoder: many a checkpoint is called checkpoint_0199.pth.tar.
    return replace(subject, about={"weights": subject.weights_key()[:12]})


def published_normalise(full_name: str, weights: str | None) -> Normalise:
    """The colours that a library's own weights were trained with; timm has several."""
    library, _, name = full_name.partition("/")
    if weights != "imagenet" or library != "timm":
        return IMAGENET
    config = backbones.library("timm").get_pretrained_cfg(name)
    return Normalise(tuple(config.mean), tuple(config.std))
