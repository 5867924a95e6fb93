"""The time to open 100,000 files in nested folders, and a worker's memory over an epoch.

    python benchmarks/sources.py --files 100000

Writes the files (a JPEG of 32×32 each, 40 folders of 25 folders of 100) into a temporary folder, opens them until warm,
reads some of them in a worker process, and prints one line per measurement. For comparison it does the same with a list
of Python strings, which is what most datasets hold. Linux only: memory is read from /proc.
"""

import argparse
import gc
import io
import pickle
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from mixview.data.dataset import ImageDataset
from mixview.data.sources.files import Folder
from mixview.data.sources.registry import open_dataset


def write_files(root: Path, count: int) -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(buffer, "JPEG")
    data = buffer.getvalue()
    for number in range(count):
        folder = root / f"part_{number // 2500:03d}" / f"folder_{number // 100 % 25:02d}"
        if number % 100 == 0:
            folder.mkdir(parents=True)
        (folder / f"photograph_{number:07d}.jpg").write_bytes(data)


def private_memory() -> int:
    """Bytes that are this process's own, not shared with the process that it was forked from."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024


class Epoch(Dataset[tuple[int, int]]):
    """A dataset that reads an image and, from time to time, prints the size of the process."""

    def __init__(self, images: ImageDataset | list[str], count: int) -> None:
        self.images = images
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[int, int]:
        if isinstance(self.images, ImageDataset):
            self.images[index]
        else:
            with Image.open(self.images[index]) as image:
                image.load()
        return index, private_memory() if index % 500 == 499 else 0


def growth(images: ImageDataset | list[str], count: int, epochs: int = 3) -> str:
    """MB that a worker has at the end of each epoch more than early in the first."""
    gc.collect()
    gc.freeze()  # a collection in the worker would touch every object that it inherits, whatever the dataset holds
    loader = DataLoader(Epoch(images, count), batch_size=100, num_workers=1, persistent_workers=True)
    sizes = [[int(size) for batch in loader for size in batch[1].tolist() if size] for _ in range(epochs)]
    return ", ".join(f"{(epoch[-1] - sizes[0][1]) / 1e6:+.2f}" for epoch in sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--read", type=int, default=20_000, help="how many of them an epoch reads")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        write_files(root, arguments.files)
        seconds = []
        for _ in range(4):
            start = time.perf_counter()
            source = open_dataset(root, kind="folder")
            seconds.append(time.perf_counter() - start)
        print(f"open {len(source):,} files: first {seconds[0]:.2f} s, warm {min(seconds[1:]):.2f} s")
        start = time.perf_counter()
        print(f"fingerprint: {source.fingerprint()} in {time.perf_counter() - start:.2f} s")
        assert isinstance(source, Folder)
        paths = [str(source.path(index)) for index in range(len(source))]
        packed, plain = len(pickle.dumps(source)) / 1e6, len(pickle.dumps(paths)) / 1e6
        print(f"sent to a spawned worker: {packed:.1f} MB; a list of Python strings {plain:.1f} MB")
        count = min(arguments.read, len(source))
        print(f"a forked worker grows over {count:,} images, three times: {growth(ImageDataset(source), count)} MB")
        print(f"with a list of Python strings: {growth(paths, count)} MB")


if __name__ == "__main__":
    main()
