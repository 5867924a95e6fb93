"""Every kind of image file is read as a person would see it, or an error names it."""

import io
import struct
import time
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mixview.data import decode as decoding
from mixview.data.decode import (
    MAX_PIXELS,
    Decoder,
    Mode,
    convert,
    has_application_data,
    open_encoded,
    reads,
    unread_remedy,
    upright,
)
from mixview.data.sources.base import BadImage
from tests.data.writing import encode, needs_data, pixels, raises, real, smooth

QUADRANTS = np.zeros((16, 24, 3), dtype=np.uint8)
QUADRANTS[:8, :12], QUADRANTS[:8, 12:] = (250, 10, 10), (10, 250, 10)
QUADRANTS[8:, :12], QUADRANTS[8:, 12:] = (10, 10, 250), (250, 250, 250)


def save(image: Image.Image, format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF", "PPM", "QOI"])
def test_lossless_formats_give_back_the_pixels(format: str) -> None:
    if format == "QOI" and "QOI" not in Image.SAVE:
        pytest.skip("this Pillow does not write QOI")
    expected = pixels(1)
    np.testing.assert_array_equal(Decoder()(save(Image.fromarray(expected), format)), expected)


@pytest.mark.parametrize("format", ["JPEG", "WEBP", "JPEG2000", "AVIF"])
def test_lossy_formats_give_nearly_the_pixels(format: str) -> None:
    Image.init()
    if format not in Image.SAVE:
        pytest.skip(f"this Pillow does not write {format}")
    decoded = Decoder()(save(Image.fromarray(QUADRANTS), format, quality=95))
    assert decoded.shape == QUADRANTS.shape
    assert np.abs(decoded.astype(int) - QUADRANTS).mean() < 12


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_orientation_is_undone(orientation: int, format: str) -> None:
    stored = Image.fromarray(QUADRANTS)
    for transpose in {  # how a camera that was held so stores an upright scene
        1: [],
        2: [Image.Transpose.FLIP_LEFT_RIGHT],
        3: [Image.Transpose.ROTATE_180],
        4: [Image.Transpose.FLIP_TOP_BOTTOM],
        5: [Image.Transpose.TRANSPOSE],
        6: [Image.Transpose.ROTATE_90],
        7: [Image.Transpose.TRANSVERSE],
        8: [Image.Transpose.ROTATE_270],
    }[orientation]:
        stored = stored.transpose(transpose)
    exif = Image.Exif()
    exif[0x0112] = orientation
    decoded = Decoder()(save(stored, format, exif=exif, **({"quality": 95} if format in ("JPEG", "WEBP") else {})))
    assert decoded.shape == QUADRANTS.shape
    assert np.abs(decoded.astype(int) - QUADRANTS).mean() < 12


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")  # Pillow says so, and reads on
def test_corrupt_exif_says_nothing() -> None:
    data = save(Image.fromarray(QUADRANTS), "JPEG", exif=b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\xff\xff\x01")
    assert Decoder()(data).shape == QUADRANTS.shape


def test_cmyk_jpeg_has_its_colors() -> None:
    decoded = Decoder()(save(Image.fromarray(QUADRANTS).convert("CMYK"), "JPEG", quality=95))
    assert np.abs(decoded.astype(int) - QUADRANTS).mean() < 12


def test_palettes() -> None:
    image = Image.fromarray(QUADRANTS).quantize(4)
    np.testing.assert_allclose(Decoder()(save(image, "PNG")).astype(int), QUADRANTS, atol=2)
    indices = Decoder("palette")(save(image, "PNG"))
    assert indices.shape == (16, 24, 1)
    assert indices.max() == 3


def test_transparency_shows_white() -> None:
    rgba = np.dstack([QUADRANTS, np.full((16, 24), 255, np.uint8)])
    rgba[:8, :12, 3] = 0
    decoded = Decoder()(save(Image.fromarray(rgba), "PNG"))
    assert (decoded[:8, :12] == 255).all()
    np.testing.assert_array_equal(decoded[8:], QUADRANTS[8:])
    assert Decoder("stored")(save(Image.fromarray(rgba), "PNG")).shape == (16, 24, 4)


def test_transparent_palette_shows_white() -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([200, 0, 0, 0, 0, 200])
    image.putpixel((0, 0), 0)
    decoded = Decoder()(save(image, "PNG", transparency=0))
    assert decoded[0, 0].tolist() == [255, 255, 255]
    assert decoded[1, 1].tolist() == [0, 0, 200]


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_sixteen_bits_become_eight(format: str) -> None:
    ramp = np.linspace(0, 65535, 256).round().astype(np.uint16).reshape(16, 16)
    decoded = Decoder()(save(Image.fromarray(ramp), format))
    np.testing.assert_array_equal(decoded[..., 0], np.arange(256).reshape(16, 16))
    np.testing.assert_array_equal(decoded[..., 0], decoded[..., 2])
    assert Decoder("L")(save(Image.fromarray(ramp), format)).shape == (16, 16, 1)


def test_floating_point_raises() -> None:
    with raises(BadImage, "a.tif", "type float32", "value_range"):
        Decoder()(save(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF"), "a.tif")


@pytest.mark.parametrize(("format", "options"), [("GIF", {}), ("PNG", {}), ("WEBP", {"lossless": True})])
def test_of_an_animation_the_first_frame(format: str, options: dict[str, object]) -> None:
    frames = [Image.new("RGB", (6, 5), color) for color in ("red", "blue", "green")]
    data = save(frames[0], format, save_all=True, append_images=frames[1:], **options)
    np.testing.assert_array_equal(Decoder()(data), np.broadcast_to([255, 0, 0], (5, 6, 3)))


def test_grayscale_both_ways_and_one_bit() -> None:
    gray = Image.fromarray(pixels(3)[..., 0])
    assert Decoder()(save(gray, "PNG")).shape == (8, 10, 3)
    assert Decoder("stored")(save(gray, "PNG")).shape == (8, 10, 1)
    assert Decoder("L")(encode()).shape == (8, 10, 1)
    assert set(np.unique(Decoder()(save(gray.convert("1"), "PNG")))) <= {0, 255}


def test_one_pixel() -> None:
    assert Decoder()(encode(height=1, width=1)).shape == (1, 1, 3)


def test_arrays_pass_through() -> None:
    many = pixels(0, channels=13)
    assert Decoder("stored")(many) is many
    assert Decoder()(pixels(0, channels=1)).shape == (8, 10, 3)
    assert Decoder("L")(pixels(0)).shape == (8, 10, 1)
    with raises(ValueError, "13 channels", "stored"):
        Decoder()(many)


def test_what_is_decoded_may_be_written_to() -> None:
    assert Decoder()(encode()).flags.writeable


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_truncated(format: str, share: float) -> None:
    data = encode(0, format, 64, 64)
    with raises(BadImage, "cut.jpg", "truncated"):
        Decoder()(data[: int(len(data) * share)], "cut.jpg")


def test_text_and_nothing() -> None:
    with raises(BadImage, "a.jpg", "is not an image", "hello"):
        Decoder()(b"hello, I am a text", "a.jpg")
    with raises(BadImage, "b.jpg", "is empty"):
        Decoder()(b"", "b.jpg")


def test_formats_that_run_programs_are_not_images() -> None:
    with raises(BadImage, "a.png", "is not an image"):
        Decoder()(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n", "a.png")


def huge_png(side: int) -> bytes:
    """A whole PNG of side × side pixels in one bit each: 50 MB of pixels in 50 kB at 20,000."""
    row = zlib.compress((b"\0" + bytes(-(-side // 8))) * side, 1)

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", row) + chunk(b"IEND", b"")


def test_a_bomb_raises_before_it_goes_off() -> None:
    data = huge_png(20_000)
    start = time.perf_counter()
    with raises(BadImage, "bomb.png", "20000×20000 is 400 million pixels", "89 million", "raise max_pixels"):
        Decoder()(data, "bomb.png")
    assert time.perf_counter() - start < 0.5
    small = huge_png(300)
    with raises(BadImage, "300×300"):
        Decoder(max_pixels=300 * 300 - 1)(small)
    assert Decoder(max_pixels=300 * 300)(small).shape == (300, 300, 3)


def test_a_large_image_is_read_if_the_limit_allows_and_pillow_is_left_alone() -> None:
    data = huge_png(9_600)  # Pillow would warn, and warnings are errors here
    limit = Image.MAX_IMAGE_PIXELS
    with raises(BadImage, "9600×9600"):
        Decoder()(data)
    assert Decoder("L", max_pixels=9_600**2)(data).shape == (9_600, 9_600, 1)
    assert limit == Image.MAX_IMAGE_PIXELS == MAX_PIXELS


def test_bad_arguments() -> None:
    with raises(ValueError, "RGB, L, stored", "'rgb'"):
        Decoder("rgb")  # type: ignore[arg-type]
    with raises(ValueError, "at least 1"):
        Decoder(max_pixels=0)


# JPEG: what libjpeg-turbo decodes is what Pillow decodes.


def by_pillow(decoder: Decoder, data: bytes) -> np.ndarray:
    """As it would be without simplejpeg."""
    image = open_encoded(data, "image")
    image.load()
    return convert(upright(image), decoder.mode, "image")


@pytest.mark.parametrize("mode", ["RGB", "L", "stored"])
@pytest.mark.parametrize("stored", ["RGB", "L", "CMYK", "YCbCr"])
@pytest.mark.parametrize("options", [{"quality": 60}, {"subsampling": 0}, {"progressive": True}, {"keep_rgb": True}])
def test_jpeg_is_decoded_as_pillow_does(mode: Mode, stored: str, options: dict[str, object]) -> None:
    if stored != "RGB" and "keep_rgb" in options:
        return
    image = Image.fromarray(pixels(5, height=37, width=51)).convert(stored)
    for orientation in (None, 1, 3, 6, 9):
        exif = Image.Exif()
        if orientation is not None:
            exif[0x0112] = orientation
        data = save(image, "JPEG", exif=exif, **options)
        decoded = Decoder(mode)(data)
        np.testing.assert_array_equal(decoded, by_pillow(Decoder(mode), data))
        assert decoded.flags.writeable


def test_application_data() -> None:
    plain = save(Image.fromarray(QUADRANTS), "JPEG")
    assert not has_application_data(plain)
    exif = Image.Exif()
    exif[0x0112] = 6
    assert has_application_data(save(Image.fromarray(QUADRANTS), "JPEG", exif=exif))
    assert has_application_data(plain[:20])


def test_a_jpeg_that_claims_to_be_huge_raises() -> None:
    data = bytearray(save(Image.fromarray(QUADRANTS), "JPEG"))
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", 60_000, 60_000)
    with raises(BadImage, "60000×60000 is 3600 million pixels"):
        Decoder()(bytes(data))


@needs_data
def test_photographs_are_decoded_as_pillow_does() -> None:
    files = sorted(real("photos").glob("*.JPEG"))
    assert files
    for file in files:
        data = file.read_bytes()
        decoded, expected = Decoder()(data), by_pillow(Decoder(), data)
        assert np.abs(decoded.astype(int) - expected).max() <= 1, file.name


def heic(**options: Any) -> bytes:
    pillow_heif = pytest.importorskip("pillow_heif")
    buffer = io.BytesIO()
    image = Image.new("RGB", (20, 10), "red")
    image.paste("blue", (10, 0, 20, 10))
    heif = pillow_heif.from_pillow(image)
    heif.save(buffer, quality=-1, **options)
    return buffer.getvalue()


def test_heic_is_read_where_its_package_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    formats = dict(Image.OPEN)
    pixels = Decoder()(heic(), "a.heic")
    assert pixels.shape == (10, 20, 3)
    assert pixels[5, 2, 0] > 200
    assert pixels[5, 17, 2] > 200
    assert reads(".heic")
    assert set(Image.OPEN) == set(formats) | (set(Image.OPEN) - {"HEIF"})  # nothing global is changed
    with pytest.raises(BadImage, match=r"200 million|limit"):
        Decoder(max_pixels=100)(heic(), "a.heic")
    with pytest.raises(BadImage, match=r"a\.heic"):
        Decoder()(heic()[:200], "a.heic")
    monkeypatch.setattr(decoding, "heic_plugin", lambda: None)
    with pytest.raises(BadImage, match="pip install pillow-heif"):
        Decoder()(heic(), "a.heic")
    assert not reads(".heic")
    assert unread_remedy(".heic") == "pip install pillow-heif"


def test_heic_of_a_phone_that_was_turned() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = Decoder()(heic(exif=exif.tobytes()), "a.heic")
    upright = Decoder()(heic(), "a.heic")
    assert turned.shape in (upright.shape, (20, 10, 3))  # once at most: as the file says, or as the container does


@pytest.mark.parametrize("format", ["JPEG", "JPEG2000"])
@pytest.mark.parametrize("factor", [1, 2, 4, 8])
def test_decodes_at_a_fraction_of_the_size(format: str, factor: int) -> None:
    height, width, asked = 333, 480, []

    def choose(*size: int) -> int:
        asked.append(size)
        return factor

    data = save(Image.fromarray(smooth(height, width)), format, **({"quality": 95} if format == "JPEG" else {}))
    decoded, whole = Decoder()(data, choose_factor=choose), Decoder()(data)
    assert asked == [(height, width)]
    if factor == 1:
        np.testing.assert_array_equal(decoded, whole)
    if format == "JPEG2000" and decoded.shape[0] > -(-height // factor):  # a size that Pillow cannot load
        factor = round(width / decoded.shape[1])
    assert decoded.shape == (-(-height // factor), width // factor, 3)
    shrunk = np.array(Image.fromarray(whole).resize(decoded.shape[1::-1], Image.Resampling.BOX))
    # The last row of blocks is a part of one; and wavelets sample each block at its corner, not in its middle.
    assert np.abs(decoded.astype(int) - shrunk).mean() < (3 if format == "JPEG" else 6)


@pytest.mark.parametrize("factor", [2, 4, 8])
@pytest.mark.parametrize("options", [{"progressive": True}, {"subsampling": 0}, {"subsampling": 1}])
def test_every_kind_of_jpeg_is_decoded_smaller_as_pillow_does(options: dict[str, Any], factor: int) -> None:
    image = Image.fromarray(smooth(160, 240))
    for stored, channels in ((image, 3), (image.convert("L"), 1)):
        data = save(stored, "JPEG", quality=95, **options)
        drafted = Image.open(io.BytesIO(data))
        drafted.draft(drafted.mode, (240 // factor, 160 // factor))
        decoded = Decoder("stored")(data, choose_factor=lambda *size: factor)
        assert decoded.shape == (160 // factor, 240 // factor, channels)
        np.testing.assert_array_equal(decoded, np.array(drafted).reshape(decoded.shape))


def test_the_size_that_decides_is_that_of_the_upright_image() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = save(Image.fromarray(smooth(160, 240)), "JPEG", quality=95, exif=exif)
    asked = []
    decoded = Decoder()(data, choose_factor=lambda *size: asked.append(size) or 4)
    assert asked == [(240, 160)]
    assert decoded.shape == (60, 40, 3)
    whole = Image.fromarray(Decoder()(data)).resize((40, 60), Image.Resampling.BOX)
    assert np.abs(decoded.astype(int) - np.array(whole)).mean() < 2


def test_what_cannot_be_decoded_smaller_is_whole() -> None:
    def never(*size: int) -> int:
        raise AssertionError(size)

    expected = smooth(64, 96)
    for format in ("PNG", "BMP", "TIFF"):
        np.testing.assert_array_equal(Decoder()(save(Image.fromarray(expected), format), "x", never), expected)
    cmyk = save(Image.fromarray(expected).convert("CMYK"), "JPEG")
    assert Decoder()(cmyk, "x", never).shape == expected.shape


def test_a_broken_photograph_is_named_at_any_size() -> None:
    data = save(Image.fromarray(smooth(160, 240)), "JPEG", quality=95)
    with pytest.raises(BadImage, match="cut"):
        Decoder()(data[: len(data) // 2], "cut", lambda *size: 8)
