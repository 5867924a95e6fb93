"""Where metrics go: the run's JSON lines, TensorBoard, and, on request, Weights & Biases."""

import warnings
from types import TracebackType
from typing import Any, Protocol

from mixview.io.atomic import real_folder
from mixview.runs.run_directory import RunDirectory


class Loggers(Protocol):
    """Which loggers a run uses."""

    @property
    def tensorboard(self) -> bool: ...

    @property
    def wandb(self) -> str | None: ...


class MetricLogger:
    """Writes the metrics of a run, on the process that has its folder; on any other it does nothing.

    Args:
        folder: the run's.
        loggers: which loggers to use.
        step: where the run goes on; what TensorBoard has beyond it is overwritten.
    """

    def __init__(self, folder: RunDirectory | None, loggers: Loggers, step: int) -> None:
        self.folder = folder
        self.board: Any = None
        self.wandb: Any = None
        if folder is None:
            return
        if loggers.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            with folder.explain_disk_error("write the TensorBoard events of"):
                self.board = SummaryWriter(str(real_folder(folder.path / "tensorboard")), purge_step=step or None)
        if loggers.wandb is not None:
            try:
                import wandb  # type: ignore[import-not-found, unused-ignore]
            except ImportError:
                raise ValueError(
                    "monitor.wandb needs the wandb package: pip install wandb, or leave --monitor.wandb out"
                ) from None
            with folder.explain_disk_error("log to W&B from"):
                real_folder(folder.path / "wandb")
            self.wandb = wandb.init(
                project=loggers.wandb, dir=str(folder.path), id=folder.path.name, resume="allow", config=folder.config
            )

    def __enter__(self) -> "MetricLogger":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.board is not None:
            self.board.close()
        if self.wandb is not None:
            self.wandb.finish(exit_code=0 if error is None else 1)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """One record."""
        if self.folder is None:
            return
        self.folder.log({"step": step, **metrics})
        try:
            if self.board is not None:
                for name, value in metrics.items():
                    self.board.add_scalar(name, value, step)
            if self.wandb is not None:
                self.wandb.log(metrics, step=step)
        except OSError as error:  # a copy for looking at: the run itself has its metrics
            warnings.warn(f"TensorBoard and W&B are left out from step {step} on: {error}", stacklevel=2)
            self.board = self.wandb = None
