"""Text that came from outside, on its way to a terminal or into Markdown, where it must control nothing.

File names, labels, fields of files and messages of errors can hold escape sequences, which move the cursor, rename the
window or hide what follows. `say` prints, `to_rich_text` is for tables and bars of rich, `inline` for Markdown.
"""

import re
import sys
import warnings
from typing import TextIO

from rich.text import Text

CONTROL_CHARS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Control characters, marks that turn the direction of writing, tags, and halves of characters."""

SYNTAX = re.compile(r"[\\\[\]<|]|^[#>+=~-]|(?<=^\d)[.)]")
"""Syntax of links, pictures, HTML, cells of a table and blocks in Markdown."""


def escape_control_chars(text: object, keep: str = "") -> str:
    """Text with every character that would control a terminal spelled out, as \\x1b is.

    Args:
        text: anything; doing it twice changes nothing.
        keep: characters to leave as they are, such as the ends of lines.
    """
    return CONTROL_CHARS.sub(
        lambda match: match[0] if match[0] in keep else match[0].encode("unicode_escape").decode(), str(text)
    )


def say(text: object = "", file: TextIO | None = None) -> None:
    """Print a text of one or more lines: what mixview has instead of `print`."""
    print(escape_control_chars(text, keep="\n"), file=file, flush=file is sys.stderr)


def to_rich_text(text: object, style: str = "", keep: str = "") -> Text:
    """A text for rich, in which nothing is markup."""
    return Text(escape_control_chars(text, keep), style=style)


def inline(text: object) -> str:
    """Text as itself in Markdown, on one line: no link, no picture, no HTML and nothing for a terminal."""
    return SYNTAX.sub(r"\\\g<0>", escape_control_chars(" ".join(str(text).split())))


FORMAT_WARNING = warnings.formatwarning


def print_warnings_plainly() -> None:
    """From now on warnings, mixview's and those of libraries, are printed as text like any other."""

    def format_plainly(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        return escape_control_chars(FORMAT_WARNING(message, category, filename, lineno, line), keep="\n\t")

    warnings.formatwarning = format_plainly  # type: ignore[assignment, unused-ignore]
