"""A method and a mixer that are not mixview's, through training and resuming: named, never known."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import pytest
import yaml
from torch import Tensor, nn

import mixview
from mixview.methods import Method, MethodConfig, RunLength, Targets, Views
from mixview.nn import MLP, EncoderWithProjector
from mixview.objective import Term
from mixview.options import Positive, Width
from tests.train.running import assert_same_runs, resume, stopped_at, tiny

NAME = "tests.train.test_own_method.BarlowTwins"
MIXING = {"mixer": "tests.test_mixing.Squares", "prob": 0.5, "mix_groups": 2, "warmup": (0.1, 0.5)}


@final
class CrossCorrelation(Method):
    """The cross-correlation of both views' projections, pulled towards the identity."""

    def __init__(self, encoder: nn.Module, feature_dim: int, dim: int, weight: float) -> None:
        super().__init__()
        self.online = EncoderWithProjector(encoder, MLP((feature_dim, dim), last_norm="plain"), feature_dim)
        self.weight = weight

    def forward(self, views: Views, terms: Sequence[Term], targets: Targets = None) -> tuple[Tensor, Targets]:
        first, second = views
        loss = first.new_zeros(())
        for weight, mixture in terms:
            correlation = self.online(mixture(first)).T @ self.online(second) / len(first)
            diagonal = correlation.diagonal()
            off_diagonal = correlation.square().sum() - diagonal.square().sum()
            loss = loss + weight * ((1 - diagonal).square().sum() + self.weight * off_diagonal)
        return loss, None

    def update(self, *targets: Targets, progress: float) -> None:
        """There is nothing to update."""


@dataclass(frozen=True, kw_only=True)
class BarlowTwins(MethodConfig):
    """Barlow Twins (Zbontar et al., 2021)."""

    module: ClassVar[type[Method]] = CrossCorrelation
    augment: ClassVar[str] = "byol"

    weight: Positive = 0.005
    """Weight of the off-diagonal terms."""
    dim: Width = 16
    """Width of the projections."""

    def build(self, encoder: nn.Module, feature_dim: int, run: RunLength) -> CrossCorrelation:
        return CrossCorrelation(encoder, feature_dim, self.dim, self.weight)


def test_a_method_and_a_mixer_by_import_path(tmp_path: Path) -> None:
    options: dict[str, Any] = {"method": {"name": NAME, "weight": 0.01}, "objective": "wbsim", "mixing": MIXING}
    whole = mixview.pretrain(**tiny(tmp_path / "whole", **options))
    config = yaml.safe_load((whole / "config.yaml").read_text())
    assert config["method"] == {"name": NAME, "weight": 0.01, "dim": 16}
    assert (config["augment"], config["mixing"]["mixer"]) == ("byol-small", MIXING["mixer"])
    with stopped_at(3):
        part = mixview.pretrain(**tiny(tmp_path / "part", **options))
    resume(part)
    assert_same_runs(whole, part)


def test_a_stored_method_or_mixer_is_not_imported_without_consent(tmp_path: Path) -> None:
    for name, options in (("method", {"method": NAME}), ("mixer", {"mixing": MIXING})):
        more = {"backbone": "small", "objective": "bsim", "epochs": 1}
        out = mixview.pretrain(**tiny(tmp_path / name, **more, **options))
        with pytest.raises(ValueError, match=rf"names the {name} 'tests\..*add --trust_remote_code"):
            mixview.resume(out, epochs=2)
        with pytest.raises(ValueError, match=rf"names the {name} 'tests\..*add --trust_remote_code"):
            mixview.resume(out, epochs=2, method={"dim": 8}, mixing={"alpha": 0.5})
    mixview.resume(tmp_path / "method", epochs=2, method=NAME)  # who names it has consented


def test_what_a_method_declares_is_enough_to_refuse_it(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=rf"--grad_cache is for methods whose negatives are the batch.*{NAME} under sim"
    ):
        mixview.pretrain(**tiny(tmp_path / "run", method=NAME, objective="sim", grad_cache=True))
    with pytest.raises(ValueError, match=r"there is no setting method.weigth: did you mean weight\?"):
        mixview.pretrain(**tiny(tmp_path / "run", method={"name": NAME, "weigth": 1.0}))
    with pytest.raises(ValueError, match=r"--method.weight must be a number, more than 0, got -1"):
        BarlowTwins(weight=-1)
    assert not (tmp_path / "run").exists()
