"""The encoder to export, and the files that a format has written."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mixview.data.augment.policies import Normalize
from mixview.encoders.backbones import Spec
from mixview.encoders.encoder_file import plain_tensors, write_header
from mixview.encoders.loading import LoadedEncoder, describe_normalize
from mixview.encoders.weights import first_convolution

PLAIN_RESNETS = frozenset(
    {"resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "wide_resnet50_2", "wide_resnet101_2"}
    | {"resnext50_32x4d", "resnext101_32x8d", "resnext101_64x4d"}
)
"""Networks that torchvision and timm both have, with the same names, the same parts and the same arithmetic."""


@dataclass(frozen=True)
class ExportSource:
    """An encoder to export."""

    loaded: LoadedEncoder
    spec: Spec
    tensors: dict[str, Tensor]
    header: str
    """The text that rebuilds the encoder: every format that can carry it does."""

    @classmethod
    def from_loaded(cls, loaded: LoadedEncoder) -> "ExportSource":
        """Collect what there is to export of an encoder."""
        if loaded.spec is None:
            raise ValueError(f"{loaded.name} have no network to export: name a run, a file or a model")
        spec = loaded.spec | {"size": loaded.size, "feature_dim": loaded.feature_dim}
        metadata = loaded.metadata | describe_normalize(loaded.normalize)
        return cls(loaded, spec, plain_tensors(loaded.encoder), write_header(spec, metadata))

    @property
    def library(self) -> str:
        """torchvision, timm, or the name of mixview's own network or of the user's."""
        return str(self.spec["name"]).partition("/")[0]

    @property
    def model(self) -> str:
        """The network's name in its library, without a tag of weights."""
        return str(self.spec["name"]).partition("/")[2].partition(".")[0]

    def model_name_in(self, library: str, remedy: str) -> str:
        """The network's name in a library, or an error that says what to do instead."""
        if self.library == library or (self.library in ("torchvision", "timm") and self.model in PLAIN_RESNETS):
            return self.model
        raise ValueError(f"{library} has no network like {self.spec['name']}: {remedy}")

    def stem_lines(self) -> list[str]:
        """Python that gives a library's `model` the first layer of this one, where it has another."""
        lines = []
        encoder = self.loaded.encoder
        first = first_convolution(encoder)
        small = self.spec["stem"] == "small"
        if small and not isinstance(getattr(encoder, "conv1", None), nn.Conv2d):  # timm's deep stem
            lines += ["for layer in model.conv1.modules():", "    if isinstance(layer, torch.nn.Conv2d):"]
            lines += ["        layer.stride = (1, 1)"]
        elif first is not None and (small or (self.library == "torchvision" and self.spec["channels"] != 3)):
            lines.append(f'model.set_submodule("{first[0]}", torch.nn.{first[1]!r})')
        if small:
            lines.append("model.maxpool = torch.nn.Identity()  # the small stem")
        return lines

    def shape_comment(self) -> str:
        """The shapes of the inputs and outputs, as a comment."""
        size, channels = self.spec["size"], self.spec["channels"]
        return f"# images [N, {channels}, {size}, {size}], normalized -> features [N, {self.spec['feature_dim']}]"

    def normalize_line(self) -> str:
        """The colors that images are normalized by, as a comment."""
        mean, std = self.loaded.normalize.values(int(self.spec["channels"]))
        value_range = self.loaded.value_range
        if value_range is None:
            scaled = "pixels / 255"
        elif value_range.low is None or value_range.high is None:
            scaled = "pixels of each DICOM window, 0 to 1,"
        else:
            scaled = f"clip((values - {value_range.low:g}) / {value_range.high - value_range.low:g}, 0, 1)"
        return f"# normalized: ({scaled} - {rounded(mean)}) / {rounded(std)}"


class ExportedFiles(NamedTuple):
    """The files that a format has written, before they are put where they belong."""

    main: Path
    """The file, or the folder, that is loaded."""
    snippet: str
    """Python that loads it: PATH stands for where it ends up, and `features` is what it makes of `images`."""
    checked_with: tuple[str, ...]
    """The packages that load it for the check; none where the program cannot be run."""
    notes: tuple[str, ...] = ()
    read_back: Callable[[Path], tuple[dict[str, Tensor], str | None]] | None = None
    """A function that reads the tensors back for comparison, where the program itself cannot be run."""

    def run(self, images: Tensor) -> Tensor:
        """The result of the snippet for images: the code that the user sees is the code that is checked."""
        namespace: dict[str, Any] = {"images": images}
        with torch.inference_mode():
            exec(fill_path(self.snippet, self.main), namespace)
        return torch.as_tensor(namespace["features"])


def join_lines(*parts: str | Iterable[str]) -> str:
    """Lines of a snippet, one by one or several."""
    return "\n".join(line for part in parts for line in ([part] if isinstance(part, str) else part))


def rounded(values: list[float]) -> str:
    return "[" + ", ".join(f"{value:.4g}" for value in values) + "]"


def normalize_of(source: ExportSource) -> Normalize:
    """The normalization of an encoder, with as many values as there are channels."""
    mean, std = source.loaded.normalize.values(int(source.spec["channels"]))
    return Normalize(tuple(mean), tuple(std))


def fill_path(snippet: str, path: Path) -> str:
    """The snippet for where the file has gone."""
    return re.sub(r"\bPATH\b", lambda _: repr(str(path)), snippet)
