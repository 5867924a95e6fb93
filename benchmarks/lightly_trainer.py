"""The other side of `benchmarks/pretraining.py`: lightly's building blocks under Lightning's Trainer.

    python benchmarks/lightly_trainer.py [--method simclr] [--epochs 1]

As in lightly's documentation: its transforms, heads, losses and momentum updates, a LightningModule a method. What
differs from there is what has to be equal on both sides: the backbone, the widths, the size of the queue, the
optimizer, and no blur, which is not for images of 32 pixels.
"""

import argparse
import copy
from collections.abc import Callable

import lightning
import numpy as np
import torch
from lightly.loss import NegativeCosineSimilarity, NTXentLoss
from lightly.models.modules import heads
from lightly.models.utils import deactivate_requires_grad, update_momentum
from lightly.transforms import BYOLTransform, MoCoV2Transform, SimCLRTransform, SimSiamTransform
from lightly.transforms.byol_transform import BYOLView1Transform, BYOLView2Transform
from lightly.utils.scheduler import cosine_schedule
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from mixview.data.synthetic.scenes import Scenes
from mixview.encoders import backbones

HIDDEN, DIM, QUEUE = 512, 128, 4096
Batch = tuple[list[Tensor], Tensor]


class Module(lightning.LightningModule):
    """The parts that the four have in common."""

    def __init__(self, backbone: nn.Module, width: int) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, x: Tensor) -> Tensor:
        return self.projection_head(self.backbone(x).flatten(start_dim=1))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.06, momentum=0.9, weight_decay=5e-4)


class SimCLR(Module):
    def __init__(self, backbone: nn.Module, width: int) -> None:
        super().__init__(backbone, width)
        self.projection_head = heads.SimCLRProjectionHead(width, HIDDEN, DIM)
        self.criterion = NTXentLoss(temperature=0.1)

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:
        (x0, x1), _ = batch
        return self.criterion(self.forward(x0), self.forward(x1))


class MoCo(Module):
    def __init__(self, backbone: nn.Module, width: int) -> None:
        super().__init__(backbone, width)
        self.projection_head = heads.MoCoProjectionHead(width, HIDDEN, DIM)
        self.backbone_momentum = copy.deepcopy(self.backbone)
        self.projection_head_momentum = copy.deepcopy(self.projection_head)
        deactivate_requires_grad(self.backbone_momentum)
        deactivate_requires_grad(self.projection_head_momentum)
        self.criterion = NTXentLoss(temperature=0.2, memory_bank_size=(QUEUE, DIM))

    def forward_momentum(self, x: Tensor) -> Tensor:
        return self.projection_head_momentum(self.backbone_momentum(x).flatten(start_dim=1)).detach()

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:
        momentum = cosine_schedule(self.current_epoch, 10, 0.996, 1)
        update_momentum(self.backbone, self.backbone_momentum, m=momentum)
        update_momentum(self.projection_head, self.projection_head_momentum, m=momentum)
        (x_query, x_key), _ = batch
        return self.criterion(self.forward(x_query), self.forward_momentum(x_key))


class BYOL(Module):
    def __init__(self, backbone: nn.Module, width: int) -> None:
        super().__init__(backbone, width)
        self.projection_head = heads.BYOLProjectionHead(width, HIDDEN, DIM)
        self.prediction_head = heads.BYOLPredictionHead(DIM, HIDDEN, DIM)
        self.backbone_momentum = copy.deepcopy(self.backbone)
        self.projection_head_momentum = copy.deepcopy(self.projection_head)
        deactivate_requires_grad(self.backbone_momentum)
        deactivate_requires_grad(self.projection_head_momentum)
        self.criterion = NegativeCosineSimilarity()

    def forward(self, x: Tensor) -> Tensor:
        return self.prediction_head(super().forward(x))

    def forward_momentum(self, x: Tensor) -> Tensor:
        return self.projection_head_momentum(self.backbone_momentum(x).flatten(start_dim=1)).detach()

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:
        momentum = cosine_schedule(self.current_epoch, 10, 0.996, 1)
        update_momentum(self.backbone, self.backbone_momentum, m=momentum)
        update_momentum(self.projection_head, self.projection_head_momentum, m=momentum)
        (x0, x1), _ = batch
        p0, z0 = self.forward(x0), self.forward_momentum(x0)
        p1, z1 = self.forward(x1), self.forward_momentum(x1)
        return 0.5 * (self.criterion(p0, z1) + self.criterion(p1, z0))


class SimSiam(Module):
    def __init__(self, backbone: nn.Module, width: int) -> None:
        super().__init__(backbone, width)
        self.projection_head = heads.SimSiamProjectionHead(width, HIDDEN, HIDDEN)
        self.prediction_head = heads.SimSiamPredictionHead(HIDDEN, HIDDEN // 4, HIDDEN)
        self.criterion = NegativeCosineSimilarity()

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:
        (x0, x1), _ = batch
        z0, z1 = self.forward(x0), self.forward(x1)
        p0, p1 = self.prediction_head(z0), self.prediction_head(z1)
        return 0.5 * (self.criterion(p0, z1.detach()) + self.criterion(p1, z0.detach()))


MODULES: dict[str, type[Module]] = {"simclr": SimCLR, "mocov2": MoCo, "byol": BYOL, "simsiam": SimSiam}


def transform_of(method: str, size: int) -> Callable[[Image.Image], list[Tensor]]:
    """lightly's own transform, as it comes; for images of 32 pixels as its CIFAR examples: without blur, SimCLR's
    colors of half the strength."""
    small: dict[str, float] = {"gaussian_blur": 0.0} if size <= 32 else {}
    if method == "simclr":
        return SimCLRTransform(input_size=size, **small, **({"cj_strength": 0.5} if small else {}))
    if method == "byol":
        return BYOLTransform(BYOLView1Transform(input_size=size, **small), BYOLView2Transform(input_size=size, **small))
    return {"mocov2": MoCoV2Transform, "simsiam": SimSiamTransform}[method](input_size=size, **small)


class Images(Dataset[tuple[list[Tensor], int]]):
    """Images in memory, as torchvision's CIFAR-10 holds them; `length` of them by starting over."""

    def __init__(
        self, pixels: np.ndarray, transform: Callable[[Image.Image], list[Tensor]], length: int | None = None
    ) -> None:
        self.pixels = pixels
        self.transform = transform
        self.length = length or len(pixels)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[list[Tensor], int]:
        return self.transform(Image.fromarray(self.pixels[index % len(self.pixels)])), 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=MODULES, default="simclr")
    parser.add_argument("--backbone", default="small")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=1)
    options = parser.parse_args()
    scenes = Scenes(options.images, size=32)
    pixels = np.stack([scenes.read(index) for index in range(len(scenes))])
    backbone = backbones.build(options.backbone, size=32)
    loader = DataLoader(
        Images(pixels, transform_of(options.method, 32)),
        options.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=0,
    )
    trainer = lightning.Trainer(max_epochs=options.epochs, accelerator="cpu", devices=1)
    trainer.fit(MODULES[options.method](backbone.encoder, backbone.feature_dim), loader)


if __name__ == "__main__":
    main()
