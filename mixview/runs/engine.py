"""The part of an engine that pretraining and supervised training share: its state in checkpoints, and its checks."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from mixview.runs.checkpoints import CheckpointError
from mixview.runs.devices import grad_scaler
from mixview.runs.finite import check_finite

if TYPE_CHECKING:
    from mixview.runs.fabric import Fabric


@dataclass
class ResumableEngine(ABC):
    """A training that a checkpoint can resume. Nothing in it is random but by (seed, step, rank)."""

    state_key: ClassVar[str] = "network"
    """Name of the network in checkpoints."""

    fabric: "Fabric"
    module: Any
    """The network, set up by Fabric."""
    network: nn.Module
    """The trained network before Fabric set it up: its state goes into the checkpoints."""
    optimizer: torch.optim.Optimizer
    step: int = field(default=0, kw_only=True)
    """Number of optimizer steps done."""

    def __post_init__(self) -> None:
        self.finite = torch.ones((), dtype=torch.bool, device=self.fabric.device)

    @property
    @abstractmethod
    def epoch(self) -> float:
        """Number of epochs done."""

    def check_finite(self, *, weights: bool = False) -> None:
        """Raise, on every process, when any loss so far was not finite on any of them.

        Reads a value back: not for every step on an accelerator.

        Args:
            weights: check the weights too, before they are saved: a gradient can overflow where its loss did not.
        """
        checked = list(self.network.parameters()) if weights else []
        check_finite(self.fabric, self.finite, checked, f"step {self.step} (epoch {self.epoch:.2f})")

    @torch.no_grad()
    def mean_of_all(self, losses: dict[str, Tensor]) -> dict[str, float]:
        """The means over processes."""
        means: Any = self.fabric.all_reduce(torch.stack(list(losses.values())), reduce_op="mean")
        return dict(zip(losses, means.tolist(), strict=True))

    def state(self) -> dict[str, Any]:
        """The state that a run needs to resume as if nothing had happened."""
        scaler = grad_scaler(self.fabric)
        return {
            self.state_key: self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
            "step": self.step,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Resume from a state."""
        try:
            self.network.load_state_dict(state[self.state_key])
            self.optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, ValueError, KeyError) as error:
            raise CheckpointError(
                f"the checkpoint does not fit this {type(self.network).__name__}: it is from another method, backbone "
                "or optimizer; put back the run's own, or start a new run with another --out"
            ) from error
        scaler = grad_scaler(self.fabric)
        if scaler is not None and state["scaler"] is not None:
            scaler.load_state_dict(state["scaler"])
        self.step = int(state["step"])
