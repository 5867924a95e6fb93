"""YAML that anybody may have written."""

import itertools
import os
from pathlib import Path

import pytest

from mixview.io.yaml_files import SettingsError, parse_yaml, read_yaml

LETTERS = itertools.pairwise("abcdefghi")
BOMB = "\n".join(["a: &a [x, x]", *(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in LETTERS)])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a:\n\tb: 1", "is not valid YAML, line 2: a tab; indent with spaces"),
        ("a: [1", "is not valid YAML, line 1"),
        ("[" * 20_000, "nests its values too deeply"),
        ("a: " + "[" * 100 + "]" * 100, "nests them more than 50 deep"),
        (BOMB, "more than 100000 values"),
        ("a: &a [*a]", "more than 50 deep"),
        ("!!python/object/apply:os.system [id]", "is not valid YAML"),
        ("a: !!int x", "holds a value that YAML does not have"),
        (
            "about: {trust_remote_code: true}",
            "sets trust_remote_code, which no file can: pass --trust_remote_code on the command line",
        ),
        ("x: " + "y" * 300_000, "has more than 64 kB"),
    ],
)
def test_bad_text_gets_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence) as caught:
        parse_yaml(text, "mine.yaml")
    assert str(caught.value).startswith("mine.yaml ")
    assert "\n" not in str(caught.value)


def test_anchors_and_trust_that_says_no_are_fine() -> None:
    assert parse_yaml("a: &x {b: 1}\nc: *x\ntrust: false", "mine")["c"] == {"b": 1}


def test_only_text_in_regular_files_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SettingsError, match="pipe cannot be read: pipe is not a regular file"):
        read_yaml(tmp_path / "pipe")
    (tmp_path / "binary").write_bytes(b"a: \xff")
    with pytest.raises(SettingsError, match="byte 3 is not UTF-8"):
        read_yaml(tmp_path / "binary")
