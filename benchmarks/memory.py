"""What WBSIM holds for the backward: peak bytes of saved activations under SIM, BSIM and WBSIM, counted by hooks.

    python benchmarks/memory.py [--batch_size 4] [--size 224]
    python benchmarks/memory.py --recipes

ResNet-50. "joint" sums the terms before it goes backward, as the paper did; "sequential" is `mixview.methods.backward`.
With --recipes: the memory per device that each published recipe is estimated to need, beside what its hardware has.
The paper's cost table has 5.5 / 5.5 / 8.2 GB for MoCo, MoCo-BSIM and MoCo-WBSIM, a ratio of 1.49.
"""

import argparse
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torchvision.models import resnet50

from mixview import CutMix, Objective, bsim, mixture_generators, recipes, sim, wbsim
from mixview.methods import BYOL, Method, SimCLR, SimSiam, backward, moco_v2
from mixview.nn import EncoderWithProjector
from mixview.train.activations import peak_activations
from mixview.train.config import from_plain
from mixview.train.memory import step_memory


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


def work(method: Method, objective: Objective, views: Sequence[Tensor]) -> float:
    """Forward passes of a batch through the encoders in one step."""
    images = {True: 0, False: 0}

    def count(module: nn.Module, batch: tuple[Tensor, ...]) -> None:
        images[torch.is_grad_enabled()] += len(batch[0])

    networks = [each.encoder for each in method.modules() if isinstance(each, EncoderWithProjector)]
    hooks = [network.register_forward_pre_hook(count) for network in networks]
    backward(method, views, objective.draw(views[0], mixture_generators(0, 0)))
    for hook in hooks:
        hook.remove()
    method.zero_grad()
    return (3 * images[True] + images[False]) / len(views[0])


def show_recipes() -> None:
    """One line for each recipe that names its hardware."""
    for name in recipes.names():
        recipe = recipes.read(name)
        if recipe.hardware is None:
            continue
        memory = step_memory(from_plain(recipe.settings), devices=recipe.hardware.devices, images=1_281_167)
        print(f"{name:28} {memory.total / 1e9:6.1f} GB per device, for {recipe.about['hardware']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--recipes", action="store_true")
    options = parser.parse_args()
    if options.recipes:
        show_recipes()
        return
    views = torch.rand(2, options.batch_size, 3, options.size, options.size).unbind()
    mixer = CutMix(lam_per="image")
    print(f"peak of saved activations in MB, ResNet-50, batch {options.batch_size}, {options.size} px")
    print(f"{'':18} {'SIM':>8} {'BSIM':>8} {'WBSIM':>8} {'WBSIM joint':>12} {'WBSIM/BSIM':>11} {'joint/BSIM':>11}")
    for name, make in METHODS.items():
        method = make()
        megabytes = [
            peak_activations(method, objective, (views[0], views[1]), joint=joint) / 1e6
            for objective, joint in ((sim(), False), (bsim(mixer), False), (wbsim(mixer=mixer), False), (wbsim(), True))
        ]
        one, two, three, joint = megabytes
        print(f"{name:18} {one:8.0f} {two:8.0f} {three:8.0f} {joint:12.0f} {three / two:11.2f} {joint / two:11.2f}")
    print("\nforward passes per step (a backward counts as two) and saved activations, relative to SIM")
    print(
        " " * 18 + "".join(f"{title:>22}" for title in ("BSIM", "WBSIM", "BSIM, one per pair", "WBSIM, one per pair"))
    )
    half = CutMix(lam_per="pair", anchors="one_per_pair")
    for name, make in METHODS.items():
        method = make()
        costs = [
            (work(method, each, views), peak_activations(method, each, (views[0], views[1])))
            for each in (sim(), bsim(mixer), wbsim(mixer=mixer), bsim(half), wbsim(mixer=half))
        ]
        ratios = [(passes / costs[0][0], memory / costs[0][1]) for passes, memory in costs[1:]]
        print(f"{name:18}" + "".join(f"{passes:12.3f} ×{memory:7.2f} ×" for passes, memory in ratios))


if __name__ == "__main__":
    main()
