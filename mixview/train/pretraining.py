"""`mixview pretrain`: from images to an encoder, in a run directory.

out = pretrain(data="photos/", method="mocov2", epochs=200, out="runs/photos")
resume(out, epochs=400)
"""

from pathlib import Path
from typing import Any

from mixview.data.sources.identity import save_hashes
from mixview.extensions import require_consent
from mixview.recipes import merge
from mixview.runs.devices import launch_once, make_fabric
from mixview.runs.launching import explain_lost_peer, one_training_per_process
from mixview.runs.run_directory import RunDirectory, record_failure, start_or_resume
from mixview.runs.trackers import check_loggers
from mixview.train.build import build, open_data, resolve, validate
from mixview.train.config import EARLIER, MAY_CHANGE, PretrainConfig, from_plain, to_plain
from mixview.train.loop import train
from mixview.train.monitor import note_trained_on


def pretrain(config: PretrainConfig | None = None, /, **settings: Any) -> Path:
    """Learn an encoder from images without labels, and return the run directory.

    Args:
        config: the settings of the run.
        settings: the same as keywords, the fields of `PretrainConfig`, if there is no `config`; groups may be
            dictionaries: `method={"name": "mocov2", "queue_size": 4096}`.

    Example:
        >>> scenes = {"data": "scenes", "data_options": {"count": 32, "size": 16}}  # or data="photos/"
        >>> small = {"backbone": "small", "batch_size": 16, "epochs": 1, "workers": 0}
        >>> pretrain(**scenes, **small, method="mocov2", out="runs/scenes").name
        'scenes'
    """
    if config is not None and settings:
        raise TypeError(f"pass a PretrainConfig or its fields, not both: got a config and {', '.join(settings)}")
    with one_training_per_process():
        return pretrain_alone(from_plain(settings) if config is None else config)


def pretrain_alone(config: PretrainConfig) -> Path:
    """`pretrain`, when nothing else trains in this process. Every mistake that can be found early ends in here."""
    check_loggers(config.monitor)
    config = validate(config)
    data = open_data(config)
    fabric = make_fabric(
        devices=config.devices, nodes=config.nodes, accelerator=config.accelerator, precision=config.precision
    )
    config, data = resolve(config, data, fabric)
    # The first process makes or reopens the directory before any other starts.
    described = {"kind": data.whole.kind, "count": len(data.whole), "fingerprint": data.whole.fingerprint()}
    folder = start_or_resume(
        config.out, to_plain(config), described, resume=config.resume, may_change=MAY_CHANGE, earlier=EARLIER
    )
    with record_failure(folder), explain_lost_peer():
        notes = [*data.notes]
        if folder is not None:
            with folder.explain_disk_error("record the images of"):
                save_hashes(folder.path / "images.npz", data.images.source)
            notes += [] if data.knn is None else note_trained_on(folder.path, data.knn)
        launch_once(fabric)
        fabric.barrier()  # the directory is there now
        train(build(config, fabric, data), folder, notes)
    return Path(config.out)


def resume(out: str | Path, *, trust_remote_code: bool = False, **changes: Any) -> Path:
    """Resume a run, bit-exact, as it was or with changes such as `epochs=200`.

    Args:
        trust_remote_code: import a backbone, method or mixer of your own that the run's file names. That runs its code.
        changes: fields of `PretrainConfig`.

    Example:
        >>> resume("runs/first", epochs=3).name
        'first'
    """
    names = PretrainConfig.__dataclass_fields__
    settings = EARLIER | {name: value for name, value in RunDirectory.open(out).config.items() if name in names}
    merge(settings, {"out": str(out), "resume": True} | changes)
    require_consent(settings, str(Path(out) / "config.yaml"), trust_remote_code, typed=texts(changes))
    return pretrain(from_plain(settings))


def texts(settings: Any) -> list[str]:
    """All text among the values of settings, however deep."""
    if isinstance(settings, dict):
        return [text for value in settings.values() for text in texts(value)]
    return [settings] if isinstance(settings, str) else []
