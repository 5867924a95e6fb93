"""Tiny encoders, images and runs that the tests of evaluation share."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from mixview.data.synthetic.scenes import Scenes
from mixview.encoders import backbones
from mixview.encoders.encoder_file import save_encoder
from mixview.encoders.loading import LoadedEncoder

SIZE = 16


class Means(nn.Module):
    """The mean color of an image: features that a test can compute by hand."""

    def forward(self, images: Tensor) -> Tensor:
        return images.mean(dim=(2, 3))


def means() -> LoadedEncoder:
    return LoadedEncoder(Means().eval(), "means", SIZE, 3, 3)


def small(seed: int = 0) -> LoadedEncoder:
    """A random small ResNet."""
    torch.manual_seed(seed)
    built = backbones.build("small", size=SIZE)
    return LoadedEncoder(built.encoder.eval(), "small", SIZE, 3, built.feature_dim, spec=built.spec)


def scenes(count: int = 60, split: str = "train") -> Scenes:
    return Scenes(count, SIZE, 0, split)  # type: ignore[arg-type]


def colored(root: Path, counts: dict[str, int], seed: int = 0, size: int = 20) -> Path:
    """Class folders whose classes are colors, with some noise: what any encoder tells apart."""
    generator = np.random.default_rng(seed)
    for place, (name, count) in enumerate(counts.items()):
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            color = np.full((size, size, 3), 40) + np.eye(3)[place % 3] * 160 + 40 * (place // 3)
            noisy = np.clip(color + generator.normal(0, 8, color.shape), 0, 255).astype(np.uint8)
            Image.fromarray(noisy).save(root / name / f"{number:03d}.png")
    return root


def colors(root: Path, train: int = 20, test: int = 8) -> Path:
    """A dataset of three colors in train/ and val/."""
    for split, count, seed in (("train", train, 0), ("val", test, 1)):
        colored(root / split, {"red": count, "green": count, "blue": count}, seed)
    return root


def run_folder(path: Path, method: str = "mocov2", objective: str = "bsim", epoch: str = "200") -> Path:
    """What a finished run leaves, as far as it is judged."""
    path.mkdir(parents=True)
    loaded = small()
    about = {"method": method, "objective": objective, "epoch": epoch, "seed": "0"}
    assert loaded.spec is not None
    save_encoder(path / "encoder.safetensors", loaded.encoder, loaded.spec, about)
    (path / "config.yaml").write_text("method: mocov2\n")
    return path
