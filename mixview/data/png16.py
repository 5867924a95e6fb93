"""PNG of 16 bits per channel, of which Pillow keeps 8 where it has colors."""

import functools
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

START = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}
"""The number of channels by color type: gray, RGB, gray with alpha, RGB with alpha."""
HEADER = 33
"""Bytes up to the end of the first chunk, which says the size and the kind."""
WHOLE = ((0, 0, 1, 1),)
ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""Left, top, and steps across and down of each pass of an interlaced image."""


def is_png16(data: bytes) -> bool:
    """Return True if a file is a PNG of 16 bits per channel."""
    return data.startswith(START) and data[24:25] == b"\x10"


def png_size(data: bytes) -> tuple[int, int]:
    """Width and height."""
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def read_png16(data: bytes) -> npt.NDArray[np.uint16]:
    """[H, W, C] of a file whose size is known to be no bomb; raises ValueError or `zlib.error`."""
    width, height = png_size(data)
    whole = len(data) >= HEADER and data[12:16] == b"IHDR" and width and height
    if not whole or data[25] not in CHANNELS or data[28] > 1:
        raise ValueError("its header is damaged")
    channels, passes = CHANNELS[data[25]], ADAM7 if data[28] else WHOLE
    parts = [
        (left, top, across, down, -(-(width - left) // across), -(-(height - top) // down))
        for left, top, across, down in passes
        if left < width and top < height
    ]
    expected = sum(rows * (1 + 2 * channels * columns) for *_, columns, rows in parts)
    unpacker = zlib.decompressobj()
    raw = bytearray()
    for chunk in image_chunks(data):
        raw += unpacker.decompress(chunk, expected + 1 - len(raw))
        if len(raw) > expected:
            break
    if len(raw) < expected:
        raise ValueError(f"{len(raw)} bytes of {expected} are there")
    pixels = np.empty((height, width, channels), np.uint16)
    start = 0
    for left, top, across, down, columns, rows in parts:
        stride = 1 + 2 * channels * columns
        lines = np.frombuffer(raw, np.uint8, rows * stride, start).reshape(rows, stride).copy()
        start += rows * stride
        if not unfilter()(lines, 2 * channels):
            raise ValueError("a line has an unknown filter")
        values = np.ascontiguousarray(lines[:, 1:]).view(">u2")
        pixels[top::down, left::across] = values.reshape(rows, columns, channels)
    return pixels


def image_chunks(data: bytes) -> Iterator[bytes]:
    """The chunks of a file that hold the image."""
    at = 8
    while at + 8 <= len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        if kind == b"IDAT":
            yield data[at + 8 : at + 8 + length]
        elif kind == b"IEND":
            return
        at += 12 + length


def unfilter_lines(lines: npt.NDArray[np.uint8], step: int) -> bool:
    """Undo the filters of lines [H, 1 + bytes] in place; return True if all of them are known.

    Args:
        lines: the number of a filter, then bytes, in each.
        step: bytes in a pixel.
    """
    height, stride = lines.shape
    for y in range(height):
        kind = lines[y, 0]
        if kind > 4:
            return False
        for x in range(1, stride):
            left = np.int64(lines[y, x - step]) if x > step else np.int64(0)
            above = np.int64(lines[y - 1, x]) if y > 0 else np.int64(0)
            corner = np.int64(lines[y - 1, x - step]) if y > 0 and x > step else np.int64(0)
            guess = np.int64(0)
            if kind == 1:
                guess = left
            elif kind == 2:
                guess = above
            elif kind == 3:
                guess = (left + above) // 2
            elif kind == 4:  # Paeth: whichever is nearest to left + above - corner
                by_left, by_above = abs(above - corner), abs(left - corner)
                by_corner = abs(left + above - 2 * corner)
                if by_left <= by_above and by_left <= by_corner:
                    guess = left
                else:
                    guess = above if by_above <= by_corner else corner
            lines[y, x] = np.uint8((np.int64(lines[y, x]) + guess) & 255)
    return True


@functools.cache
def unfilter() -> Callable[[npt.NDArray[np.uint8], int], bool]:
    """`unfilter_lines` as native code, where there can be any."""
    try:
        from numba import njit

        compiled: Any = njit("boolean(uint8[:,::1], int64)", nogil=True)(unfilter_lines)
    except Exception:  # a Numba that is missing, or does not fit its LLVM
        return unfilter_lines
    return compiled  # type: ignore[no-any-return]
