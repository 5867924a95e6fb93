"""Results as runs of the paper's settings would leave them on ImageNet, without training anything."""

import json
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from mixview.detection.judging import ABSENT, MAY_CHANGE, Detection, protocol_settings
from mixview.detection.models import Model, Scales
from mixview.detection.training import Keeping, Schedule
from mixview.evaluate.judging import Linear, LowShot, Probe, Semi, Setting, Svm
from mixview.evaluate.paper import Address
from mixview.evaluate.provenance import encoder_settings
from mixview.evaluate.results import Result
from mixview.train.pretraining import Pretraining
from mixview.train.run_folder import RunFolder
from mixview.train.settings import AUGMENTED_LIKE, Head, Mixing

PROTOCOLS = {"probe": Probe, "svm": Svm, "lowshot": LowShot, "semi": Semi}
IMAGES = {"svm": (5011, 4952), "lowshot": (5011, 4952), "detection-voc-c4": (16551, 4952)}
IMAGES |= {"detection-coco-c4-2x": (118287, 5000)}
SIZE = {"size": 224}


def fingerprint(count: int) -> str:
    return f"{count} images, 123456789 bytes, 0123456789abcdef"


def settings_of_run(images: int = 1281167, data: str | None = None, **options: Any) -> dict[str, Any]:
    """What a run with these options and so many images records of its settings."""
    method = options["method"]
    usual: dict[str, Any] = {"data": "/data/whatever", "augment": AUGMENTED_LIKE.get(method, method), **SIZE}
    usual["head"] = Head().settle(method, images=images, steps=10**6, batch=256)
    with TemporaryDirectory() as folder:
        described = {"kind": "imagefolder", "count": images, "fingerprint": data or fingerprint(images)}
        RunFolder.create(folder, Pretraining(**(usual | options)).config(), described).close()
        np.savez(Path(folder) / "images.npz", identities=np.zeros(1, np.uint64), count=np.array(images))
        settings = encoder_settings(folder)
    assert settings is not None
    return settings


@cache
def settings_text(method: str, objective: str, mixer: str, alpha: str, epochs: str) -> str:
    """The settings of a run of the paper, as its encoder's file has them."""
    mixing = Mixing(per_sample=False)
    if mixer:
        mixing = Mixing(mixer, float(alpha), per_sample=False)  # type: ignore[arg-type]
    settings = settings_of_run(method=method, objective=objective, epochs=int(epochs), mixing=mixing)
    return json.dumps(settings, sort_keys=True)


def about_of(method: str, objective: str, mixer: str = "", alpha: str = "", epochs: str = "200") -> dict[str, str]:
    """What the encoder's file of such a run says, at the end of it."""
    about = {"method": method, "objective": objective, "data": "/data/whatever", "seed": "0", "step": "1"}
    return about | {"epoch": epochs, "settings": settings_text(method, objective, mixer, alpha, epochs)}


def settings_of_protocol(protocol: str) -> dict[str, Any]:
    """What a result records of a protocol as published."""
    if protocol.startswith("detection-"):
        name = protocol.removeprefix("detection-")
        groups = {"model": Model, "scales": Scales, "schedule": Schedule, "keeping": Keeping}
        published = {
            key: groups[key](**{each: tuple(v) if isinstance(v, list) else v for each, v in value.items()})
            if key in groups
            else value
            for key, value in protocol_settings(name).items()
        }
        detection = Detection(encoder="x", protocol=name, **published)
        own = {each.name for each in fields(detection)} - {each.name for each in fields(Setting)}
        return {key: asdict(detection)[key] for key in own - {*ABSENT, *MAY_CHANGE, "batch", "iterations", "lr"}}
    if protocol.startswith("linear-"):
        evaluation: Any = Linear(encoder="x", recipe=protocol.removeprefix("linear-"))  # type: ignore[arg-type]
    else:
        evaluation = PROTOCOLS[protocol](encoder="x")
    own = {each.name for each in fields(evaluation)} - {each.name for each in fields(Setting)}
    return {key: asdict(evaluation)[key] for key in own} | SIZE


def result_of(address: Address) -> Result:
    """The result that a run of the paper's settings, evaluated by the paper's protocol, leaves on disk."""
    protocol = address.protocol
    train, test = IMAGES.get(protocol, (1281167, 50000))
    return Result(
        protocol="linear" if protocol.startswith("linear-") else protocol,
        metrics={address.column: 50.0},
        words="as published.",
        encoder="first",
        data=f"/data, train {train}, test {test}",
        settings=json.loads(json.dumps(settings_of_protocol(protocol))),
        about=about_of(*address[:5]),
        details={"data": {"train": fingerprint(train), "test": fingerprint(test)}},
    )
