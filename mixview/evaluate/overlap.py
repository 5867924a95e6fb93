"""Whether an encoder is asked about images that it, or the classifier on top of it, has learned from."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mixview.archives import read_arrays
from mixview.data.fingerprint import explain_change
from mixview.data.identity import Identities, identities, note_images
from mixview.data.source import Source
from mixview.evaluate.progress import bar

NOTED = "images.npz"
"""What a run notes of its images (`mixview.data.identity`), in its folder."""


class Learned(NamedTuple):
    """The images that a run has learned from."""

    noted: Identities
    """Those that are known …"""
    total: int
    """… of so many."""

    def shared(self, asked: Identities, what: str) -> str | None:
        """A sentence on how many of these images are among them, None when none is."""
        shared = int(np.isin(asked, self.noted).sum())
        if not shared:
            return None
        some = "" if len(self.noted) >= self.total else f" ({len(self.noted)} of its {self.total} images are known)"
        return f"{shared} of the {len(asked)} {what} were in the set that the encoder was pretrained on{some}"


def check(run: Path | None, train: Source, test: Source) -> tuple[list[str], list[str]]:
    """Notes and warnings: the training part may have been seen without its labels, the test part never.

    Every test image is looked at, of a very large training part an even sample.
    """
    asked, known = all_identities(test), note_images(train)
    notes: list[str] = []
    warnings: list[str] = []
    twice = int(np.isin(asked, known).sum())
    if twice:
        warnings.append(f"{twice} of the {len(asked)} test images are training images too: the figures are too good.")
    if run is None:
        return notes, warnings
    learned = read_learned(run, [(train, known), (test, asked)])
    if learned is None:
        warnings.append("The run did not note its images: it is not known whether the test images are among them.")
        return notes, warnings
    if words := learned.shared(asked, "test images"):
        warnings.append(f"{words}: the figures are of images that it knows, and too good.")
    if words := learned.shared(known, "labelled training images"):
        notes.append(f"{words}, without their labels, as is usual.")
    return notes, warnings


def read_learned(run: Path, candidates: list[tuple[Source, Identities]]) -> Learned | None:
    """What the run in a folder has learned from. Of an older run, one of the candidates, if its fingerprint says so."""
    try:
        noted, count = read_arrays(run / NOTED, "identities", "count")
        if noted.dtype != np.uint64 or noted.ndim != 1:
            raise ValueError("these are no numbers of images")
        return Learned(noted, int(count))
    except (OSError, ValueError, KeyError, TypeError):
        recorded = read_data(run).get("fingerprint")
        for source, known in candidates:
            if isinstance(recorded, str) and explain_change(recorded, source.fingerprint()) is None:
                return Learned(known, len(known))
    return None


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
