"""Check whether test images are among those that the encoder, or the classifier on top of it, was trained on."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from mixview.data.sources.base import Source
from mixview.data.sources.fingerprint import explain_change
from mixview.data.sources.identity import ContentHashes, content_hashes, sample_hashes
from mixview.encoders.provenance import read_dict_or_none
from mixview.io.archives import read_arrays
from mixview.io.records import Data
from mixview.runs.progress_bar import bar

IMAGES_FILE = "images.npz"
"""The file in a run's folder that identifies its images (`mixview.data.sources.identity`)."""


class TrainingImages(NamedTuple):
    """The images that a run was trained on."""

    hashes: ContentHashes
    """Hashes of those that are known …"""
    total: int
    """… of this many."""

    def shared(self, images: ContentHashes, what: str) -> str | None:
        """A sentence on how many of `images` are among them; None if none is."""
        shared = int(np.isin(images, self.hashes).sum())
        if not shared:
            return None
        some = "" if len(self.hashes) >= self.total else f" ({len(self.hashes)} of its {self.total} images are known)"
        return f"The encoder was pretrained on {shared} of the {len(images)} {what}{some}"


def check(run: Path | None, train: Source, test: Source) -> tuple[list[str], list[str]]:
    """Notes and warnings: training images may have been seen without their labels, test images never.

    Every test image is checked, and an even sample of a very large training split.
    """
    test_images, train_images = all_hashes(test), sample_hashes(train)
    notes: list[str] = []
    warnings: list[str] = []
    twice = int(np.isin(test_images, train_images).sum())
    if twice:
        warnings.append(
            f"{twice} of the {len(test_images)} test images are also in the training split: the metrics are inflated."
        )
    if run is None:
        return notes, warnings
    learned = read_training_images(run, [(train, train_images), (test, test_images)])
    if learned is None:
        warnings.append("The run did not record its images: it is unknown whether the test images are among them.")
        return notes, warnings
    if text := learned.shared(test_images, "test images"):
        warnings.append(f"{text}: the metrics are inflated.")
    if text := learned.shared(train_images, "labeled training images"):
        notes.append(f"{text}, without their labels, as is usual.")
    return notes, warnings


def read_training_images(run: Path, candidates: list[tuple[Source, ContentHashes]]) -> TrainingImages | None:
    """The images of the run in a folder; for an older run, one of the candidates if its fingerprint says so."""
    try:
        hashes, count = read_arrays(run / IMAGES_FILE, "identities", "count")
        if hashes.dtype != np.uint64 or hashes.ndim != 1:
            raise ValueError("these are not hashes of images")
        return TrainingImages(hashes, int(count))
    except (OSError, ValueError, KeyError, TypeError):
        recorded = (read_dict_or_none(run / "data.json", Data) or {}).get("fingerprint")
        for source, images in candidates:
            if isinstance(recorded, str) and explain_change(recorded, source.fingerprint()) is None:
                return TrainingImages(images, len(images))
    return None


def all_hashes(source: Source) -> ContentHashes:
    """[N] the hashes of all images of a source that can be read."""
    parts = []
    with bar("comparing images", len(source)) as advance:
        for start in range(0, len(source), 256):
            indices = range(start, min(start + 256, len(source)))
            parts.append(content_hashes(source, indices))
            advance(len(indices))
    return np.concatenate(parts)
