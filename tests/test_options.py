"""What options may be, declared by their types: checked from Python as on the command line."""

from typing import Annotated, Any, Literal

import pytest

import mixview
from mixview.extensions import METHODS
from mixview.methods import MoCoV2Config
from mixview.options import AtLeast, LessThan, MoreThan, describe, is_valid
from mixview.train.build import build_objective
from mixview.train.config import MixingConfig, MonitorConfig, PretrainConfig
from tests.train.running import tiny


@pytest.mark.parametrize(
    ("kind", "options", "sentence"),
    [
        (MixingConfig, {"mixer": "cut-mix"}, "there is no mixer 'cut-mix': did you mean cutmix?"),
        (MixingConfig, {"alpha": 0}, "--mixing.alpha must be a number, more than 0, got 0"),
        (MixingConfig, {"prob": 1.5}, "--mixing.prob must be a number, more than 0 and at most 1, got 1.5"),
        (MixingConfig, {"warmup": (0.1,)}, "--mixing.warmup must be a list of 2, each a number"),
        (MoCoV2Config, {"temperature": 0}, "--method.temperature must be a number, more than 0, got 0"),
        (MoCoV2Config, {"dim": 2.5}, "--method.dim must be a whole number, at least 1 and at most 1048576, got 2.5"),
        (MonitorConfig, {"images": 0}, "--monitor.images must be a whole number, at least 4, got 0"),
        (MonitorConfig, {"log_every": 0}, "--monitor.log_every must be a whole number, at least 1, got 0"),
        (PretrainConfig, {"augment_device": "gpu"}, "--augment_device must be cpu or device, got 'gpu'"),
        (PretrainConfig, {"method": "mocov4"}, "there is no method 'mocov4': did you mean mocov3?"),
        (PretrainConfig, {"batch_size": 0}, "--batch_size must be a whole number, at least 2 or auto, got 0"),
        (PretrainConfig, {"size": 0}, "--size must be a whole number, at least 1 and at most 4096, got 0"),
        (PretrainConfig, {"out": ""}, "--out must be text, not empty, got ''"),
        (PretrainConfig, {"accelerator": "tpu"}, "--accelerator must be auto, cpu, cuda, gpu or mps, got 'tpu'"),
        (PretrainConfig, {"data_options": {"count": {"class_path": "os.system"}}}, "--data_options must be"),
    ],
)
def test_a_slip_in_python_is_named(kind: type, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence.replace("?", r"\?")):
        kind(**options)


def test_limits_of_one_number_are_not_each_other() -> None:
    """Types that compare as equal are one type to `typing`, which keeps the first."""
    least, more = Annotated[float, AtLeast(0)] | None, Annotated[float, MoreThan(0)] | None
    assert is_valid(least, 0)
    assert not is_valid(more, 0)
    assert describe(least) == "a number, at least 0"
    assert describe(more) == "a number, more than 0"


@pytest.mark.parametrize(
    ("hint", "good", "bad"),
    [
        (int, [1, -1], [True, 1.0, "1", None]),
        (float, [1, 0.5], [True, "1", float("nan"), float("inf")]),
        (bool, [True], [1, "true"]),
        (Literal["a", 1], ["a", 1], ["b", True, 1.0]),
        (int | Literal["auto"] | None, [3, "auto", None], ["3", 2.5]),
        (tuple[int, int], [(1, 2), [1, 2]], [(1,), (1, 2, 3), "12"]),
        (list[Annotated[int, LessThan(3)]], [[], [1, 2]], [[3], "1"]),
        (dict[str, str | int], [{}, {"a": 1}], [{"a": {}}, []]),
    ],
)
def test_types(hint: Any, good: list[Any], bad: list[Any]) -> None:
    assert all(is_valid(hint, value) for value in good)
    assert not any(is_valid(hint, value) for value in bad)


def test_unknown_methods_and_objectives_are_named() -> None:
    with pytest.raises(ValueError, match=r"there is no method 'moco': did you mean mocov3"):
        PretrainConfig(method="moco")
    with pytest.raises(ValueError, match=r"objective must be sim, .* got 'bism': did you mean bsim"):
        build_objective("bism", MixingConfig())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [["mocov2"], {"class_path": "os.system"}, 3])
def test_the_name_of_a_method_is_text(name: Any) -> None:
    with pytest.raises(ValueError, match="expected the name of a method, got"):
        METHODS.check(name)


def test_pretrain_refuses_before_it_writes(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="--batch_size"):
        mixview.pretrain(**tiny(tmp_path / "run", batch_size=1))
    assert not (tmp_path / "run").exists()
