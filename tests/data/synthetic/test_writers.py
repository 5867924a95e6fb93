"""What is written is what other tools read: torchvision's ImageFolder, the VOC development kit's files, pycocotools."""

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from mixview.data.sources.registry import open_dataset
from mixview.data.synthetic import writers as layouts
from mixview.data.synthetic.scenes import Scenes
from mixview.data.synthetic.writers import Layout, run_lengths, voc_palette, write

TRAIN, TEST = Scenes(24, 48), Scenes(10, 48, split="test")
MANY = Scenes(16, 64, objects="multiple")


def close(image: Image.Image, pixels: np.ndarray) -> bool:
    """Whether a JPEG shows these pixels."""
    return bool(np.abs(np.asarray(image.convert("RGB"), np.int16) - pixels).mean() < 5)


def test_a_folder_a_class(tmp_path: Path) -> None:
    from torchvision.datasets import ImageFolder

    folder = write([TRAIN, TEST], tmp_path / "out", "folder", progress=False)
    assert not list(tmp_path.glob("*.part"))
    read = ImageFolder(folder / "train")
    assert read.classes == sorted(TRAIN.classes)
    assert len(read) == 24
    assert len(ImageFolder(folder / "test", allow_empty=True)) == 10
    labels = TRAIN.labels()
    assert labels is not None
    for path, label in read.samples:
        index = int(Path(path).stem.removeprefix("train-"))
        assert read.classes[label] == TRAIN.classes[labels[index]]
        assert close(Image.open(path), TRAIN.read(index))


def test_voc(tmp_path: Path) -> None:
    folder = write([MANY, Scenes(4, 64, split="test", objects="multiple")], tmp_path / "voc", "voc", progress=False)
    root = folder / "VOCdevkit" / "VOC2007"
    main = root / "ImageSets" / "Main"
    lists = {name: (main / f"{name}.txt").read_text().split() for name in ("train", "val", "trainval", "test")}
    assert [len(lists[name]) for name in ("train", "val", "trainval", "test")] == [8, 8, 16, 4]
    assert sorted(lists["train"] + lists["val"]) == lists["trainval"]
    sets = MANY.label_sets()
    assert sets is not None
    for label, kind in enumerate(MANY.classes):
        rows = [line.split() for line in (main / f"{kind}_trainval.txt").read_text().splitlines()]
        assert [name for name, _ in rows] == lists["trainval"]
        assert [int(flag) == 1 for _, flag in rows] == (sets[:, label] == 1).tolist()
        assert {flag for _, flag in rows} <= {"1", "-1"}
    for index, name in enumerate(lists["trainval"]):
        objects = MANY.objects(index)
        tree = ElementTree.parse(root / "Annotations" / f"{name}.xml").getroot()
        assert tree.findtext("size/width") == "64"
        assert [node.findtext("name") for node in tree.iter("object")] == [MANY.classes[k] for k in objects.classes]
        boxes = [
            [int(node.findtext(f"bndbox/{key}") or "") for key in ("xmin", "ymin", "xmax", "ymax")]
            for node in tree.iter("object")
        ]
        assert (np.array(boxes) - [1, 1, 0, 0] == objects.boxes).all()
        assert close(Image.open(root / "JPEGImages" / f"{name}.jpg"), MANY.read(index))
        assert objects.masks is not None
        instances = Image.open(root / "SegmentationObject" / f"{name}.png")
        classes = Image.open(root / "SegmentationClass" / f"{name}.png")
        assert instances.mode == classes.mode == "P"
        assert instances.getpalette()[3:6] == [128, 0, 0]  # type: ignore[index]
        for number, mask in enumerate(objects.masks):
            assert (np.asarray(instances)[mask] == number + 1).all()
            number_in_voc = sorted(MANY.classes).index(MANY.classes[objects.classes[number]]) + 1
            assert (np.asarray(classes)[mask] == number_in_voc).all()
        assert ((np.asarray(instances) > 0) == objects.masks.any(0)).all()


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # pycocotools, about itself
def test_coco(tmp_path: Path) -> None:
    from pycocotools.coco import COCO

    write([MANY, Scenes(4, 64, split="test", objects="multiple")], tmp_path / "coco", "coco", progress=False)
    assert sorted(path.name for path in (tmp_path / "coco").iterdir()) == ["annotations", "train2017", "val2017"]
    coco = COCO(tmp_path / "coco" / "annotations" / "instances_train2017.json")
    names = {category["id"]: category["name"] for category in coco.loadCats(coco.getCatIds())}
    for index, image in enumerate(coco.loadImgs(coco.getImgIds())):
        objects = MANY.objects(index)
        assert objects.masks is not None
        assert close(Image.open(tmp_path / "coco" / "train2017" / image["file_name"]), MANY.read(index))
        annotations = coco.loadAnns(coco.getAnnIds(image["id"]))
        assert [names[each["category_id"]] for each in annotations] == [MANY.classes[k] for k in objects.classes]
        for each, mask, box in zip(annotations, objects.masks, objects.boxes, strict=True):
            assert (coco.annToMask(each) == mask).all()
            left, top, width, height = each["bbox"]
            assert [left, top, left + width, top + height] == box.tolist()
            assert each["area"] == mask.sum()


def test_run_lengths_begin_with_zeros() -> None:
    assert run_lengths(np.array([[1, 0], [1, 1]], bool)) == [0, 2, 1, 1]
    assert run_lengths(np.array([[0, 0], [1, 1]], bool)) == [1, 1, 1, 1]
    assert run_lengths(np.zeros((2, 2), bool)) == [4]


def test_the_palette_is_voc_s() -> None:
    assert voc_palette()[:18] == [0, 0, 0, 128, 0, 0, 0, 128, 0, 128, 128, 0, 0, 0, 128, 128, 0, 128]


def test_a_broken_run_leaves_no_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(layouts, "save_voc_xml", fail)
        with pytest.raises(OSError, match="disk full"):
            write(TRAIN, tmp_path / "voc", "voc", progress=False)
    assert not (tmp_path / "voc").exists()
    assert (tmp_path / "voc.part").exists()
    write(TRAIN, tmp_path / "voc", "voc", progress=False)
    assert not (tmp_path / "voc.part").exists()


def test_what_cannot_be_written_raises_before_anything_is_drawn(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(FileExistsError, match="write to another folder"):
        write(TRAIN, tmp_path / "full")
    with pytest.raises(ValueError, match='use layout "voc" or "coco"'):
        write(MANY, tmp_path / "out", "folder")
    with pytest.raises(ValueError, match="folder, voc, coco, not 'yolo'"):
        write(TRAIN, tmp_path / "out", "yolo")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="once, got train, train"):
        write([TRAIN, TRAIN], tmp_path / "out")
    with pytest.raises(ValueError, match="the same classes"):
        write([TRAIN, Scenes(5, classes=3, split="test")], tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_an_empty_folder_is_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write(Scenes(2, 16), tmp_path / "out", "coco", progress=False)
    document = json.loads((tmp_path / "out" / "annotations" / "instances_train2017.json").read_text())
    assert len(document["images"]) == 2


@pytest.mark.parametrize("layout", ["voc", "coco"])
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # pycocotools, about itself
def test_class_maps_survive(layout: Layout, tmp_path: Path) -> None:
    """By name: VOC and COCO number the classes in an order of their own."""
    few = Scenes(4, 64, split="train", objects="multiple")
    source = open_dataset(write(few, tmp_path / layout, layout, progress=False)).segmentation()
    assert source is not None
    assert source.classes is not None
    names = np.array(["background", *source.classes])
    own = np.array(["background", *few.classes])
    for index in range(4):
        assert (names[source.class_map(index)] == own[few.class_map(index)]).all()
