"""The encoder as a file: weights in safetensors, and in its header what rebuilds the module around them.

    save_encoder("runs/first/encoder.safetensors", backbone.encoder, backbone.spec, {"method": "mocov2"})
    encoder, header = load_encoder("runs/first")

Loading runs nothing that the file holds. Other tools read the same file as plain safetensors.
"""

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from mixview.encoders.backbones import BUILTIN, Spec, Stem, construct
from mixview.encoders.optional import import_optional
from mixview.encoders.weights import read_safetensors, shorten, weights_file
from mixview.io.atomic import write_bytes

FORMAT = 1
"""The version of the header; a file of a later one is an error."""

MAX_SIDE_OR_CHANNELS = 4096
"""No image has a longer side or more channels: a header that says so is damaged, and would fill the memory."""
MAX_EXTRA_PARAMETERS = 50_000_000
"""Parameters that a network may have beyond what its file holds, for a message that says which do not fit."""
MAX_VALUES = 1 << 24
"""No image that an encoder is shown has more: 2,364 pixels both ways in color."""


def save_encoder(
    path: str | os.PathLike[str], encoder: nn.Module, spec: Mapping[str, str | int], metadata: Mapping[str, str]
) -> None:
    """Write the encoder's weights atomically: what was at `path` stays until the new file is on the disk.

    Args:
        path: the file, whose name ends in .safetensors and whose folder exists.
        encoder: the encoder as built, or wrapped by `torch.compile` or DDP.
        spec: the specification that rebuilds it, `Backbone.spec`.
        metadata: anything worth knowing later, such as method, epoch and version.

    Example:
        >>> from mixview.encoders import build
        >>> backbone = build("small", size=32)
        >>> save_encoder("mine.safetensors", backbone.encoder, backbone.spec, {"method": "mocov2"})
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"the encoder is written as safetensors, not {path.name!r}: end its name in .safetensors")
    encoder = getattr(encoder, "_orig_mod", encoder)
    if isinstance(encoder, nn.parallel.DistributedDataParallel):
        encoder = cast(nn.Module, encoder.module)
    # One entry: safetensors writes several in random order, and the same encoder must be the same file.
    header = {"mixview": write_header(spec, metadata)}
    write_bytes(path, import_optional("safetensors.torch").save(plain_tensors(encoder), header))


def plain_tensors(encoder: nn.Module) -> dict[str, Tensor]:
    """The encoder's weights by name, on the CPU, each with memory of its own in the usual order."""
    # Cloned, because safetensors takes neither shared memory nor channels_last.
    return {
        name.replace("_orig_mod.", ""): tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in encoder.state_dict().items()
    }


def write_header(spec: Mapping[str, str | int], metadata: Mapping[str, str]) -> str:
    """The header that `read_header` reads."""
    return json.dumps({"version": FORMAT, "spec": dict(spec), "metadata": dict(metadata)}, sort_keys=True)


def load_encoder(
    path: str | os.PathLike[str], *, module: nn.Module | None = None, trust_remote_code: bool = False
) -> tuple[nn.Module, dict[str, Any]]:
    """An exported encoder in evaluation mode, and its header: `spec` and `metadata`.

    Args:
        path: the file, or the run folder that holds it.
        module: load into this one rather than rebuild it; it must be what was exported.
        trust_remote_code: import and call the factory of a custom backbone that the file names. That runs its code.

    Example:
        >>> from mixview.encoders import build
        >>> backbone = build("small", size=32)
        >>> save_encoder("mine.safetensors", backbone.encoder, backbone.spec, {"method": "mocov2"})
        >>> encoder, header = load_encoder("mine.safetensors")
        >>> header["spec"]["feature_dim"], header["metadata"]
        (128, {'method': 'mocov2'})
    """
    file = weights_file(Path(path))
    if file.suffix != ".safetensors":
        raise ValueError(
            f"{file} is not an exported encoder: pass encoder.safetensors, or build(…, weights={str(path)!r})"
        )
    tensors, text = read_safetensors(file)
    header = read_header(file, text)
    if module is None:
        module = rebuild(file, header["spec"], trust_remote_code, tensors)
    own = module.state_dict()
    wrong = [key for key in own.keys() | tensors.keys() if key not in own or key not in tensors]
    wrong += [key for key in own.keys() & tensors.keys() if own[key].shape != tensors[key].shape]
    if wrong:
        raise ValueError(
            f"{len(wrong)} tensors of {file} do not fit {header['spec']['name']} ({shorten(sorted(wrong))}): pass the "
            "module that was exported, or use the versions of torchvision and timm that made the file"
        )
    module.load_state_dict(tensors)
    return module.eval(), {"spec": header["spec"], "metadata": header["metadata"]}


def read_header(file: Path, text: Mapping[str, str]) -> dict[str, Any]:
    """The header's JSON, checked: it came from outside."""
    if "mixview" not in text:
        raise ValueError(
            f"{file} holds weights but no mixview header, so nothing says of which model: use "
            f"mixview.encoders.backbones.build(NAME, size=…, weights={str(file)!r})"
        )
    try:
        header = json.loads(text["mixview"])
    except (ValueError, RecursionError):
        header = None
    if isinstance(header, dict) and isinstance(version := header.get("version"), int) and version > FORMAT:
        raise ValueError(f"{file} was written by a later mixview (format {version}): update mixview to read it")
    if (
        not isinstance(header, dict)
        or not all(isinstance(header.get(key), dict) for key in ("spec", "metadata"))
        or check_spec(header["spec"]) is None
    ):
        raise ValueError(f"the mixview header of {file} is damaged: export the encoder again")
    return header


def check_spec(spec: Any) -> Spec | None:
    """A spec that came from outside, if it is one; None if not."""
    if not isinstance(spec, dict):
        return None
    valid = all(type(spec.get(key)) is int and 1 <= spec[key] <= MAX_SIDE_OR_CHANNELS for key in ("size", "channels"))
    if (
        not valid
        or spec["size"] ** 2 * spec["channels"] > MAX_VALUES
        or type(spec.get("feature_dim")) is not int
        or not isinstance(spec.get("name"), str)
        or spec.get("stem") not in ("small", "standard")
    ):
        return None
    return cast(Spec, spec)


def rebuild(
    file: Path | str, spec: Spec, trust_remote_code: bool, tensors: Mapping[str, Tensor] | None = None
) -> nn.Module:
    """The module of a spec, with random weights; the global generator stays where it was.

    Args:
        file: the file that the spec is from.
        spec: the specification that rebuilds the module.
        trust_remote_code: call the factory of a custom backbone.
        tensors: the tensors of the file, to check that they are about as large as the module before that is made.
    """
    name = str(spec["name"])
    make = partial(
        construct,
        name,
        size=int(spec["size"]),
        channels=int(spec["channels"]),
        stem=cast(Stem, spec["stem"]),
    )
    if name not in BUILTIN and not name.startswith(("torchvision/", "timm/")) and not trust_remote_code:
        raise ValueError(
            f"{file} is of your own backbone {name!r}, and rebuilding it would run its code: pass module=… to "
            "load_encoder, or trust_remote_code=True if you trust the file"
        )
    with torch.random.fork_rng(devices=[]):
        if tensors is not None:
            check_size(file, name, make, tensors)
        encoder, *_ = make()
    return encoder


def check_size(
    file: Path | str, name: str, make: Callable[[], tuple[nn.Module, Any, Any, Any]], tensors: Mapping[str, Tensor]
) -> None:
    """Raise if a network is far larger than what its file holds: a kilobyte can name one that fills the memory.

    Args:
        file: the file that names the network.
        name: name of the network.
        make: a function that makes the module.
        tensors: the tensors of the file.
    """
    if ":" in name:  # a custom backbone, whose code runs once at most
        return
    try:
        with parameters_without_memory():
            needed = sum(parameter.numel() for parameter in make()[0].parameters())
    except ValueError:  # a size or stem that does not fit: building it in full would fail, too, and fill the memory
        raise
    except Exception:  # building it says why
        return
    held = sum(tensor.numel() for tensor in tensors.values())
    if needed > 2 * held + MAX_EXTRA_PARAMETERS:
        raise ValueError(
            f"the {len(tensors)} tensors of {file} do not fit {name}: they are {held / 1e6:.1f} million numbers, and "
            f"it has {needed / 1e6:.1f} million; pass the file that was exported, or the right --backbone"
        )


REGISTER = nn.Module.register_parameter
MEASURING = threading.Lock()


@contextmanager
def parameters_without_memory() -> Iterator[None]:
    """Modules that this thread makes within have parameters of their shapes alone.

    Not `with torch.device("meta")`, under which models that calculate their own widths with tensors cannot be made.
    """
    register, owner = REGISTER, threading.get_ident()

    def register_shape(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        shaped = parameter is not None and threading.get_ident() == owner
        register(module, name, nn.Parameter(parameter.to("meta")) if shaped and parameter is not None else parameter)

    MEASURING.acquire()
    nn.Module.register_parameter = register_shape  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
        MEASURING.release()
