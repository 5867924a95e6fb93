"""Photographs of 12 megapixels to two views of 224²: ours, with the cache and with exact decoding, against lightly's.

    python benchmarks/photographs.py [--photos FOLDER] [--images 12] [--rounds 5] [--policy mocov2]

Real photographs are enlarged to 12 megapixels and saved as a phone does (quality 90, 4:2:0). Each candidate makes the
views of all of them in turn, again and again, by the CPU time of one thread; ratios are those within a round, the
median with the middle half. The cache is filled before: its rows are those of the second epoch. The second table has
the photographs at their own size, where there is nothing to gain and nothing may be lost. The last lines say how far
views are from those of exact decoding, with the crops as they are and with crops on whole pixels of the copy.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from data import pillow
from lightly_trainer import transform_of
from PIL import Image
from timing import interleaved
from torch import Tensor

from mixview.data.augment import numba_backend
from mixview.data.augment.policies import load_policy
from mixview.data.dataset import ImageDataset
from mixview.data.decode import Decoder
from mixview.data.image_cache import CacheFolder, default_size
from mixview.data.loader import ViewDataset
from mixview.data.sources.base import Source
from mixview.data.sources.registry import open_dataset

PIXELS = 12e6


def enlarge(photo: Path, out: Path) -> None:
    """Save a photograph of `PIXELS` as a phone does."""
    with Image.open(photo) as image:
        scale = (PIXELS / (image.width * image.height)) ** 0.5
        size = round(image.width * scale), round(image.height * scale)
        image.convert("RGB").resize(size, Image.Resampling.BICUBIC).save(out, "JPEG", quality=90)


class Views:
    """The two views of each image of a source, others in each call."""

    def __init__(self, source: Source, policy: str, exact_decoding: bool = False) -> None:
        self.count = len(source)
        self.dataset = ViewDataset(ImageDataset(source), load_policy(policy), exact_decoding=exact_decoding)
        self.epoch = 0

    def __call__(self) -> None:
        self.epoch += 1
        for index in range(self.count):
            self.dataset[self.epoch, index]


def table(title: str, candidates: dict[str, Callable[[], object]], images: int, rounds: int, base: str) -> None:
    print(f"\n{title}\n{'':28}{'pairs per core-second':>22}{'ratio to ' + base:>32}")
    seconds = interleaved(candidates, rounds, time.process_time)
    for name, times in seconds.items():
        ratios = sorted(other / own for own, other in zip(times, seconds[base], strict=True))
        quarter = len(ratios) // 4
        spread = f"({ratios[quarter]:.2f} – {ratios[-1 - quarter]:.2f})"
        print(f"{name:28}{images / statistics.median(times):22.1f}{statistics.median(ratios):15.2f} {spread:>16}")


def psnr(one: Tensor, other: Tensor) -> float:
    return float(-10 * torch.log10((one - other).square().mean()))


def differences(source: Source, policy: str, epochs: int = 3) -> None:
    """Print how far views are from exact ones, in colors that are neither jittered nor normalized."""
    crops = tuple(
        view.__class__(crop=view.crop, flip=view.flip, normalize=None)  # type: ignore[union-attr, call-arg]
        for view in load_policy(policy)
    )
    scaled, exact = (ViewDataset(ImageDataset(source), crops, exact_decoding=each) for each in (False, True))
    own, aligned = list[float](), list[float]()
    for index in range(len(source)):
        whole = Decoder()(source.read(index))
        for epoch in range(epochs):
            sample = scaled.read((epoch, index))
            factor = round(sample.full_size[0] / sample.pixels.shape[0])
            pairs = zip(scaled[epoch, index][0], exact[epoch, index][0], strict=True)
            own += [psnr(*pair) for pair in pairs]
            table = numba_backend.sample_scaled([sample.seed], sample.full_size, sample.pixels.shape[:2], list(crops))
            for view, params in zip(crops, table, strict=True):
                views = torch.empty(2, 1, 3, view.size, view.size)
                numba_backend.fill(sample.pixels[None], params, view, views[0])
                params[:, :4] *= factor
                params[:, 2] = min(params[0, 2], whole.shape[0] - params[0, 0])
                params[:, 3] = min(params[0, 3], whole.shape[1] - params[0, 1])
                numba_backend.fill(whole[None], params, view, views[1])
                aligned.append(psnr(*views))
    for name, values in (("crops as they are", own), ("crops on whole pixels", aligned)):
        values = sorted(min(value, 99.0) for value in values)
        middle = statistics.median(values)
        print(
            f"PSNR to exact decoding, {name}: median {middle:.1f} dB, worst tenth below {values[len(values) // 10]:.1f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, default=Path(os.environ.get("MIXVIEW_DATA", ".")) / "photos")
    parser.add_argument("--images", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--policy", choices=("mocov2", "simclr", "byol"), default="mocov2")
    options = parser.parse_args()
    torch.set_num_threads(1)
    numba_backend.prepare()
    photos = sorted(path for path in options.photos.glob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    photos = photos[: options.images]
    if not photos:
        print(f"no JPEGs in {options.photos}: name a folder of some by --photos")
        return
    lightly = transform_of(options.policy, 224)

    def lightly_views(source: Source) -> Callable[[], object]:
        return lambda: [lightly(pillow(source.read(index))) is None for index in range(len(source))]

    with tempfile.TemporaryDirectory() as name:
        small, large, folder = (Path(name) / each for each in ("small", "large", "cache"))
        for place in (small, large):
            place.mkdir()
        for number, photo in enumerate(photos):
            (small / f"{number:03}.jpg").write_bytes(photo.read_bytes())
            enlarge(photo, large / f"{number:03}.jpg")
        source, original = open_dataset(large), open_dataset(small)
        cached = CacheFolder(folder, default_size(224), Decoder()).shrunk(source)
        candidates: dict[str, Callable[[], object]] = {
            "lightly's transform": lightly_views(source),
            "exact decoding": Views(source, options.policy, exact_decoding=True),
            "scaled decoding": Views(source, options.policy),
            "cache": Views(cached, options.policy),
        }
        title = f"{len(photos)} photographs of 12 megapixels, {options.policy}"
        table(title, candidates, len(photos), options.rounds, "lightly's transform")
        candidates = {
            "exact decoding": Views(original, options.policy, exact_decoding=True),
            "scaled decoding": Views(original, options.policy),
            "lightly's transform": lightly_views(original),
        }
        table("the same at their own size", candidates, len(photos), 2 * options.rounds, "exact decoding")
        print()
        differences(source, options.policy)


if __name__ == "__main__":
    main()
