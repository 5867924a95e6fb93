"""The images that a run is shown with: held-out ones where there are any, the same for runs on the same data."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from mixview.data.contact_sheet import caption, to_rgb
from mixview.data.dataset import ImageDataset, decoder_for, find_range
from mixview.data.decode import Decoder, largest_factor
from mixview.data.sources.base import BadImage, Pixels, Source, SourceError, even_indices
from mixview.data.sources.files import names_cloud
from mixview.data.sources.fingerprint import explain_change
from mixview.data.sources.registry import open_dataset, other_parts
from mixview.data.sources.splits import Subset, take_evenly
from mixview.data.sources.webdataset import is_url
from mixview.report.runs import ReportRun
from mixview.runs.progress_bar import bar
from mixview.train.monitor import hold_out

LONGEST = 80
"""Characters of a name that a page shows."""
PICTURE_SIDE = 256
"""Pixels of a picture's shorter side that are kept, at most: tiles are smaller."""


@dataclass(frozen=True)
class ImageSet:
    """Readable images with their names and labels."""

    source: Source
    """A source of which all images can be read."""
    pictures: list[Pixels]
    """[H, W, 3] each."""
    description: str
    """A description: the data, and whether a run has learned from these images."""
    names: list[str]
    captions: list[str]
    """The class or classes of each, or its name again."""
    labels: npt.NDArray[np.int64] | None
    """[N] -1 for an image of no class, or of several."""
    classes: tuple[str, ...]


class Data(NamedTuple):
    """The data of a run."""

    source: Source
    """All of it."""
    train: Source
    """Without what was held out."""
    queries: Source | None
    """Held-out labeled images of the online evaluation."""


def origin(run: ReportRun, fetch: bool) -> tuple[str, dict[str, Any]]:
    """The location of a run's images and its options, by its settings, which somebody else may have written.

    A location on a server raises an error unless the user allows fetching, and no cache file is written.
    """
    data, options = run.config.get("data"), run.config.get("data_options") or {}
    if not data:
        raise SourceError("its settings do not say what it was trained on")
    named = [data, run.config.get("validation"), *options.values()]
    remote = [each for each in named if isinstance(each, str) and (is_url(each) or names_cloud(each))]
    if remote and not fetch:
        raise SourceError(
            f"its images are on a server ({remote[0]}), from which nothing is read unless you say --fetch; --data "
            "shows images of yours instead"
        )
    return data, {name: value for name, value in options.items() if name != "cache"}


def open_data(run: ReportRun, fetch: bool = False) -> Data:
    """The data of a run, split as in the run."""
    data, options = origin(run, fetch)
    source = open_dataset(data, run.config.get("split"), **options)
    share, seed = (run.config.get("monitor") or {}).get("hold_out"), run.config.get("seed") or 0
    validation, part = run.config.get("validation"), run.config.get("validation_split")
    train, held, _ = hold_out(source, data, options, validation, 0.1 if share is None else share, seed, part)
    return Data(source, train, None if held is None else held.queries)


def held_out(run: ReportRun, data: Data, fetch: bool = False) -> tuple[Source, str]:
    """The images that a run did not learn from, or all of them where none was held out; and a description of them."""
    name, options = origin(run, fetch)
    if data.queries is not None:
        return data.queries, f"{name}: images that were not trained on"
    for part, other in other_parts(name, data.source, ("val", "test"), **options):
        return other, f"{name}, {part} part: images that were not trained on"
    return data.train, f"{name}: the training images, because none were held out"


def changed_data(run: ReportRun, data: Data) -> str | None:
    """A sentence where the data is not what the run was trained on any more."""
    recorded = run.data.get("fingerprint")
    changed = isinstance(recorded, str) and explain_change(recorded, data.source.fingerprint()) is not None
    return (
        "Its data is not the same any more as when it was trained: what is shown here is of today's."
        if changed
        else None
    )


def shrink(picture: Pixels) -> Pixels:
    """A picture whose shorter side is at most `PICTURE_SIDE`: thousands of photographs would fill the memory."""
    height, width = picture.shape[:2]
    scale = PICTURE_SIDE / min(height, width)
    if scale >= 1:
        return picture
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return np.array(Image.fromarray(picture).resize(size, Image.Resampling.BICUBIC, reducing_gap=2.0))


def read_images(source: Source, description: str, count: int) -> ImageSet:
    """At most `count` images of a source, evenly chosen; bad ones are left out."""
    chosen = take_evenly(source, count)
    pictures, good = [], []
    decoder = Decoder("RGB", value_range=find_range(source, quiet=True), eight_bits=True)
    with bar("reading images", len(chosen)) as advance:
        for index in range(len(chosen)):
            try:
                pixels = decoder(chosen.read(index), chosen.name(index), partial(largest_factor, side=PICTURE_SIDE))
            except BadImage:
                pixels = None
            if pixels is not None:
                pictures.append(shrink(to_rgb(pixels)))
                good.append(index)
            advance(1)
    if not good:
        raise SourceError(f"none of the images of {description} can be read")
    kept = chosen if len(good) == len(chosen) else Subset(chosen, np.array(good))
    labels, classes = single_labels(kept)
    return ImageSet(
        kept,
        pictures,
        description,
        [shorten(kept.name(index)) for index in range(len(kept))],
        [shorten(caption(kept, index)) for index in range(len(kept))],
        labels,
        classes,
    )


def single_labels(source: Source) -> tuple[npt.NDArray[np.int64] | None, tuple[str, ...]]:
    """The class of each image, -1 for none or several, and the names of the classes."""
    labels, sets = source.labels(), source.label_sets()
    if labels is None and sets is not None:
        present = sets != 0
        labels = np.where(present.sum(1) == 1, present.argmax(1), -1)
    if labels is None or not (labels >= 0).any():
        return None, ()
    count = int(labels.max()) + 1
    names = source.classes or tuple(f"class {number}" for number in range(count))
    return labels, tuple(shorten(name) for name in names)


def shorten(name: str) -> str:
    """A name that a page has room for; the end of a path says more than its beginning."""
    return name if len(name) <= LONGEST else f"…{name[1 - LONGEST :]}"


def original_images(run: ReportRun, data: Data, count: int) -> list[Pixels]:
    """The images whose views the picture of a run shows (see `Monitor`), as they are before they are augmented."""
    source = data.train
    indices = even_indices(len(source), 256)[:count].tolist()
    value_range = find_range(source, str(run.config.get("value_range") or "auto"), quiet=True)
    dataset = ImageDataset(source, decoder_for(int(run.config.get("channels") or 3), value_range, eight_bits=True))
    return [to_rgb(dataset[index].pixels) for index in indices]
