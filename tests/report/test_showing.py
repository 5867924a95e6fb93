"""The pictures of a report: few pixels of each, however large the photographs are."""

from pathlib import Path

import numpy as np
from PIL import Image

from mixview.data.sources.registry import open_dataset
from mixview.report.showing import PICTURE_SIDE, read_images


def test_pictures_of_large_photographs_take_little_memory(tmp_path: Path) -> None:
    gray = np.linspace(0, 255, 1600).astype(np.uint8)[None].repeat(1200, 0)
    for name in ("large.jpg", "large.png"):
        Image.fromarray(gray).convert("RGB").save(tmp_path / name)
    Image.fromarray(gray[:40, ::40]).convert("RGB").save(tmp_path / "small.png")
    found = read_images(open_dataset(tmp_path), "all", 9)
    pictures = dict(zip(found.names, found.pictures, strict=True))
    assert {name: picture.shape for name, picture in pictures.items()} == {
        "large.jpg": (PICTURE_SIDE, 341, 3),
        "large.png": (PICTURE_SIDE, 341, 3),
        "small.png": (40, 40, 3),
    }
    for name in ("large.jpg", "large.png"):
        expected = np.array(Image.fromarray(gray).resize((341, PICTURE_SIDE)))
        assert abs(pictures[name][:, :, 0].astype(int) - expected).max() <= 3
