"""`mixview data …`: lists, shows, makes and packs datasets."""

from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from mixview.io.terminal import escape_control_chars, say, to_rich_text


def list_datasets() -> None:
    """List the datasets and where they are, the formats that a path can have, and the augmentations."""
    from mixview.data.augment import policies as augmentation
    from mixview.data.sources.registry import FORMATS, NAMES, locate_named

    console = Console(highlight=False)
    names = Table("name", "what", title="By name", title_justify="left", box=None, padding=(0, 2, 0, 0))
    names.add_column("where", overflow="fold")
    names.add_row("scenes", "drawn by mixview itself, any number of images", "always there")
    for name, (what, places) in NAMES.items():
        place = locate_named(name)
        names.add_row(name, what, to_rich_text(place) if place else f"not found: $MIXVIEW_DATA/{places[0]}")
    kinds = Table("kind", "what", title="By path", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for kind, dataset_format in FORMATS.items():
        kinds.add_row(kind, dataset_format.about)
    console.print(names)
    console.print()
    console.print(kinds)
    console.print()
    console.print("Augmentations", style="italic")
    console.print(to_rich_text(", ".join(augmentation.names())))


def show(
    path: str,
    split: str | None = None,
    kind: str | None = None,
    augment: str | None = None,
    out: Path = Path("picture.png"),
    count: int = 8,
    seed: int = 0,
) -> None:
    """Draw a picture of a dataset: images with their classes, boxes and masks, their views, and mixtures.

    Args:
        path: Images: a path, an address or a name (see `mixview data list`).
        split: Split of the data: train, val, test …; by default the one for training.
        kind: Format of the data (see `mixview data list`); by default it is recognized.
        augment: Augmentation whose views are shown, such as mocov2 (see `mixview data list`).
        out: Picture to write.
        count: Number of images.
        seed: Seed that chooses the images and mixes them.
    """
    from mixview.data.contact_sheet import contact_sheet, picture_format
    from mixview.data.sources.registry import open_dataset
    from mixview.io.atomic import atomic_write
    from mixview.report.dataset_sheet import source_rows

    picture_format(out)
    if count < 1:
        raise ValueError(f"--count must be at least 1, got {count}")
    source = open_dataset(path, split, kind=kind)
    sheet = contact_sheet(source_rows(source, count, seed, augment=augment))
    with atomic_write(out) as file:
        sheet.save(file, format=picture_format(out))
    say(f"{source!r}: {source.fingerprint()}")
    say(f"wrote {out}")


def make(
    folder: Path,
    count: int = 5000,
    layout: Literal["folder", "voc", "coco"] = "folder",
    size: int = 32,
    seed: int = 0,
    test_count: int | None = None,
) -> None:
    """Write the built-in synthetic dataset, scenes, to a new folder.

    Args:
        folder: Folder to write, which must not exist or be empty.
        count: Number of training images.
        layout: Layout: class folders, PASCAL VOC or COCO. The last two have several objects per image.
        size: Image size in pixels.
        seed: Seed: each gives other images.
        test_count: Number of test images; by default a fifth of `count`.
    """
    from mixview.data.synthetic.scenes import Scenes
    from mixview.data.synthetic.writers import write

    objects: Literal["single", "multiple"] = "single" if layout == "folder" else "multiple"
    held_out: Literal["val", "test"] = "test" if layout == "voc" else "val"
    train = Scenes(count, size, seed, "train", objects)
    held = Scenes(max(1, count // 5) if test_count is None else test_count, size, seed, held_out, objects)
    say(f"wrote {write([train, held], folder, layout)}")


def pack(
    path: str,
    out: Path,
    size: int = 256,
    split: str | None = None,
    kind: str | None = None,
    format: Literal["jpeg", "pixels"] = "jpeg",
    quality: int = 90,
) -> None:
    """Write a dataset to one file that is mapped into memory: for small images and slow disks.

    Args:
        path: Images: a path, an address or a name (see `mixview data list`).
        out: The .npz file to write, which must not exist.
        size: Shorter side in pixels to which larger images are shrunk.
        split: Split of the data: train, val, test …; by default the one for training.
        kind: Format of the data (see `mixview data list`); by default it is recognized.
        format: Format: JPEG files, or pixels, for which all images must have one size.
        quality: JPEG quality of images that are shrunk; others stay as they are.
    """
    from mixview.data.pack import pack
    from mixview.data.sources.registry import open_dataset

    packed = pack(open_dataset(path, split, kind=kind), out, size, format, quality)
    for name, reason in packed.bad.items():
        say(f"skipped {escape_control_chars(name)}: {reason}")
    say(f"wrote {packed.path}: {packed.images} images, {packed.path.stat().st_size / 1e6:.1f} MB")
