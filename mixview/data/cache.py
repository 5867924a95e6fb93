"""Where mixview keeps what it would otherwise make again."""

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """A folder for one kind of thing in `$MIXVIEW_CACHE`, or in the user's folder for caches."""
    if folder := os.environ.get("MIXVIEW_CACHE"):
        return Path(folder) / name
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mixview" / name
