import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, final

import pytest
from torch import Tensor, nn

from mixview.experiments.passes import count_passes
from mixview.extensions import METHODS
from mixview.methods import Method, MethodConfig, RunLength, Targets, Views
from mixview.nn import MLP, EncoderWithProjector
from mixview.objective import Term
from mixview.train.config import MixingConfig, PretrainConfig

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


# The same with one mixture per pair, of BSIM and WBSIM, and their cost relative to SIM's.
ONE_PER_PAIR: dict[str, tuple[list[tuple[float, float]], tuple[float, float]]] = {
    "simclr": ([(3, 0), (3, 0)], (1.5, 1.5)),
    "simclr symmetric=False": ([(1.5, 0), (2.5, 0)], (0.75, 1.25)),
    "simclr sdmp=0.5": ([(3, 0), (3, 0)], (1.5, 1.5)),
    "mocov1": ([(0.5, 1), (1.5, 1)], (0.625, 1.375)),
    "mocov2": ([(0.5, 1), (1.5, 1)], (0.625, 1.375)),
    "mocov2 sdmp=0.5": ([(0.5, 1.5), (1.5, 1.5)], (0.75, 1.5)),
    "byol": ([(1, 2), (3, 2)], (0.625, 1.375)),
    "simsiam": ([(1, 2), (3, 0)], (5 / 6, 1.5)),
    "imix": ([(1.5, 0), (2.5, 0)], (0.75, 1.25)),
    "imix-moco": ([(0.5, 1), (1.5, 1)], (0.625, 1.375)),
    "mixco": ([(0.5, 1), (1.5, 1)], (0.625, 1.375)),
    "mochi": ([(0.5, 1), (1.5, 1)], (0.625, 1.375)),
    "swav": ([(1, 2), (3, 0)], (5 / 6, 1.5)),
    "barlow-twins": ([(1.5, 0), (2.5, 0)], (0.75, 1.25)),
    "barlow-twins symmetric=True": ([(3, 0), (3, 0)], (1.5, 1.5)),
    "barlow-twins mix_regularizer=4.0": ([(3.5, 0), (3.5, 0)], (7 / 6, 7 / 6)),
    "vicreg": ([(1.5, 0), (2.5, 0)], (0.75, 1.25)),
    "vicreg symmetric=True": ([(3, 0), (3, 0)], (1.5, 1.5)),
    "mocov3": ([(1, 2), (3, 2)], (0.625, 1.375)),
    "mocov3 sdmp=0.5": ([(1, 3), (3, 3)], (0.75, 1.5)),
    "dino": ([(1, 2), (3, 2)], (0.625, 1.375)),
    "distillation": ([(1, 2), (3, 2)], (0.625, 1.375)),
    "distillation target='mixture'": ([(1, 1), (3, 3)], (0.5, 1.5)),
}


@pytest.mark.parametrize("title", ONE_PER_PAIR)
def test_one_mixture_per_pair_halves_the_passes_of_mixtures(title: str) -> None:
    name, _, option = title.partition(" ")
    method: dict[str, object] = {"name": name}
    if option:
        key, _, value = option.partition("=")
        method[key] = ast.literal_eval(value)
    expected, costs = ONE_PER_PAIR[title]
    settings = PretrainConfig(
        method=method,
        objective="sim",
        augment="byol",  # two views, of DINO too
        mixing=MixingConfig(lam_per="pair", anchors="one_per_pair"),
    )
    baseline = count_passes(settings).work
    for objective, counted, cost in zip(("bsim", "wbsim"), expected, costs, strict=True):
        passes = count_passes(replace(settings, objective=objective))
        assert tuple(passes) == counted
        assert passes.work / baseline == pytest.approx(cost)


def test_passes_of_one_mixture_per_pair_are_counted_for_every_method() -> None:
    assert {title.partition(" ")[0] for title in ONE_PER_PAIR} == set(METHODS.names())


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
