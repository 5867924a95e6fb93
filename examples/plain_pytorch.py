"""mixview in a bare PyTorch loop: SimCLR as published (SIM) and with mixed views (WBSIM), on drawn images.

    python examples/plain_pytorch.py --out demo

Prints how often the nearest neighbor has the right class: for both objectives, a random encoder and raw pixels. Also
draws a picture of views and mixtures.
"""

import argparse
from pathlib import Path

import stripes
import torch
from torch import Tensor, nn
from torchvision.utils import make_grid, save_image

from mixview import CutMix, Mixup, Objective, mixture_generators, sim, wbsim
from mixview.methods import SimCLR, backward

WIDTH = 64


def pretrain(images: Tensor, objective: Objective, steps: int, seed: int = 0, batch_size: int = 128) -> nn.Module:
    """A complete training loop. `objective.draw`, `backward` and `method.update` are mixview's; the rest is PyTorch."""
    torch.manual_seed(seed)
    method = SimCLR(stripes.small_encoder(WIDTH), WIDTH, temperature=0.2)
    optimizer = torch.optim.AdamW(method.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        chosen = images[torch.randint(len(images), (batch_size,), generator=generator)]
        views = stripes.augment(chosen, generator), stripes.augment(chosen, generator)
        terms = objective.draw(views[0], mixture_generators(seed, step))
        loss, targets = backward(method, views, terms)
        optimizer.step()
        optimizer.zero_grad()
        method.update(targets, progress=step / steps)
        if step % 50 == 0:
            print(f"  step {step:4} of {steps}   loss {float(loss):.3f}", flush=True)
    return method.encoder


def picture(images: Tensor, path: Path) -> None:
    """Draw rows of views, and of their mixtures by CutMix and Mixup."""
    generator = torch.Generator().manual_seed(0)
    view = stripes.augment(images[:8], generator)
    rows = [view, *(mixer(lam_per="image").draw(view, generator)(view) for mixer in (CutMix, Mixup))]
    grid = make_grid((torch.cat(rows) + 0.5).clamp(0, 1), nrow=8, pad_value=1)
    save_image(grid.repeat_interleave(4, 1).repeat_interleave(4, 2), path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120, help="optimizer steps for each objective")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the picture")
    options = parser.parse_args()

    generator = torch.Generator().manual_seed(1)
    train, test = stripes.draw(2000, generator), stripes.draw(500, generator)
    torch.manual_seed(0)
    encoders = {"raw pixels": nn.Flatten(), "random encoder": stripes.small_encoder(WIDTH)}
    for name, objective in (("SIM", sim()), ("WBSIM", wbsim(mixer=CutMix(lam_per="image")))):
        print(f"{name}: {objective}")
        encoders[name] = pretrain(train[0], objective, options.steps)

    print(f"\nright class of the nearest neighbor ({stripes.CLASSES} classes, one seed):")
    for name, encoder in encoders.items():
        print(f"  {name:15} {stripes.nearest_neighbor_accuracy(encoder, train, test):6.1%}")
    options.out.mkdir(parents=True, exist_ok=True)
    picture(train[0], options.out / "mixtures.png")
    print(f"views, CutMix and Mixup: {options.out / 'mixtures.png'}")


if __name__ == "__main__":
    main()
