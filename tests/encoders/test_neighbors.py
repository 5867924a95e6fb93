"""`mixview neighbors`: look-alikes, near-duplicates and outliers that were planted are found, drawn and listed."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import mixview
from mixview.cli import main
from mixview.data.sources.registry import open_dataset
from mixview.encoders.neighbors import group_duplicates, most_diverse, neighbors, rank_outliers, without_self
from mixview.encoders.search import Neighbors
from mixview.runs.run_directory import RunDirectory
from tests.data.writing import needs_data, pixels, real, write
from tests.evaluate.small_encoders import colored
from tests.train.running import tiny


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
        ({"find": "alike"}, "there is no query to compare with: pass an image or a folder of them as --query"),
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


def names_in(path: Path) -> list[str]:
    return [Path(line.partition("\t")[0]).name for line in path.read_text().splitlines()]


def test_a_list_without_duplicates_and_outliers_is_data(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The round trip: what `neighbors` keeps is what `pretrain --data` learns from, labels included."""
    (images / "red" / "bad.png").write_bytes(b"no image")
    clean = tmp_path / "lists" / "clean.txt"
    options = [
        "--workers",
        "0",
        "--size",
        "16",
        "--count",
        "1",
        "--threshold",
        "0.999",
        "--out",
        str(tmp_path / "a.png"),
    ]
    kept = ["--write_list", str(clean), "--drop", "duplicates,outliers"]
    main(["neighbors", "pixels", "--data", str(images), *options, *kept])
    assert (
        f"wrote {clean}: 24 of 27 images; left out 1 that cannot be read, 1 near-duplicate (cosine 0.999 or more), "
        "1 outlier" in capsys.readouterr().out
    )
    expected = [f"{number:03d}.png" for number in range(12)] * 2
    assert names_in(clean) == expected
    source, whole = open_dataset(clean), open_dataset(images)
    assert source.classes == whole.classes == ("blue", "red")
    labels = source.labels()
    assert labels is not None
    assert labels.tolist() == [0] * 12 + [1] * 12
    run = mixview.pretrain(
        **tiny(tmp_path / "run", data=str(clean), data_options=None, epochs=1, batch_size=8, augment_device="device")
    )
    assert RunDirectory.open(run).data["count"] == 24


def test_the_most_diverse_are_far_from_each_other(images: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"data": str(images), "out": str(tmp_path / "a.png"), "workers": 0, "size": 16}
    for count in (3, 100):
        neighbors("pixels", **options, count=1, write_list=str(tmp_path / f"{count}.txt"), diverse=count)
    kinds = {open_dataset(tmp_path / "3.txt").name(index).split("/")[-2:][0] for index in range(3)}
    assert kinds == {"red", "blue"}
    assert "green.png" in names_in(tmp_path / "3.txt")
    assert len(names_in(tmp_path / "100.txt")) == 26  # there are no more


def test_greedy_centers_are_a_loop_over_all_distances() -> None:
    features = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    features[7] = features[3]
    cosine = torch.nn.functional.cosine_similarity(features[:, None], features[None], dim=2)
    chosen = [int((features / features.norm(dim=1, keepdim=True)).mean(0).mul(
        features / features.norm(dim=1, keepdim=True)).sum(1).argmax())]  # fmt: skip
    while len(chosen) < 12:
        closest = {image: max(float(cosine[image, other]) for other in chosen) for image in range(40)}
        chosen.append(min((image for image in range(40) if image not in chosen), key=lambda image: closest[image]))
    assert most_diverse(features, 12).tolist() == chosen
    assert sorted(most_diverse(features, 40).tolist()) == list(range(40))  # copies, too, once there is nothing else


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"write_list": "a.txt"}, "the list would have all images: pass --drop duplicates,outliers or --diverse"),
        ({"drop": "duplicates"}, "choose the images of a list: pass its file as --write_list"),
        ({"diverse": 3}, "choose the images of a list: pass its file as --write_list"),
        ({"write_list": "a.txt", "drop": "duplicate"}, "'duplicate': did you mean duplicates"),
        ({"write_list": "a.png", "drop": "duplicates"}, "end its name in .txt"),
        ({"write_list": "a.txt", "drop": "duplicates", "query": "b.png"}, "leave --query b.png out"),
        (
            {"write_list": "a.txt", "drop": "outliers", "count": 99},
            "none is left for a.txt .left out 26 outliers.: use",
        ),
    ],
)
def test_lists_that_make_no_sense(options: dict[str, Any], message: str, images: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        neighbors("pixels", data=str(images), workers=0, size=16, out=str(tmp_path / "a.png"), **options)
    with pytest.raises(ValueError, match="kind scenes are not files of their own"):
        neighbors(
            "pixels", data="scenes", data_options={"count": 9, "size": 16}, workers=0, out=str(tmp_path / "a.png"),
            write_list=str(tmp_path / "a.txt"), diverse=2,
        )  # fmt: skip
    assert not list(tmp_path.glob("*.txt"))
