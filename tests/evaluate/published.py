"""Results as runs of the paper's settings would leave them on ImageNet, without training anything."""

import json
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from mixview.encoders.provenance import encoder_settings
from mixview.evaluate.base import Protocol, build
from mixview.evaluate.paper import PaperKey
from mixview.evaluate.results import Result
from mixview.methods import RunLength
from mixview.runs.run_directory import RunDirectory
from mixview.train.config import MixingConfig, PretrainConfig, method_config, to_plain

IMAGES = {"svm": (5011, 4952), "low-shot": (5011, 4952), "detection-voc-c4": (16551, 4952)}
IMAGES |= {"detection-coco-c4-2x": (118287, 5000)}
SIZE = {"size": 224}


def fingerprint(count: int) -> str:
    return f"{count} images, 123456789 bytes, 0123456789abcdef"


def settings_of_run(images: int = 1281167, data: str | None = None, **options: Any) -> dict[str, Any]:
    """What a run with these options and so many images records of its settings."""
    method = method_config(options.pop("method")).resolve(RunLength(images, 10**6, 256))
    usual: dict[str, Any] = {"data": "/data/whatever", "method": method, "augment": method.augment, **SIZE}
    with TemporaryDirectory() as folder:
        described = {"kind": "imagefolder", "count": images, "fingerprint": data or fingerprint(images)}
        RunDirectory.create(folder, to_plain(PretrainConfig(**(usual | options))), described).close()
        np.savez(Path(folder) / "images.npz", identities=np.zeros(1, np.uint64), count=np.array(images))
        settings = encoder_settings(folder)
    assert settings is not None
    return settings


@cache
def settings_text(method: str, objective: str, mixer: str, alpha: str, epochs: str) -> str:
    """The settings of a run of the paper, as its encoder's file has them."""
    mixing = MixingConfig(lam_per="batch")
    if mixer:
        mixing = MixingConfig(mixer, float(alpha), lam_per="batch")  # type: ignore[arg-type]
    settings = settings_of_run(method=method, objective=objective, epochs=int(epochs), mixing=mixing)
    return json.dumps(settings, sort_keys=True)


def about_of(method: str, objective: str, mixer: str = "", alpha: str = "", epochs: str = "200") -> dict[str, str]:
    """What the encoder's file of such a run says, at the end of it."""
    about = {"method": method, "objective": objective, "data": "/data/whatever", "seed": "0", "step": "1"}
    return about | {"epoch": epochs, "settings": settings_text(method, objective, mixer, alpha, epochs)}


def split_address(protocol: str) -> tuple[str, dict[str, Any]]:
    """The name of the protocol of an address, and the option that the address has in its name."""
    name, _, variant = protocol.partition("-")
    option = {"linear": "schedule", "detection": "recipe"}.get(name)
    return (protocol, {}) if option is None else (name, {option: variant})


def settings_of_protocol(protocol: str) -> dict[str, Any]:
    """What a result records of a protocol as published."""
    name, options = split_address(protocol)
    evaluation = build(name, {"encoder": "x", **options})
    shared = {each.name for each in fields(Protocol)} | evaluation.runtime_options
    return {key: value for key, value in asdict(evaluation).items() if key not in shared} | SIZE


def result_of(address: PaperKey) -> Result:
    """The result that a run of the paper's settings, evaluated by the paper's protocol, leaves on disk."""
    protocol = address.protocol
    train, test = IMAGES.get(protocol, (1281167, 50000))
    return Result(
        protocol=split_address(protocol)[0],
        metrics={address.column: 50.0},
        description="as published.",
        encoder="first",
        data=f"/data, train {train}, test {test}",
        settings=json.loads(json.dumps(settings_of_protocol(protocol))),
        about=about_of(*address[:5]),
        details={"data": {"train": fingerprint(train), "test": fingerprint(test)}},
    )
