"""Images that are none, labels that are odd: named, and never silently wrong (items 11 and 12)."""

import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.writing import encode
from tests.hostile.harness import Sandbox
from tests.hostile.writing import KNN, SMALL, npy_bytes, npy_header, pretraining, write_photos, zip_bytes

PRETRAIN = pretraining(2, "--out", "out")
EMBED = ("embed", "pixels", "--size", "16", *SMALL, "--out", "out/a.npy", "--data")

BROKEN: dict[str, bytes] = {
    "empty": b"",
    "text": b"hello",
    "html": b"<html></html>",
    "png-header": encode(0)[:20],
    "png-half": encode(0, height=64, width=64)[:200],
    "jpeg-header": b"\xff\xd8\xff\xe0",
    "jpeg-half": encode(0, "JPEG", 64, 64)[:300],
    "svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "zeros": bytes(1000),
    "zip": zip_bytes({"a": b"b"}),
    "bomb": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x7f\xff\xff\xff\x7f\xff\xff\xff\x08\x02\x00\x00\x00",
    "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage\n",
}


def pixel_bomb() -> bytes:
    """A PNG of 40,000 × 40,000 pixels in some kilobytes."""
    buffer = io.BytesIO()
    Image.new("1", (40_000, 40_000)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("command", ["embed", "pretrain"])
def test_a_broken_image_is_named(command: str, kind: str, box: Sandbox) -> None:
    photos = write_photos(box.work / "photos", 8)
    (photos / "cat" / "broken.png").write_bytes(BROKEN[kind])
    box.run(*(EMBED if command == "embed" else PRETRAIN), "photos").answered("broken.png")


def test_mostly_broken_images(box: Sandbox) -> None:
    photos = write_photos(box.work / "photos", 2)
    for number in range(10):
        (photos / "cat" / f"broken-{number}.png").write_bytes(b"x")
    box.run(*PRETRAIN, "photos").answered("10 |broken-0")


def test_nothing_but_broken_images(box: Sandbox) -> None:
    for number in range(10):
        box.write(f"photos/broken-{number}.png", b"x")
    for command in (EMBED, PRETRAIN):
        box.run(*command, "photos").rejected("broken-")


@pytest.mark.parametrize("suffix", [".heic", ".HEIC", ".heif", ".avif", ".jxl"])
def test_images_that_cannot_be_read_are_not_ignored_silently(suffix: str, box: Sandbox) -> None:
    photos = write_photos(box.work / "photos", 8)
    (photos / "cat" / f"IMG{suffix}").write_bytes(b"\x00\x00\x00\x18ftypheic")
    box.run(*EMBED, "photos").answered(f"{suffix}|IMG")


@pytest.mark.parametrize("suffix", [".heic", ".pdf", ".mp4"])
def test_a_folder_of_nothing_else(suffix: str, box: Sandbox) -> None:
    box.write(f"photos/IMG{suffix}", b"x")
    box.run(*EMBED, "photos").rejected("photos|IMG")


def test_a_bomb_of_pixels(box: Sandbox) -> None:
    photos = write_photos(box.work / "photos", 8)
    (photos / "cat" / "bomb.png").write_bytes(pixel_bomb())
    box.run(*EMBED, "photos").answered("bomb.png")


def write_arrays(box: Sandbox, labels: object, test_labels: object) -> None:
    """An .npz whose test images are its training images, in another order, with their labels."""
    count = 30
    images = np.random.default_rng(0).integers(0, 255, (count, 16, 16, 3), dtype=np.uint8)
    np.savez(
        box.work / "a.npz",
        train_images=images,
        test_images=images[::-1],
        train_labels=np.asarray(labels),
        test_labels=np.asarray(test_labels),
    )


def write_list(box: Sandbox, name: str, labels: list[str]) -> None:
    """A list of images of a color per class, with labels as text."""
    lines = []
    for number, label in enumerate(labels):
        color = np.full((16, 16, 3), 40 + 80 * (number % 3), np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(color + (number // 3 % 8)).save(buffer, "PNG")
        box.write(f"{name}-{number}.png", buffer.getvalue())
        lines.append(f"{name}-{number}.png,{label}\n")
    box.write(f"{name}.csv", "path,label\n" + "".join(lines))


WORDS, NUMBERS = ["b", "a", "c"], ["1", "0", "2"]


@pytest.mark.parametrize(
    ("train", "test", "says"),
    [
        (WORDS, NUMBERS, "label|class"),
        (NUMBERS, WORDS, "label|class"),
        (WORDS, ["b", "a", "d"], "class|label|d"),
        (["1", "", "2"], NUMBERS, "label"),
        (NUMBERS, ["1", "", "2"], "label"),
        (["01", "0", "2"], NUMBERS, ""),
        (["1.0", "0.0", "2.0"], NUMBERS, ""),
        (["9" * 31, "0", "2"], NUMBERS, "label|9999"),
        (["-1", "0", "2"], ["-1", "0", "2"], ""),
        (["nan", "0", "2"], NUMBERS, "label|nan"),
        (["9" * 31] * 3, ["9" * 31] * 3, "label|class|9999"),
        ([" a", "b", "c"], ["a", "b", "c"], ""),
        (["A", "b", "c"], ["a", "b", "c"], "class|label"),
        (["1e3", "0", "2"], NUMBERS, "label|1e3"),
        (["٣", "0", "2"], NUMBERS, "label|class"),
    ],
    ids=str,
)
def test_labels_that_do_not_fit(train: list[str], test: list[str], says: str, box: Sandbox) -> None:
    """Either an error, or right: images of a class are all alike, so that a comparison by name finds 100 %."""
    write_list(box, "train", train * 10)
    write_list(box, "test", test * 5)
    outcome = box.run(
        "evaluate",
        "knn",
        "pixels",
        "--size",
        "16",
        "--data",
        "train.csv",
        "--test_data",
        "test.csv",
        "--k",
        "1",
        *SMALL,
        "--out",
        "out",
    )
    if outcome.status:
        outcome.rejected(*filter(None, [says]))
    else:
        outcome.succeeded("100.0 %")


@pytest.mark.parametrize(
    "labels",
    [
        [-1] * 30,
        [2**62] * 30,
        list(range(30)),
        [0.5] * 30,
        [float("nan")] * 30,
        [True] * 30,
        ["a"] * 30,
        [[0]] * 30,
        [0] * 29,
        [],
        [None] * 30,
        [9e18] * 30,
    ],
    ids=lambda labels: str(labels)[:14],
)
def test_labels_of_arrays(labels: list[object], box: Sandbox) -> None:
    box.write(
        "a.npz",
        zip_bytes(
            {
                "images.npy": npy_bytes(np.zeros((30, 8, 8, 3), np.uint8)),
                "labels.npy": npy_bytes(np.array(labels)),
            }
        ),
    )
    box.run(*EMBED, "a.npz").answered()


NPZ = {
    "empty": b"",
    "no-zip": b"PK\x03\x04",
    "no-images": zip_bytes({"x.npy": npy_bytes(np.zeros(3))}),
    "empty-zip": zip_bytes({}),
    "floats": zip_bytes({"images.npy": npy_bytes(np.zeros((2, 8, 8, 3)))}),
    "flat": zip_bytes({"images.npy": npy_bytes(np.zeros(9, np.uint8))}),
    "no-pixels": zip_bytes({"images.npy": npy_bytes(np.zeros((2, 0, 8, 3), np.uint8))}),
    "none": zip_bytes({"images.npy": npy_bytes(np.zeros((0, 8, 8, 3), np.uint8))}),
    "half": zip_bytes({"images.npy": npy_bytes(np.zeros((9, 8, 8, 3), np.uint8))[:500]}),
    "no-npy": zip_bytes({"images.npy": b"hello"}),
    "huge": zip_bytes({"images.npy": npy_header((10**6, 1000, 1000, 3))}),
    "huge-stored": zip_bytes({"images.npy": npy_header((10**6, 1000, 1000, 3))}, 0),
    "negative": zip_bytes({"images.npy": npy_header((-1, 8, 8, 3))}),
    "overflow": zip_bytes({"images.npy": npy_header((2**62, 2**62, 8, 3))}),
    "overflow-stored": zip_bytes({"images.npy": npy_header((2**62, 2**62, 8, 3))}, 0),
    "code": zip_bytes({"images.npy": b"\x93NUMPY\x01\x00\x10\x00__import__('os')"}),
    "many-channels": zip_bytes({"images.npy": npy_bytes(np.zeros((2, 8, 8, 99), np.uint8))}),
    "two-channels": zip_bytes({"images.npy": npy_bytes(np.zeros((4, 8, 8, 2), np.uint8))}),
    "jpeg-no-offsets": zip_bytes({"jpeg.npy": npy_bytes(np.zeros(9, np.uint8))}),
    "nested": zip_bytes({"../images.npy": npy_bytes(np.zeros((2, 8, 8, 3), np.uint8))}),
    "bad-offsets": zip_bytes(
        {"jpeg.npy": npy_bytes(np.zeros(9, np.uint8)), "offsets.npy": npy_bytes(np.array([0, 10**15, 9]))}
    ),
    "version-9": zip_bytes({"images.npy": b"\x93NUMPY\x09\x00\x10\x00"}),
    "deep": zip_bytes({"images.npy": b"\x93NUMPY\x01\x00\x00\x10" + b"(" * 4096}),
    "big-endian": zip_bytes({"images.npy": npy_bytes(np.zeros((4, 8, 8, 3), ">u2"))}),
    "text": zip_bytes({"images.npy": npy_bytes(np.array(["a", "b"]))}),
    "same-twice": zip_bytes(
        {
            "images.npy": npy_bytes(np.zeros((4, 8, 8, 3), np.uint8)),
            "a/images.npy": npy_bytes(np.zeros((4, 8, 8, 3), np.uint8)),
        }
    ),
}


@pytest.mark.parametrize("kind", NPZ)
def test_odd_arrays(kind: str, box: Sandbox) -> None:
    box.write("a.npz", NPZ[kind])
    box.run(*EMBED, "a.npz").answered()


LISTS = {
    "empty": "",
    "comment": "# x\n",
    "absent": "absent.png\n",
    "half-labels": "a.png 1\nb.png\n",
    "fifo": "fifo.png\n",
    "zero": "/dev/zero\n",
    "null": "/dev/null\n",
    "folder": "photos\n",
    "itself": "list.txt\n",
    "nul": "a\x00b.png\n",
    "long": "x" * 100_000 + ".png\n",
    "url": "http://127.0.0.1:9/x.png\n",
    "stdin": "/dev/stdin\n",
    "not-utf-8": "caf\udce9.png\n",
    "many": "absent.png\n" * 10_000,
    "tab": "a.png\t\n",
    "random": "/dev/urandom\n",
    "proc": "/proc/self/mem\n",
    "tty": "/dev/tty\n",
}


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("command", ["embed", "pretrain"])
def test_odd_lists(command: str, kind: str, box: Sandbox) -> None:
    box.write("list.txt", LISTS[kind])
    (box.work / "photos").mkdir()
    os.mkfifo(box.work / "fifo.png")
    box.run(*(EMBED if command == "embed" else PRETRAIN), "list.txt").rejected()


CSVS = {
    "empty": "",
    "header": "path,label\n",
    "no-path": "x,y\n1,2\n",
    "short-row": "path,label\na.png\n",
    "quotes": 'path,label\n"a.png\n',
    "nul": "path,label\na\x00,b\n",
    "huge-field": "path,label\n" + "x" * 200_000 + ",b\n",
    "two-paths": "path,path\na.png,b.png\n",
    "semicolons": "path;label\na.png;b\n",
    "no-label": "path,label\na.png,\n",
    "bom": "\ufeffpath,label\nabsent.png,b\n",
    "spaces": "path , label\nabsent.png , b\n",
    "rows": "path\n" + "\n" * 1000,
}


@pytest.mark.parametrize("kind", CSVS)
def test_odd_tables(kind: str, box: Sandbox) -> None:
    box.write("list.csv", CSVS[kind])
    box.run(*EMBED, "list.csv").rejected()


@pytest.mark.parametrize("what", ["fifo", "socket", "zero", "folder", "loop", "unreadable"])
def test_things_that_are_no_files_in_a_folder(what: str, box: Sandbox) -> None:
    photos = write_photos(box.work / "photos", 8)
    path = photos / "cat" / "odd.png"
    match what:
        case "fifo":
            os.mkfifo(path)
        case "socket":
            import socket

            here = Path.cwd()
            os.chdir(path.parent)  # the names of sockets are short
            try:
                with socket.socket(socket.AF_UNIX) as opened:
                    opened.bind("odd.png")
            finally:
                os.chdir(here)
        case "zero":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
        case "loop":
            path.symlink_to("odd.png")
        case "unreadable":
            path.write_bytes(encode(3))
            path.chmod(0)
    box.run(*EMBED, "photos").answered()


def test_a_killed_data_worker(box: Sandbox) -> None:
    """What the kernel does when memory is short."""
    write_photos(box.work / "photos", 8)
    outcome = box.start(
        {"call": "tests.hostile.test_images_and_labels:train_and_kill_a_worker", "options": {}}, ["kill"], seconds=60
    )
    outcome.harmless(seconds=60)
    assert outcome.status == 1, outcome.story
    assert "worker" in outcome.stderr


def train_and_kill_a_worker() -> None:
    """Runs in a sandbox: a training whose data worker is killed, as the machine does when memory is short."""
    import signal
    import threading
    import time

    from mixview.cli import main

    def kill() -> None:
        while True:
            for path in Path("/proc").glob("[0-9]*/stat"):
                try:
                    fields = path.read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if int(fields[1]) == os.getpid() and (Path("out") / "metrics.jsonl").exists():
                    os.kill(int(path.parent.name), signal.SIGKILL)
                    return
            time.sleep(0.01)

    threading.Thread(target=kill, daemon=True).start()
    line = [each for each in PRETRAIN if each not in SMALL]
    main([*line, "photos", "--workers", "1", "--epochs", "100000"])


def test_json_is_json(box: Sandbox) -> None:
    box.write("a.json", json.dumps({"images": []}))
    box.run(*EMBED, "a.json").rejected("a.json")


@pytest.mark.parametrize("count", [1, 2])
def test_very_few_images(count: int, box: Sandbox) -> None:
    write_photos(box.work / "photos", count)
    box.run(*KNN, "--data", "photos").answered()
