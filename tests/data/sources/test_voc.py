"""PASCAL VOC in its official layout."""

import io
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mixview.data.sources.base import IGNORED, SourceError
from mixview.data.sources.splits import Subset
from mixview.data.sources.voc import Voc, locate
from mixview.data.synthetic.writers import voc_palette
from tests.data.writing import encode, needs_data, raises, real, write

OBJECT = """<object><name>{name}</name><difficult>{difficult}</difficult>
<bndbox><xmin>{box[0]}</xmin><ymin>{box[1]}</ymin><xmax>{box[2]}</xmax><ymax>{box[3]}</ymax></bndbox>
<part><name>head</name><bndbox><xmin>9</xmin><ymin>9</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></part></object>"""

# image -> (class, difficult, box as VOC writes it)
CONTENT = {
    "000001": [("dog", 0, (1, 1, 10, 8)), ("cat", 1, (2.5, 3, 4, 5))],
    "000002": [("cat", 0, (1, 1, 2, 2)), ("cat", 1, (1, 1, 1, 1))],
    "000003": [],
}


def write_year(root: Path, year: int = 2007, split: str = "trainval", per_class: bool = True) -> Path:
    folder = root / f"VOC{year}"
    for number, (image, objects) in enumerate(CONTENT.items()):
        write(folder / "JPEGImages" / f"{image}.jpg", encode(number, "JPEG"))
        items = "".join(OBJECT.format(name=name, difficult=hard, box=box) for name, hard, box in objects)
        write(folder / "Annotations" / f"{image}.xml", f"<annotation>{items}</annotation>")
    write(folder / "ImageSets" / "Main" / f"{split}.txt", "".join(f"{image}\n" for image in CONTENT))
    if per_class:
        write(folder / "ImageSets" / "Main" / f"dog_{split}.txt", "000001  1\n000002 -1\n000003 -1\n")
        write(folder / "ImageSets" / "Main" / f"cat_{split}.txt", "000001  0\n000002  1\n000003 -1\n")
    mask = Image.new("P", (10, 8), 0)
    mask.putpalette([0, 0, 0, 128, 0, 0, 0, 128, 0])
    mask.putpixel((3, 2), 1)
    mask.putpixel((4, 2), 2)
    mask.putpixel((5, 2), 255)
    buffer = io.BytesIO()
    mask.save(buffer, "PNG")
    write(folder / "SegmentationObject" / "000001.png", buffer.getvalue())
    return folder


@pytest.mark.parametrize("per_class", [True, False])
def test_one_year(tmp_path: Path, per_class: bool) -> None:
    folder = write_year(tmp_path / "VOCdevkit", per_class=per_class)
    for root in (folder, tmp_path / "VOCdevkit", tmp_path):
        assert locate(root) is not None
        source = pickle.loads(pickle.dumps(Voc(root)))
        assert source.name(1) == "VOC2007/JPEGImages/000002.jpg"
        assert source.read(1) == encode(1, "JPEG")
        assert source.classes == ("cat", "dog")
        assert source.label_sets().tolist() == [[-1, 1], [1, 0], [0, 0]]
        assert source.label_sets().dtype == np.int8
        assert source.labels() is None


def test_objects(tmp_path: Path) -> None:
    source = Voc(write_year(tmp_path))
    objects = source.objects(0)
    assert objects.boxes.tolist() == [[0, 0, 10, 8], [1.5, 2, 4, 5]]
    assert objects.classes.tolist() == [1, 0]
    assert objects.difficult.tolist() == [False, True]
    assert objects.crowd.tolist() == [False, False]
    assert objects.masks is not None
    assert [np.argwhere(mask).tolist() for mask in objects.masks] == [[[2, 3]], [[2, 4]]]
    assert source.objects(1).masks is None
    assert source.objects(2).boxes.shape == (0, 4)


def test_several_years(tmp_path: Path) -> None:
    write_year(tmp_path, 2007)
    write_year(tmp_path, 2012)
    write_year(tmp_path, 2007, "test")
    both = Voc(tmp_path)
    assert len(both) == 6
    assert both.name(3) == "VOC2012/JPEGImages/000001.jpg"
    assert both.label_sets().tolist() == [[-1, 1], [1, 0], [0, 0]] * 2
    assert len(Voc(tmp_path, years="2012")) == 3
    assert len(Voc(tmp_path, years="2007+2012")) == 6
    assert Voc(tmp_path, split="test").years == ("VOC2007",)
    with raises(SourceError, "VOC2012", "test.txt", "trainval"):
        Voc(tmp_path, split="test", years="2007+2012")
    with raises(SourceError, "VOC2007, VOC2012", "years=2008"):
        Voc(tmp_path, years="2008")
    with raises(SourceError, "years=07", "2007[+]2012"):
        Voc(tmp_path, years="07+12")


def test_without_its_split_file(tmp_path: Path) -> None:
    folder = write_year(tmp_path)
    with raises(SourceError, "VOC2007", "no split file ImageSets/Main/test.txt", "its splits are trainval"):
        Voc(folder, split="test")
    (folder / "ImageSets" / "Main" / "trainval.txt").unlink()
    with raises(SourceError, "no split file ImageSets/Main/trainval.txt", "download"):
        Voc(folder)
    write(folder / "ImageSets" / "Main" / "trainval.txt", "\n")
    with raises(SourceError, "trainval.txt names no images"):
        Voc(folder)


def test_what_is_no_voc_and_broken_annotations(tmp_path: Path) -> None:
    assert locate(tmp_path) is None
    with raises(SourceError, "holds no VOC2007"):
        Voc(tmp_path)
    folder = write_year(tmp_path)
    write(folder / "Annotations" / "000001.xml", "<annotation><object>")
    with raises(SourceError, "000001.xml", "cannot be read"):
        Voc(folder).objects(0)
    item = OBJECT.format(name="cow", difficult=0, box=(1, 1, 2, 2))
    write(folder / "Annotations" / "000001.xml", f"<annotation>{item}</annotation>")
    with raises(SourceError, "'cow'", "cow_trainval.txt"):
        Voc(folder).objects(0)


@needs_data
def test_real_voc() -> None:
    source = Voc(real("VOCdevkit"), split="test")
    assert len(source) == 800
    assert source.classes is not None
    assert len(source.classes) == 20
    sets = source.label_sets()
    for index in range(0, 800, 40):  # the per-class files and the annotations agree
        objects = source.objects(index)
        for column in range(20):
            hard = objects.difficult[objects.classes == column]
            assert sets[index, column] == (0 if not hard.size else -1 if hard.all() else 1)


def palette_image(values: dict[tuple[int, int], int]) -> bytes:
    mask = Image.new("P", (10, 8), 0)
    mask.putpalette(voc_palette())  # of 256 colors, as VOC's have it: Pillow cuts values off to fewer
    for place, value in values.items():
        mask.putpixel(place, value)
    buffer = io.BytesIO()
    mask.save(buffer, "PNG")
    return buffer.getvalue()


def test_class_maps_are_of_the_images_in_the_list_of_segmentation(tmp_path: Path) -> None:
    """These are not the images of Main: VOC2012's list has others. Class 1 is the first in alphabetical order."""
    folder = write_year(tmp_path / "VOCdevkit")
    assert Voc(folder).segmentation() is None
    write(folder / "SegmentationClass" / "000002.png", palette_image({(3, 2): 1, (4, 2): 2, (5, 2): 255}))
    source = Voc(folder).segmentation()  # without a list, the images that have a map
    assert source is not None
    assert [source.name(index) for index in range(len(source))] == ["VOC2007/JPEGImages/000002.jpg"]
    write(folder / "JPEGImages" / "000009.jpg", encode(9, "JPEG"))
    write(folder / "SegmentationClass" / "000009.png", palette_image({(0, 0): 2}))
    write(folder / "ImageSets" / "Segmentation" / "trainval.txt", "000002\n000009\n")
    source = pickle.loads(pickle.dumps(Voc(folder).segmentation()))
    assert source.classes == ("cat", "dog")
    assert [source.name(index)[-10:] for index in range(len(source))] == ["000002.jpg", "000009.jpg"]
    assert source.read(1) == encode(9, "JPEG")
    classes = source.class_map(0)
    assert classes.shape == (8, 10)
    assert classes[2, 3:6].tolist() == [1, 2, IGNORED]
    assert (classes != 0).sum() == 3
    part = Subset(Voc(folder), np.array([0, 1])).segmentation()
    assert part is not None
    assert [part.name(index)[-10:] for index in range(len(part))] == ["000002.jpg"]
    assert part.class_map(0)[2, 4] == 2


def test_class_maps_that_do_not_fit_the_classes(tmp_path: Path) -> None:
    folder = write_year(tmp_path)
    write(folder / "SegmentationClass" / "000001.png", palette_image({(3, 2): 3}))
    source = Voc(folder).segmentation()
    assert source is not None
    with raises(SourceError, "000001.png has pixels of class 3, and there are 2 classes in ImageSets: restore"):
        source.class_map(0)
    with raises(SourceError, "has no class for every pixel: pass images with masks"):
        Voc(folder).class_map(0)
