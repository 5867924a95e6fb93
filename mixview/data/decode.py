"""Pixels of an image file from its bytes, read as a person would see them.

EXIF orientation is applied, CMYK and palettes become RGB, what is transparent shows white behind it, and of an
animation the first frame is taken. What cannot be read raises `BadImage` with the name of the file and the reason.
Nothing global is changed: Pillow's own settings stay the program's.

What has more than 8 bits becomes floats from 0 to 1 by a range of values (`value_range`, `stored_values`).

JPEG goes to libjpeg-turbo directly (simplejpeg), which decodes to the same pixels as Pillow in less time. Pillow has
the last word: whatever libjpeg-turbo so much as warns of, and CMYK, is read, or rejected, by Pillow.

Who needs an image smaller than it is can have JPEG and JPEG 2000 decoded at 1/2, 1/4 or 1/8 of its sides, in a fraction
of the time (`choose_factor`). No other format that is read here can: what Pillow knows of WebP, AVIF and HEIC, and what
PNG and TIFF store, is the whole image.
"""

import contextlib
import functools
import importlib
import importlib.util
import io
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, final, get_args

import numpy as np
import simplejpeg
from PIL import Image, ImageFile

from mixview.data.png16 import is_png16, png_size, read_png16
from mixview.data.sources.base import BadImage, Pixels
from mixview.data.stored_values import (
    ARRAY_SUFFIXES,
    DICOM_SUFFIXES,
    TIFF_STARTS,
    is_array,
    is_dicom,
    read_dicom,
    read_saved_array,
    read_tiff,
)
from mixview.data.value_range import StoredValues, ValueRange, Values, checked

Mode = Literal["RGB", "L", "stored", "palette"]
ChooseFactor = Callable[[int, int], int]
"""Says by which of `FACTORS` an image of this height and width, upright, may be decoded smaller."""
FACTORS = (8, 4, 2, 1)


def largest_factor(height: int, width: int, side: int) -> int:
    """The largest of `FACTORS` by which an image may be decoded smaller with at least `side` pixels per side left."""
    return next((factor for factor in FACTORS if min(height, width) >= factor * side), 1)


IMAGE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".webp", ".bmp", ".gif", ".tif", ".tiff"}
    | {".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".avif", ".qoi"}
)
"""File names that end like this (in any case) are taken for images, and those of HEIC where it can be read."""

HEIC_SUFFIXES = frozenset({".heic", ".heif", ".hif"})
HEIC_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"})
HEIC_REMEDY = "pip install pillow-heif"
DICOM_REMEDY = 'pip install "mixview[dicom]"'
UNREAD_SUFFIXES = frozenset(
    {".arw", ".cr2", ".cr3", ".dng", ".nef", ".orf", ".raf", ".rw2", ".srw"}  # what cameras call raw
    | {".jxl", ".psd", ".svg", ".eps", ".ai", ".tga", ".ico", ".icns", ".exr", ".hdr", ".xcf", ".pcx", ".heics"}
)
"""Files that end like this are pictures that are never read; a note says so."""

MAX_PIXELS = 89_478_485
"""Pillow's own limit against decompression bombs: a quarter of a gigabyte in RGB."""

# Raster formats that say what they are in their first bytes: no interpreter (EPS starts Ghostscript), and none that any
# garbage passes for (TGA).
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF", "QOI")

EIGHT_BITS = np.dtype(np.uint8)  # to compare with the type itself would make this of it each time
JPEG_START = b"\xff\xd8\xff"
# What a JPEG is stored as -> what it is decoded to. The gray of a colored one is Pillow's, as for every other format.
JPEG_COLORS = {"YCbCr": "RGB", "RGB": "RGB", "Gray": "GRAY"}

# EXIF orientation -> the transposition that undoes it.
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
ORIENTATION = 0x0112
BITS_PER_SAMPLE = 258

LUMA = (0.299, 0.587, 0.114)
"""Pillow's weights of red, green and blue in gray."""


@final
@dataclass(frozen=True)
class Decoder:
    """Turns what a source reads into pixels [H, W, C]."""

    mode: Mode = "RGB"
    """RGB, L (grayscale), stored (whatever channels there are), or palette (a mask: the numbers of its colors)."""

    max_pixels: int = MAX_PIXELS
    """Larger images are rejected before they are unpacked, so that a small file cannot fill the memory."""

    channels: int | None = None
    """Images that have another number are bad, where one is set: networks and batches take no two kinds."""

    value_range: ValueRange | None = None
    """Black and white of images of more than 8 bits, which then are floats from 0 to 1."""

    eight_bits: bool = False
    """Round them to 8 bits again, for pictures."""

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise ValueError(f"mode must be one of {', '.join(get_args(Mode))}, got {self.mode!r}")
        if self.max_pixels < 1:
            raise ValueError(f"max_pixels must be at least 1, got {self.max_pixels}")

    def __call__(self, data: bytes | Pixels, name: str = "image", choose_factor: ChooseFactor | None = None) -> Pixels:
        """The pixels of an encoded file, or of an array that already holds pixels.

        Args:
            data: the file's bytes, or the array.
            name: the name of the image in the error message.
            choose_factor: a function of the size that returns how much smaller to decode, where the format can be; the
                result may be whole.
        """
        pixels = self._decode(data, name, choose_factor)
        count = pixels.shape[2]
        if self.channels not in (None, count):
            raise BadImage(
                name,
                f"has {count} channel{'s' if count > 1 else ''}, and images of {self.channels} are required: leave it "
                f"out, or use --channels {count} for a folder of such images",
            )
        return pixels

    def _decode(self, data: bytes | Pixels, name: str, choose_factor: ChooseFactor | None) -> Pixels:
        """The pixels, of whatever channels."""
        if isinstance(data, np.ndarray) and data.dtype == EIGHT_BITS:
            return channels_as(self.mode, data, name)
        if not isinstance(data, np.ndarray) and data.startswith(JPEG_START) and self.mode != "palette":
            pixels = self._decode_jpeg(data, name, choose_factor)
            if pixels is not None:
                return channels_as(self.mode, pixels, name)
        stored = self.stored_values(data, name)
        if stored is not None:
            return self._scaled(stored, name)
        assert not isinstance(data, np.ndarray)
        image: Image.Image = open_encoded(data, name)
        self._check_size(*image.size, name)
        try:
            if choose_factor is not None and image.format == "JPEG2000":
                image = load_smaller(image, data, name, choose_factor)
            image.load()
            return convert(upright(image), self.mode, name)
        except (BadImage, MemoryError):
            raise
        except Exception as error:  # a broken file makes Pillow's plugins raise almost anything
            raise BadImage(name, f"is broken or truncated ({error})") from error

    def stored_values(self, data: bytes | Values, name: str) -> StoredValues | None:
        """The stored values of an image that has, or may have, more than 8 bits; None for one that has 8."""
        if isinstance(data, np.ndarray):
            return None if data.dtype == np.uint8 else StoredValues(checked(data, name))
        if data.startswith(JPEG_START) or self.mode == "palette":
            return None
        if is_png16(data):
            self._check_size(*png_size(data), name)
            try:
                values = upright_values(read_png16(data), data, name)
            except (ValueError, zlib.error) as error:
                raise BadImage(name, f"is broken or truncated ({error})") from error
            if values.shape[2] in (1, 3):
                return StoredValues(values)
            return StoredValues(values[:, :, :-1], alpha=values[:, :, -1:].astype(np.float32) / np.float32(65535))
        if is_dicom(data):
            return read_dicom(data, self.max_pixels, name)
        if is_array(data):
            return StoredValues(read_saved_array(data, self.max_pixels, name))
        if data.startswith(TIFF_STARTS):
            return self._stored_tiff(data, name)
        if data.startswith((b"P5", b"\0\0\0\x0cjP")):
            return self._stored_by_pillow(open_encoded(data, name), name)
        return None

    def _stored_tiff(self, data: bytes, name: str) -> StoredValues | None:
        """`stored_values` for TIFF, of which Pillow knows those of 8 bits, and the gray ones of others."""
        wanted = 3 if self.mode == "RGB" else self.channels
        try:
            image = open_encoded(data, name)
            deep = image.mode.startswith(("I", "F")) or bits_of(image) > 8  # of colors Pillow keeps 8
            pages = wanted not in (None, 1) and (deep or self.mode == "stored") and count_pages(image) == wanted
        except BadImage:
            image, deep, pages = None, True, False
        if image is not None and not pages and not deep:
            return None
        by_pillow = image is not None and image.mode.startswith(("I", "F")) and not pages
        if image is not None and by_pillow and importlib.util.find_spec("tifffile") is None:
            return self._stored_by_pillow(image, name)
        return StoredValues(upright_values(read_tiff(data, wanted, self.max_pixels, name), data, name))

    def _stored_by_pillow(self, image: ImageFile.ImageFile, name: str) -> StoredValues | None:
        """The values of an image that Pillow opens with more than 8 bits, one channel."""
        if not image.mode.startswith(("I", "F")):
            return None
        self._check_size(*image.size, name)
        try:
            image.load()
            values = np.array(upright(image))[:, :, None]
        except MemoryError:
            raise
        except Exception as error:  # as above
            raise BadImage(name, f"is broken or truncated ({error})") from error
        if values.dtype == np.int32 and values.min() >= 0 and values.max() <= 65535:  # Pillow's own 16 bits
            values = values.astype(np.uint16)
        return StoredValues(checked(values, name))

    def _scaled(self, stored: StoredValues, name: str) -> Pixels:
        """The pixels of what is stored: floats from 0 to 1, or 8 bits where there are no more."""
        values, limits = stored.values, self.value_range
        pixels: Pixels
        if values.dtype == np.uint8 and stored.window is None:
            return channels_as(self.mode, 255 - values if stored.inverted else values, name)
        if limits is None and stored.window is None:
            pixels = eight_bits(values, name)
            white = 255
        else:
            if limits is None or limits.low is None:
                if stored.window is None:
                    raise BadImage(name, "has no window of its own: pass --value_range LO,HI or p1,p99")
                limits = ValueRange(*stored.window)
            pixels, white = limits.scale(values), 1
        if stored.inverted:
            pixels = white - pixels
        if stored.alpha is not None:
            if self.mode == "stored":
                pixels = np.concatenate([pixels, (white * stored.alpha).astype(pixels.dtype)], axis=2)
            else:
                blended = pixels * stored.alpha + white * (1 - stored.alpha)
                pixels = blended.round().astype(np.uint8) if white == 255 else blended
        pixels = channels_as(self.mode, pixels, name)
        return to_eight_bits(pixels) if self.eight_bits else pixels

    def _check_size(self, width: int, height: int, name: str) -> None:
        if width * height > self.max_pixels:
            raise BadImage(
                name,
                f"{width}×{height} is {width * height / 1e6:.0f} million pixels and the limit is "
                f"{self.max_pixels / 1e6:.0f} million: shrink the image, or raise max_pixels",
            )

    def _decode_jpeg(self, data: bytes, name: str, choose_factor: ChooseFactor | None) -> Pixels | None:
        """[H, W, 3 or 1] of a sound JPEG in color or in gray, None of any other."""
        try:
            height, width, colors, _ = simplejpeg.decode_jpeg_header(data)
        except (ValueError, OverflowError):
            return None
        if colors not in JPEG_COLORS:
            return None
        self._check_size(int(width), int(height), name)
        turn = None
        if has_application_data(data):
            try:
                turn = orientation(open_encoded(data, name))
            except BadImage:
                return None
        smallest = {}
        if choose_factor is not None:
            factor = choose_factor(*upright_size(int(height), int(width), turn))
            if factor > 1:
                smallest = {"min_height": -(-height // factor), "min_width": -(-width // factor)}
        try:
            pixels: Pixels = simplejpeg.decode_jpeg(data, JPEG_COLORS[colors], **smallest)
        except ValueError:
            return None
        return pixels if turn is None else turned(pixels, turn)


def has_application_data(data: bytes) -> bool:
    """Return True if a JPEG has a segment in which EXIF or XMP could say how it is to be turned, or looks odd."""
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xDA:  # the pixels begin
            return False
        if marker == 0xE1:
            return True
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return True


def load_smaller(image: Image.Image, data: bytes, name: str, choose_factor: ChooseFactor) -> Image.Image:
    """A JPEG 2000 at one of the sizes that its wavelets have, or as it is.

    Pillow rounds some of these sizes otherwise than OpenJPEG, and cannot load them: then the next larger one is taken.
    """
    width, height = image.size
    factor = choose_factor(*upright_size(height, width, orientation(image)))
    for each in FACTORS:
        if 1 < each <= factor:
            smaller = open_encoded(data, name)
            smaller.reduce = each.bit_length() - 1  # type: ignore[method-assign, assignment]
            with contextlib.suppress(OSError):
                smaller.load()
                return smaller
    return image


@functools.cache
def heic_plugin() -> Any:
    """The plugin that opens HEIC, as Pillow's own plugins do; None where pillow-heif is not installed."""
    try:
        # The class alone: to register it would change Pillow for the whole program.
        return importlib.import_module("pillow_heif").HeifImageFile
    except ImportError:
        return None


def reads(suffix: str) -> bool:
    """Return True if a file whose name ends like this is taken for an image."""
    return (
        suffix in IMAGE_SUFFIXES
        or (suffix in HEIC_SUFFIXES and heic_plugin() is not None)
        or (suffix in DICOM_SUFFIXES and has_pydicom())
    )


@functools.cache
def has_pydicom() -> bool:
    """Return True if DICOM can be read."""
    return importlib.util.find_spec("pydicom") is not None


def reads_array(suffix: str) -> bool:
    """Return True if a file whose name ends like this may be an image that was saved as an array."""
    return suffix in ARRAY_SUFFIXES


def unread_remedy(suffix: str) -> str | None:
    """The remedy for a picture of a kind that is not read; None for what is read, and for what is not a picture."""
    if suffix in HEIC_SUFFIXES and heic_plugin() is None:
        return HEIC_REMEDY
    if suffix in DICOM_SUFFIXES and not has_pydicom():
        return DICOM_REMEDY
    return "convert them to JPEG or PNG" if suffix in UNREAD_SUFFIXES else None


def open_encoded(data: bytes, name: str) -> ImageFile.ImageFile:
    """The image with its header read and its pixels not, whatever its size.

    `Image.open` would hold every image against a limit that is global to the program; this asks the same plugins.
    """
    if not data:
        raise BadImage(name, "is empty (0 bytes)")
    prefix = data[:16]
    reason = None
    for attempt in (Image.preinit, Image.init):  # the five common formats, and if it is none of these, all
        attempt()
        for key in FORMATS:
            if key not in Image.OPEN:
                continue
            factory, accept = Image.OPEN[key]
            try:
                if accept is not None and accept(prefix) is True:
                    return factory(io.BytesIO(data), name)
            except MemoryError:
                raise
            except Exception as error:  # as above
                reason = error
    if prefix[4:8] == b"ftyp":
        if prefix[8:12] in HEIC_BRANDS and reason is None:
            return open_heic(data, name)
        if prefix[8:12] in (b"avif", b"avis") and "AVIF" not in Image.OPEN:
            raise BadImage(name, "is AVIF, which this Pillow cannot read: pip install --upgrade pillow")
    if reason is not None:
        raise BadImage(name, f"is broken or truncated ({reason})") from reason
    raise BadImage(name, f"is not an image (its first bytes are {prefix!r})")


def open_heic(data: bytes, name: str) -> ImageFile.ImageFile:
    """`open_encoded` for HEIC."""
    plugin = heic_plugin()
    if plugin is None:
        raise BadImage(name, f"is HEIC, which needs another package: {HEIC_REMEDY}")
    try:
        image: ImageFile.ImageFile = plugin(io.BytesIO(data), name)
        return image
    except MemoryError:
        raise
    except Exception as error:
        raise BadImage(name, f"is broken or truncated ({error})") from error


def orientation(image: Image.Image) -> int | None:
    """The way EXIF says that the image is to be turned; EXIF that cannot be read says nothing."""
    try:
        value = image.getexif().get(ORIENTATION)
        return int(value) if value in UPRIGHT else None
    except Exception:  # corrupt EXIF makes Pillow raise anything from struct.error to SyntaxError
        return None


def upright(image: Image.Image) -> Image.Image:
    """The image turned as its EXIF orientation says."""
    turn = orientation(image)
    return image if turn is None else image.transpose(UPRIGHT[turn])


def upright_size(height: int, width: int, turn: int | None) -> tuple[int, int]:
    """Height and width of an image once it is turned as its EXIF orientation says."""
    return (width, height) if turn is not None and turn >= 5 else (height, width)


def upright_values(values: Values, data: bytes, name: str) -> Values:
    """Values [H, W, C] of a file turned as its EXIF orientation says."""
    try:
        turn = orientation(open_encoded(data, name))
    except BadImage:  # what Pillow cannot open
        return values
    return values if turn is None else turned(values, turn)


def bits_of(image: Image.Image) -> int:
    """The most bits of a TIFF's channels."""
    try:
        return max(int(bits) for bits in image.tag_v2.get(BITS_PER_SAMPLE, (1,)))  # type: ignore[attr-defined]
    except (AttributeError, TypeError, ValueError):
        return 8


def count_pages(image: Image.Image) -> int:
    """The pages of a file."""
    try:
        return int(getattr(image, "n_frames", 1))
    except Exception:  # as above
        return 1


def turned(pixels: Values, turn: int) -> Values:
    """`UPRIGHT` for pixels [H, W, C]: orientations from 5 on swap the sides, and these of either kind mirror them."""
    if turn >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if turn in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if turn in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def convert(image: Image.Image, mode: Mode, name: str) -> Pixels:
    """A loaded image in the requested mode."""
    if mode == "palette":
        if image.mode not in ("P", "L"):
            raise BadImage(name, f"is a mask of mode {image.mode}: save it with a palette or as 8-bit grayscale")
        return np.array(image)[:, :, None]
    if image.mode.startswith(("I", "F")):
        return channels_as(mode, eight_bits(np.asarray(image)[:, :, None], name), name)
    if image.mode == "1":
        image = image.convert("L")
    elif image.mode in ("P", "PA"):
        image = image.convert("RGBA" if image.mode == "PA" or "transparency" in image.info else "RGB")
    elif "transparency" in image.info and image.mode in ("L", "RGB"):  # one color stands for transparent
        image = image.convert("LA" if image.mode == "L" else "RGBA")
    if mode != "stored":
        if image.mode in ("LA", "La", "RGBA", "RGBa"):
            image = image.convert("RGBA")
            white = Image.new("RGBA", image.size, "white")
            image = Image.alpha_composite(white, image).convert("RGB")
        if image.mode != mode:
            image = image.convert(mode)
    pixels = np.array(image)  # a copy: tensors are made of it, and they must not share Pillow's memory
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def eight_bits(values: Values, name: str) -> Pixels:
    """[H, W, C] of 16 bits, scaled (Pillow's own conversion clips everything above 255 to white).

    For images of which nothing says the range: those that use a part of their bits only are bad, not black.
    """
    low, high = values.min(), values.max()
    if values.dtype.kind == "f" or low < 0 or high > 65535:
        raise BadImage(
            name,
            f"has values of type {values.dtype} from {low:g} to {high:g}: pass --value_range, which values are black "
            "and white, or save it with 8 or 16 bits",
        )
    if 0 < high < 4096:
        raise BadImage(
            name,
            f"uses {int(high).bit_length()} of its 16 bits, values up to {high}: pass --value_range, which values are "
            "black and white",
        )
    return ((values.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)


def to_eight_bits(pixels: Pixels) -> Pixels:
    """Pixels of any kind as 8 bits, to look at."""
    return pixels if pixels.dtype == np.uint8 else (pixels * np.float32(255)).round().astype(np.uint8)


def channels_as(mode: Mode, pixels: Pixels, name: str) -> Pixels:
    """Pixels [H, W, C] with the channels of the mode."""
    channels = pixels.shape[2]
    if mode in ("stored", "palette") or channels == (3 if mode == "RGB" else 1):
        return pixels
    if channels == 1:
        return np.repeat(pixels, 3, axis=2)
    if channels == 3 and pixels.dtype == np.uint8:
        return np.array(Image.fromarray(pixels).convert("L"))[:, :, None]
    if channels == 3:
        return pixels @ np.array(LUMA, pixels.dtype)[:, None]
    raise BadImage(
        name,
        f'has {channels} channels, which cannot become {mode}: use --channels {channels} (mode="stored" in Python)',
    )
