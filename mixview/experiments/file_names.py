"""File names for the labels of a study, which can be any text."""

import hashlib
import json
import re
from typing import Any

SAFE = re.compile("[A-Za-z0-9_ .,+×·αλ-]*")
"""Labels that can be told apart by their letters and digits."""
MAX_SLUG = 150
"""Characters: the name of a file has at most 255 bytes."""


def digest(content: Any) -> str:
    """A short hash of plain values."""
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=5).hexdigest()


def slug(*labels: str) -> str:
    """Labels as a part of a file name: letters, digits, dots and dashes; with a hash where others were left out."""
    parts = [re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-") for label in labels]
    short = "-".join(filter(None, parts))
    if len(short) <= MAX_SLUG and all(SAFE.fullmatch(label) for label in labels):
        return short
    return f"{short[:MAX_SLUG]}-{digest(labels)}".lstrip("-")
