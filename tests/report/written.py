"""Run folders as a run leaves them, written without training: an encoder of random weights and invented metrics."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchvision.utils import make_grid, save_image

from mixview.data.sources.registry import open_dataset
from mixview.encoders import backbones
from mixview.encoders.encoder_file import save_encoder
from mixview.evaluate import results
from mixview.evaluate.results import Result
from mixview.runs.run_directory import RunDirectory
from mixview.train.config import MixingConfig, PretrainConfig, to_plain

SIZE = 16
SCRIPT = "<script>alert(1)</script>"


def write_images(path: Path, count: int = 60, classes: tuple[str, ...] = ("red", SCRIPT, "blue")) -> Path:
    """An .npz of colored noise with train and test parts, its classes named as one likes."""
    generator = np.random.default_rng(0)
    arrays: dict[str, Any] = {"classes": np.array(classes)}
    for split in ("train", "test"):
        labels = np.arange(count) % len(classes)
        colors = 60 + 120 * np.eye(3)[labels % 3]
        noise = generator.normal(0, 30, (count, SIZE, SIZE, 3))
        arrays[f"{split}_images"] = np.clip(colors[:, None, None] + noise, 0, 255).astype(np.uint8)
        arrays[f"{split}_labels"] = labels
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path


def write_run(
    path: Path,
    data: str | Path,
    objective: str = "sim",
    *,
    seed: int = 0,
    alpha: float = 1.0,
    state: str = "finished",
    encoder: bool = True,
    knn: float = 0.4,
    results_of: dict[str, float] | None = None,
    **options: Any,
) -> Path:
    """A run's folder; `results_of` are metrics of a k-NN evaluation in it, in percent."""
    settings: dict[str, Any] = {
        "data": str(data),
        "out": str(path),
        "objective": objective,
        "backbone": "small",
        "size": SIZE,
        "augment": "simclr-small",
        "batch_size": 16,
        "epochs": 4,
        "seed": seed,
        "mixing": MixingConfig(alpha=alpha),
    }
    config = to_plain(PretrainConfig(**(settings | options)))  # type: ignore[arg-type]
    try:
        source = open_dataset(str(data), **(config["data_options"] or {}))
        described = {"kind": source.kind, "count": len(source), "fingerprint": source.fingerprint()}
    except ValueError:
        described = {"kind": "folder", "count": 60, "fingerprint": "60 images, 1 bytes, 0"}
    run = RunDirectory.create(path, config, described)
    about = {"method": "simclr", "objective": objective, "epoch": "4", "seed": str(seed)}
    with run:
        for step in range(1, 17):
            run.log({"step": step, "epoch": step / 4, "loss": float("nan") if step == 3 else 5 / step, "lr": 0.1})
            if step % 4 == 0:
                run.log({"step": step, "knn": knn * step / 16, "std": 0.9, "effective_rank": 20.0 + step,
                         "alignment": 0.5, "uniformity": -3.0})  # fmt: skip
        run.set_status(state, 16, 4.0, "out of memory" if state == "failed" else "")  # type: ignore[arg-type]
    if encoder:
        torch.manual_seed(seed + len(objective))
        built = backbones.build("small", size=SIZE)
        save_encoder(path / "encoder.safetensors", built.encoder, built.spec, about)
        rows = 2 if objective == "sim" else 3
        save_image(make_grid(torch.rand(8 * rows, 3, SIZE, SIZE), nrow=8, padding=1, pad_value=1), path / "views.png")
    if results_of is not None:
        results.save(make_result(f"{path.name} (simclr {objective})", results_of, about, seed), path)
    return path


def make_result(encoder: str, metrics: dict[str, float], about: dict[str, str] | None = None, seed: int = 0) -> Result:
    """The result of an evaluation."""
    return Result(
        protocol="linear",
        metrics=metrics,
        description="a linear classifier.",
        encoder=encoder,
        data="some, train 60, test 60",
        seed=seed,
        about=about or {},
    )
