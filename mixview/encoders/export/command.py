"""`mixview export`: an encoder for another program, checked by that program, with a model card.

    mixview export runs/first --format onnx --out exported/

What is written is loaded again as the printed snippet loads it, and put in place only if it gives the same features.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from mixview.data.synthetic.scenes import Scenes
from mixview.encoders.export import detectron2, graphs, huggingface, state_dicts
from mixview.encoders.export.base import ExportedFiles, ExportSource, fill_path
from mixview.encoders.export.model_card import is_card, make_card
from mixview.encoders.inference import Encoder
from mixview.encoders.loading import EncoderConfig
from mixview.encoders.optional import import_optional
from mixview.io.atomic import atomic_write
from mixview.io.terminal import say
from mixview.options import NON_EMPTY

FormatName = Literal["torchvision", "timm", "safetensors", "onnx", "torch-export", "detectron2", "huggingface"]

TOLERANCE = 1e-4
"""The largest difference of features, as a share of the largest one (at least of 1)."""


class Format(NamedTuple):
    """The way an encoder is written for one program."""

    write: Callable[[ExportSource, Path], ExportedFiles]
    suffixes: tuple[str, ...]
    """Suffixes of its file, the usual one first."""
    needs: tuple[str, ...] = ()
    """Packages that only this format needs."""
    stem: str = "model"
    """The name of its file in a folder."""
    folder: bool = False
    """True if it is a folder by nature."""


FORMATS: dict[str, Format] = {
    "safetensors": Format(state_dicts.write_safetensors, (".safetensors",), stem="encoder"),
    "torchvision": Format(state_dicts.write_torchvision, (".pth", ".pt", ".safetensors")),
    "timm": Format(state_dicts.write_timm, (".safetensors",)),
    "huggingface": Format(huggingface.write_huggingface, (".safetensors",), ("transformers",), folder=True),
    "onnx": Format(graphs.write_onnx, (".onnx",), ("onnx", "onnxscript", "onnxruntime")),
    "torch-export": Format(graphs.write_torch_export, (".pt2",)),
    "detectron2": Format(detectron2.write_detectron2, (".pkl",)),
}


COMPANION_FILES = frozenset({"config.json", "preprocessor_config.json"})
"""Files that some formats write next to the weights."""


@dataclass(frozen=True, kw_only=True)
class Export(EncoderConfig):
    """Write an encoder for another program."""

    format: FormatName = "safetensors"
    """Program that will read it: torchvision, timm, safetensors (mixview itself), onnx, torch-export, detectron2 or
    huggingface."""
    out: Annotated[str, NON_EMPTY] = "exported"
    """A folder, made if need be, or the name of the file; the model card goes into it, or next to it."""

    def run(self) -> Path:
        """Write, check, put in place, and print how it is loaded. Returns the file or the folder."""
        file_format = FORMATS[self.format]
        out = Path(self.out).expanduser()
        is_file = out.suffix in file_format.suffixes and not file_format.folder and not out.is_dir()
        if not is_file and (out.is_file() or (out.suffix and not out.is_dir())):
            kinds = " or ".join(file_format.suffixes)
            expected = "a folder" if file_format.folder else f"a folder or a file ending in {kinds}"
            raise ValueError(f"{self.format} is written to {expected}, not to {out.name!r}")
        for name in file_format.needs:
            import_optional(name, "export")
        source = ExportSource.from_loaded(self.load())
        folder = out.parent if is_file else out
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".mixview-", dir=folder) as temporary:
            name = out.name if is_file else f"{file_format.stem}{file_format.suffixes[0]}"
            exported = file_format.write(source, Path(temporary) / name)
            difference = check(source, exported)
            target = out if is_file else folder if file_format.folder else folder / name
            # Other files next to a single file are not ours.
            names = [name] if is_file else sorted(path.name for path in Path(temporary).iterdir())
            sentence = check_sentence(exported, difference)
            card = make_card(source, exported, self.format, target, names, sentence)
            for each in names:
                (Path(temporary) / each).replace(folder / each)
            if not is_file and is_card(folder / "README.md"):
                for stale in COMPANION_FILES.difference(names):  # of an earlier export, about other weights
                    (folder / stale).unlink(missing_ok=True)
        with atomic_write(out.with_suffix(".md") if is_file else folder / "README.md") as file:
            file.write(card.encode())
        say(f"wrote {target} ({self.format}) and its model card")
        for note in (sentence, *exported.notes):
            say(note)
        say(f"\n{fill_path(exported.snippet, target)}\n{source.normalize_line()}")
        return target


def export(encoder: str, **options: Any) -> Path:
    """Write an encoder for another program, with a model card, and print how it is loaded there.

    Args:
        encoder: a run's folder, a file of weights, or a model by name.
        options: fields of `Export`.

    Example:
        >>> path = export("small", size=32, out="exported")  # doctest: +ELLIPSIS
        wrote exported/encoder.safetensors (safetensors) and its model card
        ...
    """
    return Export(encoder=encoder, **options).run()


def probe_images(source: ExportSource, count: int = 3) -> Tensor:
    """Scenes, as the encoder is shown images: [3, C, S, S]."""
    size = max(32, min(int(source.spec["size"]), 224))
    scenes = Scenes(count, size, 0, "val", cache=False)
    encoder = Encoder(source.loaded, torch.device("cpu"))
    channels = int(source.spec["channels"])
    if channels in (1, 3):
        return torch.stack([encoder.prepare(scenes.read(index)) for index in range(count)])
    return torch.rand(count, channels, size, size, generator=torch.Generator().manual_seed(0))


def check(source: ExportSource, exported: ExportedFiles) -> float:
    """The largest difference of features between the encoder and what was written, as its own program loads it."""
    if exported.read_back is not None:
        tensors, _ = exported.read_back(exported.main)
        own = {name: each for name, each in source.tensors.items() if not name.endswith("num_batches_tracked")}
        other = [name for name, each in own.items() if name not in tensors or not torch.equal(tensors[name], each)]
        if other:
            raise ValueError(
                f"{other[0]} differs when it is read back, so nothing was kept: use --format safetensors, "
                "and report this network"
            )
        return 0.0
    images = probe_images(source)
    with torch.inference_mode():
        expected = source.loaded.encoder.cpu().eval()(images)
    features = exported.run(images).cpu()
    difference = float((features - expected).abs().max()) if features.shape == expected.shape else float("inf")
    scale = max(1.0, float(expected.abs().max()))
    if not difference <= TOLERANCE * scale:
        raise ValueError(
            f"{' and '.join(exported.checked_with)} computes other features from the export (they differ by "
            f"{difference:g}), so nothing was kept: use --format safetensors, and report this network"
        )
    return difference


def check_sentence(exported: ExportedFiles, difference: float) -> str:
    """A sentence on what was checked."""
    if not exported.checked_with:
        return "Checked by reading it back: the same weights. Detectron2 itself was not run."
    versions = " and ".join(f"{name} {version(name)}" for name in exported.checked_with)
    return f"Checked with {versions}: the same features as mixview's own, to {difference:.1e}."
