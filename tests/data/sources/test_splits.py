"""Parts of a source."""

import pickle
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixview.data.sources.arrays import Npz
from mixview.data.sources.base import Objects, Source, SourceError
from mixview.data.sources.files import ClassFolders, Folder
from mixview.data.sources.registry import open_dataset
from mixview.data.sources.splits import Subset, parse_range, take_files, take_fraction, take_per_class, take_range
from mixview.data.sources.voc import Voc
from mixview.data.synthetic.scenes import Scenes
from tests.data.writing import encode, needs_data, raises, real, write, write_classes


class Table(Source):
    """A source of nothing but labels."""

    kind = "table"

    def __init__(
        self, labels: list[int] | None, sets: npt.ArrayLike | None = None, names: list[str] | None = None
    ) -> None:
        self._labels = None if labels is None else np.array(labels, dtype=np.int64)
        self._sets = None if sets is None else np.array(sets, dtype=np.int8)
        first = self._labels if self._labels is not None else self._sets
        self._names = names or [f"{number}" for number in range(0 if first is None else len(first))]

    def __len__(self) -> int:
        return len(self._names)

    def read(self, index: int) -> bytes:
        return encode(index)

    def name(self, index: int) -> str:
        return self._names[index]

    def fingerprint(self) -> str:
        return f"{len(self)} images, 7 bytes, 00"

    def labels(self) -> npt.NDArray[np.int64] | None:
        return self._labels

    def label_sets(self) -> npt.NDArray[np.int8] | None:
        return self._sets

    def objects(self, index: int) -> Objects | None:
        return None


@given(st.lists(st.integers(0, 4), min_size=1, max_size=200), st.floats(0.01, 1.0), st.integers(0, 5))
@settings(deadline=None)
def test_a_fraction_keeps_the_shares(labels: list[int], fraction: float, seed: int) -> None:
    source = Table(labels)
    part = take_fraction(source, fraction, seed)
    chosen = part.labels()
    assert chosen is not None
    assert len(np.unique(part.indices)) == len(part)
    for label in set(labels):
        have, share = int((chosen == label).sum()), labels.count(label) * fraction
        assert max(1, int(share)) <= have <= max(1, int(share)) + 1
    if len(labels) * fraction >= len(set(labels)) * 2:
        assert abs(len(part) - fraction * len(labels)) <= len(set(labels))
    np.testing.assert_array_equal(part.indices, take_fraction(source, fraction, seed).indices)


def test_the_size_of_a_fraction_is_exact() -> None:
    labels = [number % 7 for number in range(10_000)]
    for fraction in (0.01, 0.1, 0.333):
        assert len(take_fraction(Table(labels), fraction)) == round(fraction * 10_000)


def test_one_percent_lies_within_ten() -> None:
    source = Table([number % 10 for number in range(5_000)])
    one, ten = take_fraction(source, 0.01), take_fraction(source, 0.1)
    assert set(one.indices) < set(ten.indices)
    assert set(take_per_class(source, 1).indices) < set(take_per_class(source, 5).indices)
    assert set(take_fraction(source, 0.1, seed=1).indices) != set(ten.indices)


def test_the_choice_goes_by_name_and_is_the_same_everywhere() -> None:
    labels = [number % 2 for number in range(20)]
    names = [f"image{number}.png" for number in range(20)]
    forward = take_per_class(Table(labels, names=names), 2)
    backward = take_per_class(Table(labels[::-1], names=names[::-1]), 2)
    chosen = {forward.name(index) for index in range(4)}
    assert chosen == {backward.name(index) for index in range(4)}
    assert chosen == {"image1.png", "image11.png", "image14.png", "image18.png"}  # pinned: papers depend on it


def test_k_per_class() -> None:
    part = take_per_class(Table([0] * 50 + [7] * 5), 3)
    assert part.labels().tolist() == [0, 0, 0, 7, 7, 7]
    with raises(SourceError, "5 images of class 1", "at most 5"):
        take_per_class(Table([0] * 50 + [1] * 5), 6)
    with raises(SourceError, "no labels", "take_fraction"):
        take_per_class(Table(None, names=["a"]), 1)


def test_ranges_share_no_image_and_every_one_has_all_classes() -> None:
    source = Table([0] * 40 + [1] * 20 + [2] * 20)
    parts = [take_range(source, start, start + 20) for start in (0, 20, 40, 60)]
    assert sorted(np.concatenate([part.indices for part in parts]).tolist()) == list(range(80))
    assert all(np.bincount(part.labels()).tolist() == [10, 5, 5] for part in parts)
    assert take_range(source, None, None).indices.tolist() == list(range(80))
    assert take_range(source, 60, None).indices.tolist() == parts[3].indices.tolist()
    unlabeled = Table(None, names=[f"{number}" for number in range(9)])
    assert len(take_range(unlabeled, None, 4)) == 4
    for start, stop in ((80, 90), (70, 90), (5, 5)):
        with pytest.raises(SourceError, match=r"there are no images \d+:\d+ in .*: it has 80"):
            take_range(source, start, stop)


def test_ranges_by_the_name_of_a_split() -> None:
    assert parse_range("train") == ("train", None)
    assert parse_range("train[:5]") == ("train", slice(None, 5))
    assert parse_range("[5:]") == (None, slice(5, None))
    first, rest = (open_dataset("scenes", split, count=30, size=16) for split in ("train[:10]", "train[10:]"))
    names = {part.name(index) for part in (first, rest) for index in range(len(part))}
    assert (len(first), len(rest), len(names)) == (10, 20, 30)
    with pytest.raises(SourceError, match=r"'train\[5\]' is not a part of a split: write train\[:5000\]"):
        open_dataset("scenes", "train[5]")


def test_label_sets() -> None:
    draw = np.random.default_rng(0)
    sets = (draw.random((4_000, 6)) < [0.5, 0.3, 0.1, 0.05, 0.02, 0.01]).astype(np.int8)
    source = Table(None, sets)
    part = take_fraction(source, 0.1)
    chosen = part.label_sets()
    assert chosen is not None
    assert abs(len(part) - 400) < 20
    np.testing.assert_allclose(chosen.sum(axis=0), sets.sum(axis=0) * 0.1, atol=2)
    few = take_per_class(source, 8).label_sets()
    assert few is not None
    assert (few.sum(axis=0) >= 8).all()
    assert len(few) <= 48


def test_difficult_does_not_count() -> None:
    source = Table(None, [[-1], [-1], [1], [0]])
    assert take_per_class(source, 1).indices.tolist() == [2]
    with raises(SourceError, "1 images of class 0"):
        take_per_class(source, 2)


def test_without_labels_by_chance(tmp_path: Path) -> None:
    for number in range(20):
        write(tmp_path / f"{number:02d}.png", b"x")
    assert len(take_fraction(Folder(tmp_path), 0.25)) == 5


def test_a_list_of_files(tmp_path: Path) -> None:
    source = ClassFolders(write_classes(tmp_path / "set", {"a": 3, "b": 3}))
    part = take_files(source, ["b/002.png", "a/000.png"])
    assert [part.name(0), part.name(1)] == ["b/002.png", "a/000.png"]
    assert part.labels().tolist() == [1, 0]
    assert part.classes == ("a", "b")
    write(tmp_path / "set" / "b" / "only.png")
    source = ClassFolders(tmp_path / "set")
    listed = write(tmp_path / "list.txt", "# the published list\nonly.png\na/001.png\n")
    assert take_files(source, listed).indices.tolist() == [6, 1]
    with raises(SourceError, "1 of the 2", "not in", "c.png", "a/000.png"):
        take_files(source, ["c.png", "a/000.png"])
    with raises(SourceError, "several names", "000.png"):
        take_files(source, ["000.png"])
    with raises(SourceError, "absent.txt", "cannot be read"):
        take_files(source, tmp_path / "absent.txt")


def test_a_subset_of_drawn_images_has_a_fingerprint() -> None:
    drawn = Scenes(20, 16)
    parts = [Subset(drawn, np.array(indices)) for indices in ([0, 1], [1, 0], [0, 1, 2])]
    assert len({part.fingerprint() for part in parts}) == 3
    assert parts[0].fingerprint().startswith("2 images, ")
    assert Subset(parts[0], np.array([0])).fingerprint().startswith("1 images, ")


def test_a_subset_is_a_source(tmp_path: Path) -> None:
    source = ClassFolders(write_classes(tmp_path, {"a": 3, "b": 3}))
    part = pickle.loads(pickle.dumps(Subset(source, np.array([4, 1]))))
    assert len(part) == 2
    assert part.read(0) == source.read(4)
    assert part.label_sets() is None
    assert part.objects(0) is None
    assert part.fingerprint().startswith("2 images")
    assert part.fingerprint() != Subset(source, np.array([1, 4])).fingerprint()
    for index in (-1, 2):
        with pytest.raises(IndexError):
            part.read(index)
    with raises(SourceError, "empty"):
        Subset(source, np.array([], dtype=np.int64))
    with raises(SourceError, "from 0 to 5"):
        Subset(source, np.array([6]))


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.1, float("nan")])
def test_bad_fractions(fraction: float) -> None:
    with raises(ValueError, "0.01 is 1 %"):
        take_fraction(Table([0]), fraction)


@needs_data
def test_real_sources() -> None:
    cifar = take_fraction(Npz(real("cifar10_25k_jpeg.npz")), 0.01).labels()
    assert cifar is not None
    assert len(cifar) == 200
    assert np.bincount(cifar).min() >= 18
    voc = take_fraction(Voc(real("VOCdevkit")), 0.1).label_sets()
    assert voc is not None
    assert 60 <= len(voc) <= 100
    assert ((voc == 1).sum(axis=0) > 0).all()
