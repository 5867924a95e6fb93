"""COCO in its official layout: labels, boxes, crowds and masks from `annotations/instances_*.json`."""

from pathlib import Path
from typing import Annotated, Literal, final

import msgspec
import numpy as np
import numpy.typing as npt

from mixview.data.decode import MAX_PIXELS
from mixview.data.sources.base import ClassMap, Objects, Source, SourceError, paint_objects
from mixview.data.sources.files import ImageFiles
from mixview.data.sources.packed_strings import PackedStrings
from mixview.data.sources.splits import Subset

MAX_COORDINATE = 100_000
"""Pixels: no image has a longer side. pycocotools counts in C, and crashes on coordinates that are far outside."""
MAX_OUTLINE = 10_000_000
"""Pixels along the outline of one polygon: pycocotools holds forty bytes for each."""

Id = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Side = Annotated[int, msgspec.Meta(ge=1, le=MAX_COORDINATE)]
Coordinate = Annotated[float, msgspec.Meta(ge=-MAX_COORDINATE, le=MAX_COORDINATE)]


class Image(msgspec.Struct):
    """An image as the file has it; what else it says of it is not read."""

    id: Id
    file_name: str
    height: Side
    width: Side


class Category(msgspec.Struct):
    """A class as the file has it."""

    id: Id
    name: str


class RunLengths(msgspec.Struct):
    """A mask as the lengths of its runs, down the columns: zeros first, as numbers or in COCO's text."""

    size: tuple[Side, Side]
    counts: list[Annotated[int, msgspec.Meta(ge=0, le=MAX_PIXELS)]] | str


class Annotation(msgspec.Struct):
    """An object as the file has it."""

    image_id: Id
    category_id: Id
    bbox: tuple[Coordinate, Coordinate, Coordinate, Coordinate]
    id: int | str | None = None
    iscrowd: bool | float | None = False
    area: Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)] | None = None
    segmentation: list[list[Coordinate]] | RunLengths | None = None


class Instances(msgspec.Struct):
    """A file of annotations, `instances_*.json`."""

    images: list[Image]
    annotations: list[Annotation]
    categories: list[Category]


@final
class Coco(ImageFiles):
    """COCO, its annotations held in arrays: `annotations/instances_train2017.json` next to `train2017/`.

    Categories are numbered 0, 1, 2 … in the order of their ids, which have gaps; `category_ids` are those ids, and
    `image_ids` those of the images, to write results in COCO's format.

    Args:
        root: the folder that holds `annotations`.
        split: train2017, val2017 …, or train or val of the only year there is; by default train.
        absent: the treatment of images that the annotations name and that are not there: raise, or skip them.
        masks: True if `objects` draws masks; this needs pycocotools.
    """

    kind = "coco"

    def __init__(
        self,
        root: str | Path,
        split: str | None = None,
        absent: Literal["raise", "skip"] = "raise",
        masks: bool = True,
    ) -> None:
        root = Path(root)
        path = find_annotations(root, split or "train")
        folder = root / path.stem.removeprefix("instances_")
        if not folder.is_dir():
            raise SourceError(f"{path} is there and its images, the folder {folder}, are not: download them next to it")
        content = read_instances(path)
        images = content.images
        # One listing of the folder rather than a hundred thousand questions to the disk.
        there = {entry.name for entry in folder.iterdir()}
        named = [image.file_name for image in images]
        missing = [name for name in named if name not in there and not is_file(folder / name)]
        if missing and absent == "raise":
            raise SourceError(
                f"{path} names {len(missing)} images that are not in {folder}, {missing[0]} for one: "
                'download them, or leave them out with absent="skip"'
            )
        lost = set(missing)
        images = [image for image in images if image.file_name not in lost]
        if not images:
            raise SourceError(f"none of the images that {path} names is in {folder}: download them")
        for image in images:
            if image.height * image.width > MAX_PIXELS:
                raise SourceError(
                    f"{path} says that {image.file_name} is {image.width}×{image.height} pixels, more than can be read "
                    f"({MAX_PIXELS / 1e6:.0f} million): correct it"
                )
        names = PackedStrings(f"{folder.name}/{image.file_name}" for image in images)
        categories = sorted(content.categories, key=lambda category: category.id)
        skipped = {f"{folder.name}/{name}": "is named by the annotations and absent" for name in missing}
        super().__init__(root, names, classes=tuple(category.name for category in categories), skipped=skipped)

        self.image_ids = np.array([image.id for image in images], dtype=np.int64)
        self.category_ids = np.array([category.id for category in categories], dtype=np.int64)
        self._sizes = np.array([[image.height, image.width] for image in images], dtype=np.int32)
        self._draws_masks = masks
        self._read_annotations(content.annotations, path)

    def _read_annotations(self, annotations: list[Annotation], path: Path) -> None:
        """The annotations in arrays, those of an image together: image i has those from `_starts[i]` on."""
        row = {int(image): number for number, image in enumerate(self.image_ids)}
        column = {int(category): number for number, category in enumerate(self.category_ids)}
        annotations = [each for each in annotations if each.image_id in row]
        annotations.sort(key=lambda each: row[each.image_id])  # stable: within an image in the file's order
        try:
            self._classes = np.array([column[each.category_id] for each in annotations], dtype=np.int64)
        except KeyError as error:
            raise SourceError(f"an annotation in {path} is of category {error}, which has no name: add it") from None
        self._images = np.array([row[each.image_id] for each in annotations], dtype=np.int64)
        self._starts = np.searchsorted(self._images, np.arange(len(self) + 1))
        self._boxes = np.array([each.bbox for each in annotations], dtype=np.float32).reshape(-1, 4)
        self._boxes[:, 2:] += self._boxes[:, :2]  # on disk left, top, width, height
        self._crowd = np.array([bool(each.iscrowd) for each in annotations], dtype=np.bool_)
        areas = [each.area for each in annotations]
        self._areas = None if None in areas else np.array(areas, dtype=np.float64)
        segmentations = [each.segmentation for each in annotations]
        sizes = self._sizes[self._images].tolist()
        self._shapes = PackedStrings(
            pack_segmentation(each, size[0], size[1], path) for each, size in zip(annotations, sizes, strict=True)
        )
        # What has no area has no outline either; a set without any outline has no masks at all.
        empty = (self._boxes[:, 2:] <= self._boxes[:, :2]).any(1)
        self._outlined = np.array([bool(each) for each in segmentations], dtype=np.bool_) | empty
        self._has_masks = any(segmentations) or not segmentations

    def label_sets(self) -> npt.NDArray[np.int8]:
        table = np.zeros((len(self), len(self.category_ids)), dtype=np.int8)
        table[self._images, self._classes] = 1
        return table

    def objects(self, index: int) -> Objects:
        own = slice(int(self._starts[index]), int(self._starts[index + 1]))
        masks = None
        if self._draws_masks and self._has_masks and self._outlined[own].all():
            height, width = (int(size) for size in self._sizes[index])
            masks = np.zeros((own.stop - own.start, height, width), dtype=np.bool_)
            for number in range(own.start, own.stop):
                masks[number - own.start] = draw_mask(self._shapes.encoded(number), height, width)
        crowd = self._crowd[own].copy()
        areas = None if self._areas is None else self._areas[own].copy()
        return Objects(self._boxes[own].copy(), self._classes[own].copy(), np.zeros_like(crowd), crowd, masks, areas)

    def segmentation(self) -> Source | None:
        """The images whose objects all have masks; an image without objects is background."""
        if not (self._draws_masks and self._has_masks and self._outlined.any()):
            return None
        outlined = np.bincount(self._images, ~self._outlined, minlength=len(self)) == 0
        return self if outlined.all() else Subset(self, np.flatnonzero(outlined))

    def class_map(self, index: int) -> ClassMap:
        return paint_objects(self.objects(index), *(int(size) for size in self._sizes[index]))


def locate(path: Path) -> Path | None:
    """The folder of a COCO at this path."""
    return path if any((path / "annotations").glob("instances_*.json")) else None


def find_annotations(root: Path, split: str) -> Path:
    """The file of annotations of a split."""
    exact = root / "annotations" / f"instances_{split}.json"
    if exact.is_file():
        return exact
    files = sorted((root / "annotations").glob("instances_*.json"))
    alike = [path for path in files if path.stem.removeprefix("instances_").rstrip("0123456789") == split]
    if len(alike) == 1:
        return alike[0]
    splits = ", ".join(path.stem.removeprefix("instances_") for path in files) or "none"
    raise SourceError(f"{root} has no annotations/instances_{split}.json: the splits there are {splits}")


def is_file(path: Path) -> bool:
    """Return True if a file is there; False for a name that no file can have."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def read_instances(path: Path) -> Instances:
    """The annotations, every entry checked: what is missing or of another type is named with its place in the file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Instances, strict=False)
    except msgspec.ValidationError as error:
        raise SourceError(
            f"{path} is not a COCO file of instances ({error}): correct the entry, or download it again"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(f"{path} cannot be read ({error}): download it again") from error


def pack_segmentation(annotation: Annotation, height: int, width: int, path: Path) -> bytes:
    """Run lengths or polygons as numbers, told apart by the first byte; raises on what cannot be drawn.

    COCO writes coordinates with two decimals, which float32 can tell apart; any others are kept in float64.
    """
    segmentation = annotation.segmentation
    if not segmentation:
        return b""
    if isinstance(segmentation, RunLengths):
        counts = run_lengths(segmentation.counts)
        if counts is None or segmentation.size != (height, width) or counts.sum() != height * width:
            raise SourceError(
                f"the run lengths of {describe(annotation)} in {path} do not cover its image of {width}×{height} "
                "pixels: correct or remove it"
            )
        return b"r" + counts.astype("<u4").tobytes()
    rings = [np.array(ring, dtype="<f8") for ring in segmentation]
    for ring in rings:
        corners = ring[: len(ring) // 2 * 2].reshape(-1, 2)
        if np.abs(np.diff(corners, axis=0, append=corners[:1])).sum() > MAX_OUTLINE:
            raise SourceError(
                f"a polygon of {describe(annotation)} in {path} is more than {MAX_OUTLINE} pixels long: correct it"
            )
    short = all((two_decimals(ring.astype("<f4")) == ring).all() for ring in rings)
    packed = [(ring.astype("<f4") if short else ring).tobytes() for ring in rings]
    return (b"4" if short else b"8") + b"".join(np.int32(len(ring)).tobytes() + ring for ring in packed)


def describe(annotation: Annotation) -> str:
    """The annotation, for errors."""
    return f"annotation {annotation.id} of image {annotation.image_id}"


def run_lengths(counts: list[int] | str) -> npt.NDArray[np.int64] | None:
    """The lengths of the runs, unpacked from COCO's text where they are in it; None where it is not such a text.

    A number is written five bits per character, lowest first: bit 5 says that more follow, bit 4 of the last is the
    sign. From the fourth number on, it is the difference to the last but one.
    """
    if not isinstance(counts, str):
        return np.array(counts, dtype=np.int64)
    codes = np.frombuffer(counts.encode("utf-8", "replace"), np.uint8).astype(np.int64) - 48
    last = (codes & 32) == 0
    ends = np.flatnonzero(last)
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1])
    if not len(codes) or not last[-1] or codes.min() < 0 or codes.max() > 63 or (ends - starts).max() > 6:
        return None
    place = np.arange(len(codes)) - np.repeat(starts, ends - starts + 1)
    values = np.add.reduceat((codes & 31) << 5 * place, starts)
    values -= np.where(codes[ends] & 16, np.int64(1) << 5 * (ends - starts + 1), 0)
    for parity in (1, 2):
        values[parity::2] = np.cumsum(values[parity::2])
    return values if values.min() >= 0 and values.max() <= MAX_PIXELS else None


def two_decimals(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """The numbers of two decimals that were rounded to float32."""
    return np.asarray(np.round(values.astype(np.float64), 2), dtype=np.float64)


def draw_mask(packed: bytes, height: int, width: int) -> npt.NDArray[np.bool_]:
    """[H, W] of a segmentation, drawn by COCO's own code so that areas are COCO's."""
    try:
        from pycocotools import mask as coco_mask
    except ImportError as error:
        raise SourceError(
            'COCO\'s masks need pycocotools: pip install "mixview[sources]", or open the source with masks=False'
        ) from error
    if not packed:
        return np.zeros((height, width), dtype=np.bool_)
    if packed[:1] == b"r":
        counts = np.frombuffer(packed, "<u4", offset=1)
        runs = np.repeat(np.arange(len(counts)) % 2 == 1, counts)
        return np.ascontiguousarray(runs.reshape(width, height).T)
    rings, start = [], 1
    while start < len(packed):
        stop = start + 4 + int(np.frombuffer(packed, np.int32, 1, start)[0])
        ring = packed[start + 4 : stop]
        short = packed[:1] == b"4"
        rings.append((two_decimals(np.frombuffer(ring, "<f4")) if short else np.frombuffer(ring, "<f8")).tolist())
        start = stop
    # Fewer than three corners have no area, and pycocotools would take four numbers for a box.
    rings = [ring for ring in rings if len(ring) >= 6]
    if not rings:
        return np.zeros((height, width), dtype=np.bool_)
    code = coco_mask.merge(coco_mask.frPyObjects(rings, height, width))
    return np.asarray(coco_mask.decode(code), dtype=np.bool_)
