"""Scenes: the same on every machine, balanced, in agreement with their masks, and not given away by raw pixels."""

import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest

from mixview.data.sources.base import Source
from mixview.data.synthetic.rendering import SPLITS, SURFACES, Numbers, draw, sine
from mixview.data.synthetic.scenes import Scenes
from mixview.data.synthetic.shapes import SHAPES


def test_numbers_are_uniform_and_independent_of_each_other() -> None:
    numbers = Numbers(0, "train", np.arange(20_000))
    table = numbers.table("a", 8)
    assert table.dtype == np.float32
    assert table.min() >= 0
    assert table.max() < 1
    assert np.abs(table.mean(0) - 0.5).max() < 0.01
    assert np.abs(np.corrcoef(np.c_[table, numbers.uniform("b"), numbers.uniform("c")].T) - np.eye(10)).max() < 0.03
    assert (np.bincount(numbers.integer("d", 10), minlength=10) > 1800).all()


def test_numbers_go_by_name_and_index_alone() -> None:
    many = Numbers(3, "test", np.arange(100)).uniform("x")
    assert (Numbers(3, "test", np.array([42])).uniform("x") == many[42]).all()
    assert (Numbers(4, "test", np.arange(100)).uniform("x") != many).any()


def test_splits_never_share_a_state() -> None:
    states = np.concatenate([Numbers(0, split, np.arange(50_000)).state for split in SPLITS])
    assert len(np.unique(states)) == len(states)


def test_every_shape_has_a_pattern() -> None:
    assert list(SURFACES) == list(SHAPES)


def test_sine_is_a_sine() -> None:
    turns = np.linspace(-3, 3, 1001, dtype=np.float32)
    assert np.abs(sine(turns) - np.sin(2 * np.pi * turns)).max() < 2e-3


@pytest.mark.parametrize(
    ("scenes", "expected"),
    [
        (Scenes(64, 32, cache=False), "708a06a27a359c79"),
        (Scenes(12, 48, seed=7, split="test", objects="multiple", classes=16, cache=False), "64b02084f2f86669"),
    ],
    ids=["single", "multiple"],
)
def test_pixels_are_these_on_every_machine(scenes: Scenes, expected: str) -> None:
    """If a pixel changes on purpose, `drawing.VERSION` changes with it."""
    pixels = np.stack([scenes.read(index) for index in range(len(scenes))])
    assert hashlib.sha256(pixels.tobytes()).hexdigest()[:16] == expected


def test_an_image_is_the_same_in_any_count_chunk_and_company() -> None:
    few, many = Scenes(3, 64, cache=False), Scenes(200, 64, cache=False)
    for index in range(3):
        assert (few.read(index) == many.read(index)).all()
    assert few.chunk_size < 200
    labels, all_labels = few.labels(), many.labels()
    assert labels is not None
    assert all_labels is not None
    assert (labels == all_labels[:3]).all()


def test_another_seed_and_another_split_are_other_images() -> None:
    base = Scenes(5, cache=False).read(3)
    assert (base != Scenes(5, seed=1, cache=False).read(3)).any()
    assert (base != Scenes(5, split="test", cache=False).read(3)).any()


def test_the_same_scene_at_another_size() -> None:
    small, large = Scenes(8, 32, cache=False), Scenes(8, 96, cache=False)
    for index in range(8):
        shrunk = large.read(index).reshape(32, 3, 32, 3, 3).mean((1, 3))
        assert np.abs(shrunk - small.read(index)).mean() < 20


def test_classes_are_balanced_and_in_no_order() -> None:
    for classes in (2, 10, 16):
        labels = Scenes(10 * classes, classes=classes, cache=False).labels()
        assert labels is not None
        assert (np.bincount(labels, minlength=classes) == 10).all()
        assert (labels[:classes] != labels[classes : 2 * classes]).any()


def test_single_and_multiple_say_what_they_have() -> None:
    single, multiple = Scenes(20, cache=False), Scenes(300, objects="multiple", cache=False)
    assert isinstance(single, Source)
    assert single.label_sets() is None
    assert multiple.labels() is None
    sets = multiple.label_sets()
    assert sets is not None
    assert sets.shape == (300, 10)
    assert set(np.unique(sets.sum(1))) == {1, 2, 3, 4}
    assert single.name(7) == "train-000007"
    assert single.classes[0] == "star"


@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("kind", ["single", "multiple"])
def test_objects_agree_with_labels_boxes_and_masks(kind: str, size: int) -> None:
    scenes = Scenes(40, size, objects=kind, cache=False)  # type: ignore[arg-type]
    labels, sets = scenes.labels(), scenes.label_sets()
    for index in range(len(scenes)):
        objects = scenes.objects(index)
        assert objects.masks is not None
        assert objects.masks.shape == (len(objects.classes), size, size)
        assert objects.masks.sum(0).max() <= 1  # what is visible is visible once
        if labels is not None:
            assert objects.classes.tolist() == [labels[index]]
        if sets is not None:
            assert set(objects.classes) == set(np.flatnonzero(sets[index]))
        for mask, (left, top, right, bottom) in zip(objects.masks, objects.boxes.astype(int), strict=True):
            assert mask[top:bottom, left:right].sum() == mask.sum() > 0
            assert mask[top].any()
            assert mask[bottom - 1].any()
            assert mask[:, left].any()
            assert mask[:, right - 1].any()


def test_a_mask_is_where_the_object_is() -> None:
    """Of two scenes that differ in the class alone, the pixels differ at the two outlines, not far from them."""
    numbers = Numbers(0, "train", np.arange(30))
    ring, disc = (draw(numbers, np.full((30, 1), label), 64) for label in (4, 9))
    changed = (ring[0] != disc[0]).any(-1)
    near = ring[1][:, 0] | disc[1][:, 0]
    for _ in range(12):  # shadows and blur reach a little further
        near = near | np.roll(near, 1, 1) | np.roll(near, -1, 1) | np.roll(near, 1, 2) | np.roll(near, -1, 2)
    assert (changed & ~near).mean() < 0.002
    assert changed.mean() > 0.05


def test_every_class_covers_about_as_much_of_the_image() -> None:
    numbers = Numbers(0, "train", np.arange(100))
    cover = [draw(numbers, np.full((100, 1), label), 32)[1].mean() for label in range(16)]
    # The border of the image cuts a little more off the long shapes, most off the key.
    assert max(cover[:10]) < 1.15 * min(cover[:10])
    assert max(cover) < 1.4 * min(cover)


def test_the_cache_is_shared_and_mends_itself(tmp_path: Path) -> None:
    plain = Scenes(30, 32, cache=False)
    cached = Scenes(30, 32, cache=tmp_path)
    assert all((cached.read(index) == plain.read(index)).all() for index in range(30))
    files = sorted(tmp_path.rglob("*.npy"))
    assert len(files) == 1
    assert not list(tmp_path.rglob("*.part"))
    again = Scenes(30, 32, cache=tmp_path)
    again._draw = None  # type: ignore[assignment, method-assign]
    assert (again.read(29) == plain.read(29)).all()
    files[0].write_bytes(files[0].read_bytes()[:500])
    assert (Scenes(30, 32, cache=tmp_path).read(29) == plain.read(29)).all()
    assert (Scenes(30, 32, cache=tmp_path).read(3) == plain.read(3)).all()


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    scenes = Scenes(5, cache=tmp_path / "file")
    assert scenes.read(4).shape == (32, 32, 3)
    assert scenes.cache is None


def test_scenes_are_cheap_to_pickle() -> None:
    scenes = Scenes(100)
    scenes.read(0)
    scenes.objects(0)
    packed = pickle.dumps(scenes)
    assert len(packed) < 1000
    assert (pickle.loads(packed).read(99) == scenes.read(99)).all()


def test_the_fingerprint_tells_data_sets_apart() -> None:
    prints = {
        scenes.fingerprint()
        for scenes in (
            Scenes(10),
            Scenes(11),
            Scenes(10, 64),
            Scenes(10, seed=1),
            Scenes(10, split="test"),
            Scenes(10, objects="multiple"),
            Scenes(10, classes=5),
        )
    }
    assert len(prints) == 7
    assert Scenes(10).fingerprint() == Scenes(10, cache=False).fingerprint()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"count": 0}, "at least 1, got 0"),
        ({"size": 8}, "16 to 4096 pixels, not 8"),
        ({"split": "dev"}, "train, val, test, not 'dev'"),
        ({"objects": "many"}, "got 'many'"),
        ({"classes": 17}, "2 to 16 classes, not 17"),
    ],
)
def test_a_wrong_argument_says_what_is_right(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Scenes(**arguments)  # type: ignore[arg-type]


def test_an_index_out_of_range_raises() -> None:
    with pytest.raises(IndexError, match="the last is 4"):
        Scenes(5).read(5)
    with pytest.raises(IndexError):
        Scenes(5).read(-1)


def neighbors(train: np.ndarray, test: np.ndarray, labels: np.ndarray, truth: np.ndarray) -> float:
    """Accuracy of 20 nearest neighbors."""
    train, test = (x.reshape(len(x), -1).astype(np.float32) for x in (train, test))
    far = (train**2).sum(1) - 2 * test @ train.T
    nearest = labels[np.argpartition(far, 20, 1)[:, :20]]
    votes = (nearest[:, :, None] == np.arange(10)).sum(1)
    return float((votes.argmax(1) == truth).mean())


def test_raw_pixels_and_colors_and_backgrounds_give_nothing_away() -> None:
    """The quick version of benchmarks/scenes.py; chance is 10 %."""
    train, test = Scenes(1500, cache=False), Scenes(500, split="test", cache=False)
    y, yt = train.labels(), test.labels()
    assert y is not None
    assert yt is not None
    x, xt = (np.stack([scenes.read(index) for index in range(len(scenes))]) for scenes in (train, test))
    assert neighbors(x, xt, y, yt) < 0.17

    def histogram(images: np.ndarray) -> np.ndarray:
        bins = (images >> 6).astype(np.int64) @ [16, 4, 1]
        return np.stack([np.bincount(image.ravel(), minlength=64) for image in bins])

    assert neighbors(histogram(x), histogram(xt), y, yt) < 0.15
    # The same scenes without their object (a hole in its place would show its outline).
    bare, bare_t = (
        draw(Numbers(0, split, np.arange(count)), np.full((count, 1), -1), 32)[0]
        for split, count in (("train", len(y)), ("test", len(yt)))
    )
    assert neighbors(bare, bare_t, y, yt) < 0.15
