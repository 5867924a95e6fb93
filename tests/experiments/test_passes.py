import pytest

from mixview.experiments.passes import count_passes
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
        found = count_passes(settings)
        assert tuple(found) == expected
        assert found.work == 3 * expected[0] + expected[1]
