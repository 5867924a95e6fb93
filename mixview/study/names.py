"""The labels of a study, which can be any text, in the names of files and in Markdown."""

import hashlib
import json
import re
from typing import Any

from mixview.terminal import printable

PLAIN = re.compile("[A-Za-z0-9_ .,+×·αλ-]*")
"""Labels that can be told apart by their letters and digits."""
SYNTAX = re.compile(r"[\\\[\]<|]|^[#>+=~-]|(?<=^\d)[.)]")
"""What makes links, pictures, HTML, cells of a table and blocks in Markdown."""


def digest(content: Any) -> str:
    """A short hash of plain values."""
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=5).hexdigest()


def slug(*labels: str) -> str:
    """Labels as a part of a file name: letters, digits, dots and dashes; with a hash where others were left out."""
    short = "-".join(re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-") for label in labels if label)
    return short if all(PLAIN.fullmatch(label) for label in labels) else f"{short}-{digest(labels)}".lstrip("-")


def inline(text: object) -> str:
    """Text as itself in Markdown, on one line: no link, no picture, no HTML and nothing for a terminal."""
    return SYNTAX.sub(r"\\\g<0>", printable(" ".join(str(text).split())))
