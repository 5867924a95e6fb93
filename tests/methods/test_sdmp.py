"""SDMP: which mixtures have parents in common, and the contrastive methods that take them for positives, as loops."""

from typing import Any

import pytest
import torch
from torch import Tensor

from mixview import CutMix, Mixup, PatchMix, bsim, mixture_generators, wbsim
from mixview.experiments.passes import count_passes
from mixview.losses import common_parents
from mixview.methods import MoCo, MoCoV3, SimCLR, moco_v2
from mixview.mixing import BetaMixer
from mixview.train.config import PretrainConfig, method_config
from tests import reference
from tests.methods.newer import assert_trains_alike
from tests.methods.test_methods import two_views
from tests.methods.test_moco_v3 import RUN
from tests.networks import RELATIVES, WIDTH, encoder

MIXERS: dict[str, BetaMixer] = {
    "reversal": CutMix(lam_per="image"),
    "permutation": Mixup(lam_per="image", partner="permutation"),
    "pairs, some alone": CutMix(lam_per="pair", partner="pairs", prob=0.5),
    "one per pair": CutMix(lam_per="pair", anchors="one_per_pair"),
    "three parents": PatchMix(lam_per="image", parents=3),
}
SDMP = [name for name in RELATIVES if name.endswith("-sdmp")]


def make(name: str) -> Any:
    torch.manual_seed(0)
    return RELATIVES[name](False).double()


@pytest.mark.parametrize("n", [1, 2, 7, 8])
@pytest.mark.parametrize("name", MIXERS)
def test_weights_are_what_mixtures_have_in_common(name: str, n: int) -> None:
    mixture = MIXERS[name].draw(torch.zeros(n, 3, 8, 8, dtype=torch.float64), torch.Generator().manual_seed(n))
    related = common_parents(mixture)
    for a in range(len(mixture)):
        weights = torch.tensor(reference.sdmp_weights(a, mixture), dtype=torch.float64)
        found = torch.zeros(len(mixture), dtype=torch.float64)
        for index, share in related.parts():
            found[index[a]] += share[a]
        torch.testing.assert_close(found, weights, rtol=1e-12, atol=1e-12)


def test_the_papers_weights() -> None:
    """Of mixtures i and n - i: c = min(lam_i, 1 - lam_j) + min(1 - lam_i, lam_j); 1 / (1 + c) and c / (1 + c)."""
    lam = torch.tensor([0.9, 0.3, 0.6, 0.2], dtype=torch.float64)
    mixture = Mixup(lam_per="image").draw(torch.zeros(4, 3, 8, 8, dtype=torch.float64), torch.Generator(), lam=lam)
    common = torch.minimum(lam, 1 - lam.flip(0)) + torch.minimum(1 - lam, lam.flip(0))
    related = common_parents(mixture)
    torch.testing.assert_close(related.lam, 1 / (1 + common))
    assert related.own.tolist() == [0, 1, 2, 3]
    assert related.partner.tolist() == [3, 2, 1, 0]
    torch.testing.assert_close(related.parts()[1][1], common / (1 + common))


@pytest.mark.parametrize("mixer", MIXERS)
def test_ten_steps_of_moco_v3_are_those_of_the_slow_reference(mixer: str) -> None:
    def published(method: Any, x1: Tensor, x2: Tensor, terms: Any) -> Tensor:
        loss = torch.zeros((), dtype=torch.float64)
        for weight, mixture in terms:
            for x, other in ((x1, x2), (x2, x1)):
                q = method.predictor(method.online(mixture(x)))
                with torch.no_grad():
                    keys, mixed_keys = method.target(other), method.target(mixture(other))
                content = [reference.shares(a, mixture) for a in range(len(mixture))]
                source = torch.zeros((), dtype=torch.float64)
                for a in range(len(q)):
                    everything = sum(torch.exp(reference.cosine(q[a], key) / 0.2) for key in keys)
                    for image, share in content[a].items():
                        p = torch.exp(reference.cosine(q[a], keys[image]) / 0.2) / everything
                        source = source - share * torch.log(p) / len(q)
                term = source
                if not mixture.is_identity:
                    term = (source + reference.sdmp(q, mixed_keys, mixture, 0.2)) / 2
                loss = loss + weight * 2 * 0.2 * term
        return loss

    assert_trains_alike("mocov3-sdmp", lambda: wbsim(1.0, 1.0, MIXERS[mixer]), published)


@pytest.mark.parametrize("mixer", MIXERS)
def test_simclr_and_moco_are_as_the_slow_reference(mixer: str) -> None:
    x1, x2 = two_views(7, dtype=torch.float64)
    terms = bsim(MIXERS[mixer]).draw(x1, mixture_generators(0, 0))
    [(_, mixture)] = terms
    weights = [reference.sdmp_weights(a, mixture) for a in range(len(mixture))]

    method, twin = make("simclr-sdmp"), make("simclr-sdmp")
    twin.sdmp = 0.0
    mixed_first, mixed_second = twin.online(mixture(x1)), twin.online(mixture(x2))
    common = torch.zeros((), dtype=torch.float64)
    for z, targets in ((mixed_first, mixed_second), (mixed_second, mixed_first)):
        for a in range(len(z)):
            positives = {b for b, weight in enumerate(weights[a]) if weight > 1e-12}
            denominator = sum(torch.exp(reference.cosine(z[a], target) / 0.1) for target in targets)
            for b in range(len(z)):
                if not positives & {c for c, weight in enumerate(weights[b]) if weight > 1e-12}:
                    denominator = denominator + torch.exp(reference.cosine(z[a], z[b]) / 0.1)
            for b, weight in enumerate(weights[a]):
                p = torch.exp(reference.cosine(z[a], targets[b]) / 0.1) / denominator
                common = common - weight * torch.log(p) / len(z) / 2
    torch.testing.assert_close(method((x1, x2), terms)[0], 0.7 * twin((x1, x2), terms)[0] + 0.3 * common)

    method, twin = make("moco-v2-sdmp"), make("moco-v2-sdmp")
    twin.sdmp = 0.0
    q, mixed_keys, queue = twin.online(mixture(x1)), twin.target(mixture(x2)), twin.queue.keys
    common = torch.zeros((), dtype=torch.float64)
    for a in range(len(q)):
        negatives = sum(torch.exp(reference.cosine(q[a], key) / 0.2) for key in queue)
        for b, weight in enumerate(weights[a]):
            positive = torch.exp(reference.cosine(q[a], mixed_keys[b]) / 0.2)
            common = common - weight * torch.log(positive / (positive + negatives)) / len(q)
    torch.testing.assert_close(method((x1, x2), terms)[0], 0.7 * twin((x1, x2), terms)[0] + 0.3 * common)


@pytest.mark.parametrize("name", SDMP)
def test_lam_of_one_is_sim_and_of_zero_sim_relabeled(name: str) -> None:
    views = two_views(7, dtype=torch.float64)
    plain, _ = make(name)(views, wbsim(0.0, 1.0).draw(views[0], torch.Generator()))
    for lam in (1.0, 0.0):
        mixture = CutMix().draw(views[0], torch.Generator().manual_seed(0), lam=lam)
        torch.testing.assert_close(make(name)(views, [(1.0, mixture)])[0], plain, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ({"name": "mocov3"}, [(2, 2), (2, 4), (4, 4)]),
        ({"name": "mocov2"}, [(1, 1), (1, 2), (2, 2)]),
        ({"name": "simclr"}, [(2, 0), (4, 0), (4, 0)]),
        ({"name": "simclr", "symmetric": False}, [(2, 0), (3, 0), (4, 0)]),
    ],
)
def test_passes(method: dict[str, Any], expected: list[tuple[int, int]]) -> None:
    for objective, passes in zip(("sim", "bsim", "wbsim"), expected, strict=True):
        settings = PretrainConfig(method={**method, "sdmp": 0.5}, objective=objective)
        assert tuple(count_passes(settings)) == passes


def test_options() -> None:
    for name in ("simclr", "mocov1", "mocov2", "mocov3"):
        options = {"projector_layers": 1, "hidden": 4} if name == "mocov3" else {}
        config = method_config({"name": name, "sdmp": 0.25, "dim": 4, **options}).resolve(RUN)
        method = config.build(encoder(), WIDTH, RUN)
        assert isinstance(method, SimCLR | MoCo | MoCoV3)
        assert method.sdmp == 0.25
    with pytest.raises(ValueError, match=r"--method\.sdmp must be a number, at least 0 and at most 1, got 2"):
        method_config({"name": "mocov3", "sdmp": 2})
    with pytest.raises(ValueError, match="sdmp is a share of the mixed terms, 0 to 1, got -1"):
        moco_v2(encoder(), WIDTH, sdmp=-1)
