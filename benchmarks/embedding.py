"""`mixview embed` on a folder of JPEGs, against the bare network on tensors and an inference script like timm's.

    python benchmarks/embedding.py [--photos FOLDER] [--images 512] [--rounds 5] [--backbone resnet18] [--workers 1]
                                   [--phone]

One thread computes, and as many workers read. Each in turn, again and again, as images per second by the clock and per
second of the main process's CPU time, which a busy machine changes less: medians, and ratios within a round with their
middle half. "bare" is the network alone, channels last and in batches that the heap has room for, as embed runs it.
"timm" follows timm's inference.py: its transform on Pillow's images, torch's loader, batches of 64 in eval and
inference mode. `--phone` enlarges the photographs to 12 megapixels, as a phone takes them.
"""

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import timm
import torch
from photographs import enlarge
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from mixview.data.sources.registry import open_dataset
from mixview.encoders.features import StageFeatures, extract, plan_inference
from mixview.encoders.loading import EncoderConfig
from mixview.encoders.transforms import CenterCrop


class Files(Dataset[torch.Tensor]):
    """Images as timm's inference script reads them."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths
        self.transform = timm.data.create_transform((3, 224, 224), is_training=False, crop_pct=0.875)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        with Image.open(self.paths[index]) as image:
            tensor: torch.Tensor = self.transform(image.convert("RGB"))
            return tensor


def measure(candidates: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds by the clock, and of CPU time, of each candidate in each round, after one to warm up."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in candidates}
    for turn in range(rounds + 1):
        for name, run in candidates.items():
            start, start_cpu = time.perf_counter(), time.process_time()
            run()
            if turn:
                seconds[name].append((time.perf_counter() - start, time.process_time() - start_cpu))
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, default=Path(os.environ.get("MIXVIEW_DATA", ".")) / "photos")
    parser.add_argument("--images", type=int, default=512, help="links to the photographs, one after the other")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--phone", action="store_true", help="enlarge the photographs to 12 megapixels")
    options = parser.parse_args()
    torch.set_num_threads(1)
    paths = sorted(path for path in options.photos.glob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not paths:
        print(f"no JPEGs in {options.photos}: name a folder of some by --photos")
        return
    loaded = EncoderConfig(encoder=options.backbone, size=224).load()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "photos"
        folder.mkdir()
        if options.phone:
            originals, paths = paths, [Path(name) / path.name for path in paths]
            for original, path in zip(originals, paths, strict=True):
                enlarge(original, path)
        paths = list(itertools.islice(itertools.cycle(paths), options.images))
        for number, path in enumerate(paths):
            (folder / f"{number:04}.jpg").symlink_to(path.resolve())
        source = open_dataset(folder)
        turns = iter(range(1_000_000))

        def embed() -> None:
            os.environ["MIXVIEW_CACHE"] = str(Path(name) / f"cache-{next(turns)}")  # empty
            extract(loaded, source, CenterCrop(224), device="cpu", workers=options.workers)

        network = StageFeatures(loaded.encoder, ("avgpool",)).eval()
        plan = plan_inference(network, loaded, torch.device("cpu"))
        decoded = [
            torch.rand(len(part), 3, 224, 224).to(memory_format=torch.channels_last)
            for part in torch.arange(len(paths)).split(plan.batch_size)
        ]

        @torch.inference_mode()
        def bare() -> None:
            for images in decoded:
                network(images)

        model = timm.create_model(options.backbone, num_classes=0).eval()
        files = sorted(folder.glob("*.jpg"))

        @torch.inference_mode()
        def script() -> None:
            for images in DataLoader(Files(files), batch_size=64, num_workers=options.workers):
                model(images)

        seconds = measure({"embed": embed, "bare": bare, "timm": script}, options.rounds)
    kind = "photographs of 12 megapixels" if options.phone else "photographs"
    print(f"{options.backbone}, {len(paths)} {kind}, views of 224², 1 thread, {options.workers} workers, {plan}")
    print(f"{'':8}{'images/s':>10}{'of CPU time':>13}{'embed is, by the clock':>28}{'by CPU time':>24}")
    for name, times in seconds.items():
        cells = []
        for clock in (0, 1):
            ratios = sorted(other[clock] / own[clock] for own, other in zip(seconds["embed"], times, strict=True))
            quarter = len(ratios) // 4
            middle = f"({ratios[quarter]:.2f} – {ratios[-1 - quarter]:.2f})"
            cells.append(f"{statistics.median(ratios):.2f} × {middle}")
        speeds = [len(paths) / statistics.median(each[clock] for each in times) for clock in (0, 1)]
        print(f"{name:8}{speeds[0]:10.1f}{speeds[1]:13.1f}{cells[0]:>28}{cells[1]:>24}")


if __name__ == "__main__":
    main()
