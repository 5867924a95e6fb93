"""scenes, the dataset that mixview draws itself: textured objects on textured backgrounds, labels, boxes and masks.

    train = Scenes(count=5000, size=32, seed=0, split="train")
    train.read(0)          # [32, 32, 3] uint8
    train.labels()         # [5000]

The class of an object is its outline and the pattern on it, at any angle and various scales and places. Colors,
background, light, blur and what stands in front are drawn without looking at the class, and every class covers about as
much of the image: so raw pixels, colors and backgrounds say next to nothing, and what tells the classes apart has to
be learned. A single object is large and its background calm, so that it can be learned without labels too
(`benchmarks/scenes.py` measures both). Image `index` is a function of (seed, split, index) whatever the count, and of
the size only in its resolution.
"""

import hashlib
import tempfile
from collections import OrderedDict
from pathlib import Path
from typing import ClassVar, Literal, cast

import numpy as np
import numpy.typing as npt

from mixview.data.cache import cache_folder
from mixview.data.sources.base import ClassMap, Objects, Pixels, Source, paint_objects
from mixview.data.synthetic.rendering import SPLITS, VERSION, Ints, Numbers, draw
from mixview.data.synthetic.shapes import SHAPES

Split = Literal["train", "val", "test"]
MOST_OBJECTS = 4
MAX_COUNT = 10_000_000
CHUNK_BYTES = 2**20
"""Images are drawn, and cached, about this many bytes at a time: enough to be quick, little enough to start at once."""


class Scenes(Source):
    """The built-in synthetic dataset.

    Drawing costs about a millisecond an image of 32 × 32, and much less many at a time, so images are drawn in chunks,
    when they are first read, and kept: in files under `cache`, which worker processes and later runs share, or, without
    a cache, the latest in memory.

    Args:
        count: number of images.
        size: image size in pixels, both ways.
        seed: another seed is another dataset.
        split: `"train"`, `"val"` or `"test"`: no image of one is in another.
        objects: `"single"`, one object and label per image, or `"multiple"`, one to four objects and a set of labels.
        classes: number of classes, the first of star, heart, arrow, crescent, ring, cross, gear, leaf, bolt, mushroom,
            fish, key, house, clover, drop, hourglass.
        cache: folder for drawn images; by default `mixview/scenes` in the user's cache folder, or under
            `$MIXVIEW_CACHE`. `False` keeps them in memory only.

    Example:
        >>> scenes = Scenes(count=20, size=32, split="val", cache=False)
        >>> scenes.read(0).shape, scenes.classes[:3]
        ((32, 32, 3), ('star', 'heart', 'arrow'))
    """

    kind: ClassVar[str] = "scenes"

    def __init__(
        self,
        count: int = 5000,
        size: int = 32,
        seed: int = 0,
        split: Split = "train",
        objects: Literal["single", "multiple"] = "single",
        classes: int = 10,
        cache: Path | str | bool = True,
    ) -> None:
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        if count > MAX_COUNT:
            raise ValueError(f"count must be at most {MAX_COUNT}, got {count}")
        if not 16 <= size <= 4096:
            raise ValueError(f"scenes can be drawn at a size of 16 to 4096 pixels, not {size}")
        if split not in SPLITS:
            raise ValueError(f"the splits of scenes are {', '.join(SPLITS)}, not {split!r}")
        if objects not in ("single", "multiple"):
            raise ValueError(f'objects must be "single" or "multiple", got {objects!r}')
        if not 2 <= classes <= len(SHAPES):
            raise ValueError(f"scenes have 2 to {len(SHAPES)} classes, not {classes}")
        self.count = count
        self.size = size
        self.seed = seed
        self.split: Split = split
        self.arrangement = objects
        self.classes: tuple[str, ...] = tuple(SHAPES)[:classes]
        self.cache = cache_folder("scenes") if cache is True else Path(cache) if cache else None
        self._chunks: OrderedDict[int, Pixels] = OrderedDict()
        self._masks: tuple[int, Ints, npt.NDArray[np.bool_]] | None = None

    def __repr__(self) -> str:
        return (
            f"Scenes(count={self.count}, size={self.size}, seed={self.seed}, split={self.split!r}, "
            f"objects={self.arrangement!r}, classes={len(self.classes)})"
        )

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_chunks": OrderedDict(), "_masks": None}

    def __len__(self) -> int:
        return self.count

    def read(self, index: int) -> Pixels:
        chunk, position = divmod(self._check(index), self.chunk_size)
        return np.array(self._chunk(chunk)[position])

    def name(self, index: int) -> str:
        return f"{self.split}-{self._check(index):06d}"

    def fingerprint(self) -> str:
        return hashlib.blake2b(f"{self.count} {self._identity()}".encode(), digest_size=16).hexdigest()

    def labels(self) -> Ints | None:
        return self._classes(np.arange(self.count))[:, 0] if self.arrangement == "single" else None

    def label_sets(self) -> npt.NDArray[np.int8] | None:
        if self.arrangement == "single":
            return None
        drawn = self._classes(np.arange(self.count))
        sets = np.zeros((self.count, len(self.classes)), np.int8)
        rows, slots = np.nonzero(drawn >= 0)
        sets[rows, drawn[rows, slots]] = 1
        return sets

    def objects(self, index: int) -> Objects:
        """The objects, from the back to the front, with the masks and the boxes of what is visible of them."""
        # One at a time costs as much as several: a reader that goes through the masks in order has the next ones ready.
        step = max(1, 2**14 // self.size**2)
        group, position = divmod(self._check(index), step)
        if self._masks is None or self._masks[0] != group:
            indices = np.arange(group * step, min((group + 1) * step, self.count))
            drawn = self._classes(indices)
            self._masks = group, drawn, draw(Numbers(self.seed, self.split, indices), drawn, self.size)[1]
        _, drawn, masks = self._masks
        # Neighbors and what stands in front leave most of an object in sight, but at 16 pixels that may be no pixel.
        seen = (drawn[position] >= 0) & np.max(masks[position], (1, 2))
        classes, visible = drawn[position, seen], masks[position, seen]
        none = np.zeros(len(classes), bool)
        return Objects(mask_boxes(visible), classes, none, none.copy(), visible)

    def segmentation(self) -> Source:
        return self

    def class_map(self, index: int) -> ClassMap:
        return paint_objects(self.objects(index), self.size, self.size)

    @property
    def chunk_size(self) -> int:
        """Images in a chunk."""
        return max(1, CHUNK_BYTES // (3 * self.size * self.size))

    def _classes(self, indices: Ints) -> Ints:
        """[n, K] the classes of the objects, -1 for none."""
        count = len(self.classes)
        numbers = Numbers(self.seed, self.split, indices)
        if self.arrangement == "multiple":
            slots = np.arange(MOST_OBJECTS)
            drawn = np.stack([numbers.integer(f"class {slot}", count) for slot in slots], -1)
            return np.where(slots <= numbers.integer("objects", MOST_OBJECTS)[:, None], drawn, -1)
        # Every run of `count` images has each class once, in an order of its own: balanced, however many are taken.
        order = np.argsort(Numbers(self.seed, self.split, indices // count).table("order", count), 1, kind="stable")
        return np.take_along_axis(order, (indices % count)[:, None], 1)

    def _draw(self, chunk: int) -> Pixels:
        """The images of a chunk, drawn a few at a time, as many as the processor's own cache holds."""
        start = chunk * self.chunk_size
        indices = np.arange(start, min(start + self.chunk_size, self.count))
        step = max(1, 2**17 // self.size**2)
        parts = [indices[at : at + step] for at in range(0, len(indices), step)]
        return np.concatenate(
            [draw(Numbers(self.seed, self.split, part), self._classes(part), self.size)[0] for part in parts]
        )

    def _chunk(self, chunk: int) -> Pixels:
        """A chunk from memory, from the cache, or drawn now."""
        if chunk in self._chunks:
            self._chunks.move_to_end(chunk)
            return self._chunks[chunk]
        pixels = self._draw(chunk) if self.cache is None else self._cached(self.cache, chunk)
        self._chunks[chunk] = pixels
        # Mapped files cost no memory of their own, but the system counts the open ones.
        if len(self._chunks) > 128:
            self._chunks.popitem(last=False)
        return pixels

    def _cached(self, cache: Path, chunk: int) -> Pixels:
        expected = min(self.chunk_size, self.count - chunk * self.chunk_size)
        file = cache / self._identity() / f"{chunk:06d}-{expected}.npy"
        try:
            pixels = np.load(file, mmap_mode="r", allow_pickle=False)
            if pixels.shape == (expected, self.size, self.size, 3) and pixels.dtype == np.uint8:
                return cast(Pixels, pixels)
        except (OSError, ValueError, EOFError):
            pass  # not there, or cut short: it is drawn (again)
        pixels = self._draw(chunk)
        try:
            save_array(file, pixels)
        except OSError:
            self.cache = None  # a full or read-only disk: memory will do
        return pixels

    def _identity(self) -> str:
        """Everything that decides the pixels of image i."""
        return f"v{VERSION}-{self.arrangement}-{len(self.classes)}-{self.size}-{self.seed}-{self.split}"

    def _check(self, index: int) -> int:
        if not 0 <= index < self.count:
            raise IndexError(f"image {index} of {self.count} scenes: the last is {self.count - 1}")
        return int(index)


def save_array(file: Path, array: Pixels) -> None:
    """Write an array so that other processes see all of it or nothing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=file.parent, suffix=".part", delete=False) as stream:
        try:
            np.save(stream, array, allow_pickle=False)
            stream.flush()
            Path(stream.name).replace(file)
        except BaseException:
            Path(stream.name).unlink(missing_ok=True)
            raise


def mask_boxes(masks: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
    """[K, 4] the left, top, right and bottom (the latter two exclusive) of non-empty masks [K, H, W]."""
    rows, columns = np.max(masks, 2), np.max(masks, 1)
    left, top = columns.argmax(1), rows.argmax(1)
    right, bottom = masks.shape[2] - columns[:, ::-1].argmax(1), masks.shape[1] - rows[:, ::-1].argmax(1)
    return np.stack([left, top, right, bottom], -1).astype(np.float32).reshape(-1, 4)
