"""What WBSIM holds for the backward: peak bytes of saved activations under SIM, BSIM and WBSIM, counted by hooks.

    python benchmarks/memory.py [--batch 4] [--size 224]

ResNet-50. "joint" sums the terms before it goes backward, as the paper did; "sequential" is `mixview.methods.backward`.
The paper's cost table has 5.5 / 5.5 / 8.2 GB for MoCo, MoCo-BSIM and MoCo-WBSIM, a ratio of 1.49.
"""

import argparse
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models import resnet50

from mixview import CutMix, Objective, bsim, mixture_generators, sim, wbsim
from mixview.methods import BYOL, Method, SimCLR, SimSiam, backward, moco_v2


class SavedBytes:
    """Counts the bytes of distinct storages that autograd holds for the backward, parameters left out."""

    def __init__(self, method: nn.Module) -> None:
        self.holders: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        self.ignored = {tensor.untyped_storage().data_ptr() for tensor in (*method.parameters(), *method.buffers())}
        self.peak = 0

    def __enter__(self) -> "SavedBytes":
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, lambda held: held.tensor)
        self.hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.hooks.__exit__(*error)

    def pack(self, tensor: Tensor) -> Any:
        storage = tensor.untyped_storage()
        held = Held(tensor)
        if storage.data_ptr() not in self.ignored:
            key = storage.data_ptr()
            self.holders[key] = self.holders.get(key, 0) + 1
            self.sizes[key] = storage.nbytes()
            self.peak = max(self.peak, sum(self.sizes.values()))
            weakref.finalize(held, self.release, key)
        return held

    def release(self, key: int) -> None:
        self.holders[key] -= 1
        if not self.holders[key]:
            del self.holders[key], self.sizes[key]


class Held:
    """What autograd holds in place of a saved tensor; it is dropped when the graph is."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def peak(method: Method, objective: Objective, views: tuple[Tensor, Tensor], joint: bool) -> int:
    terms = objective.draw(views[0], mixture_generators(0, 0))
    with SavedBytes(method) as saved:
        if joint:
            loss, _ = method(views, terms)
            loss.backward()
        else:
            backward(method, views, terms)
    method.zero_grad()
    return saved.peak


def encoder() -> nn.Module:
    network = resnet50(weights=None)
    network.fc = nn.Identity()
    return network


METHODS: dict[str, Callable[[], Method]] = {
    "MoCo v2": lambda: moco_v2(encoder(), 2048),
    "BYOL": lambda: BYOL(encoder(), 2048),
    "SimSiam": lambda: SimSiam(encoder(), 2048),
    "SimCLR": lambda: SimCLR(encoder(), 2048),
    "SimCLR, one-sided": lambda: SimCLR(encoder(), 2048, symmetric=False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--size", type=int, default=224)
    options = parser.parse_args()
    views = torch.rand(2, options.batch, 3, options.size, options.size).unbind()
    mixer = CutMix(per_sample=True)
    print(f"peak of saved activations in MB, ResNet-50, batch {options.batch}, {options.size} px")
    print(f"{'':18} {'SIM':>8} {'BSIM':>8} {'WBSIM':>8} {'WBSIM joint':>12} {'WBSIM/BSIM':>11} {'joint/BSIM':>11}")
    for name, make in METHODS.items():
        method = make()
        cells = [
            peak(method, objective, (views[0], views[1]), joint) / 1e6
            for objective, joint in ((sim(), False), (bsim(mixer), False), (wbsim(mixer=mixer), False), (wbsim(), True))
        ]
        one, two, three, joint = cells
        print(f"{name:18} {one:8.0f} {two:8.0f} {three:8.0f} {joint:12.0f} {three / two:11.2f} {joint / two:11.2f}")


if __name__ == "__main__":
    main()
