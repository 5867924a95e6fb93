"""mixview under Lightning's Trainer: a LightningModule whose `training_step` draws the mixtures and calls the method.

python examples/lightning_trainer.py
"""

import argparse

import lightning
import stripes
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from mixview import CutMix, mixture_generators, wbsim
from mixview.methods import Targets, moco_v2

WIDTH = 64


class MixedMoCo(lightning.LightningModule):
    """MoCo v2 with mixed views. All terms share one backward pass here, as the Trainer's own loop expects."""

    def __init__(self) -> None:
        super().__init__()
        encoder = stripes.small_encoder(WIDTH)
        self.method = moco_v2(encoder, WIDTH, dim=32, queue_size=512, momentum=0.99)
        self.objective = wbsim(mixer=CutMix(lam_per="image"))
        self.targets: list[Targets] = []
        self.advanced = 0

    def training_step(self, batch: list[Tensor], batch_index: int) -> Tensor:
        views = batch[0], batch[1]
        micro_batch = self.current_epoch * self.trainer.num_training_batches + batch_index
        generators = mixture_generators(0, micro_batch, rank=self.global_rank)
        loss, targets = self.method(views, self.objective.draw(views[0], generators))
        self.targets.append(targets)
        self.log("loss", loss, prog_bar=True)
        return loss

    def on_train_batch_end(self, *_: object) -> None:
        if self.global_step > self.advanced:  # once per optimizer step, also when gradients accumulate
            self.advanced = self.global_step
            self.method.update(*self.targets, progress=self.global_step / self.trainer.estimated_stepping_batches)
            self.targets.clear()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.method.parameters(), lr=5e-4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    lightning.seed_everything(0, verbose=False)
    generator = torch.Generator().manual_seed(1)
    train, test = stripes.draw(2048, generator), stripes.draw(500, generator)
    pairs = TensorDataset(*(stripes.augment(train[0].repeat(2, 1, 1, 1), generator) for _ in range(2)))
    loader = DataLoader(pairs, batch_size=128, shuffle=True, drop_last=True)
    pretraining = MixedMoCo()
    before = stripes.nearest_neighbor_accuracy(pretraining.method.encoder, train, test)
    trainer = lightning.Trainer(
        max_epochs=options.epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(pretraining, loader)
    after = stripes.nearest_neighbor_accuracy(pretraining.method.encoder, train, test)
    print(f"right class of the nearest neighbor: {before:.1%} at random, {after:.1%} after {options.epochs} epochs")


if __name__ == "__main__":
    main()
