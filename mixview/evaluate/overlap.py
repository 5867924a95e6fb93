"""Whether an encoder is asked about images that it has learned from."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mixview.data.fingerprint import explain_change
from mixview.data.identity import Identities, identities
from mixview.data.source import Source
from mixview.evaluate.progress import bar

NOTED = "images.npy"
"""What a run notes of its images (`mixview.data.identity`), in its folder."""


class Overlap(NamedTuple):
    """How many of a source's images a run has learned from."""

    shared: int
    asked: int
    noted: int
    """So many of the run's images are known …"""
    learned: int
    """… of so many that there were."""

    def words(self, what: str) -> str | None:
        """A sentence, None when no image is shared."""
        if not self.shared:
            return None
        part = "" if self.noted >= self.learned else f" (of whose {self.learned} images {self.noted} are known)"
        return f"{self.shared} of the {self.asked} {what} were in the set that the encoder was pretrained on{part}"


def overlap(run: Path, source: Source) -> Overlap | None:
    """How many images of a source the run in a folder has learned from; None when it noted nothing to tell by."""
    data = read_data(run)
    count = data.get("count")
    learned = count if isinstance(count, int) else 0
    try:
        noted: Identities = np.load(run / NOTED, allow_pickle=False)
    except (OSError, ValueError):
        recorded = data.get("fingerprint")
        if isinstance(recorded, str) and explain_change(recorded, source.fingerprint()) is None:
            return Overlap(len(source), len(source), learned, learned)
        return None
    return Overlap(int(np.isin(all_identities(source), noted).sum()), len(source), len(noted), max(learned, len(noted)))


def all_identities(source: Source) -> Identities:
    """[N] the numbers of all images of a source that can be read."""
    parts = []
    with bar("looking for known images", len(source)) as advance:
        for start in range(0, len(source), 256):
            indices = range(start, min(start + 256, len(source)))
            parts.append(identities(source, indices))
            advance(len(indices))
    return np.concatenate(parts)


def read_data(run: Path) -> dict[str, object]:
    """What a run recorded of its data; empty when that cannot be read."""
    try:
        data = json.loads((run / "data.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def check(run: Path | None, train: Source, test: Source) -> tuple[list[str], list[str]]:
    """Notes and warnings: the training part may have been seen without its labels, the test part never."""
    if run is None:
        return [], []
    found = overlap(run, test)
    if found is None:
        return [], ["The run did not note its images, so that it is not known whether the test images are among them."]
    seen = found.words("test images")
    warnings = [f"{seen}: the figures are of images that it knows, and too good."] if seen else []
    known = overlap(run, train)
    words = known.words("labelled training images") if known else None
    return ([f"{words}, without their labels, as is usual."] if words else []), warnings
