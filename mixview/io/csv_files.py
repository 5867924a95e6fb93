"""Tables for spreadsheets, which take a cell that begins like a formula for one and run it.

Text that begins with = + - @ or a control character, and is not a number, gets an apostrophe in front, which
spreadsheets do not show; numbers stay numbers. `original` removes it. All CSV files of mixview are written here.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

FORMULA = re.compile("'*[=+@\x00-\x1f\x7f\uff0b\uff0d\uff1d\uff20-]")
"""The beginning of text that a spreadsheet may run (in full width as well), or that looks neutralized already."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def write_rows(file: BinaryIO, rows: Iterable[Sequence[object]]) -> None:
    """Write rows into an open file as CSV in UTF-8; a name that is not Unicode keeps its bytes."""
    text = io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="")
    csv.writer(text, lineterminator="\n").writerows([neutral(cell) for cell in row] for row in rows)
    text.flush()
    text.detach()


def read_rows(path: Path) -> Iterator[dict[str, str]]:
    """The rows of a file that `write_rows` wrote, by the names in its first row."""
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        for row in csv.DictReader(file):
            yield {name: original(cell) for name, cell in row.items()}


def neutral(cell: object) -> object:
    """A cell that no spreadsheet runs."""
    return f"'{cell}" if isinstance(cell, str) and FORMULA.match(cell) and not NUMBER.fullmatch(cell) else cell


def original(cell: str) -> str:
    """The text of a cell that was made neutral."""
    return cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell
