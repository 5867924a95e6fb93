import pytest

from mixview.study.passes import count_passes
from mixview.train.pretraining import Pretraining
from mixview.train.settings import Head

# With a gradient and without, as SPEC and docs have them: SIM, BSIM, WBSIM.
PASSES = {
    ("simclr", True): [(2, 0), (4, 0), (4, 0)],
    ("simclr", False): [(2, 0), (2, 0), (3, 0)],
    ("mocov2", True): [(1, 1), (1, 1), (2, 1)],
    ("byol", True): [(2, 2), (2, 2), (4, 2)],
    ("simsiam", True): [(2, 0), (2, 2), (4, 0)],
}


@pytest.mark.parametrize(("method", "symmetric"), PASSES)
def test_passes_are_counted(method: str, symmetric: bool) -> None:
    for objective, expected in zip(("sim", "bsim", "wbsim"), PASSES[method, symmetric], strict=True):
        settings = Pretraining(method=method, objective=objective, head=Head(symmetric=symmetric))
        found = count_passes(settings)
        assert tuple(found) == expected
        assert found.work == 3 * expected[0] + expected[1]
