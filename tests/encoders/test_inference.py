"""`mixview.load`: one image or many, of any kind, shown and encoded as evaluations do."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import mixview
from mixview.data.sources.base import BadImage
from mixview.data.sources.files import Folder
from mixview.encoders.features import extract
from mixview.encoders.inference import Encoder
from mixview.encoders.loading import load as load_subject
from mixview.encoders.transforms import CenterCrop
from tests.data.writing import encode, needs_data, pixels, real, write
from tests.evaluate.small_encoders import run_folder, small


@pytest.fixture
def encoder() -> Encoder:
    return Encoder(small(), torch.device("cpu"))


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return write(tmp_path / "a.png", encode(3, height=20, width=30))


def test_every_kind_of_image_gives_the_same_features(encoder: Encoder, image: Path) -> None:
    expected = encoder(image)
    assert expected.shape == (encoder.feature_dim,)
    array = pixels(3, 20, 30)
    tensor = torch.from_numpy(array).permute(2, 0, 1)
    with Image.open(image) as opened:
        kinds = [str(image), image.read_bytes(), opened, array, array / 255, tensor, tensor / 255]
        for kind in kinds:
            torch.testing.assert_close(encoder(kind), expected, rtol=1e-4, atol=1e-5)
        together = encoder([image, *kinds], batch_size=3)
    assert together.shape == (8, encoder.feature_dim)
    torch.testing.assert_close(together, expected.expand(8, -1), rtol=1e-4, atol=1e-5)
    for several in (np.stack([array, array]), torch.stack([tensor, tensor])):
        torch.testing.assert_close(encoder(several), expected.expand(2, -1), rtol=1e-4, atol=1e-5)


def test_a_generator_of_none_and_of_some(encoder: Encoder, image: Path) -> None:
    assert encoder([]).shape == (0, encoder.feature_dim)
    assert encoder(image for _ in range(3)).shape == (3, encoder.feature_dim)


def test_gray_transparent_and_turned_images_are_read_as_sources_read_them(encoder: Encoder, tmp_path: Path) -> None:
    gray = pixels(1, 12, 12, 1)
    as_color = np.repeat(gray, 3, axis=2)
    for kind in (gray, gray[:, :, 0], Image.fromarray(gray[:, :, 0]), torch.from_numpy(gray).permute(2, 0, 1)):
        torch.testing.assert_close(encoder(kind), encoder(as_color))
    clear = Image.new("RGBA", (12, 12), (200, 0, 0, 0))
    torch.testing.assert_close(encoder(clear), encoder(np.full((12, 12, 3), 255, np.uint8)))
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    Image.fromarray(pixels(2, 12, 20)).save(buffer, "PNG", exif=exif)
    turned = np.ascontiguousarray(np.rot90(pixels(2, 12, 20), -1))
    torch.testing.assert_close(encoder(buffer.getvalue()), encoder(turned))


def test_what_embed_and_evaluate_show_is_what_load_shows(encoder: Encoder, tmp_path: Path) -> None:
    for number in range(5):
        write(tmp_path / "set" / f"{number}.png", encode(number, height=18 + number, width=40))
    source = Folder(tmp_path / "set")
    kept = extract(encoder.loaded, source, CenterCrop(encoder.size), workers=0)["avgpool"]
    torch.testing.assert_close(encoder([source.path(index) for index in range(5)]), kept, rtol=1e-5, atol=1e-6)


def test_load_takes_what_evaluations_take(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run")
    by_folder, by_file = mixview.load(run, device="cpu"), mixview.load(str(run / "encoder.safetensors"), device="cpu")
    array = pixels(0, 40, 40)
    assert torch.equal(by_folder(array), by_file(array))
    loaded = load_subject(str(run), natural_size=224)
    assert by_folder.size == loaded.size == 16
    assert "mocov2 bsim" in repr(by_folder)
    by_name = mixview.load("small", size=24, channels=1, device="cpu")
    assert by_name(array[:, :, 0]).shape == (128,)
    assert by_name.to("cpu") is by_name
    assert not by_folder.module.training
    assert not by_folder(array).requires_grad


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (torch.randn(3, 9, 9), r"floats go from 0 to 1, and these go from .* pass images that are normalized already"),
        (
            torch.zeros(9, 9, 3, dtype=torch.uint8),
            r"shape \[9, 9, 3\] has 9: tensors are \[C, H, W\], arrays \[H, W, C\]",
        ),
        (torch.zeros(3, 9, 9, dtype=torch.int64), r"uint8, 0 to 255, or floats, 0 to 1, not torch.int64"),
        (np.zeros((4, 4, 4), np.uint8), r"takes 3 channels, and this image of shape \[4, 4, 4\] has 4"),
        (np.zeros(4, np.uint8), r"an array \[H, W\] or \[H, W, C\], got \[4\]"),
        (torch.zeros(4, dtype=torch.uint8), r"a tensor \[C, H, W\], and several are \[N, C, H, W\], got \[4\]"),
    ],
    ids=range(6),
)
def test_what_is_not_an_image_raises(encoder: Encoder, given: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        encoder(given)  # type: ignore[arg-type]


def test_errors_name_other_types_and_bad_files(encoder: Encoder, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="an image is a path, bytes, a PIL image, an array or a tensor, not a dict"):
        encoder([{}])  # type: ignore[list-item]
    with pytest.raises(BadImage, match=r"absent.png: cannot be read"):
        encoder(tmp_path / "absent.png")
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        encoder([], batch_size=0)


@needs_data
def test_real_photographs() -> None:
    encoder = mixview.load("resnet18", size=96, device="cpu")
    paths = sorted(real("photos").iterdir())[:4]
    features = encoder(paths)
    with Image.open(paths[1]) as opened:
        torch.testing.assert_close(encoder(opened), features[1], rtol=1e-4, atol=1e-5)
