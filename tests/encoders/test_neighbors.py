"""`mixview neighbors`: look-alikes, near-duplicates and outliers that were planted are found, drawn and listed."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mixview.cli import main
from mixview.encoders.neighbors import group_duplicates, neighbors, rank_outliers, without_self
from mixview.encoders.search import Neighbors
from tests.data.writing import needs_data, pixels, real, write
from tests.evaluate.small_encoders import colored


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Red and blue noise, two copies of one image, and a green one."""
    root = colored(tmp_path / "set", {"red": 12})
    colored(root, {"a": 0, "b": 0, "blue": 12})
    for name in ("a", "b"):
        (root / name).rmdir()
    with Image.open(root / "red" / "003.png") as image:
        brighter = np.asarray(image).clip(0, 254) + 1
    Image.fromarray(brighter).save(root / "red" / "copy.bmp")
    Image.fromarray(np.full((20, 20, 3), (20, 250, 20), np.uint8)).save(root / "red" / "green.png")
    return root


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_similar_images(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = write(tmp_path / "query.png", (images / "blue" / "005.png").read_bytes())
    out = tmp_path / "sheets" / "alike.png"
    options = ["--data", str(images), "--out", str(out), "--workers", "0", "--size", "16"]
    main(["neighbors", "pixels", *options, "--query", str(query), "--count", "12"])
    listed = rows(out.with_suffix(".csv"))
    assert listed[0] == {"find": "alike", "group": "0", "path": "query.png", "cosine": "1.0000"}
    assert listed[1]["path"] == "blue/005.png"
    assert all(row["path"].startswith("blue/") for row in listed[1:])
    assert len(listed) == 13
    text = capsys.readouterr().out
    assert "like query.png:\n   1.000  blue/005.png" in text
    with Image.open(out) as sheet:
        assert sheet.width > 8 * 160


def test_a_folder_of_queries(images: Path, tmp_path: Path) -> None:
    colored(tmp_path / "asked", {"red": 2}, seed=5)
    found = neighbors(
        "pixels", data=str(images), query=str(tmp_path / "asked"), size=16, workers=0, count=3,
        out=str(tmp_path / "a.png"),
    )  # fmt: skip
    assert [len(each.images) for each in found] == [4, 4]
    assert [row["path"].partition("/")[0] for row in rows(tmp_path / "a.csv")] == ["red"] * 8


def test_duplicates_and_outliers(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "odd.png"
    options: dict[str, Any] = {"data": str(images), "out": str(out), "workers": 0, "size": 16}
    neighbors("pixels", **options, count=1, threshold=0.999, neighbors=5)
    listed = rows(out.with_suffix(".csv"))
    assert {row["path"] for row in listed if row["find"] == "duplicates"} == {"red/003.png", "red/copy.bmp"}
    assert [row["path"] for row in listed if row["find"] == "outliers"] == ["red/green.png"]
    assert out.exists()
    neighbors("pixels", **options, find="duplicates", threshold=1)
    assert "no two images have a cosine of 1 or more" in capsys.readouterr().out


def test_groups_are_linked_pairs_and_no_image_is_its_own_neighbor() -> None:
    angles = torch.tensor([0.0, 0.05, 0.1, 2.0, 2.02, 4.0])
    bank = torch.stack([angles.cos(), angles.sin()], dim=1)
    cosine, position = (bank @ bank.T).sort(dim=1, descending=True)
    near = without_self(Neighbors(cosine, position))
    assert near.position.shape == (6, 5)
    assert not (near.position == torch.arange(6).unsqueeze(1)).any()
    groups = group_duplicates(near, bank, 0.998)
    assert [group.images for group in groups] == [[3, 4], [0, 1, 2]]
    assert groups[1].scores[2] == pytest.approx(np.cos(0.1), abs=1e-4)
    assert rank_outliers(near, 1).images == [5]


def test_identical_images_lose_their_farthest_neighbor_instead_of_themselves() -> None:
    near = Neighbors(torch.ones(3, 2), torch.tensor([[1, 2], [0, 1], [0, 2]]))
    assert without_self(near).position.tolist() == [[1], [0], [0]]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"find": "alike"}, "there is no query to compare with: give --query"),
        ({"find": "outliers", "query": "a.png"}, "--find outliers takes no query: leave --query a.png out"),
        ({"out": "list.txt"}, "the contact sheet is a picture, not 'list.txt'"),
        ({"threshold": 95}, "the threshold is a cosine, -1 to 1, got 95"),
        ({"count": 0}, "--count must be a whole number, at least 1, got 0"),
        ({"query": "absent.png"}, "absent.png: cannot be read"),
    ],
)
def test_mistakes(options: dict[str, Any], words: str, images: Path) -> None:
    with pytest.raises(ValueError, match=words):
        neighbors("pixels", data=str(images), size=16, workers=0, **options)


def test_a_single_image_has_no_outliers(tmp_path: Path) -> None:
    write(tmp_path / "set" / "a.png", None)
    Image.fromarray(pixels(0)).save(tmp_path / "set" / "a.png")
    with pytest.raises(ValueError, match="a single image has no neighbors"):
        neighbors("pixels", data=str(tmp_path / "set"), size=8, workers=0, out=str(tmp_path / "a.png"))


@needs_data
def test_copies_of_real_photographs_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, path in enumerate(sorted(real("photos").iterdir())[:30]):
        (folder / path.name).write_bytes(path.read_bytes())
        if number < 4:  # smaller, and encoded anew
            with Image.open(path) as image:
                small = image.convert("RGB").resize((image.width // 2, image.height // 2))
                small.save(folder / f"copy-{number}-{path.stem}.jpg", quality=70)
    out = tmp_path / "a.png"
    found = neighbors("pixels", data=str(folder), size=32, workers=0, find="duplicates", out=str(out))
    names = sorted(Path(row["path"]).stem for row in rows(out.with_suffix(".csv")))
    assert len(found) == 4
    assert all(len(each.images) == 2 for each in found)
    assert sum(name.startswith("copy-") for name in names) == 4
