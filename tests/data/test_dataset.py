"""Bad images are skipped, counted, named and replaced, the same way in every process."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader, Dataset

from mixview.data.dataset import STRICT, ImageDataset, Tolerance
from mixview.data.decode import Decoder
from mixview.data.sources.base import BadImage, SourceError
from mixview.data.sources.files import Folder
from mixview.data.sources.splits import Subset
from tests.data.writing import encode, needs_data, raises, real, write

BAD = {1: b"I am a text", 2: b"", 5: encode(5, "JPEG", 64, 64)[:500]}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    for number in range(6):
        write(tmp_path / f"{number}.jpg", BAD.get(number, encode(number)))
    return Folder(tmp_path)


def test_bad_images_are_replaced_by_the_next_that_is_good(folder: Folder) -> None:
    reader = ImageDataset(folder)
    assert [reader[index].index for index in range(6)] == [0, 3, 3, 3, 4, 0]
    assert [reader[index].index for index in (5, 2, 1)] == [0, 3, 3]
    np.testing.assert_array_equal(reader[2].pixels, Decoder()(encode(3)))
    assert list(reader.bad) == ["1.jpg", "2.jpg", "5.jpg"]
    assert "not an image" in reader.bad["1.jpg"]
    assert "empty" in reader.bad["2.jpg"]
    assert "truncated" in reader.bad["5.jpg"]


def test_too_many_stop_with_the_list(folder: Folder) -> None:
    reader = ImageDataset(folder, tolerance=Tolerance(max_count=2, max_fraction=0.0))
    reader[1]
    with pytest.raises(SourceError) as caught:
        reader[5]
    (sentence,) = str(caught.value).splitlines()
    assert sentence.startswith("3 of 6 images are bad (1.jpg is not an image")
    assert all(f"{name}.jpg is " in sentence for name in (1, 2, 5))
    assert sentence.endswith("repair or remove them")
    with raises(SourceError, "1 of 6"):
        ImageDataset(folder, tolerance=STRICT)[1]


def test_the_share_counts_for_large_sources() -> None:
    assert Tolerance().allows(10, 20)
    assert not Tolerance().allows(11, 20)
    assert Tolerance().allows(100, 10_000)
    assert not Tolerance().allows(101, 10_000)


def test_what_was_left_out_on_opening_counts(tmp_path: Path) -> None:
    write(tmp_path / "a.png")
    (tmp_path / "b.png").mkdir()
    source = Folder(tmp_path)
    assert list(ImageDataset(source).bad) == ["b.png"]
    with raises(SourceError, "1 of 2 images are bad"):
        ImageDataset(source, tolerance=STRICT)


def test_when_nothing_can_be_read(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / f"{number}.png", "no image")
    with raises(SourceError, "none of the 3 images can be read"):
        ImageDataset(Folder(tmp_path), tolerance=Tolerance(hard_max_fraction=1.0))[1]


class Indices(Dataset[int]):
    def __init__(self, reader: ImageDataset) -> None:
        self.reader = reader

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, index: int) -> int:
        return self.reader[index].index


def as_is(batch: list[Any]) -> list[Any]:
    return batch


@pytest.mark.parametrize("workers", [0, 2])
def test_any_number_of_workers_gives_the_same_and_counts_together(folder: Folder, workers: int) -> None:
    reader = ImageDataset(folder)
    # One thread and fork: what torch does on Linux by default.
    loader = DataLoader(Indices(reader), batch_size=1, num_workers=workers, collate_fn=as_is)
    assert [index for batch in loader for index in batch] == [0, 3, 3, 3, 4, 0]
    assert set(reader.bad) == {"1.jpg", "2.jpg", "5.jpg"}


def test_errors_survive_the_way_from_a_worker() -> None:
    error = pickle.loads(pickle.dumps(BadImage("a.jpg", "is empty")))
    assert (error.name, error.reason, str(error)) == ("a.jpg", "is empty", "a.jpg: is empty")


def test_out_of_range(folder: Folder) -> None:
    with raises(IndexError, "6"):
        ImageDataset(folder)[6]


@needs_data
def test_real_photographs_are_all_good() -> None:
    reader = ImageDataset(Folder(real("photos")), tolerance=STRICT)
    shapes = [reader[index].pixels.shape for index in range(0, 100, 5)]
    assert all(len(shape) == 3 and shape[2] == 3 for shape in shapes)


def test_every_bad_image_is_named_once_with_its_reason(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        reader = ImageDataset(folder)
        for index in range(6):
            reader[index]
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["skipped 1.jpg", "skipped 2.jpg", "skipped 5.jpg"]
    assert "not an image" in lines[0]


def test_those_that_a_worker_meets_are_named_too(folder: Folder, capfd: pytest.CaptureFixture[str]) -> None:
    reader = ImageDataset(folder)
    list(DataLoader(Indices(reader), batch_size=1, num_workers=1, collate_fn=as_is))
    assert "skipped 2.jpg: is empty (0 bytes)" in capfd.readouterr().err
    assert reader.bad["2.jpg"] == "is empty (0 bytes)"


def test_a_note_says_what_was_left_out_of_a_part_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.png", "b.png", "c.psd"):
        write(tmp_path / name)
    ImageDataset(Subset(Folder(tmp_path), np.arange(1)))
    ImageDataset(Folder(tmp_path))
    assert capsys.readouterr().err.count("left out 1 files that end in .psd (c.psd)") == 1


def test_names_do_not_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a.png")
    write(tmp_path / "\x1b[2Jb.png", "nothing")
    (tmp_path / os.fsdecode(b"\xffc.png")).write_bytes(b"nothing")
    write(tmp_path / "d.png")
    reader = ImageDataset(Folder(tmp_path))
    for index in range(4):
        reader[index]
    told = capsys.readouterr().err
    assert "\x1b" not in told
    assert "\\x1b[2Jb.png" in told
    assert "c.png" in told


@pytest.mark.parametrize(("bad", "total"), [(10, 12), (2, 3), (1, 1)])
def test_never_more_than_half_are_tolerated(bad: int, total: int) -> None:
    assert not Tolerance().allows(bad, total)
    assert Tolerance().allows(total // 2, total)
