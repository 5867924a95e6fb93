"""Tables that spreadsheets show and do not run."""

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixview.io.csv_files import neutral, original, read_rows, write_rows


@pytest.mark.parametrize("text", ["=1+1", "+cmd|' /C calc'!A0", "-x.jpg", "@SUM(A1)", "\t=1", "\r", "＝1", "\x1b[2J"])
def test_formulas_are_text(text: str) -> None:
    assert neutral(text) == f"'{text}"
    assert original(f"'{text}") == text


@pytest.mark.parametrize("cell", [-1.5, 3, "-0.5000", "+1e-3", "a.jpg", "it's", "", None])
def test_numbers_and_names_stay(cell: object) -> None:
    assert neutral(cell) == cell


@given(st.text(st.characters(exclude_characters="\0"), max_size=5) | st.sampled_from(["'=x", "''-a", "'-1", "'", "='"]))
def test_every_text_comes_back(text: str) -> None:
    cell = neutral(text)
    assert isinstance(cell, str)
    assert original(cell) == text


def test_files_come_back(tmp_path: Path) -> None:
    content = io.BytesIO()
    write_rows(content, [["path", "label"], ["=evil.jpg", "a"], ["caf\udce9.jpg", -1]])
    (tmp_path / "a.csv").write_bytes(content.getvalue())
    assert content.getvalue() == b"path,label\n'=evil.jpg,a\ncaf\xe9.jpg,-1\n"
    assert [row["path"] for row in read_rows(tmp_path / "a.csv")] == ["=evil.jpg", "caf\udce9.jpg"]
