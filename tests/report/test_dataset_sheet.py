from pathlib import Path

import numpy as np
import pytest

from mixview.data.contact_sheet import GAP, LINE, Row, contact_sheet, draw_objects
from mixview.data.sources.arrays import Npz
from mixview.data.sources.base import Objects
from mixview.data.sources.files import ClassFolders, Folder
from mixview.data.sources.voc import Voc
from mixview.report.dataset_sheet import source_rows
from tests.data.sources.test_voc import write_year
from tests.data.writing import pixels, write, write_classes


def test_a_sheet_has_its_pictures_in_their_places() -> None:
    red = np.full((20, 20, 3), (255, 0, 0), np.uint8)
    sheet = contact_sheet([Row("one", [red, red], ["a", "a caption that is much too long for its picture"])], tile=40)
    assert sheet.size == (GAP + 2 * (40 + GAP), GAP + 40 + 2 * LINE + 2 * GAP)
    for column in range(2):
        assert sheet.getpixel((GAP + column * (40 + GAP) + 20, GAP + LINE + 20)) == (255, 0, 0)


def test_rows_of_a_labeled_source(tmp_path: Path) -> None:
    source = ClassFolders(write_classes(tmp_path, {"cat": 4, "dog": 4}))
    rows = source_rows(source, count=4, seed=1, tile=16)
    assert [row.title.split(",")[0] for row in rows] == ["imagefolder: 8 images", "CutMix", "Mixup"]
    assert all(len(row.pictures) == 4 for row in rows)
    assert all(caption.endswith(("cat", "dog")) for caption in rows[0].captions)
    again = source_rows(source, count=4, seed=1, tile=16)
    for first, second in zip(rows, again, strict=True):
        np.testing.assert_array_equal(np.array(first.pictures), np.array(second.pictures))


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 13])
def test_any_number_of_channels(tmp_path: Path, channels: int) -> None:
    np.savez(tmp_path / "a.npz", images=np.stack([pixels(seed, 16, 16, channels) for seed in range(3)]))
    rows = source_rows(Npz(tmp_path / "a.npz"), count=3, tile=16)
    assert contact_sheet(rows, 16).size[0] > 0


def test_one_image_has_no_mixtures(tmp_path: Path) -> None:
    write(tmp_path / "a.png")
    rows = source_rows(Folder(tmp_path))
    assert len(rows) == 1
    assert rows[0].captions == ["1: a.png"]


def test_boxes_and_masks_are_drawn(tmp_path: Path) -> None:
    source = Voc(write_year(tmp_path))
    assert len(source_rows(source, 3, tile=16)) == 3
    black = np.zeros((10, 12, 3), np.uint8)
    masks = np.zeros((1, 10, 12), bool)
    masks[0, 5, 6] = True
    none = np.zeros(1, bool)
    objects = Objects(np.array([[1, 2, 11, 9]], np.float32), np.zeros(1, np.int64), none, none, masks)
    drawn = draw_objects(black, objects)
    assert drawn[2, 1].any()
    assert drawn[8, 10].any()
    assert drawn[5, 6].any()
    assert not drawn[0, 0].any()
    assert not black.any()
