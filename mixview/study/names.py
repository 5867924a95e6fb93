"""The labels of a study, which can be any text, in the names of files."""

import hashlib
import json
import re
from typing import Any

PLAIN = re.compile("[A-Za-z0-9_ .,+×·αλ-]*")
"""Labels that can be told apart by their letters and digits."""
LONGEST = 150
"""Characters of a slug: the name of a file has at most 255 bytes."""


def digest(content: Any) -> str:
    """A short hash of plain values."""
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=5).hexdigest()


def slug(*labels: str) -> str:
    """Labels as a part of a file name: letters, digits, dots and dashes; with a hash where others were left out."""
    words = [re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-") for label in labels]
    short = "-".join(filter(None, words))
    if len(short) <= LONGEST and all(PLAIN.fullmatch(label) for label in labels):
        return short
    return f"{short[:LONGEST]}-{digest(labels)}".lstrip("-")
