"""Pickles of dictionaries, lists, text, numbers, arrays and tensors, read without running anything that they hold.

content = read_arrays(path, "CIFAR", encoding="bytes")
content[b"data"].value                                     # a NumPy array; in the content it is a PickledArray
"""

import io
import pickle
import pickletools
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn, final

import numpy as np
import numpy.typing as npt

from mixview.io.archives import open_archive


class UntrustedPickle(ValueError):
    """A pickle that asks for more than the data that it should hold."""


@final
class PickledArray:
    """Stands in for a NumPy array of numbers while unpickling, so that the pickle calls no code of NumPy's."""

    value: npt.NDArray[Any]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, fortran, data = state
        data = data.encode("latin1") if isinstance(data, str) else data
        if not isinstance(kind, PickledType) or not isinstance(data, bytes):
            raise UntrustedPickle("holds an array that is not of numbers")
        array = np.frombuffer(data, dtype=kind.dtype).reshape(shape, order="F" if fortran else "C")
        self.value = array.astype(kind.dtype.newbyteorder("="), copy=True)


@final
class PickledType:
    """Stands in for a NumPy dtype while unpickling."""

    def __init__(self, code: str) -> None:
        self.dtype: np.dtype[Any] = np.dtype(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Takes the byte order, of which bytes have none."""
        if state[1] in (">", b">"):
            self.dtype = self.dtype.newbyteorder(">")
        elif state[1] in ("<", b"<"):
            self.dtype = self.dtype.newbyteorder("<")


def start_array(subtype: object, shape: object, typecode: object) -> PickledArray:
    """Stand in for `numpy.core.multiarray._reconstruct`: an array, before its state is set."""
    return PickledArray()


def start_type(code: object, *flags: object) -> PickledType:
    """Stand in for `numpy.dtype`; of numbers only."""
    text = code.decode() if isinstance(code, bytes) else code
    if not isinstance(text, str) or not re.fullmatch(r"[fiu][1248]", text):
        raise UntrustedPickle(f"holds an array of {code!r}")
    return PickledType(text)


def no_call(*_: object) -> NoReturn:
    """`numpy.ndarray` is only ever mentioned in a pickle of arrays, never called."""
    raise UntrustedPickle("calls numpy.ndarray, which a pickle of arrays does not")


def encode_text(text: object, encoding: object) -> bytes:
    """Stand in for `_codecs.encode`, by which Python 3 writes bytes into pickles of protocol 2."""
    if not isinstance(text, str) or encoding != "latin1":
        raise UntrustedPickle("encodes something other than bytes")
    return text.encode("latin1")


@final
class ArrayUnpickler(pickle.Unpickler):
    """Builds what is named above; any other name in the pickle is an error."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = {
            "numpy.core.multiarray._reconstruct": start_array,
            "numpy._core.multiarray._reconstruct": start_array,
            "numpy.ndarray": no_call,
            "numpy.dtype": start_type,
            "_codecs.encode": encode_text,
        }
        if f"{module}.{name}" not in allowed:
            raise UntrustedPickle(f"asks for {module}.{name}")
        return allowed[f"{module}.{name}"]


def check_memo(data: bytes) -> None:
    """Raise if an object's number exceeds the size of the pickle: unpickling allocates room for all lower numbers."""
    for opcode, number, _ in pickletools.genops(data):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(str(number)) > len(data):
            raise UntrustedPickle(f"numbers an object {number}, in a file of {len(data)} bytes")


def read_arrays(path: Path, what: str, *, encoding: Literal["bytes", "latin1"]) -> Any:
    """The content of a pickle.

    Args:
        what: the expected content, for errors.
        encoding: the result of Python 2's text: bytes, or text by this code.
    """
    try:
        data = path.read_bytes()
        check_memo(data)
        return ArrayUnpickler(io.BytesIO(data), encoding=encoding).load()
    except UntrustedPickle as error:
        raise UntrustedPickle(
            f"a pickle that claims to be {what} {error}: do not trust it, delete it ({path})"
        ) from None
    except OSError:
        raise
    except Exception as error:  # a broken pickle raises anything
        raise ValueError(f"{path} cannot be read as {what} ({error})") from error


def read_torch(path: Path) -> Any:
    """The content of a file that `torch.save` wrote, of tensors and plain values; raises ValueError with the reason."""
    import torch

    try:
        if zipfile.is_zipfile(path):
            with open_archive(path):  # none of its members unpacks to far more than it is
                pass
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # advice for the author of the file, not for its reader
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a broken pickle can raise anything
        raise ValueError(
            f"{path} cannot be read as tensors alone ({why_unread(error)}): it is damaged, or holds objects that would "
            "run code; save it again with torch.save(model.state_dict(), FILE)"
        ) from error


def why_unread(error: Exception) -> str:
    """The fault of a torch file, in a few words and without torch's advice to trust it."""
    text = str(error)
    if "weights_only" not in text and "Weights only" not in text:
        return (text.strip().splitlines() or [type(error).__name__])[0].rstrip(".:")[:200]
    named = re.search(r"(?:GLOBAL|[Gg]lobal:?|import(?: of)?|class|function) ([A-Za-z_][\w]*(?:\.\w+)+)", text)
    return f"it asks for {named[1]}" if named else "it holds more than tensors"


def check_tensors(tensors: Mapping[str, Any], path: Path) -> None:
    """Raise if a tensor is not there in full: one number may stand for many, by a stride of 0, or none at all."""
    import torch

    for name, tensor in tensors.items():
        plain = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
        if not plain or tensor.nbytes > tensor.untyped_storage().nbytes():
            raise ValueError(
                f"{path} does not hold all of the tensor {name} of shape {list(tensor.shape)}: save plain tensors, "
                "{name: tensor.contiguous() …}, again"
            )
