"""The time of mixing: every mixer with one lam per image, and a training step of ResNet-50.

    python benchmarks/mixing.py [--batch_size 16] [--rounds 5]

One process, the threads that torch takes. Median of interleaved rounds, with the fastest and the slowest.
"""

import argparse
import statistics
from functools import partial

import torch
from timing import interleaved, row
from torch import Tensor, nn
from torchvision.models import resnet50

from mixview import CutMix, FMix, Mixer, Mixup, PatchMix, ResizeMix, sim
from mixview.methods import backward, moco_v2

MIXERS: dict[str, Mixer] = {
    "CutMix": CutMix(lam_per="image"),
    "Mixup": Mixup(lam_per="image"),
    "ResizeMix": ResizeMix(lam_per="image"),
    "FMix": FMix(lam_per="image"),
    "PatchMix": PatchMix(lam_per="image"),
    "PatchMix, 4 parents": PatchMix(lam_per="image", parents=4),
    "CutMix, one anchor per pair": CutMix(lam_per="pair", anchors="one_per_pair"),
}
"""Mixers with one lam per image, or per pair."""


def slice_assignment(images: Tensor) -> Tensor:
    """CutMix as it is usually written: one lam and one box per batch, read back to Python, assigned on a copy."""
    lam = float(torch.distributions.Beta(1.0, 1.0).sample())
    height, width = images.shape[-2:]
    half_height, half_width = int(height * (1 - lam) ** 0.5 / 2), int(width * (1 - lam) ** 0.5 / 2)
    y, x = int(torch.randint(height, ())), int(torch.randint(width, ()))
    rows = slice(max(y - half_height, 0), min(y + half_height, height))
    columns = slice(max(x - half_width, 0), min(x + half_width, width))
    mixed = images.clone()
    mixed[:, :, rows, columns] = images.flip(0)[:, :, rows, columns]
    return mixed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()

    images = torch.rand(options.batch_size, 3, 224, 224)
    generator = torch.Generator().manual_seed(0)
    encoder = resnet50(weights=None)
    encoder.fc = nn.Identity()
    method = moco_v2(encoder, 2048, queue_size=4096)
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.03, momentum=0.9)

    def step() -> None:
        _, keys = backward(method, (images, images), sim().draw(images, generator))
        optimizer.step()
        optimizer.zero_grad()
        method.update(keys, progress=0.0)

    def mixing(mixer: Mixer) -> None:
        mixer.draw(images, generator)(images)

    seconds = interleaved(
        {
            "CutMix, one lam, slice assignment": lambda: slice_assignment(images),
            "CutMix, one lam": lambda: mixing(CutMix()),
            **{name: partial(mixing, mixer) for name, mixer in MIXERS.items()},
            "training step, MoCo v2 ResNet-50": step,
        },
        options.rounds,
    )
    print(f"batch {options.batch_size}, 224 px, {torch.get_num_threads()} threads, {options.rounds} rounds")
    print(f"{'':34} {'median ms':>10}   (min – max)")
    for name, times in seconds.items():
        print(row(name, times))
    median = {name: statistics.median(times) for name, times in seconds.items()}
    print(f"CutMix, lam per image / one lam: {median['CutMix'] / median['CutMix, one lam']:.2f}")
    for name in MIXERS:
        share = median[name] / median["training step, MoCo v2 ResNet-50"]
        print(f"{name} / training step: {share:.3%} (to stay below 1 %)")


if __name__ == "__main__":
    main()
