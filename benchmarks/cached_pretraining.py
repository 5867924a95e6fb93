"""`mixview pretrain --cache`, from the second epoch on, against the same run with images in memory and without a cache.

    python benchmarks/cached_pretraining.py [--photos FOLDER] [--images 16] [--rounds 5] [--seconds 5]

Photographs of 12 megapixels (see `benchmarks/photographs.py`) and a network of three layers that waits for a worker
that decodes them, and no longer once they are cached: 224², batches of 8, one thread and one worker. Each run is in a
process of its own, in turns, as in `benchmarks/end_to_end.py`. In memory are the pixels of the same shrunk copies. The
ratio of CPU time is that of the main processes, which a busy machine changes less; that by the clock is what a user
sees.
"""

import argparse
import os
import tempfile
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from interleaved import ENDLESS, Side, Turns, compare, line, report
from photographs import enlarge
from torch import nn

from mixview.data.decode import Decoder
from mixview.data.image_cache import CacheFolder, default_size
from mixview.data.loader import EpochSampler
from mixview.data.sources.registry import open_dataset
from mixview.train import build, pretraining
from mixview.train.config import MonitorConfig

LINKS = 320
"""Images of an epoch, links to the same photographs."""
BATCH = 8
WORKERS = 1


def network() -> nn.Module:
    """Slower than a worker that reads from the cache, and faster than one that decodes photographs."""
    layers: list[nn.Module] = []
    for channels, width, stride in ((3, 32, 4), (32, 64, 2), (64, 128, 2)):
        layers += [nn.Conv2d(channels, width, 2 * stride - 1, stride, stride - 1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def endless(loader: Iterable[object], sampler: EpochSampler) -> Iterator[object]:
    """The batches of one epoch after the other."""
    for epoch in count():
        sampler.set_epoch(epoch)
        yield from loader


def side(data: str, backbone: str, **options: Any) -> Side:
    """The command as it is, but for its loader, which waits for its turns."""

    def run(turns: Turns, folder: str) -> None:
        make = build.view_loader

        def in_turns(*arguments: Any, **keywords: Any) -> Turns:
            turns.batches = endless(make(*arguments, **keywords), arguments[2])
            return turns

        build.view_loader = in_turns  # type: ignore[assignment]
        pretraining.pretrain(
            data=data,
            out=f"{folder}/run",
            method="mocov2",
            objective="sim",
            backbone=backbone,
            batch_size=BATCH,
            epochs=ENDLESS,
            workers=WORKERS,
            size=224,
            monitor=MonitorConfig(eval_every=0, estimate=False, checkpoint_every=ENDLESS),
            **options,
        )

    return Side(run, (), BATCH, ahead=2 * WORKERS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, default=Path(os.environ.get("MIXVIEW_DATA", ".")) / "photos")
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--backbone", default="cached_pretraining:network")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a turn, about")
    options = parser.parse_args()
    torch.set_num_threads(1)
    photos = sorted(path for path in options.photos.glob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    photos = photos[: options.images]
    if not photos:
        print(f"no JPEGs in {options.photos}: name a folder of some by --photos")
        return
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "large").mkdir()
        (place / "links").mkdir()
        for number, photo in enumerate(photos):
            enlarge(photo, place / "large" / f"{number:03}.jpg")
        for number in range(LINKS):
            target = place / "large" / f"{number % len(photos):03}.jpg"
            (place / "links" / f"{number:04}.jpg").symlink_to(target)
        shrunk = CacheFolder(place / "cache", default_size(224), Decoder()).shrunk(open_dataset(place / "links"))
        copies = [Decoder()(shrunk.read(index)) for index in range(LINKS)]  # the first epoch
        height, width = np.min([copy.shape[:2] for copy in copies], axis=0)
        np.savez(place / "memory.npz", images=np.stack([copy[:height, :width] for copy in copies]))
        links, memory = str(place / "links"), str(place / "memory.npz")
        print(f"{len(photos)} photographs, {options.backbone}, views of 224², {options.rounds} rounds; images/s")
        print(line("", "with --cache", "the other", "ratio, clock", "CPU time, no workers"))
        for title, other in (("images in memory", memory), ("without a cache", links)):
            sides = side(links, options.backbone, cache=str(place / "cache")), side(other, options.backbone)
            report(title, compare(*sides, options.rounds, options.seconds))


if __name__ == "__main__":
    main()
