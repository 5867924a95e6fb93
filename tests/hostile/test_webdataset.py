"""Shards, on disk and on servers that lie, drip, loop and fall silent (item 17)."""

import itertools
import json
import re
import tarfile
from collections.abc import Callable, Iterator

import pytest

from tests.data.writing import encode, tar
from tests.hostile.answering import answering
from tests.hostile.harness import Sandbox
from tests.hostile.writing import SMALL

EMBED = ("embed", "pixels", "--size", "16", *SMALL, "--out", "out/a.npy", "--data")
SHARD = tar({f"{number}.png": encode(number, height=16, width=16) for number in range(4)} | {"0.cls": b"0"})
OPTIONS = ("--data_options", json.dumps({"timeout": 1, "retries": 1}))

Answer = Callable[[bytes], Iterator[bytes | float]]


def requested_range(request: bytes) -> tuple[int, int]:
    """The range that a request is for."""
    found = re.search(rb"bytes=(\d+)-(\d+)", request)
    return (int(found[1]), int(found[2])) if found else (0, len(SHARD) - 1)


def head(status: str, **fields: object) -> bytes:
    """The head of an answer."""
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status}\r\n{lines}Connection: close\r\n\r\n".encode()


def sound(request: bytes) -> Iterator[bytes | float]:
    first, last = requested_range(request)
    last = min(last, len(SHARD) - 1)
    yield head(
        "206 Partial Content", Content_Range=f"bytes {first}-{last}/{len(SHARD)}", Content_Length=last + 1 - first
    )
    yield SHARD[first : last + 1]


def ranged(text: str, body: bytes = SHARD, **more: object) -> Answer:
    """An answer with any Content-Range; {a}, {b} and {n} are the first and last byte that were asked for, and all."""

    def answer(request: bytes) -> Iterator[bytes | float]:
        first, last = requested_range(request)
        yield head("206 Partial Content", Content_Range=text.format(a=first, b=last, n=len(SHARD)), **more)
        yield body

    return answer


def endless(request: bytes) -> Iterator[bytes | float]:
    first, _ = requested_range(request)
    yield head("206 Partial Content", Content_Range=f"bytes {first}-{2**50}/{2**50 + 1}")
    for _ in range(100_000):
        yield bytes(1 << 16)


def drip(request: bytes) -> Iterator[bytes | float]:
    first, last = requested_range(request)
    yield head("206 Partial Content", Content_Range=f"bytes {first}-{last}/{2**40}")
    while True:
        yield b"x"
        yield 0.3


def drip_head(request: bytes) -> Iterator[bytes | float]:
    yield b"HTTP/1.1 206 Partial Content\r\n"
    for number in itertools.count():
        yield f"X-{number}: y\r\n".encode()
        yield 0.3


def silence(request: bytes) -> Iterator[bytes | float]:
    yield 30.0


def one_byte_at_a_time(request: bytes) -> Iterator[bytes | float]:
    first, _ = requested_range(request)
    yield head("206 Partial Content", Content_Range=f"bytes {first}-{first}/{2**40}", Content_Length=1)
    yield b"x"


def status(code: str) -> Answer:
    def answer(request: bytes) -> Iterator[bytes | float]:
        yield head(code, Content_Length=0)

    return answer


def redirect(target: str) -> Answer:
    def answer(request: bytes) -> Iterator[bytes | float]:
        yield head("302 Found", Location=target, Content_Length=0)

    return answer


def raw(*pieces: bytes) -> Answer:
    def answer(request: bytes) -> Iterator[bytes | float]:
        yield from pieces

    return answer


ANSWERS: dict[str, Answer] = {
    "oversized-range": endless,
    "range-too-long": ranged("bytes {a}-9999999999/{n}", SHARD * 100),
    "range-ends-before-it-starts": ranged("bytes {a}-0/1000000", b""),
    "range-ends-early": ranged("bytes 0--1/{n}"),
    "range-size-zero": ranged("bytes {a}-{b}/0"),
    "range-size-huge": ranged("bytes {a}-{b}/99999999999999999999999999", bytes(16384)),
    "range-size-digits": ranged("bytes {a}-{b}/" + "9" * 5000),
    "range-other": ranged("bytes 7-9/10"),
    "range-star": ranged("bytes */{n}"),
    "range-unit": ranged("pages 0-1/2"),
    "range-unknown-size": ranged("bytes {a}-{b}/*"),
    "range-empty": ranged(""),
    "range-body-empty": ranged("bytes {a}-{b}/{n}", b""),
    "range-body-short": ranged("bytes {a}-{b}/{n}", b"x"),
    "one-byte-at-a-time": one_byte_at_a_time,
    "drip": drip,
    "drip-head": drip_head,
    "silence": silence,
    "nothing": raw(),
    "garbage": raw(b"\x00\xff" * 1000),
    "http-0.9": raw(b"<html>hello</html>"),
    "bad-status": raw(b"HTTP/1.1 abc\r\n\r\n"),
    "status-9999": raw(b"HTTP/1.1 9999 x\r\n\r\n"),
    "endless-head": raw(b"HTTP/1.1 206 OK\r\n", *[b"X: " + b"y" * 60_000 + b"\r\n"] * 200),
    "long-line": raw(b"HTTP/1.1 206 " + b"x" * 100_000 + b"\r\n\r\n"),
    "bad-chunks": raw(
        b"HTTP/1.1 206 OK\r\nTransfer-Encoding: chunked\r\nContent-Range: bytes 0-16383/20000\r\n\r\nzz\r\n"
    ),
    "huge-chunk": raw(
        b"HTTP/1.1 206 OK\r\nTransfer-Encoding: chunked\r\nContent-Range: bytes 0-16383/20000\r\n\r\nffffffffffff\r\nx"
    ),
    "bad-length": raw(b"HTTP/1.1 206 OK\r\nContent-Length: x\r\nContent-Range: bytes 0-16383/20000\r\n\r\nx"),
    "negative-length": raw(b"HTTP/1.1 206 OK\r\nContent-Length: -5\r\nContent-Range: bytes 0-16383/20000\r\n\r\nx"),
    "gzip": ranged("bytes {a}-{b}/{n}", b"\x1f\x8b\x08", Content_Encoding="gzip"),
    "whole": raw(b"HTTP/1.1 200 OK\r\n\r\n" + SHARD),
    "404": status("404 Not Found"),
    "403": status("403 Forbidden"),
    "416": status("416 Range Not Satisfiable"),
    "500": status("500 Oops"),
    "503": status("503 Busy"),
    "redirect-loop": redirect("/"),
    "redirect-to-file": redirect("file:///etc/passwd"),
    "redirect-to-ftp": redirect("ftp://127.0.0.1/x"),
    "redirect-garbage": redirect("http://["),
    "redirect-nowhere": redirect(""),
    "auth": status("401 Unauthorized"),
    "continue": raw(*[b"HTTP/1.1 100 Continue\r\n\r\n"] * 10_000),
}


def test_a_sound_server(box: Sandbox) -> None:
    with answering(sound) as server:
        box.run(*EMBED, f"{server.url}/a.tar", *OPTIONS, servers=[server.address]).succeeded()


@pytest.mark.parametrize("kind", ANSWERS)
def test_servers(kind: str, box: Sandbox) -> None:
    with answering(ANSWERS[kind]) as server:
        box.run(*EMBED, f"{server.url}/a.tar", *OPTIONS, servers=[server.address]).rejected()
        assert server.requests < 200


@pytest.mark.parametrize("kind", ["drip", "one-byte-at-a-time", "range-body-short", "oversized-range"])
def test_servers_that_turn_bad_once_it_is_open(kind: str, box: Sandbox) -> None:
    count = itertools.count()

    def answer(request: bytes) -> Iterator[bytes | float]:
        return sound(request) if next(count) < 1 else ANSWERS[kind](request)

    with answering(answer) as server:
        box.run(*EMBED, f"{server.url}/a.tar", *OPTIONS, servers=[server.address]).answered()


@pytest.mark.parametrize("timeout", [-1, 0, "x", None, 1e300, float("nan")], ids=str)
@pytest.mark.parametrize("option", ["timeout", "retries"])
def test_odd_options(option: str, timeout: object, box: Sandbox) -> None:
    box.write("a.tar", SHARD)
    box.run(*EMBED, "a.tar", "--data_options", json.dumps({option: timeout})).answered()


def header(name: str, size: int | bytes, kind: bytes = b"0") -> bytes:
    """A header of tar with any size."""
    made = bytearray(tarfile.TarInfo(name).tobuf())
    made[124:136] = size if isinstance(size, bytes) else f"{size:011o}\0".encode()[:12]
    made[156:157] = kind
    made[148:156] = b" " * 8
    made[148:156] = f"{sum(made):06o}\0 ".encode()
    return bytes(made)


SHARDS = {
    "empty": b"",
    "zeros": bytes(10240),
    "text": b"hello",
    "half": SHARD[:700],
    "cut": SHARD[:-1024],
    "gzip": b"\x1f\x8b\x08" + bytes(100),
    "zip": b"PK\x03\x04" + bytes(600),
    "no-images": tar({"a.txt": b"x"}),
    "size-huge": header("a.png", 8**11 - 1) + bytes(1024),
    "size-negative": header("a.png", b"\xff" * 12) + bytes(1024),
    "size-base-256": header("a.png", b"\x80" + b"\x7f" * 11) + bytes(1024),
    "size-text": header("a.png", b"zzzzzzzzzzzz") + bytes(1024),
    "link": header("a.png", 0, b"2") + bytes(1024),
    "device": header("a.png", 0, b"3") + bytes(1024),
    "sparse": header("a.png", 512, b"S") + bytes(2048),
    "pax-huge": header("x", 8**10, b"x") + bytes(2048),
    "pax-bad": header("x", 512, b"x") + b"zz zz".ljust(512, b"\0") + bytes(1024),
    "pax-size": header("x", 512, b"x")
    + b"22 size=99999999999999\n".ljust(512, b"\0")
    + header("a.png", 5)
    + bytes(1536),
    "pax-length": header("x", 512, b"x") + b"99999999999 path=x\n".ljust(512, b"\0") + bytes(1024),
    "pax-loop": header("x", 512, b"x") * 3000 + bytes(1024),
    "long-name": header("x", 8**10, b"L") + bytes(2048),
    "long-name-loop": header("x", 0, b"L") * 3000 + bytes(1024),
    "name-not-utf-8": header("caf\udce9.png", 5) + b"hello".ljust(512, b"\0") + bytes(1024),
    "cls-binary": tar({"a.png": encode(0), "a.cls": b"\xff\xfe"}),
    "cls-digits": tar({"a.png": encode(0), "a.cls": b"9" * 31, "b.png": encode(1), "b.cls": b"1"}),
    "cls-long": tar({"a.png": encode(0), "a.cls": b"x" * 5000}),
    "same-names": tar({"a.png": encode(0), "b/../a.png": encode(1)}),
    "one-image": tar({"a.png": encode(0)}),
    "broken-images": tar({"a.png": b"x", "b.png": b"y"}),
    "gnu-sparse": header("x", 512, b"x")
    + b"30 GNU.sparse.major=1\n".ljust(512, b"\0")
    + header("a.png", 512)
    + bytes(2048),
}


@pytest.mark.parametrize("kind", SHARDS)
def test_odd_shards(kind: str, box: Sandbox) -> None:
    box.write("a.tar", SHARDS[kind])
    box.run(*EMBED, "a.tar").answered()


PATTERNS = (
    "{000..999999999}.tar",
    "{0..99999999999999999999}.tar",
    "{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}.tar",
    "{5..1}.tar",
    "{,}.tar",
    "{{0..9}..{0..9}}.tar",
    "{0..999}{0..999}{0..999}.tar",
    "[.tar",
    "*.tar",
    "**/*.tar",
    "x{0..1000000}.tar",
    "http://127.0.0.1:9/{0..999999999}.tar",
    "{9" + "9" * 5000 + "..1}.tar",
)


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern[:24].replace("/", "|"))
def test_patterns(pattern: str, box: Sandbox) -> None:
    box.run(*EMBED, pattern).rejected()


def test_a_damaged_index_is_made_again(box: Sandbox) -> None:
    box.write("a.tar", SHARD)
    box.run(*EMBED, "a.tar").succeeded()
    for path in (box.folder / "cache").rglob("*.npz"):
        path.write_bytes(path.read_bytes()[:50])
    box.run(*EMBED, "a.tar").succeeded()


@pytest.mark.parametrize("starts", [-1, 2**62, 10**12])
def test_an_index_that_lies(starts: int, box: Sandbox) -> None:
    import numpy as np

    box.write("a.tar", SHARD)
    box.run(*EMBED, "a.tar").succeeded()
    for path in (box.folder / "cache").rglob("webdataset/*.npz"):
        with np.load(path) as saved:
            content = dict(saved)
        content["starts"] = np.full_like(content["starts"], starts)
        content["sizes"] = np.full_like(content["sizes"], 2**40)
        np.savez(path, **content)
    box.run(*EMBED, "a.tar").answered()
