"""Files on a server that misbehaves."""

import io
import random
import time
from collections.abc import Iterator

import pytest

from mixview.data.sources import remote
from mixview.data.sources.base import SourceError
from mixview.data.sources.remote import RemoteFile
from tests.data.serving import Server, serving
from tests.data.writing import raises

DATA = random.Random(0).randbytes(3_000_000)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(remote.time, "sleep", lambda seconds: None)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving() as server:
        server.files["/a"] = DATA
        yield server


def test_reads_like_a_file(server: Server) -> None:
    theirs, ours = io.BytesIO(DATA), RemoteFile(f"{server.url}/a")
    draw = random.Random(1)
    assert ours.size == len(DATA)
    for _ in range(200):
        if draw.random() < 0.3:
            place = draw.randrange(len(DATA))
            assert ours.seek(place) == theirs.seek(place)
        count = draw.choice((1, 512, 20_000, 300_000))
        assert ours.read(count) == theirs.read(count)
        assert ours.tell() == theirs.tell()
    ours.seek(-5, io.SEEK_END)
    assert ours.read() == DATA[-5:]
    assert ours.read(10) == b""


def test_reading_on_streams_and_reading_here_and_there_does_not(server: Server) -> None:
    file = RemoteFile(f"{server.url}/a")
    for start in range(0, len(DATA), 10_000):
        assert file.read_at(start, 10_000) == DATA[start : start + 10_000]
    assert len(server.requests) < 12  # for 300 reads
    server.requests.clear()
    for start in (100_000, 1_500_000, 50_000):
        file.read_at(start, 1000)
    sizes = [int(stop) - int(start) + 1 for start, stop in (text[6:].split("-") for _, text in server.requests)]
    assert sizes == [remote.MIN_FETCH] * 3


@pytest.mark.parametrize("drop", [0, 1, 5_000, 100_000])
def test_a_dropped_connection_resumes_where_it_dropped(server: Server, drop: int) -> None:
    file = RemoteFile(f"{server.url}/a")
    server.drop_after = drop
    server.requests.clear()
    assert file.read_at(500_000, 1_000_000) == DATA[500_000:1_500_000]
    assert [text.split("-")[0] for _, text in server.requests] == ["bytes=500000", f"bytes={500_000 + drop}"]


def test_a_connection_that_always_drops_still_gets_there(server: Server) -> None:
    file = RemoteFile(f"{server.url}/a")
    server.drop_after, server.always_drop = 50_000, True
    assert file.read_at(0, 1_000_000) == DATA[:1_000_000]


def test_a_server_that_says_nothing_is_given_up_on(server: Server) -> None:
    file = RemoteFile(f"{server.url}/a", retries=3)
    server.drop_after, server.always_drop = 0, True
    server.requests.clear()
    with raises(SourceError, "failed 4 times in a row", "then resume"):
        file.read_at(100_000, 10)
    assert len(server.requests) == 4


def test_passing_failures_pass_and_others_do_not(server: Server) -> None:
    server.fail_with = [503, 429, 500]
    assert RemoteFile(f"{server.url}/a").read(10) == DATA[:10]
    server.fail_with = [403]
    with raises(SourceError, "answers 403", "check the address"):
        RemoteFile(f"{server.url}/a")
    with raises(SourceError, "answers 404"):
        RemoteFile(f"{server.url}/absent")


def test_nobody_there() -> None:
    with raises(SourceError, "failed 1 times", "check the server"):
        RemoteFile("http://127.0.0.1:9/a.tar", retries=0)


def test_a_file_that_changes_raises(server: Server) -> None:
    file = RemoteFile(f"{server.url}/a")
    server.version = '"2"'
    with raises(SourceError, "changed while it was read"):
        file.read_at(1_000_000, 10)


def test_a_server_without_ranges_raises(server: Server) -> None:
    server.ranges = False
    with raises(SourceError, "does not answer Range requests", "download the file"):
        RemoteFile(f"{server.url}/a")


def test_redirects_are_followed(server: Server) -> None:
    server.redirect["/old"] = "/a"
    assert RemoteFile(f"{server.url}/old").read_at(2_000_000, 10) == DATA[2_000_000:2_000_010]


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://server/a", "s3a://bucket/a"])
def test_other_addresses_raise(url: str) -> None:
    with raises(SourceError, "not an http"):
        RemoteFile(url)


@pytest.mark.parametrize(
    "told",
    [
        "bytes {start}-999999999999/9999999999999",  # more than was requested: it would be kept in memory
        "bytes {start}-0/{size}",  # ends before it starts: it would be requested forever
        "bytes {start}-{stop}/5",
        "bytes {start}-{stop}/" + "9" * 5000,
        "bytes 7-{stop}/{size}",
        "bytes {start}-{stop}/*",
        "octets",
    ],
)
def test_an_answer_to_another_question_raises(server: Server, told: str) -> None:
    file = RemoteFile(f"{server.url}/a")
    server.content_range = told
    server.requests.clear()
    with raises(SourceError, "the server of", "another server"):
        file.read_at(1_000_000, 10)
    assert len(server.requests) == 1


def test_a_server_that_sends_a_byte_at_a_time_is_given_up_on(server: Server) -> None:
    file = RemoteFile(f"{server.url}/a", retries=3)
    server.content_range = "bytes {start}-{start}/{size}"
    server.requests.clear()
    with raises(SourceError, "failed 4 times in a row", "it sent 1 bytes"):
        file.read_at(1_000_000, 10)
    assert len(server.requests) == 4


def test_a_slow_drip_ends() -> None:
    """A timeout of the socket's own begins anew with every byte."""
    with serving() as server:
        server.files["/a"] = DATA
        file = RemoteFile(f"{server.url}/a", timeout=0.1, retries=0)
        server.drip = 0.01
        begin = time.monotonic()
        with raises(SourceError, "failed 1 times", "bytes in 0 seconds"):
            file.read_at(1_000_000, 10)
        assert time.monotonic() - begin < 5
        server.drip = None
        assert file.read_at(2_000_000, 10) == DATA[2_000_000:2_000_010]


def test_more_bytes_than_any_image_has_are_not_requested(server: Server) -> None:
    server.content_range = "bytes {start}-{stop}/999999999999999"
    file = RemoteFile(f"{server.url}/a")
    server.requests.clear()
    with raises(SourceError, "in one piece", "check the file"):
        file.read_at(0, 1 << 40)
    assert not server.requests


def test_redirects_lead_to_web_servers_only(server: Server) -> None:
    for place in ("ftp://127.0.0.1/a", "file:///etc/passwd"):
        server.redirect["/away"] = place
        with raises(SourceError, "/away"):
            RemoteFile(f"{server.url}/away", retries=0)
