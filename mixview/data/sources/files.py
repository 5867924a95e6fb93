"""Images that are files, on a disk or in a bucket: a folder at any depth, class folders, ImageNet, a list of paths.

A place on a disk is a `Path`, one in a bucket (`s3://bucket/photos`, see `.cloud`) is a text.
"""

import csv
import io
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
import numpy.typing as npt

from mixview.data.decode import reads, reads_array, unread_remedy
from mixview.data.sources import cloud
from mixview.data.sources.base import BadImage, Source, SourceError
from mixview.data.sources.cloud import is_cloud
from mixview.data.sources.fingerprint import fingerprint
from mixview.data.sources.packed_strings import PackedStrings
from mixview.io.atomic import open_regular
from mixview.io.run_folders import is_run

TRAIN_SPLITS = ("train", "training")
SPLITS = frozenset((*TRAIN_SPLITS, "val", "valid", "validation", "test", "testing", "unlabeled", "extra"))
"""Subfolders with these names are parts of a dataset, not classes."""

SYNSET = re.compile(r"n\d{8}")
WHOLE_NUMBER = re.compile(r"[+-]?\d+", re.ASCII)

MAX_BYTES = 1 << 29
"""No image file is larger: half a gigabyte."""


class ImageFiles(Source):
    """Files, their paths packed. A subclass finds them, says its `kind`, and adds what else it knows.

    Args:
        root: the folder that the names are relative to.
        names: the path of each image.
        labels: [N] the class of each.
        classes: the names of the classes.
        skipped: the files that were left out, and why.
        notes: further sentences on what was left out.
        sizes: [N] the bytes of each image in a bucket, -1 for those that are not there; None on a disk.
    """

    def __init__(
        self,
        root: Path | str,
        names: PackedStrings,
        labels: npt.NDArray[np.int64] | None = None,
        classes: tuple[str, ...] | None = None,
        skipped: dict[str, str] | None = None,
        notes: Sequence[str] = (),
        sizes: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.root = root
        self.classes = classes
        self.skipped = skipped or {}
        self.notes = (*notes, *(f"skipped {name}: {reason}" for name, reason in self.skipped.items()))
        self._names = names
        self._labels = labels
        self._object_sizes = sizes

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.root)!r}, {len(self)} images)"

    def name(self, index: int) -> str:
        return self._names[index]

    def read(self, index: int) -> bytes:
        name = self._names[index]
        if self._object_sizes is not None:
            return cloud.read_object(str(join(self.root, name)), int(self._object_sizes[index]), name)
        # Path interns the parts of every path in a table that grows, and that each worker would come to own a copy of.
        return read_file(os.path.join(self.root, name), name)  # noqa: PTH118

    def path(self, index: int) -> Path:
        """The path of the file on a disk."""
        return Path(self.root) / self._names[index]

    def labels(self) -> npt.NDArray[np.int64] | None:
        return self._labels

    def fingerprint(self) -> str:
        if self._object_sizes is not None:
            return fingerprint(self._names, self._object_sizes, self.labels(), self.label_sets())
        root = os.fsencode(self.root)
        paths = (os.path.join(root, self._names.encoded(index)) for index in range(len(self)))  # noqa: PTH118
        sizes = np.fromiter(map(file_size, paths), dtype=np.int64, count=len(self))
        return fingerprint(self._names, sizes, self.labels(), self.label_sets())


def parse_place(address: str | Path) -> Path | str:
    """A place on a disk, or in a bucket."""
    if not (isinstance(address, str) and is_cloud(address)):
        return Path(address)
    scheme, _, path = address.partition("://")
    return f"{scheme}://{path.rstrip('/')}"


def join(root: Path | str, name: str) -> Path | str:
    """A file in a place; in a bucket, an address itself where the name is one."""
    if isinstance(root, Path):
        return root / name
    return name if is_cloud(name) else f"{root}/{name}"


def read_file(path: str | Path, name: str) -> bytes:
    """The bytes of one image file."""
    try:
        with open_regular(path, follow=True) as file:
            if (size := os.fstat(file.fileno()).st_size) > MAX_BYTES:
                raise BadImage(name, f"is {size / 1e9:.1f} GB, more than any image: remove it from the data")
            return file.read(size or 1)  # some files of the system have no size, and are not images
    except (OSError, ValueError) as error:
        if isinstance(error, BadImage):
            raise
        raise BadImage(name, f"cannot be read ({getattr(error, 'strerror', None) or error})") from error


def file_size(path: bytes) -> int:
    """Size in bytes; -1 if there is no such file."""
    try:
        return os.stat(path).st_size  # noqa: PTH116, a million Path objects would cost more than the calls
    except OSError:
        return -1


def is_image_name(name: str) -> bool:
    """Return True if a file of this name is taken for an image."""
    return reads(suffix_of(name))


def is_array_name(name: str) -> bool:
    """Return True if a file of this name is taken for an image where no others are: .npy and .npz may be anything."""
    return reads_array(suffix_of(name))


def suffix_of(name: str) -> str:
    return os.path.splitext(name)[1].lower()  # noqa: PTH122


def holds_runs_only(folder: Path) -> bool:
    """Return True if a folder is that of a run, or holds nothing but such folders, as `runs` does."""
    if is_run(folder, check_status=True):
        return True
    try:
        visible = (entry for entry in folder.iterdir() if not entry.name.startswith("."))
        first = next(visible, None)
        return first is not None and all(
            each.is_dir() and is_run(each, check_status=True) for each in itertools.chain([first], visible)
        )
    except OSError:
        return False


class FoundImages(NamedTuple):
    """The images under a folder."""

    images: list[str]
    """Relative paths, sorted."""
    skipped: dict[str, str]
    """Files that look like an image and are not: path -> why."""
    notes: list[str]
    """Sentences on what else was left out."""
    sizes: npt.NDArray[np.int64] | None = None
    """[N] the bytes of each image, in a bucket."""


def find_objects(root: str) -> FoundImages:
    """`find_images` in a bucket, of which all names are listed at once, with their sizes."""
    objects = cloud.list_objects(root)
    runs = {
        name.rpartition("/")[0]
        for name in objects
        if name.rpartition("/")[2] == "status.json" and f"{name[: -len('status.json')]}config.yaml" in objects
    }
    notes = [f"left out {join(root, run)}: it is the folder of a run of mixview, not data" for run in sorted(runs)]
    images: list[str] = []
    arrays: list[str] = []
    unread: dict[str, list[str]] = {}
    for name in objects:
        parts = name.split("/")
        if any(part.startswith(".") for part in parts):
            continue
        if runs and any("/".join(parts[:depth]) in runs for depth in range(len(parts))):
            continue
        if is_image_name(name):
            images.append(name)
        elif is_array_name(name):
            arrays.append(name)
        elif unread_remedy(suffix_of(name)):
            unread.setdefault(suffix_of(name), []).append(name)
    images = images or arrays
    sizes = np.fromiter((objects[name] for name in images), dtype=np.int64, count=len(images))
    return FoundImages(images, {}, notes + name_unread(unread), sizes)


def name_unread(unread: dict[str, list[str]]) -> list[str]:
    """A sentence for each kind of picture that is not read."""
    notes = []
    for suffix, names in sorted(unread.items()):
        names.sort(key=os.fsencode)
        some = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
        notes.append(f"left out {len(names)} files that end in {suffix} ({some}): {unread_remedy(suffix)}")
    return notes


def find_images(root: Path | str) -> FoundImages:
    """All images under a folder, and what was left out.

    Links are followed, but never into a folder that is being walked already, so that a loop of links ends. Hidden files
    and folders are not images (`._photo.jpg` is what macOS leaves next to one), and neither are the pictures in the
    folder of a run.
    """
    if isinstance(root, str):
        return find_objects(root)
    images: list[str] = []
    arrays: list[str] = []
    skipped: dict[str, str] = {}
    notes: list[str] = []
    unread: dict[str, list[str]] = {}
    waiting: list[tuple[str, tuple[tuple[int, int], ...]]] = [("", ())]
    while waiting:
        prefix, ancestors = waiting.pop()
        folder = root / prefix
        try:
            status = folder.stat()
            identity = (status.st_dev, status.st_ino)
            if identity in ancestors:
                skipped[prefix] = "is a link to a folder that holds it"
                continue
            if is_run(folder, check_status=True):
                notes.append(f"left out {prefix or root}: it is the folder of a run of mixview, not data")
                continue
            entries = os.scandir(folder)
        except OSError as error:
            skipped[prefix or str(root)] = f"cannot be opened ({error.strerror})"
            continue
        with entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                name = f"{prefix}/{entry.name}" if prefix else entry.name
                image = is_image_name(entry.name)
                try:
                    if entry.is_dir():
                        if image:
                            skipped[name] = "is a folder, not an image (what is in it is read)"
                        waiting.append((name, (*ancestors, identity)))
                    elif image:
                        if entry.is_file():
                            images.append(name)
                        else:
                            skipped[name] = "is a broken link" if entry.is_symlink() else "is not a regular file"
                    elif is_array_name(name) and entry.is_file():
                        arrays.append(name)
                    elif unread_remedy(suffix_of(name)):
                        unread.setdefault(suffix_of(name), []).append(name)
                except OSError as error:  # a link to itself
                    if image:
                        skipped[name] = f"cannot be opened ({error.strerror})"
    if not images and not skipped:
        images = arrays
    images.sort(key=os.fsencode)
    return FoundImages(images, skipped, notes + name_unread(unread))


def require_folder(root: Path) -> None:
    """Raise if a folder is missing or is not one."""
    if not root.exists():
        raise SourceError(f"there is no folder {root}: check the path")
    if not root.is_dir():
        raise SourceError(f"{root} is a file, and a folder was expected: check the path")


def subfolders(root: Path) -> list[Path]:
    """The folders in a folder that may hold data: not the hidden ones, nor those of runs."""
    visible = (path for path in sorted(root.iterdir()) if not path.name.startswith(".") and path.is_dir())
    return [path for path in visible if not holds_runs_only(path)]


def split_folders(root: Path | str) -> dict[str, Path | str]:
    """The subfolders that are named like the parts of a dataset (train, val …), if there are no other folders."""
    folders: dict[str, Path | str]
    if isinstance(root, Path):
        require_folder(root)
        folders = {path.name: path for path in subfolders(root)}
    else:
        visible = (name for name in cloud.list_folder(root).folders if not name.startswith("."))
        folders = {name: join(root, name) for name in visible}
    named = {name: path for name, path in folders.items() if name.lower() in SPLITS}
    return named if len(named) == len(folders) else {}


def enter_split(root: Path | str, split: str | None) -> Path | str:
    """The folder of a split; without a name the training part, or the folder itself if it has no parts."""
    parts = split_folders(root)
    if split is None:
        return next((path for name, path in parts.items() if name.lower() in TRAIN_SPLITS), root)
    if split in parts:
        return parts[split]
    hint = f"it has {', '.join(parts)}" if parts else "it has no subfolders named like splits; leave split out"
    raise SourceError(f"{root} has no split {split!r}: {hint}")


def images_in(root: Path | str) -> FoundImages:
    """`find_images`, but raises if there are none."""
    images = find_images(root)
    if not images.images:
        why = "".join(f"; {each}" for each in [*map(" ".join, images.skipped.items()), *images.notes][:3])
        raise SourceError(f"{root} holds no images (files ending in .jpg, .png …) at any depth{why}: check the path")
    return images


@final
class Folder(ImageFiles):
    """Any folder of images, at any depth, without labels.

    Args:
        root: the folder.
        split: one of its subfolders train, val, test …; without it the training part, if the folder has parts.
    """

    kind = "folder"

    def __init__(self, root: str | Path, split: str | None = None) -> None:
        root = enter_split(parse_place(root), split)
        images = images_in(root)
        super().__init__(
            root, PackedStrings(images.images), skipped=images.skipped, notes=images.notes, sizes=images.sizes
        )


@final
class ClassFolders(ImageFiles):
    """torchvision's ImageFolder: one subfolder per class, each at any depth.

    Folders named like ImageNet's synsets (n01440764) get their class names where the dataset or torchvision knows
    them; a `val` folder of ImageNet that has no subfolders gets its labels from Kaggle's `LOC_val_solution.csv`.

    Args:
        root: the folder of the class folders, or of the splits.
        split: one of its subfolders train, val, test …; without it the training part, if the folder has parts.
    """

    kind = "imagefolder"

    def __init__(self, root: str | Path, split: str | None = None) -> None:
        root = enter_split(parse_place(root), split)
        images, skipped, notes, sizes = images_in(root)
        folders = [name.partition("/")[0] if "/" in name else "" for name in images]
        if "" in folders:
            solution = kaggle_solution(root) if isinstance(root, Path) else None
            if solution is None:
                raise SourceError(
                    f"{root} has images outside of any class folder, {images[folders.index('')]} first: "
                    "move them into one, or open it with kind='folder', without labels"
                )
            unknown = [name for name in images if Path(name).stem not in solution]
            if unknown:
                raise SourceError(
                    f"LOC_val_solution.csv has no label for {unknown[0]}: restore it, or remove the image"
                )
            folders = [solution[Path(name).stem] for name in images]
        names = sorted(set(folders))
        index = {name: number for number, name in enumerate(names)}
        labels = np.fromiter((index[folder] for folder in folders), dtype=np.int64, count=len(folders))
        classes = synset_names(root, names) if all(map(SYNSET.fullmatch, names)) else tuple(names)
        super().__init__(root, PackedStrings(images), labels, classes, skipped, notes, sizes)


def looks_like_classes(root: Path | str) -> bool:
    """Return True if a folder has two or more subfolders, and all images in them: class folders. Looks no deeper."""
    if isinstance(root, str):
        listing = cloud.list_folder(root)
        visible = [name for name in (*listing.folders, *listing.files) if not name.startswith(".")]
        return not any(map(is_image_name, visible)) and len(set(visible) & set(listing.folders)) > 1
    folders = 0
    with os.scandir(root) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if Path(entry).is_dir():  # False, unlike the entry's own, for a link to itself
                folders += not holds_runs_only(Path(entry))
            elif is_image_name(entry.name):
                return kaggle_solution(root) is not None
    return folders > 1


def kaggle_solution(root: Path) -> dict[str, str] | None:
    """ImageNet's validation labels as Kaggle ships them: file stem -> synset, from next to ILSVRC/Data/CLS-LOC/val."""
    for folder in (root, *list(root.parents)[:4]):
        path = folder / "LOC_val_solution.csv"
        if root.name == "val" and path.is_file():
            with path.open(newline="") as file:
                return {row["ImageId"]: row["PredictionString"].split()[0] for row in csv.DictReader(file)}
    return None


def synset_names(root: Path | str, synsets: Sequence[str]) -> tuple[str, ...]:
    """The names of ImageNet's classes, from its own files or (all 1000) torchvision; else the synsets themselves."""
    names: dict[str, str] = {}
    for folder in (root, *list(root.parents)[:4]) if isinstance(root, Path) else ():
        for name in ("LOC_synset_mapping.txt", "synset_words.txt"):
            path = folder / name
            if path.is_file():
                lines = path.read_text(encoding="utf-8").splitlines()
                names = {line.split(" ", 1)[0]: line.split(" ", 1)[-1].split(",")[0].strip() for line in lines}
                break
    if not names and len(synsets) == 1000:  # sorted synsets are the order of every ImageNet classifier
        from torchvision.models import ResNet18_Weights

        names = dict(zip(synsets, ResNet18_Weights.IMAGENET1K_V1.meta["categories"], strict=True))
    class_names = [names.get(synset, synset) for synset in synsets]
    # "crane" is a bird and a machine
    return tuple(
        f"{name} ({synset})" if class_names.count(name) > 1 else name
        for name, synset in zip(class_names, synsets, strict=True)
    )


LIST_SUFFIXES = (".txt", ".csv", ".tsv", ".lst")
PATH_COLUMNS = ("path", "file", "filename", "file_name", "filepath", "image", "image_path", "img", "name")
LABEL_COLUMNS = ("label", "class", "target", "category", "y")


@final
class FileList(ImageFiles):
    """A text or CSV file of paths, with or without labels.

    In a text file each line is a path, or a path, a space or tab, and a label; lines that begin with # are comments. A
    CSV (or TSV) file has the columns `path` and `label`, or names them here; without a header the first column is the
    path and the second, if any, the label. Labels are numbers, or names of classes.

    The list, and what it names, may be in a bucket; a list names files on a disk or in buckets, and not both.

    Args:
        path: the list.
        root: the folder that the paths in it are relative to; by default the folder of the list.
        path_column: the header of the column of paths.
        label_column: the header of the column of labels.
    """

    kind = "list"

    def __init__(
        self,
        path: str | Path,
        root: str | Path | None = None,
        path_column: str | None = None,
        label_column: str | None = None,
    ) -> None:
        path = parse_place(path)
        rows = read_list(path, path_column, label_column)
        labeled = [label for _, label in rows if label is not None]
        if labeled and len(labeled) != len(rows):
            bare = next(name for name, label in rows if label is None)
            raise SourceError(f"the list {path} labels some files and not others, {bare} for one: label all or none")
        labels, classes = number_labels(labeled) if labeled else (None, None)
        names = [name for name, _ in rows]
        beside = path.parent if isinstance(path, Path) else path.rpartition("/")[0]
        folder = beside if root is None else parse_place(root)
        if isinstance(folder, Path) and any(map(is_cloud, names)):
            if local := next((name for name in names if not is_cloud(name)), None):
                raise SourceError(f"the list {path} names files in buckets and, {local} for one, on a disk: part it")
            folder = ""
        sizes = None if isinstance(folder, Path) else cloud.object_sizes(str(join(folder, name)) for name in names)
        super().__init__(folder, PackedStrings(names), labels, classes, sizes=sizes)


def names_cloud(address: str) -> bool:
    """Return True if a dataset is in a bucket, or a list of files that are."""
    if is_cloud(address):
        return True
    path = Path(address)
    try:
        return path.suffix.lower() in LIST_SUFFIXES and any(is_cloud(name) for name, _ in read_list(path))
    except SourceError:
        return False


def file_path(source: Source, index: int) -> Path | str:
    """The path of an image of a source, on a disk or in a bucket; raise if it is not a file of its own."""
    if isinstance(source, ImageFiles):
        return join(source.root, source.name(index))
    raise SourceError(
        f"the images of a source of kind {source.kind} are not files of their own, which a list could name: pass "
        "--data a folder of images, or a list"
    )


def read_list(
    path: Path | str, path_column: str | None = None, label_column: str | None = None
) -> list[tuple[str, str | None]]:
    """(path, label or None) of each line of a text file, or of each row of a CSV or TSV file."""
    try:
        with io.TextIOWrapper(
            io.BytesIO(cloud.read_text(path)) if isinstance(path, str) else open_regular(path, follow=True),
            encoding="utf-8-sig",
            errors="surrogateescape",
            newline="",
        ) as file:
            delimiter = {".csv": ",", ".tsv": "\t"}.get(suffix_of(str(path)))
            if delimiter is None:
                rows = list(parse_lines(file))
            else:
                rows = parse_table(list(csv.reader(file, delimiter=delimiter)), path, path_column, label_column)
    except (OSError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise SourceError(f"the list {path} cannot be read ({reason}): check the path") from error
    if not rows:
        raise SourceError(f"the list {path} names no files: write one path per line")
    return rows


def names_file(name: str) -> bool:
    """Return True if a list means an image by this name."""
    return is_image_name(name) or is_array_name(name)


def parse_lines(lines: Iterator[str]) -> Iterator[tuple[str, str | None]]:
    """(path, label or None) of each line of a text file."""
    for line in lines:
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, _, label = line.rpartition("\t")
        if not name:
            name, _, label = line.rpartition(" ")
            if not names_file(name) or names_file(line):  # a path with a space in it, not a path and a label
                name, label = line, ""
        yield name.strip(), label.strip() or None


def parse_table(
    rows: list[list[str]], path: Path | str, path_column: str | None, label_column: str | None
) -> list[tuple[str, str | None]]:
    """(path, label or None) of each row of a CSV file."""
    rows = [row for row in rows if any(cell.strip() for cell in row)]
    if not rows:
        return []
    header = [cell.strip() for cell in rows[0]]
    if not (path_column or label_column) and any(map(is_image_name, header)):
        where, label = 0, (1 if len(header) > 1 else None)
    else:
        rows = rows[1:]
        path_index = find_column(header, path_column, PATH_COLUMNS, path)
        if path_index is None:
            raise SourceError(f"{path} has the columns {', '.join(header)}: say which is the path with path_column")
        where, label = path_index, find_column(header, label_column, LABEL_COLUMNS, path)
    width = max(where, label or 0)
    for number, row in enumerate(rows):
        if len(row) <= width:
            raise SourceError(f"row {number + 1} of {path} has {len(row)} columns, not {width + 1}: complete it")
    return [(row[where].strip(), None if label is None else row[label].strip() or None) for row in rows]


def find_column(header: list[str], name: str | None, usual: tuple[str, ...], path: Path | str) -> int | None:
    """The number of the column of this name, or of a usual one."""
    if name is not None:
        if name not in header:
            raise SourceError(f"{path} has no column {name!r}: it has {', '.join(header)}")
        return header.index(name)
    lower = [cell.lower() for cell in header]
    return next((lower.index(each) for each in usual if each in lower), None)


MAX_LABEL = 100_000
"""The largest label of classes that are numbered from 0; larger ones mean something else."""


def number_labels(labels: Sequence[str]) -> tuple[npt.NDArray[np.int64], tuple[str, ...] | None]:
    """Labels that are numbers as they are, without names; labels that are words numbered in their sorted order.

    Numbers that are too large to count to, such as those of products, are words.
    """
    if all(WHOLE_NUMBER.fullmatch(label) and len(label) < 18 and abs(int(label)) <= MAX_LABEL for label in labels):
        return np.array([int(label) for label in labels], dtype=np.int64), None
    classes = sorted(set(labels))
    index = {name: number for number, name in enumerate(classes)}
    return np.array([index[label] for label in labels], dtype=np.int64), tuple(classes)
