from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import pytest
from torch import Tensor, nn

from mixview.experiments.passes import count_passes
from mixview.methods import Method, MethodConfig, RunLength, Targets, Views
from mixview.nn import MLP, EncoderWithProjector
from mixview.objective import Term
from mixview.train.config import PretrainConfig

# With a gradient and without, as SPEC and docs have them: SIM, BSIM, WBSIM.
PASSES = {
    ("simclr", True): [(2, 0), (4, 0), (4, 0)],
    ("simclr", False): [(2, 0), (2, 0), (3, 0)],
    ("mocov2", True): [(1, 1), (1, 1), (2, 1)],
    ("byol", True): [(2, 2), (2, 2), (4, 2)],
    ("simsiam", True): [(2, 0), (2, 2), (4, 0)],
    ("barlow-twins", True): [(2, 0), (4, 0), (4, 0)],
    ("barlow-twins", False): [(2, 0), (2, 0), (3, 0)],
    ("vicreg", True): [(2, 0), (4, 0), (4, 0)],
    ("vicreg", False): [(2, 0), (2, 0), (3, 0)],
    ("mocov3", True): [(2, 2), (2, 2), (4, 2)],
}
HAS_SYMMETRIC = ("simclr", "barlow-twins", "vicreg")


@pytest.mark.parametrize(("method", "symmetric"), PASSES)
def test_passes_are_counted(method: str, symmetric: bool) -> None:
    for objective, expected in zip(("sim", "bsim", "wbsim"), PASSES[method, symmetric], strict=True):
        settings = PretrainConfig(
            method={"name": method} | ({"symmetric": symmetric} if method in HAS_SYMMETRIC else {}), objective=objective
        )
        passes = count_passes(settings)
        assert tuple(passes) == expected
        assert passes.work == 3 * expected[0] + expected[1]


@final
class ThreeViewsModule(Method):
    """Projections of three views that should be equal."""

    num_views: ClassVar[int | None] = 3

    def __init__(self, encoder: nn.Module, feature_dim: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.online = EncoderWithProjector(encoder, MLP((feature_dim, *widths)), feature_dim)

    def forward(self, views: Views, terms: Sequence[Term], targets: Targets = None) -> tuple[Tensor, Targets]:
        first, *others = views
        projections = [self.online(view) for view in others]
        losses = [
            weight * (self.online(mixture(first)) - sum(projections)).square().mean() for weight, mixture in terms
        ]
        return sum(losses[1:], losses[0]), None

    def update(self, *targets: Targets, progress: float) -> None:
        """Nothing follows by itself."""


@dataclass(frozen=True, kw_only=True)
class ThreeViews(MethodConfig):
    """Options with names of built-in methods, but other types and limits."""

    module: ClassVar[type[Method]] = ThreeViewsModule
    augment: ClassVar[str] = "simclr"

    hidden: tuple[int, ...] = (32, 32)
    """Widths of the hidden layers."""
    dim: int = 16
    """Width of the projections."""

    def __post_init__(self) -> None:
        if self.dim % 16:
            raise ValueError(f"dim must be a multiple of 16, got {self.dim}")

    def build(self, encoder: nn.Module, feature_dim: int, run: RunLength) -> ThreeViewsModule:
        return ThreeViewsModule(encoder, feature_dim, (*self.hidden, self.dim))


def test_passes_of_a_method_of_ones_own() -> None:
    method = {"name": "tests.experiments.test_passes.ThreeViews"}
    assert count_passes(PretrainConfig(method=method, objective="sim")) == (3, 0)
