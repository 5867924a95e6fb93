"""TensorBoard, MLflow and Weights & Biases: copies of a run's metrics, pictures and encoder for looking at them.

A resumed run continues the tracker's own run, whose id is kept in the run directory. The run itself needs none of
them: one that fails is reported once by `mixview.runs.metric_logger`, and left out from then on.
"""

import importlib.util
import os
import re
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, TypedDict

import numpy as np
from PIL import Image

from mixview.io.atomic import real_folder
from mixview.io.records import RecordError, flatten, read_dict
from mixview.options import logger_names, truncated_repr
from mixview.runs.logging_config import LoggingConfig
from mixview.runs.run_directory import RunDirectory, write_json

IDS = "trackers.json"
"""The file in the run directory with the ids of its runs elsewhere."""
ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

MAX_PARAMS = 100
"""MLflow takes no more at once."""
MAX_VALUE = 500
"""Characters of a parameter that every MLflow server takes."""
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""Training waits for a server that is gone: seconds, not the minutes that MLflow would, unless the user says so."""


class TrackerIds(TypedDict, total=False):
    """The runs elsewhere that are this run's."""

    mlflow: str
    mlflow_uri: str
    wandb: str


def read_ids(folder: RunDirectory) -> dict[str, str]:
    """The ids in the run directory; empty where it has no valid ones."""
    try:
        ids = read_dict(folder.path / IDS, TrackerIds)
    except (OSError, RecordError):
        return {}
    return {name: value for name, value in ids.items() if name == "mlflow_uri" or ID.fullmatch(value)}


def write_ids(folder: RunDirectory, **ids: str) -> None:
    """Add ids to those in the run directory."""
    write_json(folder.path / IDS, read_ids(folder) | ids)


def check_loggers(options: LoggingConfig) -> tuple[str, ...]:
    """The names of the trackers that a run uses; raise if one is not installed, or has no server to log to."""
    names, uri = logger_names(options.loggers), options.tracking_uri
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ValueError(
                f"the logger {name} needs the {name} package: pip install 'mixview[trackers]', or leave it out of "
                "loggers"
            )
    if uri is not None and not uri.startswith(("http://", "https://")):
        raise ValueError(
            f"tracking_uri is the address of an MLflow server, such as http://localhost:5000, not {truncated_repr(uri)}"
        )
    if "mlflow" in names and uri is None and not os.environ.get("MLFLOW_TRACKING_URI"):
        raise ValueError(
            "the logger mlflow needs the address of its server: pass tracking_uri, such as http://localhost:5000, or "
            "set MLFLOW_TRACKING_URI"
        )
    return names


class Tracker(ABC):
    """Takes the metrics and the files of one run.

    Args:
        folder: the run directory.
        options: the project, and the address of the server.
        step: the step that the run resumes at; 0 at its start.
    """

    name: ClassVar[str]

    @abstractmethod
    def __init__(self, folder: RunDirectory, options: LoggingConfig, step: int) -> None: ...

    @abstractmethod
    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Metrics after a step."""

    @abstractmethod
    def log_file(self, path: Path, step: int) -> None:
        """A picture, or the encoder."""

    @abstractmethod
    def close(self, state: str) -> None:
        """The end of the run: finished, interrupted or failed."""


class TensorBoard(Tracker):
    """Event files in the run directory. What is there beyond `step` is overwritten."""

    name = "tensorboard"

    def __init__(self, folder: RunDirectory, options: LoggingConfig, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        with folder.explain_disk_error("write the TensorBoard events of"):
            self.writer: Any = SummaryWriter(str(real_folder(folder.path / self.name)), purge_step=step or None)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def log_file(self, path: Path, step: int) -> None:
        if path.suffix == ".png":
            with Image.open(path) as picture:
                self.writer.add_image(path.stem, np.asarray(picture.convert("RGB")), step, dataformats="HWC")

    def close(self, state: str) -> None:
        self.writer.close()


class MLflow(Tracker):
    """A run of MLflow: settings as parameters, metrics, and files as artifacts."""

    name = "mlflow"

    def __init__(self, folder: RunDirectory, options: LoggingConfig, step: int) -> None:
        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        import mlflow
        from mlflow.entities import Metric, Param

        self.metric = Metric
        uri = options.tracking_uri or os.environ["MLFLOW_TRACKING_URI"]
        self.client: Any = mlflow.MlflowClient(tracking_uri=uri)
        ids = read_ids(folder)
        if "mlflow" in ids and ids.get("mlflow_uri") == uri:
            self.run: str = ids["mlflow"]
            self.client.update_run(self.run, status="RUNNING")
            return
        experiment = self.client.get_experiment_by_name(options.project)
        number = experiment.experiment_id if experiment else self.client.create_experiment(options.project)
        self.run = self.client.create_run(number, run_name=folder.path.resolve().name).info.run_id
        write_ids(folder, mlflow=self.run, mlflow_uri=uri)
        settings = [Param(name, str(value)[:MAX_VALUE]) for name, value in flatten(folder.config).items()]
        for start in range(0, len(settings), MAX_PARAMS):
            self.client.log_batch(self.run, params=settings[start : start + MAX_PARAMS])

    def log(self, step: int, metrics: dict[str, float]) -> None:
        now = int(1000 * time.time())
        values = [self.metric(plain_name(name), float(value), now, step) for name, value in metrics.items()]
        self.client.log_batch(self.run, metrics=values)

    def log_file(self, path: Path, step: int) -> None:
        self.client.log_artifact(self.run, str(path))

    def close(self, state: str) -> None:
        status = {"finished": "FINISHED", "interrupted": "KILLED"}.get(state, "FAILED")
        self.client.set_terminated(self.run, status=status)


class WandB(Tracker):
    """A run of Weights & Biases."""

    name = "wandb"

    def __init__(self, folder: RunDirectory, options: LoggingConfig, step: int) -> None:
        import wandb

        with folder.explain_disk_error("log to W&B from"):
            real_folder(folder.path / self.name)
        self.wandb = wandb
        self.run: Any = wandb.init(
            project=options.project,
            name=folder.path.resolve().name,
            dir=str(folder.path),
            id=read_ids(folder).get("wandb"),
            resume="allow",
            config=folder.config,
        )
        write_ids(folder, wandb=self.run.id)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self.run.log(metrics, step=step)

    def log_file(self, path: Path, step: int) -> None:
        if path.suffix == ".png":
            self.run.log({path.stem: self.wandb.Image(str(path))}, step=step)
            return
        artifact = self.wandb.Artifact(f"{path.stem}-{self.run.id}", type="model")
        artifact.add_file(str(path))
        self.run.log_artifact(artifact)

    def close(self, state: str) -> None:
        self.run.finish(exit_code=int(state == "failed"))


TRACKERS: dict[str, type[Tracker]] = {each.name: each for each in (TensorBoard, MLflow, WandB)}
"""All trackers; their names are `mixview.options.LOGGERS`."""


def plain_name(name: str) -> str:
    """A metric's name in the characters that MLflow takes."""
    return re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII)
