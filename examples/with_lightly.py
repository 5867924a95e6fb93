"""SimCLR from lightly's documentation, with mixtures (SimCLR-BSIM): the lines marked `# mixview` are new.

python examples/with_lightly.py
"""

import argparse
from functools import partial

import stripes
import torch
from lightly.models.modules import SimCLRProjectionHead
from torch import Tensor, nn

from mixview import CutMix
from mixview.losses import nt_xent

WIDTH = 64


class SimCLR(nn.Module):
    """The model of lightly's documentation."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.projection_head = SimCLRProjectionHead(WIDTH, WIDTH, 128)

    def forward(self, x: Tensor) -> Tensor:
        return self.projection_head(self.backbone(x).flatten(start_dim=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    train, test = stripes.draw(2000, generator), stripes.draw(500, generator)
    model = SimCLR(stripes.small_encoder(WIDTH))
    before = stripes.nearest_neighbor_accuracy(model.backbone, train, test)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    augment = partial(stripes.augment, generator=generator)
    mixer = CutMix(alpha=1.0, lam_per="image")  # mixview
    for step in range(options.steps):
        images = train[0][torch.randint(len(train[0]), (128,), generator=generator)]
        x0, x1 = augment(images), augment(images)
        mixture = mixer.draw(x0, generator)  # mixview
        z0, z1 = model(mixture(x0)), model(x1)  # mixview
        loss = nt_xent(z0, z1, mixture, temperature=0.2)  # mixview
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step:4} of {options.steps}   loss {float(loss.detach()):.3f}", flush=True)
    after = stripes.nearest_neighbor_accuracy(model.backbone, train, test)
    print(f"right class of the nearest neighbor: {before:.1%} at random, {after:.1%} after {options.steps} steps")


if __name__ == "__main__":
    main()
