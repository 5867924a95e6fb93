"""Annotations of COCO and VOC with missing, odd and extreme values (items 16 and 19)."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.harness import Sandbox
from tests.hostile.writing import write_coco, write_voc

SHOW = ("data", "show", "set", "--out", "out/a.png", "--count", "4")


@pytest.fixture(scope="session")
def coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound COCO."""
    return write_coco(tmp_path_factory.mktemp("coco") / "set")


@pytest.fixture(scope="session")
def voc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound VOC."""
    return write_voc(tmp_path_factory.mktemp("voc") / "set")


def change(box: Sandbox, coco: Path, table: str, key: str, value: Any) -> None:
    """A copy in which every row of a table has another value, or (with ...) none."""
    box.copy(coco, "set")
    for path in (box.work / "set" / "annotations").glob("*.json"):
        content = json.loads(path.read_text())
        for row in content[table]:
            if value is ...:
                row.pop(key, None)
            else:
                row[key] = copy.deepcopy(value)
        path.write_text(json.dumps(content))


POLYGONS: dict[str, Any] = {
    "1e8": [[1e8, 1e8, 2e8, 1e8, 2e8, 2e8]],
    "1e300": [[1e300, 0, 1, 1, 2, 2]],
    "negative": [[-1e9, -1e9, 5, 5, 9, -1e9]],
    "nan": [[float("nan")] * 6],
    "infinite": [[float("inf")] * 6],
    "odd": [[1, 2, 3, 4, 5]],
    "empty-ring": [[]],
    "words": [["a"] * 6],
    "null": [None],
    "number": 3,
    "text": "x",
    "many": [[0, 0, 5, 5, 5, 0] * 20_000],
    "rings": [[0, 0, 5, 5, 5, 0]] * 5000,
    "nested": [[[1, 2], [3, 4], [5, 6]]],
    "huge-int": [[10**400] * 6],
    "mixed": [[0, 0, 5, 5, 5, 0], "x"],
    "int32": [[2**31, 2**31, 0, 0, 5, 0]],
    "int64": [[2**63, 0, 0, 5, 5, 0]],
    "1e7": [[0, 0, 1e7, 0, 1e7, 1e7]],
    "rle": {"counts": [0, 10], "size": [32, 32]},
    "rle-size": {"counts": [0, 10], "size": [10**6, 10**6]},
    "rle-text": {"counts": "zzzz", "size": [32, 32]},
    "rle-negative": {"counts": [-5, 10], "size": [32, 32]},
    "rle-long": {"counts": [10**9] * 5, "size": [32, 32]},
    "rle-no-size": {"counts": [1]},
    "rle-no-counts": {"size": [32, 32]},
    "rle-nan": {"counts": [float("nan")], "size": [32, 32]},
    "rle-bytes": {"counts": "\u00ff" * 100, "size": [32, 32]},
    "rle-other-size": {"counts": [0, 100], "size": [10, 10]},
    "rle-text-overrun": {"counts": "oooooooooooooooooooo", "size": [32, 32]},
    "rle-size-text": {"counts": [1], "size": "x"},
}


@pytest.mark.parametrize("kind", POLYGONS)
def test_segmentations(kind: str, box: Sandbox, coco: Path) -> None:
    change(box, coco, "annotations", "segmentation", POLYGONS[kind])
    box.run(*SHOW).answered()


VALUES: dict[str, Any] = {
    "missing": ...,
    "null": None,
    "text": "x",
    "list": [],
    "object": {},
    "negative": -1,
    "huge": 10**30,
    "nan": float("nan"),
    "zero": 0,
    "half": 1.5,
    "true": True,
}
FIELDS = [
    ("images", "id"),
    ("images", "file_name"),
    ("images", "height"),
    ("images", "width"),
    ("annotations", "bbox"),
    ("annotations", "image_id"),
    ("annotations", "category_id"),
    ("annotations", "area"),
    ("annotations", "iscrowd"),
    ("annotations", "segmentation"),
    ("categories", "id"),
    ("categories", "name"),
]
QUICK = ("missing", "null", "huge")


@pytest.mark.parametrize(
    "kind", [pytest.param(each, marks=() if each in QUICK else pytest.mark.slow) for each in VALUES]
)
@pytest.mark.parametrize("field", FIELDS, ids=".".join)
def test_fields(field: tuple[str, str], kind: str, box: Sandbox, coco: Path) -> None:
    change(box, coco, *field, VALUES[kind])
    box.run(*SHOW).answered()


BOXES = (
    [0, 0, 0],
    [0, 0, 1, 1, 1],
    [[0, 0, 1, 1]],
    ["a"] * 4,
    [None] * 4,
    [1e300] * 4,
    [float("nan")] * 4,
    [10**400] * 4,
    [0, 0, -5, -5],
    [1e9, 1e9, 1, 1],
)


@pytest.mark.parametrize("value", BOXES, ids=lambda value: str(value)[:16])
def test_boxes(value: list[Any], box: Sandbox, coco: Path) -> None:
    change(box, coco, "annotations", "bbox", value)
    box.run(*SHOW).answered()


FILES: dict[str, bytes] = {
    "empty": b"",
    "list": b"[]",
    "null": b"null",
    "half": b'{"images": [',
    "deep": b"[" * 200_000,
    "no-lists": b'{"images": 3, "annotations": {}, "categories": null}',
    "rows-numbers": b'{"images": [3], "annotations": [4], "categories": [5]}',
    "rows-null": b'{"images": [null], "annotations": [null], "categories": [null]}',
    "nothing": b'{"images": [], "annotations": [], "categories": []}',
    "not-utf-8": b'{"images": ["\xff"]}',
    "nan": b"NaN",
    "huge-number": b'{"images": [' + b"9" * 6000 + b"]}",
    "two-ids": b'{"images": [{"id": 1, "file_name": "a", "height": 1, "width": 1}, {"id": 1, "file_name": "a", "height": 1, "width": 1}], "annotations": [], "categories": []}',  # noqa: E501
}


@pytest.mark.parametrize("kind", FILES)
def test_files(kind: str, box: Sandbox, coco: Path) -> None:
    box.copy(coco, "set")
    for path in (box.work / "set" / "annotations").glob("*.json"):
        path.write_bytes(FILES[kind])
    box.run(*SHOW).rejected()


@pytest.mark.parametrize("size", [(10**9, 10**9), (10**5, 10**5), (-1, -1), (0, 0)], ids=str)
def test_sizes_that_the_images_do_not_have(size: tuple[int, int], box: Sandbox, coco: Path) -> None:
    """Masks are of the size that the annotations say: that must not fill the memory."""
    change(box, coco, "images", "height", size[0])
    for path in (box.work / "set" / "annotations").glob("*.json"):
        content = json.loads(path.read_text())
        content["images"] = [row | {"width": size[1]} for row in content["images"]]
        path.write_text(json.dumps(content))
    box.run(*SHOW).answered()


def laughs() -> str:
    """A billion of them."""
    lines = ["<!ENTITY a0 'ha'>"] + [f"<!ENTITY a{n} '{f'&a{n - 1};' * 10}'>" for n in range(1, 12)]
    return f"<?xml version='1.0'?><!DOCTYPE x [{''.join(lines)}]><annotation>&a11;</annotation>"


ANNOTATION = "<annotation><object><name>{name}</name><bndbox><xmin>{x}</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object></annotation>"  # noqa: E501
XMLS = {
    "empty": "",
    "text": "x",
    "half": "<annotation><obj",
    "other-root": "<html/>",
    "laughs": laughs(),
    "deep": "<a>" * 20_000,
    "no-box": "<annotation><object><name>x</name></object></annotation>",
    "external": "<!DOCTYPE x [<!ENTITY e SYSTEM 'file:///etc/passwd'>]><annotation>&e;</annotation>",
    "remote": "<!DOCTYPE x SYSTEM 'http://127.0.0.1:9/x.dtd'><annotation/>",
    "quadratic": "<!DOCTYPE x [<!ENTITY e '" + "x" * 50_000 + "'>]><annotation>" + "&e;" * 20_000 + "</annotation>",
    "utf-7": "<?xml version='1.0' encoding='utf-7'?><a/>",
    "no-such-code": "<?xml version='1.0' encoding='nope'?><a/>",
    "unknown-class": ANNOTATION.format(name="nope", x=1),
    "nan": ANNOTATION.format(name="circle", x="nan"),
    "huge": ANNOTATION.format(name="circle", x="1e300"),
    "word": ANNOTATION.format(name="circle", x="a"),
    "huge-int": ANNOTATION.format(name="circle", x="9" * 5000),
    "infinite": ANNOTATION.format(name="circle", x="inf"),
    "no-name": ANNOTATION.format(name="", x=1),
}


@pytest.mark.parametrize("kind", XMLS)
def test_annotations_of_voc(kind: str, box: Sandbox, voc: Path) -> None:
    box.copy(voc, "set")
    for path in (box.work / "set").rglob("Annotations/*.xml"):
        path.write_text(XMLS[kind])
    box.run(*SHOW).answered()


@pytest.mark.parametrize("kind", ["empty", "absent", "binary", "presence", "long", "no-file", "masks"])
def test_lists_of_voc(kind: str, box: Sandbox, voc: Path) -> None:
    box.copy(voc, "set")
    for path in (box.work / "set").rglob("ImageSets/Main/*.txt"):
        match kind:
            case "empty":
                path.write_text("")
            case "absent":
                path.write_text("absent\n" * 5)
            case "binary":
                path.write_bytes(b"\xff\xfe\x00")
            case "presence":
                path.write_text("".join(f"{line.split()[0]} 7\n" for line in path.read_text().splitlines()))
            case "long":
                path.write_text("x" * 1_000_000)
            case "no-file" if "_" in path.stem:
                path.unlink()
    if kind == "masks":
        for path in (box.work / "set").rglob("SegmentationObject/*.png"):
            path.write_bytes(b"x")
    box.run(*SHOW).answered()


@pytest.mark.parametrize("kind", ["1e8", "rle-size", "nan"])
@pytest.mark.slow
def test_detection_of_odd_segmentations(kind: str, box: Sandbox, coco: Path) -> None:
    change(box, coco, "annotations", "segmentation", POLYGONS[kind])
    line = (
        "evaluate",
        "detection",
        "random",
        "--backbone",
        "resnet18",
        "--data",
        "set",
        "--iterations",
        "1",
        "--batch_size",
        "1",
        "--out",
        "out",
        "--workers",
        "0",
    )
    box.run(*line, seconds=60).harmless(seconds=60)
