"""COCO in its official layout."""

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixview.data.sources.base import IGNORED, SourceError
from mixview.data.sources.coco import Coco, draw_mask, locate, run_lengths
from tests.data.writing import encode, needs_data, raises, real, write


def instances() -> dict[str, Any]:
    square = [[2, 1, 6, 1, 6, 5, 2, 5]]
    return {
        "images": [{"id": 40 - n, "file_name": f"{n:012d}.jpg", "height": 8, "width": 10} for n in range(3)],
        "categories": [{"id": 90, "name": "toothbrush"}, {"id": 1, "name": "person"}, {"id": 13, "name": "stop sign"}],
        "annotations": [
            {"id": 1, "image_id": 40, "category_id": 90, "bbox": [2, 1, 4, 4], "iscrowd": 0, "segmentation": square},
            {"id": 2, "image_id": 38, "category_id": 1, "bbox": [0, 0, 1, 1], "iscrowd": 0, "segmentation": square},
            {
                "id": 3,
                "image_id": 40,
                "category_id": 1,
                "bbox": [0, 0, 1, 8],
                "iscrowd": 1,
                "segmentation": {"size": [8, 10], "counts": [0, 8, 72]},  # the first column
            },
        ],
    }


def write_coco(root: Path, content: dict[str, Any] | None = None, split: str = "train2017") -> Path:
    write(root / "annotations" / f"instances_{split}.json", json.dumps(content or instances()))
    for number in range(3):
        write(root / split / f"{number:012d}.jpg", encode(number, "JPEG"))
    return root


def test_coco(tmp_path: Path) -> None:
    source = pickle.loads(pickle.dumps(Coco(write_coco(tmp_path))))
    assert locate(tmp_path) == tmp_path
    assert source.classes == ("person", "stop sign", "toothbrush")
    assert source.category_ids.tolist() == [1, 13, 90]
    assert source.image_ids.tolist() == [40, 39, 38]
    assert source.label_sets().tolist() == [[1, 0, 1], [0, 0, 0], [1, 0, 0]]
    assert source.name(2) == "train2017/000000000002.jpg"
    assert source.read(2) == encode(2, "JPEG")


def test_objects_polygons_and_crowds(tmp_path: Path) -> None:
    objects = Coco(write_coco(tmp_path)).objects(0)
    assert objects.boxes.tolist() == [[2, 1, 6, 5], [0, 0, 1, 8]]
    assert objects.classes.tolist() == [2, 0]
    assert objects.crowd.tolist() == [False, True]
    assert not objects.difficult.any()
    assert objects.masks is not None
    square = np.zeros((8, 10), bool)
    square[1:5, 2:6] = True
    column = np.zeros((8, 10), bool)
    column[:, 0] = True
    np.testing.assert_array_equal(objects.masks, [square, column])


def test_compressed_codes_several_rings_and_slivers(tmp_path: Path) -> None:
    from pycocotools import mask as coco_mask

    content = instances()
    code = coco_mask.encode(np.asfortranarray(np.eye(8, 10, dtype=np.uint8)))
    content["annotations"][0]["segmentation"] = {"size": [8, 10], "counts": code["counts"].decode()}
    rings = [[0, 0, 2, 0, 2, 2, 0, 2], [5, 5, 8, 5, 8, 7, 5, 7], [1, 1, 2, 2]]
    content["annotations"][1]["segmentation"] = rings
    source = Coco(write_coco(tmp_path, content))
    masks = source.objects(0).masks
    assert masks is not None
    np.testing.assert_array_equal(masks[0], np.eye(8, 10, dtype=bool))
    masks = source.objects(2).masks
    assert masks is not None
    assert masks[0].sum() == 4 + 6


def test_an_image_without_objects(tmp_path: Path) -> None:
    objects = Coco(write_coco(tmp_path)).objects(1)
    assert objects.boxes.shape == (0, 4)
    assert objects.masks is not None
    assert objects.masks.shape == (0, 8, 10)


def test_without_masks_or_without_pycocotools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycocotools", None)
    root = write_coco(tmp_path)
    assert Coco(root, masks=False).objects(0).masks is None
    with raises(SourceError, "pip install", "masks=False"):
        Coco(root).objects(0)
    content = instances()
    for annotation in content["annotations"]:
        del annotation["segmentation"]
    assert Coco(write_coco(tmp_path, content)).objects(0).masks is None


def test_an_object_without_outline(tmp_path: Path) -> None:
    """It takes the masks of its own image only; one without area has none to lose."""
    content = instances()
    content["annotations"][1]["segmentation"] = []
    content["annotations"].append({"id": 4, "image_id": 40, "category_id": 1, "bbox": [5, 5, 0, 0], "segmentation": []})
    source = Coco(write_coco(tmp_path, content))
    masks = source.objects(0).masks
    assert masks is not None
    assert [int(mask.sum()) for mask in masks] == [16, 8, 0]
    assert source.objects(2).masks is None


def test_absent_images(tmp_path: Path) -> None:
    root = write_coco(tmp_path)
    (root / "train2017" / "000000000001.jpg").unlink()
    with raises(SourceError, "names 1 images that are not in", "000000000001.jpg", 'absent="skip"'):
        Coco(root)
    source = Coco(root, absent="skip")
    assert source.image_ids.tolist() == [40, 38]
    assert source.objects(1).classes.tolist() == [0]
    assert list(source.skipped) == ["train2017/000000000001.jpg"]


def test_images_in_subfolders(tmp_path: Path) -> None:
    content = instances()
    content["images"][0]["file_name"] = "sub/a.jpg"
    write(tmp_path / "train2017" / "sub" / "a.jpg", encode(7))
    assert Coco(write_coco(tmp_path, content)).read(0) == encode(7)


def test_splits(tmp_path: Path) -> None:
    root = write_coco(tmp_path)
    write_coco(tmp_path, split="val2017")
    assert Coco(root, split="val").name(0).startswith("val2017/")
    assert Coco(root, split="val2017").name(0).startswith("val2017/")
    with raises(SourceError, "instances_test.json", "train2017, val2017"):
        Coco(root, split="test")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[1, 2", ["not a COCO file"]),
        ("{", ["cannot be read"]),
        ("[]", ["not a COCO file"]),
        ('{"images": []}', ["`annotations`"]),
    ],
)
def test_broken_files(tmp_path: Path, content: str, words: list[str]) -> None:
    root = write_coco(tmp_path)
    write(root / "annotations" / "instances_train2017.json", content)
    with raises(SourceError, *words):
        Coco(root)


def test_unknown_category_and_no_folder_of_images(tmp_path: Path) -> None:
    content = instances()
    content["annotations"][0]["category_id"] = 7
    with raises(SourceError, "category 7", "has no name"):
        Coco(write_coco(tmp_path, content))
    write(tmp_path / "annotations" / "instances_val2017.json", json.dumps(instances()))
    with raises(SourceError, "val2017, are not", "download"):
        Coco(tmp_path, split="val")


@pytest.mark.parametrize(
    ("list_name", "field", "place"),
    [
        ("images", "height", r"images\[0\]"),
        ("images", "file_name", r"images\[0\]"),
        ("annotations", "bbox", r"annotations\[0\]"),
        ("annotations", "image_id", r"annotations\[0\]"),
        ("categories", "name", r"categories\[0\]"),
    ],
)
def test_an_entry_without_a_field_is_named(tmp_path: Path, list_name: str, field: str, place: str) -> None:
    content = instances()
    del content[list_name][0][field]
    with raises(SourceError, field, place):
        Coco(write_coco(tmp_path, content))


@pytest.mark.parametrize(
    "segmentation",
    [
        [[0, 0, 1e8, 0, 1e8, 1e8]],  # crashed the process
        [[0, 0, -1e300, 0, 5, 5]],
        [[0, 0, 100_000, 100_000] * 200],  # far less than a megabyte of text, gigabytes in C
        [[0, 0, "nan", 0, 5, 5]],
        [5],
        {"size": [8, 10], "counts": [0, 2**40]},
        {"size": [8, 10], "counts": [0, 8, 71]},
        {"size": [10, 8], "counts": [0, 8, 72]},
        {"size": [8, 10], "counts": "oooooooooooooo0"},
        {"size": [8, 10], "counts": "o"},
        {"size": [8, 10], "counts": "Ö"},
        {"size": [8, 10], "counts": ""},
        {"size": [8], "counts": []},
    ],
)
def test_segmentations_that_no_image_has(tmp_path: Path, segmentation: Any) -> None:
    content = instances()
    content["annotations"][0]["segmentation"] = segmentation
    with raises(SourceError, "annotation", "correct"):
        Coco(write_coco(tmp_path, content))


@pytest.mark.parametrize("bbox", [[0, 0, 1e9, 1], [1, 2, 3], [0, 0, 1, None], "1234"])
def test_boxes_that_no_image_has(tmp_path: Path, bbox: Any) -> None:
    content = instances()
    content["annotations"][0]["bbox"] = bbox
    with raises(SourceError, r"annotations\[0\].bbox"):
        Coco(write_coco(tmp_path, content))


@pytest.mark.parametrize("size", [(10**9, 1), (90_000, 90_000), (0, 5), (2**70, 2), ("a", 5)])
def test_sizes_that_no_image_has(tmp_path: Path, size: tuple[Any, Any]) -> None:
    content = instances()
    content["images"][0] |= {"height": size[0], "width": size[1]}
    with raises(SourceError, "correct"):
        Coco(write_coco(tmp_path, content))


def test_run_lengths_are_those_of_coco() -> None:
    from pycocotools import mask as coco_mask

    rng = np.random.default_rng(0)
    for share in (0.0, 0.01, 0.5, 1.0):
        mask = rng.random((37, 53)) < share
        text = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))["counts"].decode()
        runs = run_lengths(text)
        assert runs is not None
        np.testing.assert_array_equal(draw_mask(b"r" + runs.astype("<u4").tobytes(), 37, 53), mask)


@needs_data
def test_real_coco() -> None:
    from pycocotools.coco import COCO

    root = real("coco")
    source = Coco(root, split="val")
    theirs = COCO(str(root / "annotations" / "instances_val2017.json"))
    assert len(source) == 100
    assert source.classes is not None
    assert len(source.classes) == 80
    for index in range(0, 100, 20):
        objects = source.objects(index)
        annotations = theirs.loadAnns(theirs.getAnnIds([int(source.image_ids[index])]))
        assert source.category_ids[objects.classes].tolist() == [each["category_id"] for each in annotations]
        assert objects.masks is not None
        for mask, each in zip(objects.masks, annotations, strict=True):
            np.testing.assert_array_equal(mask, theirs.annToMask(each).astype(bool))


def test_class_maps_of_polygons_and_run_lengths(tmp_path: Path) -> None:
    """What two classes claim is unknown; what one claims twice is of that class."""
    content = instances()
    overlapping = {"image_id": 40, "bbox": [4, 1, 4, 4], "segmentation": [[4, 1, 8, 1, 8, 5, 4, 5]]}
    content["annotations"] += [overlapping | {"id": 4, "category_id": 13}]
    content["annotations"] += [overlapping | {"id": 5, "category_id": 13}]
    source = Coco(write_coco(tmp_path, content)).segmentation()
    assert source is not None
    assert len(source) == 3
    expected = np.zeros((8, 10), np.int16)
    expected[1:5, 2:6] = 3
    expected[1:5, 6:8] = 2
    expected[1:5, 4:6] = IGNORED
    expected[:, 0] = 1
    assert source.class_map(0).tolist() == expected.tolist()
    assert not source.class_map(1).any()  # no objects: background


def test_images_with_objects_without_outlines_have_no_class_map(tmp_path: Path) -> None:
    content = instances()
    del content["annotations"][1]["segmentation"]
    source = Coco(write_coco(tmp_path, content)).segmentation()
    assert source is not None
    assert [source.name(index)[-7:] for index in range(len(source))] == ["000.jpg", "001.jpg"]
    for each in content["annotations"]:
        each.pop("segmentation", None)
    assert Coco(write_coco(tmp_path, content)).segmentation() is None
    assert Coco(write_coco(tmp_path), masks=False).segmentation() is None
