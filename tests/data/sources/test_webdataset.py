"""Tar shards, on disk and from a server that drops connections."""

import os
import pickle
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mixview.data.sources import remote, webdataset
from mixview.data.sources.base import BadImage, SourceError
from mixview.data.sources.webdataset import WebDataset, expand_braces, expand_shards, locate
from tests.data.serving import Server, serving
from tests.data.writing import encode, raises, tar, write

SHARDS, EACH = 3, 8


def shard(number: int, large: bool = False) -> bytes:
    members: dict[str, bytes] = {}
    for index in range(number * EACH, (number + 1) * EACH):
        members[f"{index:06d}.cls"] = str(index % 5).encode()
        members[f"{index:06d}.jpg"] = encode(index) + (random.Random(index).randbytes(60_000) if large else b"")
        members[f"{index:06d}.seg.png"] = encode(99)
        members[f"{index:06d}.json"] = b"{}"
        members[f"{index:06d}.pyd"] = b"cos\nsystem\n(S'touch owned'\ntR."
    return tar(members)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MIXVIEW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote.time, "sleep", lambda seconds: None)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path / "cache" / "webdataset"


@pytest.fixture
def folder(tmp_path: Path, cache: Path) -> Path:
    for number in range(SHARDS):
        write(tmp_path / "shards" / f"train-{number:03d}.tar", shard(number))
    return tmp_path / "shards"


@pytest.fixture
def server(cache: Path) -> Iterator[Server]:
    with serving() as server:
        for number in range(SHARDS):
            server.files[f"/train-{number:03d}.tar"] = shard(number, large=True)
        yield server


def check(source: WebDataset, large: bool = False) -> None:
    assert len(source) == SHARDS * EACH
    order = list(range(len(source)))
    random.Random(0).shuffle(order)
    for index in order:
        data = source.read(index)
        assert data.startswith(encode(index))
        assert len(data) == len(encode(index)) + 60_000 * large
    labels = source.labels()
    assert labels is not None
    assert labels.tolist() == [index % 5 for index in range(len(source))]
    assert source.name(9) == "train-001.tar/000009.jpg"
    assert [source.shard(index) for index in (0, 7, 8, 23)] == [0, 0, 1, 2]


@pytest.mark.parametrize("pattern", ["", "/train-{000..002}.tar", "/*.tar", "/train-00{0,1,2}.tar"])
def test_local_shards(folder: Path, pattern: str) -> None:
    source = WebDataset(f"{folder}{pattern}")
    check(source)
    check(pickle.loads(pickle.dumps(source)))


def test_the_index_is_made_once_and_again_when_a_shard_changes(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = WebDataset(folder)
    assert len(list(cache.iterdir())) == SHARDS
    walk = webdataset.walk_shard
    walked: list[str] = []
    monkeypatch.setattr(webdataset, "walk_shard", lambda file, name: (walked.append(name), walk(file, name))[1])
    assert WebDataset(folder).fingerprint() == first.fingerprint()
    assert not walked
    for path in cache.iterdir():
        path.write_bytes(b"damaged")
    check(WebDataset(folder))
    assert len(walked) == SHARDS
    write(folder / "train-001.tar", tar({"a.jpg": encode(1), "a.cls": b"1"}))
    assert len(WebDataset(folder)) == 2 * EACH + 1
    assert len(walked) == SHARDS + 1
    assert WebDataset(folder).fingerprint() != first.fingerprint()


def test_without_a_place_for_the_index(folder: Path, tmp_path: Path) -> None:
    check(WebDataset(folder, cache=write(tmp_path / "a_file") / "below"))


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_and_folders_in_every_format_of_tar(tmp_path: Path, cache: Path, format: int) -> None:
    name = f"{'folder/' * 12}v1.2/{'long' * 15}.jpg"
    write(tmp_path / "a.tar", tar({name: encode(3), "b/._c.jpg": b"no image"}, format))
    source = WebDataset(tmp_path / "a.tar")
    assert len(source) == 1
    assert source.read(0) == encode(3)
    assert source.name(0) == f"a.tar/{name}"
    assert source.labels() is None


def test_labels_that_are_words(tmp_path: Path, cache: Path) -> None:
    content = {"1.png": encode(1), "1.cls": b"dog", "2.png": encode(2), "2.cls": b"cat\n"}
    write(tmp_path / "a.tar", tar(content))
    source = WebDataset(tmp_path / "a.tar")
    assert source.classes == ("cat", "dog")
    assert source.labels().tolist() == [1, 0]


def test_over_http(server: Server) -> None:
    source = WebDataset(f"{server.url}/train-{{000..002}}.tar")
    check(source, large=True)
    check(pickle.loads(pickle.dumps(source)), large=True)
    assert source.name(0) == "train-000.tar/000000.jpg"
    assert "secret" not in repr(source)


@pytest.mark.parametrize(
    ("address", "state", "words"),
    [
        ("absent.tar?token=secret", {}, "absent.tar answers 404"),
        ("train-000.tar?a=b&token=secret", {"ranges": False}, "train-000.tar does not answer Range requests"),
        ("train-000.tar?token=secret", {"drop_after": 0, "always_drop": True}, "train-000.tar failed 1 times"),
        ("train-000.tar?token=my secret", {}, "train-000.tar is not a web address"),
        ("text.tar?token=secret", {}, "text.tar is not a whole, uncompressed tar file"),
        ("{a,b}/x.tar?token=secret", {}, "x.tar names two shards x.tar"),
    ],
)
def test_no_error_repeats_the_query_of_an_address(server: Server, address: str, state: Any, words: str) -> None:
    server.files["/text.tar"] = b"text" * 500
    for name, value in state.items():
        setattr(server, name, value)
    with raises(SourceError, words) as caught:
        WebDataset(f"{server.url}/{address}", retries=0)
    assert "secret" not in str(caught.value)


def test_what_counts_as_the_query_of_an_address() -> None:
    for text, expected in {
        "the server of https://s/a.tar?token=a:b: check it": "the server of https://s/a.tar: check it",
        "no images (http://s/a?b=c#d), 'https://s?e=f', …": "no images (http://s/a), 'https://s', …",
        "https://user:password@s/a and https://s/@a": "https://s/a and https://s/@a",
        "s3://bucket/train-?.tar, a?b=c": "s3://bucket/train-?.tar, a?b=c",  # patterns, and no address of the web
    }.items():
        assert str(pickle.loads(pickle.dumps(SourceError(text)))) == expected


def test_reading_in_order_streams(server: Server) -> None:
    source = WebDataset(f"{server.url}/train-{{000..002}}.tar")
    server.requests.clear()
    for index in range(len(source)):
        source.read(index)
    assert len(server.requests) < len(source)


@pytest.mark.parametrize("drop", [0, 700, 20_000])
def test_a_connection_dropped_in_the_middle(server: Server, drop: int) -> None:
    server.drop_after = drop
    source = WebDataset(f"{server.url}/train-{{000..002}}.tar")  # while the index is made
    assert server.drop_after is None
    server.drop_after = drop
    check(source, large=True)  # and while images are read
    assert server.drop_after is None


def test_always_dropping(server: Server) -> None:
    server.drop_after, server.always_drop = 10_000, True
    check(WebDataset(f"{server.url}/train-{{000..002}}.tar"), large=True)


def test_a_resume_in_the_middle_reads_only_what_comes_after(server: Server) -> None:
    pattern = f"{server.url}/train-{{000..002}}.tar"
    WebDataset(pattern)
    server.requests.clear()
    resumed = WebDataset(pattern)
    for index in range(20, 24):
        assert resumed.read(index).startswith(encode(index))
    asked = [path for path, text in server.requests if not text.startswith("bytes=0-")]
    assert set(asked) == {"/train-002.tar"}


def test_a_server_that_dies_is_not_a_bad_image(server: Server) -> None:
    source = WebDataset(f"{server.url}/train-000.tar", retries=0)
    server.drop_after, server.always_drop = 0, True
    with raises(SourceError, "train-000.tar", "failed 1 times"):
        source.read(3)


def test_addresses_with_a_query(server: Server) -> None:
    source = WebDataset(f"{server.url}/train-000.tar?token=secret")
    assert source.name(0) == "train-000.tar/000000.jpg"


def test_errors(tmp_path: Path, cache: Path, server: Server) -> None:
    with raises(SourceError, "there is no shard", "absent.tar"):
        WebDataset(tmp_path / "absent.tar")
    with raises(SourceError, "answers 404"):
        WebDataset(f"{server.url}/absent.tar")
    with raises(SourceError, "not a whole, uncompressed tar file"):
        WebDataset(write(tmp_path / "text.tar", b"text" * 500))
    whole = shard(0)
    with raises(SourceError, "cut.tar", "copy it again"):
        WebDataset(write(tmp_path / "cut.tar", whole[: len(whole) // 2 + 100]))
    with raises(SourceError, "holds no images"):
        WebDataset(write(tmp_path / "none.tar", tar({"a.txt": b"text"})))
    with raises(SourceError, "matches no tar file"):
        WebDataset(tmp_path / "*.nothing")
    write(tmp_path / "one" / "a.tar", whole)
    write(tmp_path / "two" / "a.tar", whole)
    with raises(SourceError, "two shards a.tar", "rename one"):
        WebDataset(f"{tmp_path}/{{one,two}}/a.tar")
    with raises(SourceError, "counts down"):
        WebDataset(f"{tmp_path}/{{5..3}}.tar")


def test_a_shard_that_shrinks_has_bad_images(folder: Path) -> None:
    source = WebDataset(folder)
    path = folder / "train-002.tar"
    path.write_bytes(path.read_bytes()[:600])
    with raises(BadImage, "train-002.tar/000023.jpg", "cut off"):
        source.read(23)


def test_braces() -> None:
    assert list(expand_braces("a{08..11}")) == ["a08", "a09", "a10", "a11"]
    assert list(expand_braces("a{8..11}")) == ["a8", "a9", "a10", "a11"]
    assert list(expand_braces("{a,b}{1..2}")) == ["a1", "a2", "b1", "b2"]
    assert list(expand_braces("plain")) == ["plain"]


def test_a_folder_of_shards_is_recognized(folder: Path, tmp_path: Path) -> None:
    assert locate(folder) == folder
    write(folder / "a.png")
    assert locate(folder) is None


@pytest.mark.parametrize(
    "pattern",
    ["a-{000..999999999}.tar", "http://127.0.0.1:9/{0..99999}{0..99999}.tar", "{a,b}" * 2000 + ".tar", "{0..9}" * 9],
)
def test_a_pattern_is_counted_before_it_is_expanded(pattern: str) -> None:
    with raises(SourceError, "more than"):
        expand_shards(pattern)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
def test_a_shard_that_is_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.tar")
    with raises(SourceError, "not a regular file"):
        WebDataset(tmp_path / "a.tar", cache=tmp_path / "cache")


def header(name: str, size: bytes, kind: bytes = b"0") -> bytes:
    """One block of a tar file that says what it likes."""
    block = bytearray(512)
    block[: len(name)] = name.encode()
    block[100:108] = b"0000644\0"
    block[124:136] = size
    block[156:157] = kind
    block[257:265] = b"ustar\x0000"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize(
    "content",
    [
        header("a", b"77777777777\0", b"x"),  # a header of eight gigabytes, which tarfile reads at once
        header("a", b"\xff" * 11 + b"\x00", b"0") * 2,  # of a negative size, which leads back
        header("a", b"\xff" * 11 + b"\x00", b"x") * 2,
        header("a", b"\x80" + b"\xff" * 11),
        header("a", b"%011o\0" % 512, b"L") * 3000,  # each the name of the next
        b"\x1f\x8b" + bytes(600),
    ],
)
def test_headers_that_lie(tmp_path: Path, content: bytes) -> None:
    with (tmp_path / "a.tar").open("wb") as file:
        file.write(content)
        file.truncate(1 << 40)  # the disk need not hold what a file has
    with raises(SourceError, "a.tar"):
        WebDataset(tmp_path / "a.tar", cache=tmp_path / "cache")


def test_an_image_larger_than_any(tmp_path: Path) -> None:
    with (tmp_path / "a.tar").open("wb") as file:
        file.write(header("a.png", b"%011o\0" % (1 << 32)))
        file.truncate(512 + (1 << 32) + 1024)
    with pytest.raises(BadImage, match="more than any image"):
        WebDataset(tmp_path / "a.tar", cache=tmp_path / "cache").read(0)
