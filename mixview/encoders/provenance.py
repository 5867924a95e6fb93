"""The settings that determine an encoder: every setting of its run that two runs of one experiment have in common.

    metadata["settings"] = json.dumps(encoder_settings("runs/first"), sort_keys=True)  # written with the encoder
    read_settings(metadata)["mixing.alpha"]

Encoders that agree in all of it differ in nothing but their seed.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mixview.io.archives import read_arrays
from mixview.io.records import Config, Data, Environment, RecordError, fault_of, flatten, read_dict

NON_DETERMINING_SETTINGS = frozenset(
    {
        "accelerator",
        "augment_device",
        "cache",  # what is in it is made again without
        "channels_last",
        "compile",
        "data",  # its fingerprint says which images they are, wherever they lie
        "devices",
        "max_time",
        "nodes",
        "out",
        "resume",
        "seed",
        "validation",
        "validation_split",
        "monitor",
        "workers",
    }
)
"""Settings, with all below them, that do not shape the encoder, and the seed: see `encoder_settings`."""


def encoder_settings(path: str | Path) -> dict[str, Any] | None:
    """Everything that shapes the encoder of the run in a folder, except the seed, under dotted names.

    Beside the configuration these are the fingerprint of the data (`data`), the number of images that are learned from
    (`images`), and the epochs that the run had before it was extended. None if the folder does not say.
    """
    config, data, environment = (
        read_dict_or_none(Path(path) / name, kind)
        for name, kind in (("config.yaml", Config), ("data.json", Data), ("environment.json", Environment))
    )
    if config is None or data is None or environment is None or "fingerprint" not in data:
        return None
    images: dict[str, Any] = {"data": data["fingerprint"]}
    if (count := image_count(Path(path) / "images.npz")) is not None:
        images["images"] = count
    resumed = environment.get("resumed", [])
    extended = [entry["extended_from"] for entry in resumed if "extended_from" in entry]
    unmixed = {"mixing"} if config.get("objective") == "sim" else set()
    shaping = {name: value for name, value in config.items() if name not in NON_DETERMINING_SETTINGS | unmixed}
    return flatten(shaping) | images | ({"extended_from": extended} if extended else {})


def image_count(path: Path) -> int | None:
    """The number of images that a run learned from, by its images.npz; None in one of an early version, or damaged."""
    try:
        (count,) = read_arrays(path, "count")
        return int(count)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def with_settings(metadata: dict[str, str], path: Path) -> dict[str, str]:
    """The metadata of an encoder's file, with the settings that files of earlier versions lack.

    They come from the run's folder, provided that it says the same of the run as far as the file goes.
    """
    if "settings" in metadata or "method" not in metadata or (settings := encoder_settings(path)) is None:
        return metadata
    config = read_dict_or_none(path / "config.yaml", Config) or {}
    recorded = {"method": (config.get("method") or {}).get("name")}
    recorded |= {name: config.get(name) for name in ("objective", "data", "seed")}
    same = all(str(value) == metadata[name] for name, value in recorded.items() if name in metadata)
    return metadata | {"settings": json.dumps(settings, sort_keys=True)} if same else metadata


def read_settings(metadata: Mapping[str, str]) -> dict[str, Any] | None:
    """The settings in what an encoder's file says of its run; None if it does not say them."""
    try:
        settings = json.loads(metadata["settings"])
    except (KeyError, ValueError, RecursionError):
        return None
    return settings if isinstance(settings, dict) and fault_of(settings) is None else None


def read_dict_or_none(path: Path, kind: Any) -> dict[str, Any] | None:
    """Read a file of a run; None if it cannot be read, or does not fit its schema."""
    try:
        return read_dict(path, kind)
    except RecordError:
        return None
