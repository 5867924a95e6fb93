"""PASCAL VOC in its official layout, one year or several: label sets, "difficult" flags, boxes, masks."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import final
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt

from mixview.data.decode import Decoder
from mixview.data.sources.base import IGNORED, ClassMap, Objects, Source, SourceError
from mixview.data.sources.files import ImageFiles, read_file
from mixview.data.sources.packed_strings import PackedStrings

YEAR = re.compile(r"VOC(\d{4})")
MAIN = Path("ImageSets", "Main")

PRESENCE = {"1": 1, "-1": 0, "0": -1}
"""The numbers in the per-class files (1 present, -1 absent, 0 difficult) -> those in a label set."""


@final
class Voc(ImageFiles):
    """PASCAL VOC: `VOC2007`, or the `VOCdevkit` that holds it and perhaps other years.

    The label sets are those of the per-class files (`ImageSets/Main/dog_trainval.txt`), which the published protocols
    go by, or where there are none, those of the annotations. Boxes come from the annotations, masks from
    `SegmentationObject` for the images that have one.

    Args:
        root: `VOC2007`, `VOC2012` …, or the folder that holds them.
        split: trainval (the default), train, val or test.
        years: those that are wanted, such as 2007+2012; by default all that have the split.
    """

    kind = "voc"

    def __init__(self, root: str | Path, split: str | None = None, years: str | None = None) -> None:
        root = Path(root)
        split = split or "trainval"
        folders = year_folders(root)
        if years is not None:
            year_names = [f"VOC{year}" for year in re.findall(r"\d{4}", years)]
            missing = sorted(set(year_names) - set(folders))
            if missing or not year_names:
                raise SourceError(f"{root} has {', '.join(folders)}, not years={years}: write years as 2007+2012")
            folders = {name: folders[name] for name in year_names}
        chosen = {name: folder for name, folder in folders.items() if (folder / MAIN / f"{split}.txt").is_file()}
        lacking = [folder for name, folder in folders.items() if name not in chosen]
        if lacking and (years is not None or not chosen):
            splits = sorted({path.stem for path in (lacking[0] / MAIN).glob("*.txt") if "_" not in path.stem})
            raise SourceError(
                f"{lacking[0]} has no split file {MAIN / f'{split}.txt'}: "
                + (f"its splits are {', '.join(splits)}" if splits else "download the dataset again")
            )
        self.split = split
        self.years = tuple(chosen)
        ids = {name: read_split(folder / MAIN / f"{split}.txt") for name, folder in chosen.items()}
        names = [f"{name}/JPEGImages/{each}.jpg" for name in chosen for each in ids[name]]
        self._folders = chosen
        super().__init__(next(iter(chosen.values())).parent, PackedStrings(names))
        self.classes, self._label_sets = self._read_label_sets(ids)

    def label_sets(self) -> npt.NDArray[np.int8]:
        return self._label_sets

    def objects(self, index: int) -> Objects:
        image = self.path(index)
        names, boxes, difficult = read_annotation(image.parent.parent / "Annotations" / f"{image.stem}.xml")
        assert self.classes is not None
        unknown = sorted(set(names) - set(self.classes))
        if unknown:
            raise SourceError(
                f"the annotation of {self.name(index)} has the class {unknown[0]!r}, which no per-class file is of: "
                f"add {unknown[0]}_{self.split}.txt"
            )
        return Objects(
            boxes=np.array(boxes, dtype=np.float32).reshape(-1, 4),
            classes=np.array([self.classes.index(name) for name in names], dtype=np.int64),
            difficult=np.array(difficult, dtype=np.bool_),
            crowd=np.zeros(len(names), dtype=np.bool_),
            masks=read_masks(image.parent.parent / "SegmentationObject" / f"{image.stem}.png", len(names)),
        )

    def segmentation(self) -> Source | None:
        """The images of `ImageSets/Segmentation`; without that list, those of the split that have a class map."""
        names: list[str] = []
        for year, folder in self._folders.items():
            path = folder / "ImageSets" / "Segmentation" / f"{self.split}.txt"
            names += [f"{year}/JPEGImages/{each}.jpg" for each in (read_split(path) if path.is_file() else [])]
        if not names:
            names = [self.name(index) for index in range(len(self)) if class_map_path(self.path(index)).is_file()]
        assert self.classes is not None
        return SegmentedVoc(self.root, PackedStrings(names), classes=self.classes) if names else None

    def _read_label_sets(self, ids: dict[str, list[str]]) -> tuple[tuple[str, ...], npt.NDArray[np.int8]]:
        """The classes, and [N, classes] of 1, 0, -1."""
        suffix = f"_{self.split}"
        class_files = [
            {path.stem.removesuffix(suffix): path for path in (folder / MAIN).glob(f"*{suffix}.txt")}
            for folder in self._folders.values()
        ]
        classes = tuple(sorted(set().union(*class_files)))
        if not classes:
            return self._label_sets_of_annotations(ids)
        parts = []
        for (year, folder), files in zip(self._folders.items(), class_files, strict=True):
            table = np.zeros((len(ids[year]), len(classes)), dtype=np.int8)
            row = {each: number for number, each in enumerate(ids[year])}
            for column, name in enumerate(classes):
                if name not in files:
                    raise SourceError(f"{folder / MAIN} has no {name}{suffix}.txt, which another year has: restore it")
                for line in files[name].read_text().splitlines():
                    each, _, presence = line.strip().partition(" ")
                    if each in row and presence.strip() in PRESENCE:
                        table[row[each], column] = PRESENCE[presence.strip()]
            parts.append(table)
        return classes, np.concatenate(parts)

    def _label_sets_of_annotations(self, ids: dict[str, list[str]]) -> tuple[tuple[str, ...], npt.NDArray[np.int8]]:
        """The same from the annotations: -1 for a class all of whose objects are difficult."""
        contents = [
            read_annotation(self._folders[year] / "Annotations" / f"{each}.xml") for year in ids for each in ids[year]
        ]
        classes = tuple(sorted({name for names, _, _ in contents for name in names}))
        table = np.zeros((len(contents), len(classes)), dtype=np.int8)
        for row, (names, _, difficult) in enumerate(contents):
            for name, hard in zip(names, difficult, strict=True):
                column = classes.index(name)
                table[row, column] = 1 if not hard or table[row, column] == 1 else -1
        return classes, table


@final
class SegmentedVoc(ImageFiles):
    """The images of a VOC that have a class map, a palette image in `SegmentationClass`."""

    kind = "voc segmentation"

    def segmentation(self) -> Source:
        return self

    def class_map(self, index: int) -> ClassMap:
        path = class_map_path(self.path(index))
        values = Decoder(mode="palette")(read_file(path, path.name), path.name)[:, :, 0].astype(np.int16)
        values[values == 255] = IGNORED
        assert self.classes is not None
        if values.max() > len(self.classes):
            raise SourceError(
                f"{path} has pixels of class {values.max()}, and there are {len(self.classes)} classes in ImageSets: "
                "restore the per-class files, which name them all"
            )
        return values


def class_map_path(image: Path) -> Path:
    """The path of the class map of an image."""
    return image.parent.parent / "SegmentationClass" / f"{image.stem}.png"


def year_folders(root: Path) -> dict[str, Path]:
    """The folders of the years at this path: itself, those in it, or those in the VOCdevkit in it."""
    if (root / MAIN).is_dir():
        root = root.resolve()  # the name of a folder that was given as "." or by a link
        return {root.name: root}
    for folder in (root, root / "VOCdevkit"):
        if folder.is_dir():
            folders = {
                path.name: path for path in sorted(folder.iterdir()) if YEAR.fullmatch(path.name) and path.is_dir()
            }
            if folders:
                return folders
    raise SourceError(f"{root} holds no VOC2007 or other year: pass the folder that holds JPEGImages, or VOCdevkit")


def locate(path: Path) -> Path | None:
    """The folder of a VOC at this path: itself, or the VOCdevkit in it."""
    try:
        year = next(iter(year_folders(path).values()))
    except SourceError:
        return None
    return path / "VOCdevkit" if year.parent == path / "VOCdevkit" else path


def read_split(path: Path) -> list[str]:
    """The images of a split."""
    ids = [line.split()[0] for line in path.read_text().splitlines() if line.strip()]
    if not ids:
        raise SourceError(f"{path} names no images: restore it from the dataset's archive")
    return ids


def read_annotation(path: Path) -> tuple[list[str], list[list[float]], list[bool]]:
    """The classes, boxes and "difficult" flags of the objects in one image.

    VOC counts pixels from 1 and includes the last: its 1, 1, 2, 2 is two pixels of two rows, our 0, 0, 2, 2.
    """
    try:
        root = ElementTree.parse(path).getroot()
        names, boxes, difficult = [], [], []
        for item in root.findall("object"):
            left, top, right, bottom = (float(item.findtext(f"bndbox/{key}", "")) for key in BOX)
            names.append(item.findtext("name", "").strip())
            boxes.append([left - 1, top - 1, right, bottom])
            difficult.append(item.findtext("difficult", "0").strip() == "1")
        return names, boxes, difficult
    except (OSError, ElementTree.ParseError, ValueError, LookupError) as error:  # an encoding that there is not
        raise SourceError(f"the annotation {path} cannot be read ({error}): restore it") from error


BOX: Sequence[str] = ("xmin", "ymin", "xmax", "ymax")


def read_masks(path: Path, count: int) -> npt.NDArray[np.bool_] | None:
    """[K, H, W]: pixels of value k belong to the k-th object of the annotation, counted from 1; 255 is the border."""
    if not path.is_file():
        return None
    values = Decoder(mode="palette")(read_file(path, path.name), path.name)[:, :, 0]
    masks: npt.NDArray[np.bool_] = values == np.arange(1, count + 1, dtype=np.uint8)[:, None, None]
    return masks
