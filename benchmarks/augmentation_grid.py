"""A picture of views that the three backends make from the same parameters.


    python benchmarks/augmentation_grid.py [--data FOLDER] [--augment byol] [--device cpu] [--out grid.png]

Rows: the images, the two views by each of the three, and the differences from torchvision's, fifty times enlarged. To
be looked at: the rows of a view must look the same, and the differences gray. The largest difference is printed.
"""

import argparse
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mixview.data.augment import numba_backend, torch_backend
from mixview.data.augment.policies import load_policy, names
from mixview.data.augment.reference import make_views
from mixview.data.contact_sheet import Row, contact_sheet
from mixview.data.dataset import ImageDataset
from mixview.data.loader import to_tensor
from mixview.data.sources.base import Pixels, even_indices
from mixview.data.sources.registry import open_dataset
from mixview.rng import seed_from

ENLARGED = 50


def to_pixels(view: Tensor) -> Pixels:
    """[C, S, S] in [0, 1] as a picture."""
    return np.asarray((255 * view.clamp(0, 1)).round().byte().permute(1, 2, 0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=str(Path(os.environ.get("MIXVIEW_DATA", ".")) / "photos"))
    parser.add_argument("--augment", choices=names(), default="byol")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("grid.png"))
    options = parser.parse_args()
    reader = ImageDataset(open_dataset(options.data))
    readings = [reader[index] for index in even_indices(len(reader), options.count).tolist()]
    images = [reading.pixels for reading in readings]
    policy = tuple(replace(view, normalize=None) for view in load_policy(options.augment))
    seed = options.seed
    seeds = [seed_from("views", seed, 0, n) for n in range(len(images))]
    batch = torch_backend.pack_raw_batch(images, seeds, range(len(images)), policy)
    reference = [make_views(to_tensor(image), seed, 0, n, policy) for n, image in enumerate(images)]
    native = [numba_backend.make_views(image, seed, 0, n, policy) for n, image in enumerate(images)]
    device = list(zip(*(view.cpu() for view in torch_backend.make_views(batch, policy, options.device)), strict=True))
    names_of = [str(reader.source.name(reading.index)) for reading in readings]
    rows = [Row(f"{options.augment}: images", images, names_of)]
    blank = [""] * len(images)
    for view in range(len(policy)):
        made = {
            "torchvision's functions": reference,
            "the native kernel": native,
            f"the device ({options.device})": device,
        }
        for way, pairs in made.items():
            rows.append(Row(f"view {view + 1}, {way}", [to_pixels(each[view]) for each in pairs], blank))
        for way, pairs in list(made.items())[1:]:
            differences = [one[view] - other[view] for one, other in zip(pairs, reference, strict=True)]
            worst = max(float(each.abs().max()) for each in differences)
            title = f"view {view + 1}, {way} less torchvision's, {ENLARGED} times: at most {worst:.1e}"
            print(title)
            rows.append(Row(title, [to_pixels(0.5 + ENLARGED * each) for each in differences], blank))
    contact_sheet(rows).save(options.out)
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
