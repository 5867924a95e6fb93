"""`mixview selftest`, on a machine without an accelerator; the comparisons themselves are between CPU and CPU."""

import contextlib
import sys
from pathlib import Path

import pytest
import torch

from mixview.cli import main
from mixview.commands import selftest
from mixview.commands.selftest import compare_devices, compare_processes
from mixview.extensions import METHODS, MIXERS

CPU = torch.device("cpu")


def rows(text: str) -> dict[str, tuple[str, str]]:
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return {check: (result, verdict) for check, result, verdict in cells[2:]}


@pytest.mark.parametrize("lightly", [True, False])
def test_a_table_to_paste(lightly: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if not lightly:
        monkeypatch.setitem(sys.modules, "lightly.models.modules.heads", None)
    with contextlib.suppress(SystemExit):  # one step decides nothing about speed
        main(["selftest", "--device", "cpu", "--checks", '["equality", "throughput", "memory"]', "--rounds", "1"])
    said = capsys.readouterr().out
    assert said.startswith("mixview 0.")
    table = rows(said)
    assert table["equality with the CPU"] == ("there is no accelerator here", "not checked")
    throughput, checked = table["throughput, SimCLR, small, 16 × 32 px"]
    assert throughput.startswith("mixview ")
    assert checked
    assert ("× lightly's" in throughput) == lightly
    assert ("lightly is not installed: pip install lightly" in said) == (not lightly)
    assert [name.partition(" ")[0] for name in table if "beside SIM" in name] == ["SIM", "BSIM", "WBSIM"]


class Accelerator:
    """A device of another name, on which tensors are the CPU's."""

    type = "cuda"


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """The CPU in the place of an accelerator."""
    to, to_module = torch.Tensor.to, torch.nn.Module.to
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *a, **o: to(self, *(CPU if x is fake else x for x in a), **o))
    monkeypatch.setattr(
        torch.nn.Module, "to", lambda self, *a, **o: to_module(self, *(CPU if x is fake else x for x in a), **o)
    )
    fake = Accelerator()
    return fake  # type: ignore[return-value]


def test_every_method_and_mixer_is_compared(accelerator: torch.device) -> None:
    table = {check: (result, verdict) for check, result, verdict in compare_devices(accelerator)}
    assert set(table) == {f"equality, {name}" for name in (*METHODS.names(), *MIXERS.names())}
    verdicts = {verdict for _, verdict in table.values()}
    assert verdicts == {"ok", "not checked"}
    assert [name for name, (_, verdict) in table.items() if verdict == "not checked"] == ["equality, distillation"]


def test_a_device_that_computes_something_else_fails(
    accelerator: torch.device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(METHODS, "names", lambda: ["simclr"])
    monkeypatch.setattr(MIXERS, "names", lambda: ["cutmix"])
    monkeypatch.setattr(selftest, "pick_device", lambda name: accelerator)
    monkeypatch.setattr(selftest, "describe", lambda device: "a broken device")
    views_of = selftest.views_of
    monkeypatch.setattr(
        selftest,
        "views_of",
        lambda step, device: views_of(step + (device is accelerator), device),
    )
    with pytest.raises(SystemExit) as caught:
        main(["selftest", "--checks", '["equality"]'])
    assert caught.value.code == 1
    said = capsys.readouterr().out
    assert rows(said)["equality, simclr"][1] == "FAILED"
    assert "failed" in said


def test_two_processes_are_compared_with_one() -> None:
    synchronized, on_gpus = compare_processes(CPU)
    assert synchronized.check == "SyncBN, two processes (gloo, on the CPU)"
    assert synchronized.verdict == "ok", synchronized.result
    assert (on_gpus.result, on_gpus.verdict) == ("there are no GPUs here", "not checked")


def test_processes_that_differ_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(work: object, arguments: tuple[str, str], **_: object) -> None:
        losses, weights = selftest.train(selftest.small_method("byol"), CPU)
        for rank in range(2):
            torch.save({"losses": losses, "weights": [1.01 * each for each in weights]}, Path(arguments[1]) / str(rank))

    monkeypatch.setattr(selftest, "spawn", start)
    assert next(compare_processes(CPU)).verdict == "FAILED"


def test_mistakes() -> None:
    for arguments, message in ((["--rounds", "0"], "rounds must be at least 1"), (["--device", "tpu"], "no device")):
        with pytest.raises(SystemExit, match=message):
            main(["selftest", *arguments])
