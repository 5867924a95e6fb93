"""The precision that `auto` is."""

import pytest
import torch

from mixview.runs.devices import fastest_precision, make_fabric, precision_of


@pytest.mark.parametrize(
    ("without_cuda", "available", "computes", "expected"),
    [
        (False, True, True, "bf16-mixed"),
        (False, True, False, "32-true"),
        (False, False, True, "32-true"),
        (True, True, True, "32-true"),
    ],
)
def test_bf16_where_the_accelerator_computes_in_it(
    without_cuda: bool, available: bool, computes: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or computes
    )
    assert fastest_precision(without_cuda) == expected


def test_a_cpu_has_float32_unless_another_is_chosen() -> None:
    for precision, expected in (("auto", "32-true"), ("32-true", "32-true"), ("bf16-mixed", "bf16-mixed")):
        assert precision_of(make_fabric(devices=1, accelerator="cpu", precision=precision)) == expected  # type: ignore[arg-type]
