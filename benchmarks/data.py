"""Time from JPEG bytes, or pixels in memory, to two views: ours, lightly's transform, MoCo's own and torchvision v2.

    python benchmarks/data.py [--photos FOLDER] [--images 40] [--rounds 5] [--threads 1 2]

Each candidate in turn, again and again, on the same images; images per second, the median with the slowest and the
fastest round, and the median of the ratios within a round. With two threads everyone has a pool of two, over images.
The folder is any of JPEGs; by default $MIXVIEW_DATA/photos.
"""

import argparse
import io
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import torch
from lightly_trainer import transform_of
from PIL import Image, ImageFilter
from timing import interleaved
from torch import Tensor
from torchvision import transforms as v1
from torchvision.transforms import v2

from mixview.data.augment import numba_backend, torch_backend
from mixview.data.augment.policies import Augmentation, load_policy
from mixview.data.decode import Decoder
from mixview.data.loader import ViewDataset
from mixview.data.synthetic.scenes import Scenes
from mixview.rng import seed_from

Candidate = Callable[[int], object]
"""Makes the two views of an image by number."""

EIGHTH = {"min_height": 1, "min_width": 1, "min_factor": 8}
"""Nearly nothing but what cannot be skipped: to read the bits of every block, wherever in the image it is."""
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


class PillowBlur:
    """facebookresearch/moco `moco/loader.py`."""

    def __call__(self, image: Image.Image) -> Image.Image:
        return image.filter(ImageFilter.GaussianBlur(radius=random.uniform(0.1, 2.0)))


def moco_pipeline(augment: Augmentation) -> Callable[[Image.Image], Tensor]:
    """facebookresearch/moco `main_moco.py --aug-plus`, on Pillow's images, with the values of an augmentation."""
    assert augment.jitter is not None
    assert augment.blur is not None
    j = augment.jitter
    solarize = [v1.RandomSolarize(128, augment.solarize)] if augment.solarize else []
    mode = v1.InterpolationMode(augment.crop.interpolation)
    return v1.Compose(
        [
            v1.RandomResizedCrop(augment.crop.size, scale=augment.crop.scale, interpolation=mode),
            v1.RandomApply([v1.ColorJitter(j.brightness, j.contrast, j.saturation, j.hue)], p=j.p),
            v1.RandomGrayscale(p=augment.grayscale),
            v1.RandomApply([PillowBlur()], p=augment.blur.p),
            *solarize,
            v1.RandomHorizontalFlip(),
            v1.ToTensor(),
            v1.Normalize(mean=MEAN, std=STD),
        ]
    )


def v2_pipeline(augment: Augmentation) -> Callable[[Tensor], Tensor]:
    """The same by torchvision v2 on tensors, resized as bytes before they become floating point, as its guide says."""
    assert augment.jitter is not None
    assert augment.blur is not None
    j, kernel = augment.jitter, augment.blur.width(augment.crop.size)
    solarize = [v2.RandomSolarize(0.5, augment.solarize)] if augment.solarize else []
    mode = v2.InterpolationMode(augment.crop.interpolation)
    return v2.Compose(
        [
            v2.RandomResizedCrop(augment.crop.size, scale=augment.crop.scale, interpolation=mode, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.RandomApply([v2.ColorJitter(j.brightness, j.contrast, j.saturation, j.hue)], p=j.p),
            v2.RandomGrayscale(p=augment.grayscale),
            v2.RandomApply([v2.GaussianBlur(kernel, augment.blur.sigma)], p=augment.blur.p),
            *solarize,
            v2.Normalize(MEAN, STD),
        ]
    )


def pillow(data: bytes) -> Image.Image:
    with Image.open(io.BytesIO(data)) as image:
        return image.convert("RGB")


def from_jpeg(name: str, files: Sequence[bytes]) -> dict[str, Candidate]:
    pair = load_policy(name)
    decoder, lightly = Decoder(), transform_of(name, 224)
    moco = [moco_pipeline(one) for one in pair]
    tensors = [v2_pipeline(one) for one in pair]
    epochs = dict.fromkeys(range(len(files)), 0)  # another view each time, as for everyone

    def ours(index: int) -> object:
        epochs[index] += 1
        return numba_backend.make_views(decoder(files[index]), 0, epochs[index], index, pair)

    def lightly_views(index: int) -> object:
        return lightly(pillow(files[index]))

    def moco_views(index: int) -> object:
        image = pillow(files[index])
        return [one(image) for one in moco]

    def v2_views(index: int) -> object:
        image = torch.from_numpy(decoder(files[index])).permute(2, 0, 1)
        return [one(image) for one in tensors]

    def for_the_device(index: int) -> object:
        epochs[index] += 1
        seeds = [seed_from("views", 0, epochs[index], index)]
        return torch_backend.pack_raw_batch([decoder(files[index])], seeds, [index], pair)

    return {
        "ours": ours,
        "ours, for a device to augment": for_the_device,
        "lightly's transform": lightly_views,
        "MoCo's, torchvision on Pillow": moco_views,
        "torchvision v2 on tensors": v2_views,
        "decoding alone": lambda index: decoder(files[index]),
        "decoding to an eighth": lambda index: simplejpeg.decode_jpeg(files[index], "RGB", **EIGHTH),
    }


def union_share(name: str, files: Sequence[bytes]) -> float:
    """The average share of an image that the smallest rectangle around both crops holds."""
    images = [Decoder()(data) for data in files]
    seeds = [seed_from("views", 0, 0, index) for index in range(len(files))]
    batch = torch_backend.pack_raw_batch(images, seeds, range(len(images)), load_policy(name))
    return len(batch.pixels) / sum(image.shape[0] * image.shape[1] for image in images)


def table(title: str, candidates: dict[str, Callable[[], object]], images: int, rounds: int, threads: int) -> None:
    # One thread by the time that it ran, which a busy machine does not change; more by the clock on the wall.
    seconds = interleaved(candidates, rounds, time.process_time if threads == 1 else time.perf_counter)
    title += ", images per second of one core's time" if threads == 1 else f", {threads} threads"
    print(f"\n{title}\n{'':34}{'images/s':>9}   {'(slowest – fastest)':21}{'ours is':>9}")
    for name, times in seconds.items():
        speed = [images / each for each in times]
        ratio = statistics.median(each / ours for each, ours in zip(times, seconds["ours"], strict=True))
        spread = f"({min(speed):,.0f} – {max(speed):,.0f})"
        print(f"{name:34}{statistics.median(speed):9,.0f}   {spread:21}{ratio:8.2f}×", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, default=Path(os.environ.get("MIXVIEW_DATA", ".")) / "photos")
    parser.add_argument("--images", type=int, default=40)
    parser.add_argument("--small", type=int, default=256, help="images of 32²: a batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", nargs="+", default=["mocov2", "simclr", "byol", "small"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    numba_backend.prepare()
    paths = sorted(path for path in options.photos.glob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    files = [path.read_bytes() for path in paths[: options.images]]
    if files:
        sizes = np.mean([Decoder()(data).shape[:2] for data in files], axis=0)
        print(f"{len(files)} photographs of {sizes[1]:.0f}×{sizes[0]:.0f} on average, {options.rounds} rounds")
    else:
        print(f"no JPEGs in {options.photos}, so that only small images are timed: name a folder of some by --photos")

    for threads in options.threads:
        with ThreadPoolExecutor(threads) as pool:

            def every(one: Candidate, count: int, threads: int = threads, pool: Any = pool) -> Callable[[], object]:
                if threads == 1:
                    return lambda: [one(index) is None for index in range(count)]
                return lambda: list(pool.map(lambda index: one(index) is None, range(count)))

            for name in ("mocov2", "simclr", "byol"):
                if name in options.only and files:
                    print(f"\n{name}: both views together show {union_share(name, files):.0%} of an image")
                    runs = {label: every(one, len(files)) for label, one in from_jpeg(name, files).items()}
                    table(f"{name}, two views of 224² from JPEG", runs, len(files), options.rounds, threads)
            if "small" in options.only:
                small(options.small, options.rounds, threads, every, pool)


def small(count: int, rounds: int, threads: int, every: Any, pool: ThreadPoolExecutor) -> None:
    """32² in memory: pixels for ours, Pillow's images for lightly; a batch in one call, and as the loader makes it."""
    scenes = Scenes(count)
    pixels = np.stack([scenes.read(index) for index in range(count)])
    images = [Image.fromarray(each) for each in pixels]

    class Direct:
        def __len__(self) -> int:
            return count

        def __getitem__(self, index: int) -> Any:
            return Row(pixels[index], index)

    for name in ("simclr-small", "mocov2-small", "byol-small"):
        pair, lightly = load_policy(name), transform_of(name.removesuffix("-small"), 32)
        epochs = iter(range(1_000_000))
        loaded = ViewDataset(Direct(), pair)
        parts = np.array_split(np.arange(count), threads)

        def batch(part: Any, epoch: int, pair: Any = pair) -> None:
            seeds = [seed_from("views", 0, epoch, index) for index in part.tolist()]
            out = torch.empty(len(part), 3, 32, 32), torch.empty(len(part), 3, 32, 32)
            numba_backend.fill_views(pixels[part[0] : part[-1] + 1], seeds, pair, out)

        def ours(epochs: Any = epochs, parts: Any = parts, batch: Any = batch) -> None:
            epoch = next(epochs)
            list((map if len(parts) == 1 else pool.map)(lambda part: batch(part, epoch), parts))

        def through(epochs: Any = epochs, loaded: ViewDataset = loaded) -> None:
            epoch = next(epochs)
            loaded.__getitems__([(epoch, index) for index in range(count)])

        runs: dict[str, Callable[[], object]] = {
            "ours": ours,
            "ours, as the loader makes it": through,
            "lightly's transform": every(lambda index, lightly=lightly: lightly(images[index]), count),
        }
        if threads > 1:
            del runs["ours, as the loader makes it"]  # which has processes, not threads
        table(f"{name}, two views of 32² in memory", runs, count, rounds, threads)


class Row:
    """An image as the loader takes it."""

    def __init__(self, pixels: Any, index: int) -> None:
        self.pixels = pixels
        self.index = index


if __name__ == "__main__":
    main()
