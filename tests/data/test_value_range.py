"""Images of more than 8 bits: their readers, the range of their values, and the way to a network."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pydicom
import pytest
import tifffile
import torch
from PIL import Image

from mixview.data.augment import numba_backend, reference, torch_backend
from mixview.data.augment.policies import load_policy
from mixview.data.dataset import ImageDataset, find_range
from mixview.data.decode import Decoder
from mixview.data.loader import EpochSampler, view_loader
from mixview.data.sources.base import BadImage, SourceError
from mixview.data.sources.registry import open_dataset
from mixview.data.value_range import Percentiles, ValueRange, parse_value_range
from tests.data.writing import raises, write

DEEP = np.random.default_rng(0).integers(0, 4096, (12, 17, 3), dtype=np.uint16)


def png16(values: np.ndarray, interlaced: bool = False) -> bytes:
    """A 16-bit PNG of [H, W, C], its lines with all five filters in turn."""
    height, width, channels = values.shape
    step, raw = 2 * channels, b""
    passes = [(0, 0, 1, 1)]
    if interlaced:
        passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    for left, top, across, down in passes:
        part = values[top::down, left::across]
        if 0 in part.shape:
            continue
        lines = np.frombuffer(part.astype(">u2").tobytes(), np.uint8).reshape(part.shape[0], -1).astype(int)
        for y, line in enumerate(lines):
            above = lines[y - 1] if y else np.zeros_like(line)
            left_of, corner = (np.concatenate([np.zeros(step, int), each[:-step]]) for each in (line, above))
            near = np.abs([above - corner, left_of - corner, left_of + above - 2 * corner])
            paeth = np.choose(near.argmin(0), [left_of, above, corner])
            guess = [np.zeros_like(line), left_of, above, (left_of + above) // 2, paeth][y % 5]
            raw += bytes([y % 5]) + ((line - guess) % 256).astype(np.uint8).tobytes()

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 16, {1: 0, 2: 4, 3: 2, 4: 6}[channels], 0, 0, int(interlaced))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")


def tiff(values: np.ndarray, **options: object) -> bytes:
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, values, **options)
    return buffer.getvalue()


def npy(values: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


def npz_of(values: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, image=values)
    return buffer.getvalue()


def dicom(values: np.ndarray | None, **fields: object) -> bytes:
    """A CT slice [H, W] of signed 16 bits."""
    dataset = pydicom.Dataset()
    dataset.file_meta = pydicom.dataset.FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID = pydicom.uid.CTImageStorage
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID = "1.2.3"
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = 16, 12, 11, 1
    dataset.RescaleIntercept, dataset.RescaleSlope = -1000, 1
    if values is not None:
        dataset.Rows, dataset.Columns = values.shape
        dataset.PixelData = values.astype("<i2").tobytes()
    for name, value in fields.items():
        setattr(dataset, name, value)
    buffer = io.BytesIO()
    dataset.save_as(buffer, enforce_file_format=True)
    return buffer.getvalue()


def write_folder(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        write(root / name, content)
    return root


# Readers


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
def test_png_of_sixteen_bits_keeps_all_of_them(channels: int, interlaced: bool) -> None:
    values = DEEP[:, :, :channels]
    data = png16(values, interlaced)
    stored = Decoder("stored").stored_values(data, "x")
    assert stored is not None
    np.testing.assert_array_equal(stored.values, values)
    if channels == 1:
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(data))), values[:, :, 0])


def test_what_is_transparent_in_sixteen_bits_shows_white() -> None:
    values = np.concatenate([DEEP, np.full((12, 17, 1), 65535, np.uint16)], axis=2)
    values[0, 0, 3] = 0
    decoded = Decoder(value_range=ValueRange(0, 4095))(png16(values))
    assert decoded[0, 0].tolist() == [1, 1, 1]
    np.testing.assert_allclose(decoded[1], DEEP[1] / 4095, atol=1e-6)


@pytest.mark.parametrize("compression", [None, "deflate", "lzw", "zstd"])
@pytest.mark.parametrize("tile", [None, (16, 16)])
@pytest.mark.parametrize("kind", [np.uint16, np.float32, np.int32, np.float64])
def test_tiff(kind: type, tile: tuple[int, int] | None, compression: str | None) -> None:
    values = DEEP.astype(kind)
    data = tiff(values, photometric="rgb", tile=tile, compression=compression)
    decoded = Decoder(value_range=ValueRange(0, 4095))(data)
    assert decoded.dtype == np.float32
    np.testing.assert_allclose(decoded, DEEP / 4095, atol=1e-6)


def test_zero_is_white_where_a_tiff_says_so() -> None:
    gray = DEEP[:, :, 0]
    black, white = (tiff(gray, photometric=each) for each in ("minisblack", "miniswhite"))
    decoder = Decoder("L", value_range=ValueRange(0, 65535))
    np.testing.assert_allclose(decoder(black) + decoder(white), 1, atol=1e-6)
    np.testing.assert_allclose(decoder(black)[:, :, 0], gray / 65535, atol=1e-6)


def test_pages_are_channels_where_as_many_are_wanted() -> None:
    pages = np.stack([DEEP[:, :, 0] + number for number in range(5)])
    data = tiff(pages, photometric="minisblack")
    decoder = Decoder("stored", channels=5, value_range=ValueRange(0, 5000))
    np.testing.assert_allclose(decoder(data), pages.transpose(1, 2, 0) / 5000, atol=1e-6)
    first = Decoder("L", value_range=ValueRange(0, 5000))(data)
    np.testing.assert_allclose(first[:, :, 0], pages[0] / 5000, atol=1e-6)
    eight = tiff((pages % 256).astype(np.uint8), photometric="minisblack")
    np.testing.assert_array_equal(Decoder("stored", channels=5)(eight), (pages % 256).transpose(1, 2, 0))


@pytest.mark.parametrize("kind", ["u1", "u2", ">u2", "i4", "u8", "f2", "f4", ">f8", "?"])
def test_npy_of_any_numeric_type(kind: str, tmp_path: Path) -> None:
    values = np.random.default_rng(1).integers(0, 2 if kind == "?" else 200, (6, 5, 9, 3)).astype(kind)
    np.save(tmp_path / "x.npy", values)
    np.savez(tmp_path / "x.npz", images=values)
    if kind != "?":
        for name in ("x.npy", "x.npz"):
            source = open_dataset(tmp_path / name)
            np.testing.assert_array_equal(source.read(2), values[2])
    decoded = Decoder(value_range=ValueRange(0, 255))(npy(values[0]))
    expected = values[0].astype(np.float64) / (1 if kind == "?" else 255)
    shown = decoded / 255 if decoded.dtype == np.uint8 else decoded
    np.testing.assert_allclose(shown, expected, atol=1e-3)


def test_a_folder_of_arrays_is_one_of_images_and_others_are_not(tmp_path: Path) -> None:
    write_folder(tmp_path / "arrays", {f"{number}.npy": npy(DEEP) for number in range(4)})
    assert len(open_dataset(tmp_path / "arrays")) == 4
    write_folder(tmp_path / "photos", {"labels.npy": npy(np.arange(4)), "a.tif": tiff(DEEP)})
    assert len(open_dataset(tmp_path / "photos")) == 1


def test_dicom_with_its_window() -> None:
    values = np.arange(64, dtype=np.int16).reshape(8, 8) * 30
    data = dicom(values, WindowCenter=40, WindowWidth=400)
    hounsfield = values.astype(float) - 1000
    stored = Decoder("L").stored_values(data, "x")
    assert stored is not None
    np.testing.assert_array_equal(stored.values[:, :, 0], hounsfield)
    expected = pydicom.pixels.apply_voi_lut(hounsfield, pydicom.dcmread(io.BytesIO(data)))
    expected = (expected - expected.min()) / np.ptp(expected)
    np.testing.assert_allclose(Decoder("L", value_range=ValueRange())(data)[:, :, 0], expected, atol=1e-6)
    wide = Decoder("L", value_range=ValueRange(-1000, 890))(data)[:, :, 0]
    np.testing.assert_allclose(wide, (hounsfield + 1000) / 1890, atol=1e-6)
    inverted = dicom(values, WindowCenter=40, WindowWidth=400, PhotometricInterpretation="MONOCHROME1")
    np.testing.assert_allclose(Decoder("L", value_range=ValueRange())(inverted)[:, :, 0], 1 - expected, atol=1e-6)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (dicom(None), ("without pixels",)),
        (dicom(np.zeros((8, 8)), WindowCenter=40, WindowWidth=0), ("zero width", "value_range")),
        (dicom(np.zeros((8, 8)))[:-50], ("DICOM", "cannot be read")),
        (dicom(np.zeros((8, 8)), Rows=60000, Columns=60000), ("60000×60000", "limit")),
        (b"\0" * 128 + b"DICM" + b"1.2.840.10008.1.2.1.99", ("deflated",)),
        (npy(np.array([[1.0, np.nan], [0, 1]])), ("NaN or infinity",)),
        (npy(np.array([[1.0, np.inf], [0, 1]])), ("NaN or infinity",)),
        (tiff(np.full((4, 4), np.nan, np.float32)), ("NaN or infinity",)),
        (npy(np.zeros((2, 2, 2, 2))), ("shape", "one image")),
        (npy(np.zeros((2, 2), complex)), ("complex128",)),
        (npy(np.array([[{}]], dtype=object)), ("objects",)),
        (npy(np.zeros((2, 2))).replace(b"(2, 2), }", b"(9999,99)"), ("plain array",)),
        (png16(DEEP)[:-60], ("broken or truncated",)),
        (png16(DEEP)[:25], ("broken or truncated",)),
        (png16(DEEP)[:16] + struct.pack(">II", 1 << 20, 1 << 20) + png16(DEEP)[24:], ("1048576×1048576", "limit")),
        (tiff(DEEP, photometric="rgb")[:-300], ("broken or truncated",)),
    ],
)  # fmt: skip
def test_bad_files_say_why(data: bytes, words: tuple[str, ...]) -> None:
    with raises(BadImage, "a.x", *words):
        Decoder(value_range=ValueRange(0, 1))(data, "a.x") if b"DICM" not in data else Decoder()(data, "a.x")


# The range


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("5,5", ("zero width",)),
        ("p5,p5", ("zero width",)),
        ("4095,0", ("inverted",)),
        ("p99,p1", ("inverted",)),
        ("1,1e999", ("finite",)),
        ("p1,p101", ("p0 and p100",)),
        ("nan,1", ("must be auto",)),
        ("0-4095", ("must be auto",)),
        ("", ("must be",)),
    ],
)
def test_ranges_that_are_none(text: str, words: tuple[str, ...]) -> None:
    with raises(ValueError, *words):
        parse_value_range(text)


def test_what_the_text_of_a_range_means() -> None:
    assert parse_value_range("auto") is None
    assert parse_value_range("window") == ValueRange()
    assert parse_value_range("p0.5, p99.5") == Percentiles(0.5, 99.5)
    for value_range in (ValueRange(), ValueRange(-1000, 0.1), ValueRange(0, 4095)):
        assert parse_value_range(str(value_range)) == value_range


@pytest.mark.parametrize(
    ("values", "setting", "expected"),
    [
        (np.uint16([0, 3000]), "auto", "0,4095"),
        (np.uint16([0, 5000]), "auto", "0,16383"),
        (np.uint16([9, 65000]), "auto", "0,65535"),
        (np.float32([0.1, 0.9]), "auto", "0,1"),
        (np.float32([-1, 3]), "auto", "-1,3"),
        (np.int16([-1000, 2000]), "auto", "-1000,2000"),
        (np.uint16([0, 3000]), "100,200", "100,200"),
        (np.arange(101, dtype=np.float32), "p5,p90", "5,90"),
    ],
)
def test_the_range_is_measured_on_a_sample_and_printed(
    values: np.ndarray, setting: str, expected: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", np.broadcast_to(values, (5, 4, len(values))))
    source = open_dataset(tmp_path / "x.npy")
    assert str(find_range(source, setting)) == expected
    assert (f"value_range {expected}: measured on 5 images" in capfd.readouterr().err) == ("1" not in setting[:1])


def test_images_of_eight_bits_need_no_range() -> None:
    source = open_dataset("scenes", count=5, size=16)
    assert find_range(source) is None
    with raises(SourceError, "value_range 0,128", "more than 8 bits"):
        find_range(source, "0,128")


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.npy"])
def test_a_range_for_files_of_eight_bits_is_a_mistake(name: str, tmp_path: Path) -> None:
    values = (DEEP // 16).astype(np.uint8)
    if name.endswith(".npy"):
        np.save(tmp_path / name, values)
    else:
        Image.fromarray(values).save(tmp_path / name)
    source = open_dataset(tmp_path)
    assert find_range(source) is None
    for setting in ("0,128", "p1,p99", "window"):
        with raises(SourceError, f"value_range {setting}", "these have 8"):
            find_range(source, setting)


def test_a_range_of_one_value_is_none(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.full((3, 4, 4), -7, np.int16))
    with raises(SourceError, "no values but -7", "value_range"):
        find_range(open_dataset(tmp_path / "x.npy"))


def test_windows_that_no_file_has_are_a_mistake(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"a.dcm": dicom(DEEP[:, :, 0]), "b.png": png16(DEEP)})
    with raises(SourceError, "value_range window", "none of 2 images", "p1,p99"):
        find_range(open_dataset(folder), "window")
    write_folder(tmp_path, {"c.dcm": dicom(DEEP[:, :, 0], WindowCenter="40", WindowWidth="400")})
    assert find_range(open_dataset(folder), "window") == ValueRange()
    assert find_range(open_dataset(folder)) != ValueRange()  # not all of them have one


def test_twelve_bits_in_sixteen_are_noticed(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"a.png": png16(DEEP), "b.tif": tiff(DEEP, photometric="rgb")})
    images = ImageDataset(open_dataset(folder))
    for index in range(2):
        np.testing.assert_allclose(images[index].pixels, DEEP / 4095, atol=1e-6)
    with raises(BadImage, "12 of its 16 bits", "value_range"):  # nor where nothing was measured
        Decoder()(png16(DEEP), "a.png")


def test_a_bad_image_is_skipped_and_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = {f"{number}.npy": npy(DEEP) for number in range(6)}
    folder = write_folder(tmp_path, files | {"nan.npy": npy(np.full((4, 4, 3), np.nan))})
    images = ImageDataset(open_dataset(folder))
    assert images[6].index == 0
    assert "skipped nan.npy: holds NaN or infinity" in capfd.readouterr().err
    assert list(images.bad) == ["nan.npy"]


def test_mixed_channel_counts_in_one_folder(tmp_path: Path) -> None:
    five = tiff(np.full((5, 8, 9), 9, np.uint16), photometric="minisblack", planarconfig="separate")
    color = tiff(DEEP, photometric="rgb")
    folder = write_folder(tmp_path, {"a.tif": five, "b.tif": five, "c.tif": color})
    images = ImageDataset(open_dataset(folder), Decoder(value_range=ValueRange(0, 9)))
    with raises(SourceError, "2 of 3 images are bad", "a.tif has 5 channels", "--channels 5"):
        images[0]


# The way to a network


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_the_float_path_equals_that_of_eight_bits(channels: int) -> None:
    pixels = np.random.default_rng(2).integers(0, 256, (40, 50, channels), dtype=np.uint8)
    floats = (pixels / np.float32(255)).astype(np.float32)
    policy = load_policy("byol", size=24)
    native, of_floats = (numba_backend.make_views(each, 0, 1, 2, policy) for each in (pixels, floats))
    slow = reference.make_views(torch.from_numpy(floats).permute(2, 0, 1), 0, 1, 2, policy)
    seeds = [numba_backend.seed_from("views", 0, 1, 2)]
    for one, other, third in zip(native, of_floats, slow, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
        torch.testing.assert_close(third, other, rtol=0, atol=1e-4)
    batch = torch_backend.pack_raw_batch([floats], seeds, [2], policy)
    for one, other in zip(native, torch_backend.make_views(batch, policy, torch.device("cpu")), strict=True):
        torch.testing.assert_close(one, other[0], rtol=0, atol=1e-4)


def test_precision_beyond_eight_bits_arrives() -> None:
    floats = np.linspace(0, 1 / 255, 24 * 24 * 3, dtype=np.float32).reshape(24, 24, 3)  # one step of 8 bits
    (view, *_) = numba_backend.make_views(floats, 0, 0, 0, load_policy("mocov2", size=24))
    assert len(view.unique()) > 200


def test_a_batch_may_hold_both_kinds(tmp_path: Path) -> None:
    eight = io.BytesIO()
    Image.fromarray((DEEP // 16).astype(np.uint8)).save(eight, "PNG")
    folder = write_folder(tmp_path, {"a.png": png16(DEEP), "b.png": eight.getvalue()})
    images = ImageDataset(open_dataset(folder))
    sampler = EpochSampler(2, 2, shuffle=False)
    policy = load_policy("mocov2-small", size=8)
    ((views, indices),) = view_loader(images, policy, sampler)
    assert indices.tolist() == [0, 1]
    on_device = next(iter(view_loader(images, policy, sampler, device=torch.device("cpu"))))
    for one, other in zip(views, on_device[0], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4)
