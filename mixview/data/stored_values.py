"""Readers of images that may have more than 8 bits: TIFF, DICOM, .npy and .npz.

Each takes the bytes of one file and returns the values as they are stored, [H, W, C], or raises `BadImage`. What a file
says of its size is checked before anything of that size is made, and nothing is ever unpickled.
"""

import importlib
import io
import logging
import warnings
import zipfile
import zlib
from typing import Any

import numpy as np

from mixview.data.sources.base import BadImage, SourceError
from mixview.data.value_range import StoredValues, Values, checked
from mixview.io.archives import array_header, check_archive, read_array

ARRAY_SUFFIXES = frozenset({".npy", ".npz"})
DICOM_SUFFIXES = frozenset({".dcm", ".dicom"})

TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
NPY_START = b"\x93NUMPY"
ZIP_START = b"PK\x03\x04"
DEFLATED_DICOM = b"1.2.840.10008.1.2.1.99"
"""The transfer syntax whose files are unpacked whole, whatever their size, before anything can be checked."""

MAX_BYTES_PER_PIXEL = 8
"""Bytes that a decoded image of the largest size may have per pixel; one of many channels has fewer pixels."""


def is_dicom(data: bytes) -> bool:
    """Return True if a file is DICOM."""
    return data[128:132] == b"DICM"


def is_array(data: bytes) -> bool:
    """Return True if a file is .npy or .npz."""
    return data.startswith((NPY_START, ZIP_START))


def check_size(shape: tuple[int, ...], itemsize: int, max_pixels: int, name: str) -> None:
    """Raise for an image [H, W, …] that would fill the memory."""
    pixels, total = int(shape[0]) * int(shape[1]), itemsize
    for side in shape:
        total *= int(side)
    if pixels > max_pixels or total > MAX_BYTES_PER_PIXEL * max_pixels:
        raise BadImage(
            name,
            f"{'×'.join(map(str, shape))} is {pixels / 1e6:.0f} million pixels and {total / 1e6:.0f} MB, and the limit "
            f"is {max_pixels / 1e6:.0f} million pixels and {MAX_BYTES_PER_PIXEL * max_pixels / 1e6:.0f} MB: shrink the "
            "image, or raise max_pixels",
        )


def optional(module: str, extra: str, name: str, kind: str) -> Any:
    """A library that one format needs."""
    try:
        library = importlib.import_module(module)
    except ImportError as error:
        raise SourceError(f'{name} is {kind}, which needs another package: pip install "mixview[{extra}]"') from error
    logger = logging.getLogger(module)
    if not logger.handlers:  # what it logs about broken files is said by the error
        logger.addHandler(logging.NullHandler())
    return library


def one_line(error: BaseException) -> str:
    """A library's message, shortened."""
    return " ".join(str(error).split())[:150] or type(error).__name__


def read_tiff(data: bytes, channels: int | None, max_pixels: int, name: str) -> Values:
    """The first page of a TIFF, or all pages as channels where they are as many as the images' channels.

    Args:
        channels: the number of channels that is wanted, None for any.
    """
    tifffile = optional("tifffile", "tiff", name, "a TIFF of more than 8 bits or four channels")
    try:
        with tifffile.TiffFile(io.BytesIO(data)) as tiff:
            first = tiff.pages.first
            pages = [first]
            single = first.ndim == 2
            if single and channels not in (None, 1) and len(tiff.pages) == channels:
                pages = [tiff.pages[number] for number in range(len(tiff.pages))]
            for page in pages:
                if page.dtype is None or page.shape != first.shape or page.dtype != first.dtype:
                    raise BadImage(name, "has pages of different sizes or types: save one per file")
            values = [page_values(page, len(pages), max_pixels, name) for page in pages]
    except (BadImage, SourceError, MemoryError):
        raise
    except Exception as error:  # a broken file makes tifffile raise almost anything
        missing = "imagecodecs" in str(error)
        why = 'its compression needs another package: pip install "mixview[tiff]"' if missing else one_line(error)
        raise BadImage(name, why if missing else f"is broken or truncated ({why})") from error
    return checked(np.concatenate(values, axis=2), name)


def page_values(page: Any, pages: int, max_pixels: int, name: str) -> Values:
    """[H, W, C] of one page of a TIFF."""
    axes = page.axes
    if axes not in ("YX", "YXS", "SYX"):
        raise BadImage(name, f"has the axes {axes}, not height, width and channels: save it as an image")
    height, width, samples = page.imagelength, page.imagewidth, page.samplesperpixel
    itemsize = page.dtype.itemsize
    check_size((height, width, samples * pages), itemsize, max_pixels, name)
    tile = [int(side) for side in page.chunks]
    size = itemsize
    for side in tile:
        size *= side
    if size > MAX_BYTES_PER_PIXEL * max_pixels or size > 4 * max(1 << 24, height * width * samples * itemsize):
        raise BadImage(name, f"has tiles of {'×'.join(map(str, tile))}, larger than itself: save it again")
    values: Values = page.asarray(maxworkers=1)
    if axes == "SYX":
        values = np.moveaxis(values, 0, 2)
    if page.photometric is not None and int(page.photometric) == 0 and values.dtype.kind == "u":  # 0 is white
        values = np.iinfo(values.dtype).max - values
    return np.ascontiguousarray(values.reshape(height, width, samples))


def read_dicom(data: bytes, max_pixels: int, name: str) -> StoredValues:
    """The first frame of a DICOM file, in the units of its rescale slope (Hounsfield's for CT), with its window."""
    pydicom = optional("pydicom", "dicom", name, "DICOM")
    if DEFLATED_DICOM in data:
        raise BadImage(name, "is a deflated DICOM file, which is not read: save it in another transfer syntax")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return first_frame(pydicom.dcmread(io.BytesIO(data)), max_pixels, name)
    except (BadImage, SourceError, MemoryError):
        raise
    except Exception as error:  # a broken file makes pydicom raise almost anything
        raise BadImage(name, f"is a DICOM file that cannot be read ({one_line(error)})") from error


def first_frame(dataset: Any, max_pixels: int, name: str) -> StoredValues:
    """The first frame of an open DICOM file."""
    pixels = importlib.import_module("pydicom.pixels")
    if not any(key in dataset for key in ("PixelData", "FloatPixelData", "DoubleFloatPixelData")):
        raise BadImage(name, "is a DICOM file without pixels: remove it from the data")
    colors, samples = str(dataset.PhotometricInterpretation), int(dataset.SamplesPerPixel)
    bits = int(dataset.BitsAllocated)
    check_size((int(dataset.Rows), int(dataset.Columns), samples), -(-bits // 8), max_pixels, name)
    values: Values = pixels.pixel_array(dataset, index=0)
    if colors == "PALETTE COLOR":
        values = pixels.apply_color_lut(values, dataset)
    elif values.ndim == 2:
        values = pixels.apply_modality_lut(values, dataset)
        if values.dtype == np.float64 and not (values % 1).any() and np.abs(values).max() < 1 << 31:
            values = values.astype(np.int32)  # a whole slope and intercept: Hounsfield's units
    if values.ndim == 2:
        values = values[:, :, None]
    values = checked(np.ascontiguousarray(values), name)
    return StoredValues(values, window_of(dataset, name), colors == "MONOCHROME1")


def window_of(dataset: Any, name: str) -> tuple[float, float] | None:
    """The values of black and white of a file's first window; None if it has none."""
    center, width = dataset.get("WindowCenter"), dataset.get("WindowWidth")
    if center in (None, "") or width in (None, ""):
        return None
    center, width = (each if isinstance(each, int | float | str) else each[0] for each in (center, width))
    center, width = float(center), float(width)
    function = dataset.get("VOILUTFunction") or "LINEAR"
    if function == "LINEAR":  # the standard's: a window of width 1 has no gray between black and white
        center, width = center - 0.5, width - 1
    if function not in ("LINEAR", "LINEAR_EXACT"):
        return None
    if not (np.isfinite(center) and np.isfinite(width)) or width <= 0:
        raise BadImage(name, "has a window of zero width: correct it, or pass --value_range LO,HI")
    return center - width / 2, center + width / 2


def read_saved_array(data: bytes, max_pixels: int, name: str) -> Values:
    """[H, W, C] of a .npy file, or of the only array (or the one called image) of an .npz file."""
    try:
        if data.startswith(NPY_START):
            file = io.BytesIO(data)
            shape, _, dtype, _ = array_header(file, len(data))
            check_size(image_shape(shape, name), dtype.itemsize, max_pixels, name)
            file.seek(0)
            values: Values = np.lib.format.read_array(file, allow_pickle=False)
        else:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                check_archive(archive, len(data))
                members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
                info = members.get("image") or members.get("arr_0")
                if info is None and len(members) == 1:
                    info = next(iter(members.values()))
                if info is None:
                    raise BadImage(name, f"holds {len(members)} arrays, none of them called image: save one per file")
                with archive.open(info) as member:
                    shape, _, dtype, _ = array_header(member, info.file_size)
                check_size(image_shape(shape, name), dtype.itemsize, max_pixels, name)
                values = read_array(archive, info)
    except BadImage:
        raise
    except (
        ValueError, KeyError, OSError, EOFError, RuntimeError, OverflowError, zipfile.BadZipFile, zlib.error,
        NotImplementedError,
    ) as error:  # fmt: skip
        raise BadImage(name, f"is not a plain array of numbers ({one_line(error)})") from error
    return checked(np.ascontiguousarray(values.reshape(image_shape(values.shape, name))), name)


def image_shape(shape: tuple[int, ...], name: str) -> tuple[int, int, int]:
    """[H, W, C] of the shape of one image, [H, W] or [H, W, C]."""
    if len(shape) not in (2, 3) or 0 in shape:
        raise BadImage(name, f"holds an array of shape {list(shape)[:8]}: save one image, [H, W] or [H, W, C]")
    height, width, *channels = shape
    return height, width, channels[0] if channels else 1
