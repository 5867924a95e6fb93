"""Thousands of damaged image files: each is decoded, or named; none crashes, hangs or fills the memory."""

import io
import time

import numpy as np
import pytest
from PIL import Image

from mixview.data.decode import Decoder
from mixview.data.sources.base import BadImage


def seeds() -> list[bytes]:
    """Sound files of many kinds, 200 bytes to some kilobytes."""
    rng = np.random.default_rng(0)
    smooth = np.cumsum(np.cumsum(rng.normal(size=(40, 56, 3)), axis=0), axis=1)
    image = Image.fromarray(np.uint8(255 * (smooth - smooth.min()) / np.ptp(smooth)))
    exif = Image.Exif()
    exif[0x0112] = 6
    made: list[tuple[Image.Image, str, dict[str, object]]] = [
        (image, "JPEG", {}),
        (image, "JPEG", {"subsampling": 0, "exif": exif}),
        (image, "JPEG", {"progressive": True}),
        (image.convert("L"), "JPEG", {}),
        (image.convert("CMYK"), "JPEG", {}),
        (image, "PNG", {}),
        (image.quantize(16), "PNG", {"transparency": 3}),
        (Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257), "PNG", {}),
        (image, "WEBP", {}),
        (image, "WEBP", {"lossless": True, "exif": exif}),
    ]
    files = []
    for picture, format, options in made:
        buffer = io.BytesIO()
        picture.save(buffer, format, **options)
        files.append(buffer.getvalue())
    return files


def mutate(data: bytes, rng: np.random.Generator) -> bytes:
    """Some of: bytes changed, mostly in the headers; a piece cut out, doubled or moved; the end cut off."""
    result = bytearray(data)
    for _ in range(rng.integers(1, 5)):
        if not result:
            break
        reach = len(result) if rng.random() < 0.5 else min(len(result), 700)
        at = int(rng.integers(reach))
        length = int(rng.integers(1, 1 + min(64, len(result) - at)))
        match rng.integers(6):
            case 0 | 1:
                result[at] = int(rng.integers(256))
            case 2:
                result[at] = (0, 255, 127, 128)[rng.integers(4)]
            case 3:
                del result[at : at + length]
            case 4:
                result[at:at] = result[at : at + length]
            case 5 if rng.random() < 0.3:
                del result[at:]
    return bytes(result)


def fuzz(count: int) -> dict[str, int]:
    rng = np.random.default_rng(7)
    files = seeds()
    seen = {"decoded": 0, "named": 0}
    for number in range(count):
        data = mutate(files[number % len(files)], rng)
        start = time.perf_counter()
        try:
            # Small, so that a header that asks for a gigabyte raises rather than being tried.
            decoded = Decoder(max_pixels=4_000_000)(data, f"file {number}")
        except BadImage as error:
            seen["named"] += error.name == f"file {number}" and error.reason != ""
        else:
            assert decoded.dtype == np.uint8
            assert decoded.ndim == 3
            assert decoded.shape[2] == 3
            assert 0 not in decoded.shape
            seen["decoded"] += 1
        assert time.perf_counter() - start < 10, number
    assert sum(seen.values()) == count
    return seen


# Pillow warns of what is odd and reads on; here as in training that is no error.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def test_a_few_damaged_files() -> None:
    seen = fuzz(300)
    assert min(seen.values()) > 30, seen


@pytest.mark.slow
def test_ten_thousand_damaged_files() -> None:
    resource = pytest.importorskip("resource")
    fuzz(1000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seen = fuzz(10_000)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert min(seen.values()) > 1000, seen
    assert grown < 200, f"{grown:.0f} MB more than after the first thousand"
