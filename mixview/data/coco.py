"""COCO in its official layout: labels, boxes, crowds and masks from `annotations/instances_*.json`."""

import json
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt

from mixview.data.files import ImageFiles
from mixview.data.packed import PackedStrings
from mixview.data.source import Objects, SourceError


@final
class Coco(ImageFiles):
    """COCO, its annotations held in arrays: `annotations/instances_train2017.json` beside `train2017/`.

    Categories are numbered 0, 1, 2 … in the order of their ids, which have gaps; `category_ids` are those ids, and
    `image_ids` those of the images, for whoever writes results in COCO's format.

    Args:
        root: the folder that holds `annotations`.
        split: train2017, val2017 …, or train or val of the only year there is; by default train.
        absent: what to do if the annotations name images that are not there: refuse, or skip them.
        masks: whether `objects` draws masks; this needs pycocotools.
    """

    kind = "coco"

    def __init__(
        self,
        root: str | Path,
        split: str | None = None,
        absent: Literal["refuse", "skip"] = "refuse",
        masks: bool = True,
    ) -> None:
        root = Path(root)
        path = find_annotations(root, split or "train")
        folder = root / path.stem.removeprefix("instances_")
        if not folder.is_dir():
            raise SourceError(f"{path} is there and its images, the folder {folder}, are not: download them beside it")
        content = read_json(path)
        images = content["images"]
        # One listing of the folder rather than a hundred thousand questions to the disk.
        there = {entry.name for entry in folder.iterdir()}
        named = [image["file_name"] for image in images]
        missing = [name for name in named if name not in there and not (folder / name).is_file()]
        if missing and absent == "refuse":
            raise SourceError(
                f"{path} names {len(missing)} images that are not in {folder}, {missing[0]} for one: "
                'download them, or leave them out with absent="skip"'
            )
        lost = set(missing)
        images = [image for image in images if image["file_name"] not in lost]
        if not images:
            raise SourceError(f"none of the images that {path} names is in {folder}: download them")
        names = PackedStrings(f"{folder.name}/{image['file_name']}" for image in images)
        categories = sorted(content["categories"], key=lambda category: int(category["id"]))
        skipped = {f"{folder.name}/{name}": "is named by the annotations and absent" for name in missing}
        super().__init__(root, names, classes=tuple(category["name"] for category in categories), skipped=skipped)

        self.image_ids = np.array([image["id"] for image in images], dtype=np.int64)
        self.category_ids = np.array([category["id"] for category in categories], dtype=np.int64)
        self._sizes = np.array([[image["height"], image["width"]] for image in images], dtype=np.int32)
        self._draws_masks = masks
        self._read_annotations(content["annotations"], path)

    def _read_annotations(self, annotations: list[dict[str, Any]], path: Path) -> None:
        """The annotations in arrays, those of an image together: image i has those from `_starts[i]` on."""
        row = {int(image): number for number, image in enumerate(self.image_ids)}
        column = {int(category): number for number, category in enumerate(self.category_ids)}
        annotations = [each for each in annotations if each["image_id"] in row]
        annotations.sort(key=lambda each: row[each["image_id"]])  # stable: within an image in the file's order
        try:
            self._classes = np.array([column[each["category_id"]] for each in annotations], dtype=np.int64)
        except KeyError as error:
            raise SourceError(f"an annotation in {path} is of category {error}, which has no name: add it") from None
        self._images = np.array([row[each["image_id"]] for each in annotations], dtype=np.int64)
        self._starts = np.searchsorted(self._images, np.arange(len(self) + 1))
        self._boxes = np.array([each["bbox"] for each in annotations], dtype=np.float32).reshape(-1, 4)
        self._boxes[:, 2:] += self._boxes[:, :2]  # on disk left, top, width, height
        self._crowd = np.array([each.get("iscrowd", 0) for each in annotations], dtype=np.bool_)
        areas = [each.get("area") for each in annotations]
        self._areas = None if None in areas else np.array(areas, dtype=np.float64)
        segmentations = [each.get("segmentation") for each in annotations]
        self._shapes = PackedStrings(pack_segmentation(each) for each in segmentations)
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


def locate(path: Path) -> Path | None:
    """The folder of a COCO at this path."""
    return path if any((path / "annotations").glob("instances_*.json")) else None


def find_annotations(root: Path, split: str) -> Path:
    """The file of annotations of a split."""
    exact = root / "annotations" / f"instances_{split}.json"
    if exact.is_file():
        return exact
    found = sorted((root / "annotations").glob("instances_*.json"))
    alike = [path for path in found if path.stem.removeprefix("instances_").rstrip("0123456789") == split]
    if len(alike) == 1:
        return alike[0]
    known = ", ".join(path.stem.removeprefix("instances_") for path in found) or "none"
    raise SourceError(f"{root} has no annotations/instances_{split}.json: the splits there are {known}")


def read_json(path: Path) -> dict[str, Any]:
    """The annotations as they are, with the three lists that they must have."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SourceError(f"{path} cannot be read ({error}): download it again") from error
    for key in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            raise SourceError(f"{path} has no list of {key}: it is not a COCO file of instances; download it again")
    return dict(content)


def pack_segmentation(segmentation: Any) -> bytes:
    """A run-length code as JSON, polygons as numbers, told apart by the first byte.

    COCO writes coordinates with two decimals, which float32 can tell apart; any others are kept in float64.
    """
    if not segmentation:
        return b""
    if isinstance(segmentation, dict):
        return b"r" + json.dumps(segmentation).encode()
    rings = [np.array(ring, dtype="<f8") for ring in segmentation]
    short = all((two_decimals(ring.astype("<f4")) == ring).all() for ring in rings)
    packed = [(ring.astype("<f4") if short else ring).tobytes() for ring in rings]
    return (b"4" if short else b"8") + b"".join(np.int32(len(ring)).tobytes() + ring for ring in packed)


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
        code = json.loads(packed[1:])
        if isinstance(code["counts"], list):
            code = coco_mask.frPyObjects(code, height, width)
    else:
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
