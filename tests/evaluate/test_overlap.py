"""Images that an encoder knows are noticed, whatever they are called now and wherever they lie."""

import json
import shutil
from pathlib import Path

import numpy as np

from mixview.data.sources.base import Source
from mixview.data.sources.files import ClassFolders, Folder
from mixview.data.sources.identity import content_hashes, sample_hashes, save_hashes
from mixview.data.sources.splits import Subset
from mixview.evaluate.overlap import check
from tests.data.writing import encode, write
from tests.evaluate.small_encoders import colored, run_folder, scenes


def pretrained(path: Path, source: Source) -> Path:
    """A run that has noted its images."""
    run_folder(path)
    save_hashes(path / "images.npz", source)
    return path


def test_nothing_is_said_of_images_it_has_not_seen(tmp_path: Path) -> None:
    train = ClassFolders(colored(tmp_path / "train", {"a": 8, "b": 8}))
    test = ClassFolders(colored(tmp_path / "test", {"a": 4, "b": 4}, seed=1))
    run = pretrained(tmp_path / "run", Folder(colored(tmp_path / "other", {"x": 5}, seed=2)))
    assert check(run, train, test) == ([], [])
    assert check(None, train, test) == ([], [])


def test_some_copied_and_renamed_images_are_found(tmp_path: Path) -> None:
    train = ClassFolders(colored(tmp_path / "train", {"a": 8, "b": 8}))
    test = ClassFolders(colored(tmp_path / "test", {"a": 4, "b": 4}, seed=1))
    (tmp_path / "web").mkdir()
    for number, name in enumerate(("test/a/001.png", "test/b/003.png", "train/a/002.png")):
        shutil.copy(tmp_path / name, tmp_path / "web" / f"download-{number}.png")
    write(tmp_path / "web" / "else.png", encode(7))
    run = pretrained(tmp_path / "run", Folder(tmp_path / "web"))
    shutil.rmtree(tmp_path / "web")  # the record is enough
    notes, warnings = check(run, train, test)
    assert warnings == ["The encoder was pretrained on 2 of the 8 test images: the metrics are inflated."]
    assert notes == [
        "The encoder was pretrained on 1 of the 16 labeled training images, without their labels, as is usual."
    ]


def test_what_a_run_held_out_it_has_not_seen(tmp_path: Path) -> None:
    whole = ClassFolders(colored(tmp_path / "set", {"a": 10, "b": 10}))
    kept, held = Subset(whole, np.arange(0, 16)), Subset(whole, np.arange(16, 20))
    run = pretrained(tmp_path / "run", kept)
    assert check(run, kept, held)[1] == []
    assert "16 of the 20 test images" in " ".join(check(run, held, whole)[1])


def test_test_images_among_the_training_images_are_said(tmp_path: Path) -> None:
    train = ClassFolders(colored(tmp_path / "train", {"a": 8, "b": 8}))
    assert check(None, train, train)[1] == [
        "16 of the 16 test images are also in the training split: the metrics are inflated."
    ]


def test_an_older_run_is_known_by_its_fingerprint_or_said_to_be_unknown(tmp_path: Path) -> None:
    train, test = scenes(20), scenes(20, "test")
    run = run_folder(tmp_path / "run")
    assert "did not record its images" in check(run, train, test)[1][0]
    (run / "data.json").write_text(json.dumps({"fingerprint": test.fingerprint(), "count": 20}))
    assert "20 of the 20 test images" in check(run, train, test)[1][0]


def test_of_many_images_an_even_sample_is_noted_and_that_is_said(tmp_path: Path) -> None:
    source = scenes(300)
    every = content_hashes(source, range(300))
    assert len(np.unique(every)) == 300
    assert np.array_equal(sample_hashes(source), np.sort(every))
    some = sample_hashes(source, most=30)
    assert len(some) == 30
    assert np.isin(some, every).all()
    hurried = sample_hashes(source, seconds=0.0)
    places = np.flatnonzero(np.isin(every, hurried))
    assert len(places) == 60  # the first of five parts, from everywhere
    assert np.diff(places).max() <= 12
    run = run_folder(tmp_path / "run")
    np.savez(run / "images.npz", identities=some, count=np.array(300))
    words = check(run, scenes(10, "test"), source)[1][0]
    assert "30 of the 300 test images" in words
    assert "(30 of its 300 images are known)" in words


def test_a_damaged_record_is_no_record(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run")
    (run / "images.npz").write_bytes(b"PK\x03\x04 and no more")
    assert "did not record its images" in check(run, scenes(20), scenes(20, "test"))[1][0]
