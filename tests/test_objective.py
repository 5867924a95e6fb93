import pytest
import torch

from mixview import CutMix, Identity, MixAug, Mixup, Objective, bsim, mixaug, mixture_generators, sim, wbsim

images = torch.rand(6, 3, 8, 8)


def test_the_four_corners() -> None:
    assert repr(sim()) == "Objective([(1, Identity())])"
    assert [(w, type(m)) for w, m in bsim().terms] == [(1.0, CutMix)]
    assert [(w, type(m)) for w, m in wbsim().terms] == [(0.5, CutMix), (0.5, Identity)]
    assert [(w, type(m)) for w, m in mixaug(Mixup()).terms] == [(1.0, MixAug)]
    assert [(w, type(m)) for w, m in wbsim(0.2, 0.7, Mixup()).terms] == [(0.2, Mixup), (0.7, Identity)]


def test_a_term_of_no_weight_is_left_out() -> None:
    assert repr(wbsim(0, 1)) == repr(sim())
    assert repr(wbsim(1, 0)) == repr(bsim())


def test_draws_one_mixture_a_term_statelessly() -> None:
    objective = Objective([(0.5, CutMix(lam_per="image")), (0.25, Mixup()), (0.25, Identity())])
    one, other = (objective.draw(images, mixture_generators(3, 14)) for _ in range(2))
    assert [term.weight for term in one] == [0.5, 0.25, 0.25]
    assert all(torch.equal(a.mixture.lam, b.mixture.lam) for a, b in zip(one, other, strict=True))
    assert one[0].mixture.lam.tolist() != one[1].mixture.lam.tolist()
    assert objective.draw(images, mixture_generators(3, 15))[0].mixture.lam.tolist() != one[0].mixture.lam.tolist()


@pytest.mark.parametrize("weight", [-0.5, float("nan"), float("inf")])
def test_weights_must_be_numbers_of_at_least_0(weight: float) -> None:
    with pytest.raises(ValueError, match="the weight of a term must be a number of at least 0, got"):
        wbsim(weight, 0.5)


def test_slips_are_named() -> None:
    with pytest.raises(
        TypeError, match=r"the weight of a term must be a number, got CutMix\(.*wbsim\(0.5, 0.5, CutMix"
    ):
        wbsim(CutMix())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"must be an instance such as CutMix\(\), got <class"):
        bsim(CutMix)  # type: ignore[arg-type]


def test_an_objective_needs_a_term() -> None:
    with pytest.raises(ValueError, match="an objective needs a term of positive weight"):
        wbsim(0, 0)
