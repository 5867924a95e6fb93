"""Scenes on disk, in the layouts that other tools read: a folder a class, PASCAL VOC, COCO.

    write([Scenes(5000, split="train"), Scenes(1000, split="test")], Path("scenes"), "voc")

A folder is written next to its place and moved there at the end, so a run that broke leaves a folder whose name ends in
`.part` and never half a dataset.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
from PIL import Image
from rich.progress import Progress

from mixview.data.sources.base import Objects
from mixview.data.synthetic.scenes import Scenes

Layout = Literal["folder", "voc", "coco"]
LAYOUTS: tuple[Layout, ...] = ("folder", "voc", "coco")
QUALITY = 92
"""JPEG quality without visible loss."""


def write(
    scenes: Scenes | Sequence[Scenes], folder: Path | str, layout: Layout = "folder", *, progress: bool = True
) -> Path:
    """Write scenes to a new folder, with a progress bar, and return it.

    Args:
        scenes: one split, or several of one dataset.
        folder: the folder to write to; it must not exist, or be empty.
        layout: `"folder"`: `<split>/<class>/<name>.jpg`, what ImageFolder reads (one object an image only).
            `"voc"`: `VOCdevkit/VOC2007/` with `trainval` (halved into `train` and `val`) and `test`.
            `"coco"`: `train2017/`, `val2017/`, `annotations/instances_*2017.json`.
        progress: show a bar.

    Example:
        >>> folder = write([Scenes(20), Scenes(10, split="val")], "scenes", "folder", progress=False)
        >>> sorted(path.name for path in folder.iterdir())
        ['train', 'val']
    """
    splits = [scenes] if isinstance(scenes, Scenes) else list(scenes)
    folder = Path(folder).absolute()
    check_write(splits, folder, layout)
    part = folder.with_name(folder.name + ".part")
    if part.exists():
        shutil.rmtree(part)  # what a broken run left
    part.mkdir(parents=True)
    with Progress(disable=not progress, transient=True) as bar:
        task = bar.add_task(f"writing {folder.name}", total=sum(len(split) for split in splits))
        for _ in {"folder": write_folder, "voc": write_voc, "coco": write_coco}[layout](splits, part):
            bar.advance(task)
    if folder.exists():
        folder.rmdir()
    part.replace(folder)
    return folder


def check_write(splits: Sequence[Scenes], folder: Path, layout: Layout) -> None:
    """Raise, before anything is drawn, if it cannot be written."""
    if layout not in LAYOUTS:
        raise ValueError(f"the layouts are {', '.join(LAYOUTS)}, not {layout!r}")
    if not splits:
        raise ValueError("no scenes to write: pass at least one split")
    if len({split.split for split in splits}) < len(splits):
        raise ValueError(f"each split can be written once, got {', '.join(split.split for split in splits)}")
    if len({split.classes for split in splits}) > 1:
        raise ValueError("the splits must have the same classes: make them with the same `classes`")
    if layout == "folder" and any(split.arrangement != "single" for split in splits):
        raise ValueError(
            'a folder per class holds images of one object: use layout "voc" or "coco", or objects="single"'
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} exists: remove it, or write to another folder")


def write_folder(splits: Sequence[Scenes], folder: Path) -> Iterator[None]:
    for scenes in splits:
        labels = scenes.labels()
        assert labels is not None
        for name in scenes.classes:
            (folder / scenes.split / name).mkdir(parents=True)
        for index in range(len(scenes)):
            home = folder / scenes.split / scenes.classes[labels[index]]
            save_jpeg(scenes, index, home / f"{scenes.name(index)}.jpg")
            yield


def write_voc(splits: Sequence[Scenes], folder: Path) -> Iterator[None]:
    root = folder / "VOCdevkit" / "VOC2007"
    for name in (
        "JPEGImages",
        "Annotations",
        "ImageSets/Main",
        "ImageSets/Segmentation",
        "SegmentationClass",
        "SegmentationObject",
    ):
        (root / name).mkdir(parents=True)
    number = 0
    lists: dict[str, list[tuple[str, set[int]]]] = {}
    numbers = np.argsort(np.argsort(splits[0].classes)) + 1  # VOC's classes are in alphabetical order
    for scenes in splits:
        own: list[tuple[str, set[int]]] = []
        for index in range(len(scenes)):
            number += 1
            name = f"{number:06d}"
            objects = scenes.objects(index)
            save_jpeg(scenes, index, root / "JPEGImages" / f"{name}.jpg")
            save_voc_xml(root / "Annotations" / f"{name}.xml", name, scenes, objects)
            ids = np.arange(1, len(objects.classes) + 1)
            save_voc_mask(root / "SegmentationClass" / f"{name}.png", objects, numbers[objects.classes])
            save_voc_mask(root / "SegmentationObject" / f"{name}.png", objects, ids)
            own.append((name, set(objects.classes.tolist())))
            yield
        if scenes.split == "train" and not any(other.split == "val" for other in splits):
            # VOC halves trainval into train and val.
            lists["train"], lists["val"] = own[::2], own[1::2]
        else:
            lists[scenes.split] = own
    trainval = sorted(lists.get("train", []) + lists.get("val", []))
    if trainval:
        lists["trainval"] = trainval
    for split, images in lists.items():
        names = "".join(f"{name}\n" for name, _ in images)
        (root / "ImageSets" / "Main" / f"{split}.txt").write_text(names)
        (root / "ImageSets" / "Segmentation" / f"{split}.txt").write_text(names)
        for label, kind in enumerate(splits[0].classes):
            lines = "".join(f"{name} {1 if label in present else -1:2d}\n" for name, present in images)
            (root / "ImageSets" / "Main" / f"{kind}_{split}.txt").write_text(lines)


def save_voc_xml(file: Path, name: str, scenes: Scenes, objects: Objects) -> None:
    """An annotation as the VOC development kit writes it: pixels count from 1, and both corners belong to the box."""
    size = scenes.size
    root = ElementTree.Element("annotation")
    for tag, text in (("folder", "VOC2007"), ("filename", f"{name}.jpg")):
        ElementTree.SubElement(root, tag).text = text
    source = ElementTree.SubElement(root, "source")
    ElementTree.SubElement(source, "database").text = "mixview scenes"
    ElementTree.SubElement(source, "annotation").text = f"{scenes!r}"
    shape = ElementTree.SubElement(root, "size")
    for tag, value in (("width", size), ("height", size), ("depth", 3)):
        ElementTree.SubElement(shape, tag).text = str(value)
    ElementTree.SubElement(root, "segmented").text = "1"
    for box, label in zip(objects.boxes.astype(int).tolist(), objects.classes.tolist(), strict=True):
        left, top, right, bottom = box
        cut = left == 0 or top == 0 or right == size or bottom == size
        node = ElementTree.SubElement(root, "object")
        for tag, text in (
            ("name", scenes.classes[label]),
            ("pose", "Unspecified"),
            ("truncated", str(int(cut))),
            ("difficult", "0"),
        ):
            ElementTree.SubElement(node, tag).text = text
        bounds = ElementTree.SubElement(node, "bndbox")
        for tag, value in (("xmin", left + 1), ("ymin", top + 1), ("xmax", right), ("ymax", bottom)):
            ElementTree.SubElement(bounds, tag).text = str(value)
    ElementTree.indent(root, "\t")
    file.write_bytes(ElementTree.tostring(root) + b"\n")


def save_voc_mask(file: Path, objects: Objects, values: npt.NDArray[np.int64]) -> None:
    """A palette image: `values[k]` where object k is, 0 elsewhere."""
    assert objects.masks is not None
    pixels = np.zeros(objects.masks.shape[1:], np.uint8)
    for mask, value in zip(objects.masks, values, strict=True):
        pixels[mask] = value
    image = Image.fromarray(pixels)
    image.putpalette(voc_palette())
    image.save(file)


def voc_palette() -> list[int]:
    """VOC's 256 colors: the bits of an index, three at a time, become the high bits of red, green and blue."""
    palette = []
    for index in range(256):
        red = green = blue = 0
        for level in range(8):
            bits = index >> (3 * level)
            red |= (bits & 1) << (7 - level)
            green |= (bits >> 1 & 1) << (7 - level)
            blue |= (bits >> 2 & 1) << (7 - level)
        palette += [red, green, blue]
    return palette


def write_coco(splits: Sequence[Scenes], folder: Path) -> Iterator[None]:
    names = coco_names(splits)
    (folder / "annotations").mkdir()
    image_id = annotation_id = 0
    for scenes, split in zip(splits, names, strict=True):
        (folder / split).mkdir()
        images, annotations = [], []
        for index in range(len(scenes)):
            image_id += 1
            file = f"{image_id:012d}.jpg"
            save_jpeg(scenes, index, folder / split / file)
            images.append({"id": image_id, "file_name": file, "width": scenes.size, "height": scenes.size})
            objects = scenes.objects(index)
            assert objects.masks is not None
            for mask, box, label in zip(objects.masks, objects.boxes.tolist(), objects.classes.tolist(), strict=True):
                annotation_id += 1
                left, top, right, bottom = box
                annotations.append(
                    {
                        "id": annotation_id,
                        "image_id": image_id,
                        "category_id": label + 1,
                        "bbox": [left, top, right - left, bottom - top],
                        "area": int(mask.sum()),
                        "iscrowd": 0,
                        "segmentation": {"size": list(mask.shape), "counts": run_lengths(mask)},
                    }
                )
            yield
        document = {
            "info": {"description": f"mixview {scenes!r}", "version": "1.0"},
            "licenses": [],
            "images": images,
            "annotations": annotations,
            "categories": [
                {"id": label + 1, "name": name, "supercategory": "shape"} for label, name in enumerate(scenes.classes)
            ],
        }
        (folder / "annotations" / f"instances_{split}.json").write_text(json.dumps(document))


def coco_names(splits: Sequence[Scenes]) -> list[str]:
    """COCO's public splits are train2017 and val2017: test stands in for val where there is no val."""
    held = {split.split for split in splits}
    return ["val2017" if s.split == "test" and "val" not in held else f"{s.split}2017" for s in splits]


def run_lengths(mask: npt.NDArray[np.bool_]) -> list[int]:
    """COCO's uncompressed run-length encoding: down the columns, beginning with the number of zeros."""
    flat = mask.ravel(order="F")
    edges = np.flatnonzero(np.diff(flat)) + 1
    runs = np.diff(np.concatenate([[0], edges, [flat.size]])).tolist()
    return [0, *runs] if flat[0] else runs


def save_jpeg(scenes: Scenes, index: int, file: Path) -> None:
    Image.fromarray(scenes.read(index)).save(file, quality=QUALITY, subsampling=0)
