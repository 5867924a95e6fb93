"""Records numbers that a redesign must not move: weights after a few steps, and the metrics of every protocol.

    python -m tests.numbers record before.json        # on the tree as it was
    python -m tests.numbers compare before.json       # on the tree as it is

The numbers of two machines may differ in the last bit, so they are compared on one, and not kept in the repository.
"""

import argparse
import contextlib
import hashlib
import io
import itertools
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from mixview import extensions
from mixview.evaluate import evaluate
from mixview.runs.run_directory import read_metrics
from mixview.train.pretraining import pretrain as train
from tests.evaluate.detection.tiny import C4, FPN, SCALES, SCENES

METHODS = [name for name in extensions.METHODS.names() if name != "distillation"]  # which needs a teacher
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"name": "sgd", "lr": 0.03, "momentum": 0.9, "weight_decay": 1e-4},
    "lars": {"name": "lars", "lr": 0.3, "weight_decay": 1e-6, "warmup_epochs": 1.0},
    "adamw": {"name": "adamw", "lr": 1e-3, "weight_decay": 0.05},
}
MIXTURES: dict[str, dict[str, Any]] = {
    "mixup": {"mixer": "mixup", "alpha": 0.5},
    "random_choice": {"mixer": "random_choice"},
    "one-lam": {"lam_per": "batch"},
    "permutation": {"partner": "permutation"},
    "fold": {"lam_at_least_half": True},
    "half": {"prob": 0.5},
    "warmup": {"warmup": (0.2, 0.8)},
    "groups": {"mix_groups": 2},
    "weights": {"weight": 0.3, "sim_weight": 0.7},
}


def pretrain(out: Path, **options: Any) -> list[object]:
    """The hash of an encoder, and the losses on the way."""
    settings: dict[str, Any] = {
        "data": "scenes",
        "data_options": {"count": 48, "size": 32},
        "backbone": "small",
        "batch_size": 16,
        "epochs": 2,
        "workers": 0,
        "accelerator": "cpu",
        "out": str(out),
    }
    watch = {"log_every": 1, "eval_every": 0, "loggers": "none", "estimate": False} | options.pop("monitor", {})
    groups = {"monitor": watch} | {name: options.pop(name) for name in ("mixing", "optimizer") if name in options}
    settings |= options | groups
    if settings.get("devices", 1) == 1:
        train(**settings)
    else:  # the second process is started by the same command again
        code = f"from mixview.train.pretraining import pretrain; pretrain(**{settings!r})"
        (out.parent / "run.py").write_text(f'if __name__ == "__main__":\n    {code}\n')
        environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
        subprocess.run([sys.executable, out.parent / "run.py"], check=True, capture_output=True, env=environment)
    weights = load_file(out / "encoder.safetensors")
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode() + weights[name].contiguous().numpy().tobytes())
    return [digest.hexdigest(), *losses(out)]


def losses(out: Path) -> list[object]:
    """What the runs in a folder have logged, but for times."""
    return [
        {name: value for name, value in record.items() if "time" not in name and "second" not in name}
        for file in sorted(out.rglob("metrics.jsonl"))
        for record in read_metrics(file.parent)
    ]


def pretrainings() -> Iterator[tuple[str, Callable[[Path], object]]]:
    """Every method, objective and optimizer, and everything around them that could move a number."""
    for method, objective, (name, optimizer) in itertools.product(
        METHODS, ("sim", "bsim", "wbsim"), OPTIMIZERS.items()
    ):
        yield (
            f"{method}/{objective}/{name}",
            lambda out, m=method, o=objective, p=optimizer: pretrain(out, method=m, objective=o, optimizer=p),
        )
    unmix = {"mixer": "random_choice", "lam_per": "batch"}
    for method in METHODS:
        yield f"{method}/mixaug", lambda out, m=method: pretrain(out, method=m, objective="mixaug")
        yield f"{method}/unmix", lambda out, m=method: pretrain(out, method=m, objective="unmix", mixing=unmix)
    for method, (name, mixing) in itertools.product(("mocov2", "simclr"), MIXTURES.items()):
        yield f"{method}/mixing/{name}", lambda out, m=method, x=mixing: pretrain(out, method=m, mixing=x)
    heads: dict[str, tuple[str, dict[str, Any]]] = {
        "simclr-one-sided": ("simclr", {"symmetric": False, "temperature": 0.5}),
        "mocov2-other-parent": ("mocov2", {"other_parent": True, "bn_splits": 2, "queue_size": 32}),
        "mocov1-wide": ("mocov1", {"dim": 64, "momentum": 0.9}),
        "byol-interpolated": ("byol", {"target": "interpolated", "hidden": 64, "dim": 32}),
        "simsiam-narrow": ("simsiam", {"dim": 64, "hidden": 32}),
        "mixco-cold": ("mixco", {"mix_temperature": 0.05, "hidden": 64}),
        "mochi-late": ("mochi", {"hardest": 8, "synthetic": (6, 2), "synthetic_from": 0.5}),
        "swav-queue": (
            "swav",
            {"queue_size": 32, "epoch_queue_starts": 1, "prototypes": 20, "freeze_prototypes": 0.5, "hidden": 64},
        ),
    }
    for name, (method, head) in heads.items():
        yield f"head/{name}", lambda out, m=method, h=head: pretrain(out, method={"name": m, **h})
    around: dict[str, dict[str, Any]] = {
        "monitor": {"monitor": {"eval_every": 1}},
        "accumulate": {"accumulate_grad_batches": 2},
        "grad-cache": {"accumulate_grad_batches": 2, "grad_cache": True},
        "clip": {"optimizer": {"name": "sgd", "lr": 1.0, "clip": 0.1, "schedule": "steps", "milestones": (1,)}},
        "resnet18": {"backbone": "resnet18", "method": "simsiam", "epochs": 1},
        "views-64": {"size": 64, "augment": "byol", "min_crop_scale": 0.3},
        "views-on-device": {"augment_device": "device"},
        "gray": {"channels": 1},
        "seed": {"seed": 7},
    }
    for name, options in around.items():
        yield f"around/{name}", lambda out, o=options: pretrain(out, **o)
    for method in ("mocov2", "simclr", "byol", "swav"):
        yield f"resumed/{method}", lambda out, m=method: resumed(out, m)
        yield f"two-processes/{method}", lambda out, m=method: pretrain(out, method=m, devices=2)
    yield (
        "two-processes/grad-cache",
        lambda out: pretrain(out, method="simclr", devices=2, accumulate_grad_batches=2, grad_cache=True),
    )


def resumed(out: Path, method: str) -> list[object]:
    """A run that was extended by an epoch."""
    pretrain(out, method=method, optimizer={"schedule": "constant"})
    return pretrain(out, method=method, optimizer={"schedule": "constant"}, epochs=3, resume=True)


def evaluations() -> Iterator[tuple[str, Callable[[Path], object]]]:
    """Every protocol on a fixed random encoder."""
    shared: dict[str, Any] = {
        "backbone": "small",
        "data": "scenes",
        "data_options": {"count": 120, "size": 32},
        "device": "cpu",
        "workers": 0,
    }
    trained = {"epochs": 2, "batch_size": 32, "logging": {"loggers": "none"}}
    cases: dict[str, tuple[str, dict[str, Any]]] = {
        "knn": ("knn", {}),
        "knn-5": ("knn", {"k": 5, "temperature": 0.5}),
        "svm": ("svm", {}),
        "svm-crop": ("svm", {"resize": "crop", "stage": "avgpool"}),
        "lowshot": ("low-shot", {"shots": [1, 4], "samples": 2}),
        "linear": ("linear", trained),
        "linear-byol": ("linear", trained | {"schedule": "byol"}),
        "linear-fast": ("linear", {"fast": True}),
        "linear-sgd": ("linear", {"fast": True, "solver": "sgd", "epochs": 3}),
        "probe": ("probe", trained),
        "semi": ("semi-supervised", trained | {"fractions": [0.5]}),
        "supervised": ("supervised", trained),
    }
    for name, (protocol, options) in cases.items():
        yield (
            f"evaluate/{name}",
            lambda out, p=protocol, o=options: [
                plain(evaluate("random", p, **shared, **o, out=str(out))),
                *losses(out),
            ],
        )
    for name, model in (("c4", C4), ("fpn", FPN)):
        yield f"evaluate/detection-{name}", lambda out, m=model: [plain(detection(out, m)), *losses(out)]


def detection(out: Path, model: dict[str, Any]) -> Any:
    return evaluate(
        "random",
        "detection",
        recipe="small-c4",
        backbone="small",
        data="scenes",
        data_options=SCENES,
        model=model | {"proposals": 10},
        scales=SCALES,
        iterations=4,
        batch_size=2,
        precise_bn=2,
        max_test_images=3,
        workers=0,
        device="cpu",
        out=str(out),
    )


def plain(result: Any) -> dict[str, float]:
    return {name: float(value) for name, value in result.metrics.items()}


def record(pattern: str) -> dict[str, object]:
    """Every number whose name contains the pattern."""
    torch.set_num_threads(1)
    numbers: dict[str, object] = {}
    for name, compute in itertools.chain(evaluations(), pretrainings()):
        if pattern not in name:
            continue
        output = io.StringIO()
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(output),
        ):
            try:
                numbers[name] = json.loads(json.dumps(compute(Path(folder) / "run")))
            except Exception:
                traceback.print_exc(file=sys.__stderr__)
                numbers[name] = "failed"
        print(name, str(numbers[name])[:60], flush=True)
    return numbers


def values(numbers: Any) -> list[object]:
    """The numbers in their order, whatever they are called."""
    if isinstance(numbers, dict | list):
        return [
            value for part in (numbers.values() if isinstance(numbers, dict) else numbers) for value in values(part)
        ]
    return [numbers]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="names that contain this")
    given = parser.parse_args()
    numbers = record(given.only)
    if given.action == "record":
        given.file.write_text(json.dumps(numbers, indent=1))
        return
    before = {name: value for name, value in json.loads(given.file.read_text()).items() if given.only in name}
    moved = [name for name in before if values(numbers.get(name)) != values(before[name])]
    print(f"{len(before) - len(moved)} of {len(before)} are the same")
    if moved:
        sys.exit("moved: " + ", ".join(moved))


if __name__ == "__main__":
    main()
