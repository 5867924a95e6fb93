"""Views do not depend on the cache, and whatever happens to it, it only costs time."""

import errno
import fcntl
import multiprocessing
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from mixview.data import image_cache
from mixview.data.augment.policies import load_policy
from mixview.data.dataset import ImageDataset, decoder_for
from mixview.data.decode import Decoder
from mixview.data.image_cache import RECORD, CacheFolder, ImageCache, ShrunkImages, default_size
from mixview.data.loader import ViewDataset
from mixview.data.sources.base import Pixels
from mixview.data.sources.splits import Subset
from mixview.data.synthetic.scenes import Scenes
from tests.data.writing import Encoded, encode, jpeg, raises, smooth

SIZE = 48
FILES = (jpeg(smooth(160, 240)), jpeg(smooth(240, 160, 1)), encode(2), jpeg(smooth(100, 90, 3)), jpeg(smooth(20, 300)))


def open_shrunk(folder: Path | None, *files: bytes, channels: int = 3) -> tuple[Encoded, ShrunkImages, list[str]]:
    """The original source, the shrunk one, and the notes about its cache."""
    source = Encoded(*(files or FILES))
    caches = CacheFolder(folder, SIZE, decoder_for(channels))
    return source, caches.shrunk(source), caches.notes


def read_all(source: ShrunkImages) -> list[bytes | Pixels]:
    return [source.read(index) for index in range(len(source))]


def views_of(source: ShrunkImages) -> list[Tensor]:
    views, _ = ViewDataset(ImageDataset(source), load_policy("mocov2-small", size=16)).__getitems__(
        [(0, index) for index in range(len(source))]
    )
    return list(views)


def cache_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_images_are_shrunk_and_small_files_stay_as_they_are() -> None:
    _, shrunk, notes = open_shrunk(None)
    sizes = [Decoder()(data).shape for data in read_all(shrunk)]
    assert sizes == [(48, 72, 3), (72, 48, 3), (8, 10, 3), (53, 48, 3), (20, 300, 3)]
    assert shrunk.read(2) is FILES[2]
    assert shrunk.read(4) is FILES[4]
    expected = np.array(Image.fromarray(Decoder()(FILES[0])).resize((72, 48), Image.Resampling.BICUBIC))
    assert np.abs(Decoder()(shrunk.read(0)).astype(int) - expected).mean() < 3
    assert notes == []


def test_gray_images_are_kept_gray(tmp_path: Path) -> None:
    _, shrunk, _ = open_shrunk(tmp_path, channels=1)
    assert decoder_for(1)(shrunk.read(0)).shape == (48, 72, 1)
    assert decoder_for(1)(shrunk.read(0)).shape == (48, 72, 1)


def test_each_image_is_decoded_once_by_any_number_of_runs(tmp_path: Path) -> None:
    source, shrunk, notes = open_shrunk(tmp_path)
    assert "has 0 of 5 images; the others are added as they are read" in notes[0]
    source.reads = [0] * 5  # the key is made of their content
    first = read_all(shrunk)
    assert read_all(shrunk) == first
    assert source.reads == [1] * 5
    other, again, notes = open_shrunk(tmp_path)
    assert "has 5 of 5 images." in notes[0]
    other.reads = [0] * 5
    assert read_all(again) == first
    assert other.reads == [0] * 5


def test_a_part_shares_the_cache_of_the_whole(tmp_path: Path) -> None:
    source = Encoded(*FILES)
    caches = CacheFolder(tmp_path, SIZE, Decoder())
    whole = read_all(caches.shrunk(source))
    source.reads = [0] * 5
    part = caches.shrunk(Subset(Subset(source, np.array([4, 3, 1])), np.array([2, 1])))
    assert read_all(part) == [whole[1], whole[3]]
    assert source.reads == [0] * 5
    assert part.name(0) == "file 1"


def test_views_do_not_depend_on_the_cache(tmp_path: Path) -> None:
    expected = views_of(open_shrunk(None)[1])
    _, shrunk, _ = open_shrunk(tmp_path)
    for source in (shrunk, shrunk, open_shrunk(tmp_path)[1], pickle.loads(pickle.dumps(shrunk))):
        assert all(torch.equal(one, other) for one, other in zip(views_of(source), expected, strict=True))


def test_other_images_get_another_cache(tmp_path: Path) -> None:
    read_all(open_shrunk(tmp_path)[1])
    changed = (jpeg(smooth(160, 240, 9)), *FILES[1:])
    _, shrunk, notes = open_shrunk(tmp_path, *changed)
    assert "has 0 of 5" in notes[0]
    assert read_all(shrunk)[0] != read_all(open_shrunk(tmp_path)[1])[0]
    assert len(list(tmp_path.iterdir())) == 2


def test_what_a_killed_process_left_is_cut_off(tmp_path: Path) -> None:
    """Cut anywhere, the records that are whole are used, and the others made again."""
    expected = read_all(open_shrunk(tmp_path)[1])
    path = cache_file(tmp_path)
    content = path.read_bytes()
    last = RECORD.size + len(expected[-1])
    for length in (len(content) - 1, len(content) - last + 7, len(content) - last - 5, 70, 64, 10, 0):
        path.write_bytes(content[:length])
        source, shrunk, _ = open_shrunk(tmp_path)
        source.reads = [0] * 5
        assert read_all(shrunk) == expected
        assert 0 < sum(source.reads) <= 5
        assert path.read_bytes() == content


def test_damaged_data_is_made_again(tmp_path: Path) -> None:
    expected = read_all(open_shrunk(tmp_path)[1])
    path = cache_file(tmp_path)
    content = bytearray(path.read_bytes())
    content[64 + RECORD.size + 40] ^= 1
    path.write_bytes(content)
    for decoded in (1, 0):
        source, shrunk, _ = open_shrunk(tmp_path)
        source.reads = [0] * 5
        assert read_all(shrunk) == expected
        assert source.reads == [decoded, 0, 0, 0, 0]


def test_a_full_disk_ends_the_cache_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    expected = read_all(open_shrunk(None)[1])
    _, shrunk, _ = open_shrunk(tmp_path)
    shrunk.read(0)
    path, write = cache_file(tmp_path), os.write
    kept = path.stat().st_size

    def full(descriptor: int, data: bytes) -> int:
        if path.stat().st_size > kept:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, bytes(data[:100]))

    monkeypatch.setattr(image_cache.os, "write", full)
    assert read_all(shrunk) == expected
    assert read_all(shrunk) == expected
    monkeypatch.undo()
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "No space left on device: free some space on that disk" in lines[0]
    assert lines[0].endswith("training continues")
    assert path.stat().st_size == kept
    assert read_all(open_shrunk(tmp_path)[1]) == expected


def refuse_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files can be opened to read them alone; root, as whom tests may run, could write anywhere."""
    open_regular = image_cache.open_regular

    def opened(path: Path, mode: str) -> object:
        if mode == "a":
            raise PermissionError(errno.EACCES, "Permission denied")
        return open_regular(path, mode)  # type: ignore[arg-type]

    monkeypatch.setattr(image_cache, "open_regular", opened)


def test_a_folder_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = read_all(open_shrunk(None)[1])
    refuse_writing(monkeypatch)
    _, shrunk, notes = open_shrunk(tmp_path)
    assert notes == [
        f"There is no cache in {tmp_path} (Permission denied: make the folder writable); training continues without."
    ]
    assert read_all(shrunk) == expected


def test_what_others_put_into_a_folder_is_used_without_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, writer, _ = open_shrunk(tmp_path)
    expected = [writer.read(0), writer.read(1)]
    content = cache_file(tmp_path).read_bytes()
    refuse_writing(monkeypatch)
    source, shrunk, notes = open_shrunk(tmp_path)
    assert "has 2 of 5 images and cannot be written to" in notes[0]
    source.reads = [0] * 5
    assert read_all(shrunk)[:2] == expected
    assert source.reads == [0, 0, 1, 1, 1]
    assert cache_file(tmp_path).read_bytes() == content


@pytest.mark.parametrize("thing", ["file", "link", "folder", "pipe"])
def test_what_is_in_the_place_of_the_cache_is_left_alone(thing: str, tmp_path: Path) -> None:
    expected = read_all(open_shrunk(tmp_path / "cache")[1])
    path, precious = cache_file(tmp_path / "cache"), tmp_path / "precious"
    path.unlink()
    precious.write_bytes(b"precious" * 20)
    if thing == "link":
        path.symlink_to(precious)
    elif thing == "file":
        path.write_bytes(precious.read_bytes())
    elif thing == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    _, shrunk, notes = open_shrunk(tmp_path / "cache")
    assert len(notes) == 1
    assert notes[0].startswith("There is no cache in")
    assert notes[0].endswith("training continues without.")
    assert read_all(shrunk) == expected
    assert precious.read_bytes() == b"precious" * 20
    if thing == "file":
        assert path.read_bytes() == precious.read_bytes()


def test_a_process_that_does_not_let_go_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = read_all(open_shrunk(tmp_path)[1])
    monkeypatch.setattr(image_cache, "LOCK_SECONDS", 0.05)
    with cache_file(tmp_path).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _, shrunk, notes = open_shrunk(tmp_path)
        assert "another process does not let go of it" in notes[0]
        assert read_all(shrunk) == expected


def fill(path: Path, indices: list[int]) -> None:
    cache = ImageCache(path, "key", 40)
    for index in indices:
        cache.put(index, bytes([index]) * (1000 + index))


def test_processes_fill_it_together(tmp_path: Path) -> None:
    path = tmp_path / "file"
    context = multiprocessing.get_context("fork")
    orders = [np.random.default_rng(seed).permutation(40).tolist() for seed in range(3)]
    processes = [context.Process(target=fill, args=(path, order)) for order in orders]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    cache = ImageCache(path, "key", 40)
    assert [cache.get(index) for index in range(40)] == [bytes([index]) * (1000 + index) for index in range(40)]
    assert path.stat().st_size == 64 + sum(RECORD.size + 1000 + index for index in range(40))  # each once


def test_a_forked_process_has_a_lock_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that was inherited would keep nobody out."""
    cache = ImageCache(tmp_path / "file", "key", 4)
    cache.put(0, b"zero")
    monkeypatch.setattr(image_cache, "LOCK_SECONDS", 0.05)

    def locked_out(queue: "multiprocessing.Queue[str]") -> None:
        try:
            cache.put(1, b"one")
        except OSError as error:
            queue.put(str(error))

    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    with cache._locked():
        process = context.Process(target=locked_out, args=(queue,))
        process.start()
        assert "does not let go" in queue.get(timeout=60)
        process.join()


def test_pixels_need_no_cache(tmp_path: Path) -> None:
    scenes, caches = Scenes(4, cache=False), CacheFolder(tmp_path, 16, Decoder())
    shrunk = caches.shrunk(scenes)
    assert "are pixels already" in caches.notes[0]
    np.testing.assert_array_equal(shrunk.read(1), scenes.read(1))
    assert not list(tmp_path.iterdir())


def test_channels_that_jpeg_has_not_are_refused(tmp_path: Path) -> None:
    with raises(ValueError, "--cache keeps JPEG files, for images of 1 or 3 channels"):
        CacheFolder(tmp_path, SIZE, decoder_for(4))


def test_the_usual_sizes() -> None:
    assert [default_size(size) for size in (32, 96, 224, 384)] == [64, 192, 384, 672]
