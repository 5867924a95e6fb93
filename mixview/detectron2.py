"""Encoders for Detectron2: its pickle of NumPy arrays under its own names, written, and read without running code.

    save_detectron2("encoder.pkl", encoder.state_dict())     # MODEL.WEIGHTS of a Detectron2 configuration
    state, notes = load_detectron2("encoder.pkl")            # torchvision's names again

A torchvision ResNet's `conv1` is Detectron2's `stem.conv1`, `layer1` to `layer4` are `res2` to `res5`, a norm `bn1` is
the `norm` of its convolution, and the shortcut is `shortcut`. Pixels stay RGB in the order and scale of torchvision's,
and the stride of a bottleneck is in its 3×3 convolution; a configuration has to say so, and the file does:

    MODEL.PIXEL_MEAN [123.675, 116.280, 103.530]   MODEL.PIXEL_STD [58.395, 57.120, 57.375]
    INPUT.FORMAT RGB                               MODEL.RESNETS.STRIDE_IN_1X1 False
"""

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mixview.export import write_atomically

Arrays = dict[str, npt.NDArray[Any]]

NOTES: dict[str, str] = {
    "__author__": "mixview",
    "input_format": "RGB",
    "pixel_mean": "123.675, 116.280, 103.530",
    "pixel_std": "58.395, 57.120, 57.375",
    "stride_in_1x1": "False",
}
"""What the file says beside the arrays: for 8-bit pixels, in the order of `input_format`."""

# One rule for each direction, in the order in which they apply. A number n of `layer` is res n + 1.
BLOCK = re.compile(r"layer([1-4])\.(\d+)\.(?:(conv|bn)([1-3])|downsample\.([01]))\.(\w+)")
OWN_BLOCK = re.compile(r"res([2-5])\.(\d+)\.(?:conv([1-3])|(shortcut))\.(norm\.)?(\w+)")


def to_detectron2(state: Mapping[str, Tensor]) -> Arrays:
    """The tensors of a torchvision ResNet under Detectron2's names. What is no part of its trunk is refused by name.

    `num_batches_tracked`, which Detectron2 has no use for, and a classifier `fc` are left out.
    """
    found: Arrays = {}
    for name, tensor in state.items():
        if name.endswith("num_batches_tracked") or name.startswith("fc."):
            continue
        found[detectron2_name(name)] = tensor.detach().cpu().contiguous().numpy().copy()
    if "stem.conv1.weight" not in found:
        raise ValueError("these are not the tensors of a ResNet (there is no conv1.weight): export a ResNet for Detectron2")
    if found["stem.conv1.weight"].shape[2:] != (7, 7):
        raise ValueError(
            "Detectron2's ResNets have the standard stem (7×7, max-pool) and this one has the small stem: pretrain with "
            "--stem standard to export for Detectron2"
        )
    return found


def detectron2_name(name: str) -> str:
    """Detectron2's name of a torchvision ResNet's tensor."""
    if name == "conv1.weight":
        return "stem.conv1.weight"
    if name.startswith("bn1."):
        return f"stem.conv1.norm.{name.removeprefix('bn1.')}"
    match = BLOCK.fullmatch(name)
    if match is None:
        raise ValueError(f"{name} is no tensor of a torchvision ResNet, which Detectron2 could read: export a ResNet")
    layer, block, kind, number, place, what = match.groups()
    start = f"res{int(layer) + 1}.{block}"
    if kind is not None:
        return f"{start}.conv{number}.{'norm.' if kind == 'bn' else ''}{what}"
    return f"{start}.shortcut.{'norm.' if place == '1' else ''}{what}"


def from_detectron2(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Tensor]:
    """The same tensors under torchvision's names; each batch norm with the counter that torchvision's has."""
    state: dict[str, Tensor] = {}
    for name, array in arrays.items():
        own = torchvision_name(name)
        state[own] = torch.from_numpy(np.array(array))
        if own.endswith(".running_var"):
            state[own.replace("running_var", "num_batches_tracked")] = torch.tensor(0)
    return state


def torchvision_name(name: str) -> str:
    """torchvision's name of a tensor of Detectron2's ResNets."""
    if name == "stem.conv1.weight":
        return "conv1.weight"
    if name.startswith("stem.conv1.norm."):
        return f"bn1.{name.removeprefix('stem.conv1.norm.')}"
    match = OWN_BLOCK.fullmatch(name)
    if match is None:
        raise ValueError(f"{name} is no tensor of Detectron2's ResNets: give the file of a trunk, not of a detector")
    res, block, number, shortcut, norm, what = match.groups()
    start = f"layer{int(res) - 1}.{block}"
    if shortcut is not None:
        return f"{start}.downsample.{'1' if norm else '0'}.{what}"
    return f"{start}.{'bn' if norm else 'conv'}{number}.{what}"


def save_detectron2(path: str | Path, state: Mapping[str, Tensor], notes: Mapping[str, str] | None = None) -> None:
    """Write an encoder for Detectron2's checkpointer, whole or not at all.

    `matching_heuristics` makes Detectron2 find the arrays under its own prefixes (`backbone.`, and `roi_heads.` for
    the res5 of a C4 detector).

    Args:
        path: ends in .pkl, by which Detectron2 knows the format.
        state: of a torchvision ResNet.
        notes: more to say beside the arrays, such as method and epoch.
    """
    path = Path(path)
    if path.suffix != ".pkl":
        raise ValueError(f"Detectron2 reads pickles by their name, not {path.name!r}: end it in .pkl")
    content = {"model": to_detectron2(state), "matching_heuristics": True, **NOTES, **(notes or {})}
    write_atomically(path, pickle.dumps(content, protocol=2))


def load_detectron2(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of such a file under torchvision's names, and what it says beside them. Runs nothing of the file's.

    Also reads the pickles that Detectron2's own converters write, and those of MoCo's.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            content = ArrayUnpickler(file, encoding="latin1").load()
    except ValueError:
        raise
    except OSError:
        raise
    except Exception as error:  # a broken pickle raises anything
        raise ValueError(f"{path} cannot be read as a pickle of arrays ({error}): export it again") from error
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, dict) or not all(isinstance(each, PickledArray) for each in model.values()):
        raise ValueError(f"{path} holds no arrays under `model`: it is not a file for Detectron2; export it again")
    state = from_detectron2({str(name): each.value for name, each in model.items()})
    return state, {str(name): str(value) for name, value in content.items() if name != "model"}


@final
class PickledType:
    """Stands in for a NumPy dtype while unpickling."""

    def __init__(self, code: str) -> None:
        self.dtype = np.dtype(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(state[1])


@final
class PickledArray:
    """Stands in for a NumPy array while unpickling, so that the pickle calls no code of NumPy's."""

    value: npt.NDArray[Any]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, fortran, data = state
        data = data.encode("latin1") if isinstance(data, str) else data
        if not isinstance(kind, PickledType) or not isinstance(data, bytes):
            raise ValueError("the pickle holds an array that is not of numbers: do not trust it")
        array = np.frombuffer(data, dtype=kind.dtype).reshape(shape, order="F" if fortran else "C")
        self.value = array.astype(kind.dtype.newbyteorder("="), copy=True)


def start_array(subtype: object, shape: object, typecode: object) -> PickledArray:
    """What `numpy.core.multiarray._reconstruct` is to a pickle: an array, before its state is set."""
    return PickledArray()


def start_type(code: object, *flags: object) -> PickledType:
    """What `numpy.dtype` is to a pickle: numbers only."""
    if not isinstance(code, str) or not re.fullmatch(r"[fiu][1248]", code):
        raise ValueError(f"the pickle holds an array of {code!r}, which is no number: do not trust it")
    return PickledType(code)


def no_call(*_: object) -> NoReturn:
    """`numpy.ndarray` is only ever mentioned in such pickles, never called."""
    raise ValueError("the pickle calls numpy.ndarray, which a file of arrays does not: do not trust it")


def encode_text(text: object, encoding: object) -> bytes:
    """What `_codecs.encode` is to pickles of protocol 2: how they write bytes."""
    if not isinstance(text, str) or encoding != "latin1":
        raise ValueError("the pickle encodes something else than bytes: do not trust it")
    return text.encode("latin1")


@final
class ArrayUnpickler(pickle.Unpickler):
    """Reads dictionaries, lists, numbers, strings and arrays of numbers; any other name in the pickle is refused."""

    def find_class(self, module: str, name: str) -> Any:
        known = {
            "numpy.core.multiarray._reconstruct": start_array,
            "numpy._core.multiarray._reconstruct": start_array,
            "numpy.ndarray": no_call,
            "numpy.dtype": start_type,
            "_codecs.encode": encode_text,
        }
        if f"{module}.{name}" not in known:
            raise ValueError(f"the pickle asks for {module}.{name}: do not trust it, delete it")
        return known[f"{module}.{name}"]
