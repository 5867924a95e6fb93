"""The options of logging and checkpoints, importable without torch."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from mixview.options import NON_EMPTY, Count, NonNegative, check_options, logger_names


@dataclass(frozen=True)
class LoggingConfig:
    """Logging and checkpoints of a training."""

    option_group: ClassVar[str] = "logging"
    """Name of these options on the command line."""

    log_every: Count = 20
    """Optimizer steps between two lines of metrics."""
    checkpoint_every: NonNegative = 0
    """Optimizer steps between two checkpoints; 0 saves one per epoch."""
    keep: Count = 2
    """Number of checkpoints to keep."""
    loggers: str = "none"
    """Trackers that get the metrics, besides the run directory: tensorboard, mlflow, wandb, several as in
    tensorboard,mlflow, or none. mlflow and wandb need 'mixview[trackers]'."""
    project: Annotated[str, NON_EMPTY] = "mixview"
    """Project of Weights & Biases, and experiment of MLflow."""
    tracking_uri: str | None = None
    """Address of the MLflow server, such as http://localhost:5000; by default MLFLOW_TRACKING_URI."""

    def __post_init__(self) -> None:
        check_options(self, self.option_group)
        logger_names(self.loggers, f"--{self.option_group}.loggers")
