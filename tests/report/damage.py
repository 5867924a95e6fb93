"""Ways in which a file of a run's folder, or of a study's, can be damaged: a page must outlive them all."""

import copy
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped, unused-ignore]

HOSTILE = "</script><script>alert(1)</script>![x](/etc/passwd)\x1b[31m|\n## {{script}} $\\frac$ \u202e"
ODD: dict[str, Any] = {
    "null": None,
    "true": True,
    "negative": -7,
    "huge": 10**400,
    "large": 1e308,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "text": "text",
    "hostile": HOSTILE,
    "half a character": "\ud800",
    "list": [1, "a"],
    "dictionary": {"a": {"b": [None]}},
    "number": 3.5,
}


def replace_file(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def as_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def as_endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def without_permission(path: Path) -> None:
    path.chmod(0)


def layer(number: int) -> bytes:
    """Nine times what the layer below is."""
    below = b"x" if number == 0 else b"*%c" % (96 + number)
    return b"%c: &%c [%s]\n" % (97 + number, 97 + number, b",".join([below] * 9))


ALIASES = b"".join(map(layer, range(12)))

WHOLE: dict[str, Callable[[Path], None]] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: replace_file(path, b""),
    "truncated": lambda path: replace_file(path, path.read_bytes()[: path.stat().st_size // 2]),
    "binary": lambda path: replace_file(path, bytes(range(256)) * 16),
    "zeros": lambda path: replace_file(path, bytes(4096)),
    "list": lambda path: replace_file(path, b"[]\n"),
    "number": lambda path: replace_file(path, b"7\n"),
    "text": lambda path: replace_file(path, b'"text"\n'),
    "null": lambda path: replace_file(path, b"null\n"),
    "nested": lambda path: replace_file(path, b'{"step": 1, "a": ' + b"[" * 900 + b"]" * 900 + b"}\n"),
    "very nested": lambda path: replace_file(path, b"[" * 100_000 + b"]" * 100_000 + b"\n"),
    "digits": lambda path: replace_file(path, b'{"step": ' + b"9" * 5000 + b"}\n"),
    "aliases": lambda path: replace_file(path, ALIASES),
    "folder": as_folder,
    "pipe": as_pipe,
    "link": as_link,
    "endless": as_endless,
    "no permission": without_permission,
}


def read(path: Path) -> Any:
    text = path.read_text()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return yaml.safe_load(text) if path.suffix == ".yaml" else json.loads(text)


def write(path: Path, value: Any) -> None:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(line) + "\n" for line in value))
    elif path.suffix == ".yaml":
        path.write_bytes(yaml.safe_dump(value, sort_keys=False).encode())
    else:
        path.write_text(json.dumps(value))


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where there are values, from the top down; of a list its first and its last."""
    if isinstance(value, dict):
        inner = list(value)
    else:
        inner = sorted({0, len(value) - 1}) if isinstance(value, list) and value else []
    for key in inner:
        yield (*above, key)
        yield from places(value[key], (*above, key))


def set_at(value: Any, place: tuple[Any, ...], new: Any) -> None:
    for key in place[:-1]:
        value = value[key]
    value[place[-1]] = new


def every_oddity(path: Path, names: Iterable[str] = ODD, keys: Collection[str] | None = None) -> Iterator[str]:
    """Writes the file with one value after the other odd, and at the end restores it; says what is odd now.

    Args:
        names: of `ODD`.
        keys: only below these, at the top of the file or of its lines.
    """
    original, whole = path.read_bytes(), read(path)
    for place in places(whole):
        for name in names if keys is None or not set(keys).isdisjoint(place[:2]) else ():
            changed = copy.deepcopy(whole)
            set_at(changed, place, ODD[name])
            write(path, changed)
            yield f"{path.name}, {'.'.join(map(str, place))}: {name}"
    path.write_bytes(original)
