"""Datasets by path or name."""

import importlib
import inspect
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from mixview.data.sources import cifar, cloud, coco, huggingface, idx, stl10, voc, webdataset
from mixview.data.sources.arrays import Npy, Npz
from mixview.data.sources.base import Source, SourceError
from mixview.data.sources.files import (
    LIST_SUFFIXES,
    ClassFolders,
    FileList,
    Folder,
    enter_split,
    is_image_name,
    looks_like_classes,
    parse_place,
    require_folder,
    subfolders,
)
from mixview.data.sources.labels import Labeled
from mixview.data.sources.splits import parse_range, take_range
from mixview.options import SourceOptions as SourceOptions
from mixview.options import describe, is_valid, suggestion, truncated_repr

IN_BUCKETS = ("webdataset", "imagefolder", "folder", "list")
"""The kinds of sources that may be in a bucket."""
PUBLISHED = {"VOCdevkit": "VOC", "JPEGImages": "VOC", "annotations": "COCO"}
"""Folders that say what a dataset is, which is read from a disk alone."""


@dataclass(frozen=True)
class DatasetFormat:
    """A kind of source: how it is built, how it is recognized, and a line about it."""

    make: Callable[..., Source]
    about: str
    locate: Callable[[Path], Path | None] | None = None
    """The folder of such a source at a path (itself, or one in it), None if there is none there."""


FORMATS: dict[str, DatasetFormat] = {
    "voc": DatasetFormat(
        voc.Voc, "PASCAL VOC: a VOC2007 folder, or the VOCdevkit around one or more years", voc.locate
    ),
    "coco": DatasetFormat(coco.Coco, "COCO: the folder of annotations/instances_*.json and the images", coco.locate),
    "cifar": DatasetFormat(cifar.Cifar, "CIFAR-10 or -100: a folder such as cifar-10-batches-py", cifar.locate),
    "stl10": DatasetFormat(stl10.Stl10, "STL-10: stl10_binary", stl10.locate),
    "idx": DatasetFormat(idx.Idx, "Fashion-MNIST, MNIST …: a folder of idx files, .gz or not", idx.locate),
    "huggingface": DatasetFormat(
        huggingface.HuggingFace, "a folder that Hugging Face datasets saved to disk", huggingface.locate
    ),
    "webdataset": DatasetFormat(
        webdataset.WebDataset,
        "tar shards: a folder, train-{000..146}.tar, https://…/{000..146}.tar, s3://…",
        webdataset.locate,
    ),
    "imagefolder": DatasetFormat(
        ClassFolders, "one subfolder per class (as ImageNet), or train/ and val/ of such; also s3://…"
    ),
    "folder": DatasetFormat(Folder, "any folder of images, at any depth, without labels; also s3://…"),
    "list": DatasetFormat(FileList, "a text or CSV file of paths, with or without labels; also s3://…"),
    "npz": DatasetFormat(Npz, "an .npz of arrays [N, H, W, C] or of JPEG bytes, with or without labels"),
    "npy": DatasetFormat(Npy, "an .npy of numbers [N, H, W] or [N, H, W, C], without labels"),
}
"""The formats that a path can have."""

NAMES: dict[str, tuple[str, tuple[str, ...]]] = {
    "cifar10": ("CIFAR-10", ("cifar-10-batches-py", "cifar-10-batches-bin", "cifar10*.npz")),
    "cifar100": ("CIFAR-100", ("cifar-100-python", "cifar-100-binary")),
    "stl10": ("STL-10", ("stl10_binary",)),
    "fashion-mnist": ("Fashion-MNIST", ("FashionMNIST/raw", "fashion-mnist", str(idx.DEBIAN))),
    "imagenet": ("ImageNet", ("imagenet", "ImageNet", "ILSVRC/Data/CLS-LOC", "ILSVRC2012")),
    "imagenette": ("Imagenette", ("imagenette", "imagenette2*")),
    "voc2007": ("PASCAL VOC 2007", ("VOCdevkit/VOC2007", "VOC2007")),
    "voc2012": ("PASCAL VOC 2012", ("VOCdevkit/VOC2012", "VOC2012")),
    "voc": ("PASCAL VOC, all years there are", ("VOCdevkit",)),
    "coco": ("COCO", ("coco", "COCO", "coco2017")),
}
"""Published datasets, and where they are in the folder of datasets (`MIXVIEW_DATA`)."""


def open_dataset(spec: str | Path, split: str | None = None, /, *, kind: str | None = None, **options: Any) -> Source:
    """The source at a path, or of a name.

    Args:
        spec: a path, an address, or a name such as cifar10 (found in the folder that `MIXVIEW_DATA` names) or scenes
            (drawn by mixview itself). What exists as a path is a path.
        split: train, val, test …; by default the part for training. train[:5000] and train[5000:] are parts of it, in
            which every class has its share.
        kind: format of the data (see `FORMATS`); by default it is recognized.
        options: options of the kind, the arguments of its constructor; `labels`, of any kind, is a CSV file with the
            columns path and label, in place of the labels it has. They may come from a file that somebody else wrote:
            where to write is not one of them.

    Example:
        >>> source = open_dataset("scenes", "val", count=20, size=32)  # or a path: "photos/", "VOCdevkit/VOC2007" …
        >>> len(source), source.labels().shape
        (20, (20,))
    """
    if "split" in options:  # an argument by name, or one of the user's options
        option = options.pop("split")
        if split is not None and option not in (None, split):
            raise SourceError(
                f"the data has two splits, {split!r} and, among its options, {option!r}: pass one of them"
            )
        split = option if split is None else split
    if split is not None and not isinstance(split, str):
        raise SourceError(f"{split!r} is not a split: pass its name, such as train")
    if split is not None and "[" in split:
        name, part = parse_range(split)
        if part is None:
            raise SourceError(
                f"{split!r} is not a part of a split: write train[:5000], train[5000:10000] or train[5000:]"
            )
        return take_range(open_dataset(spec, name, kind=kind, **options), part.start, part.stop)
    if (labels := options.pop("labels", None)) is not None:
        return with_labels(spec, split, kind, labels, options)
    text = str(spec)
    if text == "scenes" and kind is None:
        scenes = importlib.import_module("mixview.data.synthetic.scenes")
        return build("scenes", scenes.Scenes, {"split": split, **options})
    if text in NAMES and kind is None and not Path(text).exists():
        spec = find_named(text)
    kind, spec = (kind, spec) if kind is not None else recognize(spec)
    if not isinstance(kind, str) or kind not in FORMATS:
        raise SourceError(f"there is no kind of source {truncated_repr(kind)}{suggestion(kind, FORMATS)}")
    if cloud.is_cloud(text) and kind not in IN_BUCKETS:
        raise SourceError(f"a source of kind {kind} is read from a disk: copy {text} to one, and pass its path")
    return build(kind, FORMATS[kind].make, {"split": split, **options}, spec)


def with_labels(spec: str | Path, split: str | None, kind: str | None, labels: Any, options: dict[str, Any]) -> Source:
    """A dataset with the labels of a file in place of its own; class folders are folders then."""
    if not isinstance(labels, str | os.PathLike):
        raise SourceError(
            f"labels {truncated_repr(labels)} is not a file: pass a CSV file with the columns path and label"
        )
    path = str(labels) if cloud.is_cloud(labels) else Path(labels).expanduser()
    if kind is None and (cloud.is_cloud(spec) or Path(spec).is_dir()) and recognize(spec)[0] == "imagefolder":
        kind = "folder"
    source = open_dataset(spec, split, kind=kind, **options)
    root = Path(spec).absolute() if Path(spec).is_dir() else None
    own = getattr(source, "root", None)
    partial = isinstance(own, Path | str) and own != parse_place(spec)
    return Labeled(source, path, own if isinstance(own, Path) else root, partial)


def other_parts(spec: str, source: Source, names: Iterable[str], **options: Any) -> Iterator[tuple[str, Source]]:
    """The parts of a dataset with these names, such as ("val", "test"), which are there and are not `source` itself."""
    for name in names:
        try:
            part = open_dataset(spec, name, **options)
        except (SourceError, ValueError):
            continue
        if part.fingerprint() != source.fingerprint():
            yield name, part


def build(kind: str, make: Callable[..., Source], options: dict[str, Any], *place: Any) -> Source:
    """Construct a source; raise if it does not have an option, and name the one that was probably meant."""
    options = {name: value for name, value in options.items() if not (name == "split" and value is None)}
    parameters = list(inspect.signature(make).parameters)[len(place) :]
    for name in options:
        if name not in parameters:
            if name == "split":
                raise SourceError(f"a source of kind {kind} has no splits: leave split={options['split']!r} out")
            raise SourceError(f"a source of kind {kind} has no option {name!r}{suggestion(name, parameters)}")
    if not isinstance(options.get("cache", False), bool):
        raise SourceError(
            f"where files are cached is not an option of the data (cache {str(options['cache'])!r}): set "
            "MIXVIEW_CACHE to the folder"
        )
    check_types(kind, make, options)
    return make(*place, **options)


def check_types(kind: str, make: Callable[..., Source], options: dict[str, Any]) -> None:
    """Raise if an option, as a file or a command line gives it, is of another type than the source takes."""
    hints = get_type_hints(make.__init__ if inspect.isclass(make) else make)
    for name, value in options.items():
        if not is_valid(hints[name], value):
            raise SourceError(
                f"{name} {truncated_repr(value)} does not fit a source of kind {kind}: it must be "
                f"{describe(hints[name])}"
            )


def recognize(spec: str | Path) -> tuple[str, str | Path]:
    """The format of a path, and the exact path."""
    text, path = str(spec), Path(spec)
    if cloud.is_cloud(text):
        return recognize_cloud(text), text
    if webdataset.is_url(text) or path.suffix == ".tar" or (not path.exists() and ".tar" in text):
        return "webdataset", text
    if path.is_file():
        suffix = path.suffix.lower()
        if suffix in (".npz", ".npy"):
            return suffix[1:], path
        if suffix in LIST_SUFFIXES:
            return "list", path
        raise SourceError(
            f"{path} is not a file that holds images: pass a folder, a list ({', '.join(LIST_SUFFIXES)}), …"
        )
    if not path.exists():
        hint = suggestion(text, [*NAMES, "scenes"]) if os.sep not in text else ": check the path"
        raise SourceError(f"there is neither a path nor a source named {text}{hint}")
    require_folder(path)
    locations = [
        (kind, dataset_format.locate(path)) for kind, dataset_format in FORMATS.items() if dataset_format.locate
    ]
    places = [(kind, place) for kind, place in locations if place is not None]
    if len(places) > 1:
        names = ", ".join(str(place) for _, place in places)
        raise SourceError(f"{path} holds several datasets, {names}: pass the path of one")
    if places:
        kind, place = places[0]
        others = [each.name for each in subfolders(path) if each not in (place, *place.parents)]
        if place != path and others:  # a folder of datasets, of which one is recognized
            raise SourceError(f"{path} holds {place.name} and also {', '.join(others)}: pass the path of one")
        return kind, place
    return ("imagefolder" if looks_like_classes(enter_split(path, None)) else "folder"), path


def recognize_cloud(url: str) -> str:
    """The format of an address in a bucket, by its name, or by what is in the folder that it is."""
    name = url.rstrip("/").rpartition("/")[2]
    if ".tar" in name:
        return "webdataset"
    if Path(name).suffix.lower() in LIST_SUFFIXES:
        return "list"
    folder = enter_split(parse_place(url), None)
    listing = cloud.list_folder(str(folder))
    for marker, dataset in PUBLISHED.items():
        if marker in listing.folders:
            raise SourceError(
                f"{url} looks like {dataset}, which is read from a disk: copy it to one, or say that it is a folder of "
                "images (kind folder)"
            )
    if any(name.endswith(".tar") for name in listing.files) and not any(map(is_image_name, listing.files)):
        return "webdataset"
    return "imagefolder" if looks_like_classes(folder) else "folder"


def data_folder() -> Path | None:
    """The folder of datasets, from the environment."""
    folder = os.environ.get("MIXVIEW_DATA")
    return Path(folder) if folder else None


def locate_named(name: str) -> Path | None:
    """The path of the dataset of this name, None if there is none."""
    base = data_folder()
    for place in NAMES[name][1]:
        if place.startswith("/"):
            if Path(place).exists():
                return Path(place)
        elif base is not None:
            for path in sorted(base.glob(place)):
                return path
    return None


def find_named(name: str) -> Path:
    """The path of the dataset of this name."""
    path = locate_named(name)
    if path is None:
        base = data_folder()
        where = f"is not in {base}" if base else "can be found once MIXVIEW_DATA names the folder of your datasets"
        raise SourceError(f"{name} {where}: put {NAMES[name][1][0]} there, or pass its path instead")
    return path
