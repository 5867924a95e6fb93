"""Two gloo processes against one process on the joined batch."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from mixview import mixture_generators
from mixview.distributed import gather, own_rows, rank, shuffle, unshuffle, world_size
from mixview.losses import unit
from mixview.methods import backward
from mixview.nn import SplitBatchNorm2d, split_batch_norm
from tests.networks import METHODS, OBJECTIVES, RELATIVES

# MoCHi's negatives are drawn apart on every process.
TOLD_APART = [
    *((name, objective) for name in METHODS for objective in OBJECTIVES),
    *((name, "wbsim") for name in RELATIVES if name != "mochi"),
]
WORLD = 2
EACH = 5  # images a process; odd, so that a middle image is its own partner
STEPS = 3


def train(name: str, objective: str, rows: slice, generators: dict[str, int], wrap: bool) -> dict[str, Any]:
    """A few steps of a BN-free method on these rows of the joined batch: losses, first gradients, final state."""
    torch.manual_seed(0)
    method = (METHODS | RELATIVES)[name](False).double()
    module: nn.Module = DistributedDataParallel(method) if wrap else method
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    losses, gradients = [], None
    for step in range(STEPS):
        images = torch.rand(
            2, WORLD * EACH, 3, 16, 16, generator=torch.Generator().manual_seed(step), dtype=torch.float64
        )
        views = images[0, rows], images[1, rows]
        terms = OBJECTIVES[objective]().draw(views[0], mixture_generators(7, step, **generators))
        optimizer.zero_grad()
        loss, targets = backward(module, views, terms)
        if gradients is None:
            gradients = [p.grad.clone() for p in method.parameters() if p.grad is not None]
        optimizer.step()
        method.advance(targets, progress=step / STEPS)
        losses.append(loss)
    state = {key: value for key, value in method.state_dict().items() if isinstance(value, Tensor)}
    return {"losses": torch.stack(losses), "gradients": gradients, "state": state}


def collectives() -> dict[str, Any]:
    """The pieces on their own: gather and its gradient, the shuffle, and batches that differ."""
    me = rank()
    local = (torch.arange(3.0) + 10 * me).view(3, 1).requires_grad_()
    everything = gather(local)
    weights = torch.arange(6.0).view(6, 1) * (me + 1)
    (everything * weights).sum().backward()

    images = torch.arange(4.0).view(4, 1, 1, 1) + 100 * me
    shuffled, permutation = shuffle(images, seed=3)
    restored = unshuffle(shuffled.flatten(1), permutation)
    try:
        gather(torch.zeros(3 + me, 2))
        refusal = ""
    except ValueError as error:
        refusal = str(error)
    return {
        "world": world_size(),
        "gathered": everything.detach().flatten().tolist(),
        "gradient": local.grad.flatten().tolist(),
        "shuffled": shuffled.flatten().tolist(),
        "restored": restored.flatten().tolist(),
        "refusal": refusal,
    }


def shuffled_statistics() -> Tensor:
    """Keys of MoCo with real batch norms: each process normalises over images of both."""
    torch.manual_seed(0)
    method = METHODS["moco-v2"](True).double()
    images = torch.rand(WORLD * 4, 3, 16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return method.encode_keys(images[own_rows(4)])


def work(process: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=process, world_size=WORLD)
    rows = own_rows(EACH)
    results = {
        (name, objective): train(name, objective, rows, {"rank": process}, wrap=True) for name, objective in TOLD_APART
    }
    extra = {"collectives": collectives(), "keys": shuffled_statistics()}
    torch.save((results, extra), Path(folder) / f"{process}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[dict[Any, Any], dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("world")
    mp.spawn(work, (str(folder),), nprocs=WORLD)
    return [torch.load(folder / f"{process}.pt", weights_only=True) for process in range(WORLD)]


@pytest.mark.parametrize(("name", "objective"), TOLD_APART)
def test_two_processes_equal_one_on_the_joined_batch(name: str, objective: str, world) -> None:
    alone = train(name, objective, slice(None), {"mix_groups": WORLD}, wrap=False)
    ranks = [results[name, objective] for results, _ in world]
    mean = torch.stack([result["losses"] for result in ranks]).mean(0)
    torch.testing.assert_close(mean, alone["losses"], rtol=1e-10, atol=1e-12)
    for result in ranks:
        for one, other in zip(result["gradients"], alone["gradients"], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-11)
        for key, value in alone["state"].items():
            torch.testing.assert_close(result["state"][key], value, rtol=1e-8, atol=1e-10, msg=key)


def test_gather_orders_by_rank_and_its_backward_sums(world) -> None:
    for process, (_, extra) in enumerate(world):
        found = extra["collectives"]
        assert found["world"] == WORLD
        assert found["gathered"] == [0, 1, 2, 10, 11, 12]
        # Row r is asked for with weight r by process 0 and 2 r by process 1.
        assert found["gradient"] == [3 * (3 * process + i) for i in range(3)]


def test_shuffle_deals_out_everything_and_unshuffle_restores(world) -> None:
    dealt = [extra["collectives"]["shuffled"] for _, extra in world]
    assert sorted(dealt[0] + dealt[1]) == [0, 1, 2, 3, 100, 101, 102, 103]
    assert any(x >= 100 for x in dealt[0])
    assert world[0][1]["collectives"]["restored"] == [0, 1, 2, 3]
    assert world[1][1]["collectives"]["restored"] == [100, 101, 102, 103]


def test_shuffled_keys_are_normalised_over_both_processes(world) -> None:
    """One process with the same permutation and split batch norm gives the same keys."""
    torch.manual_seed(0)
    method = METHODS["moco-v2"](True).double()
    images = torch.rand(WORLD * 4, 3, 16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    permutation = torch.randperm(WORLD * 4, generator=torch.Generator().manual_seed(0))
    target = split_batch_norm(method.target, WORLD)
    assert any(isinstance(part, SplitBatchNorm2d) for part in target.modules())
    expected = unit(target(images[permutation]))[torch.argsort(permutation)]
    torch.testing.assert_close(torch.cat([extra["keys"] for _, extra in world]), expected)


def test_batches_that_differ_are_refused_on_every_process(world) -> None:
    for _, extra in world:
        assert (
            "every process needs a batch of the same size, but ranks 0 … 1 have [3, 4]"
            in (extra["collectives"]["refusal"])
        )


def test_world_sizes_that_disagree_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(RuntimeError, match=r"one of 4 processes.*torch.distributed is not initialised"):
        world_size()
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with pytest.raises(RuntimeError, match=r"WORLD_SIZE says 4 processes, torch\.distributed says 1"):
            world_size()
    finally:
        dist.destroy_process_group()


def test_one_process_gathers_nothing() -> None:
    x = torch.rand(3, 2)
    assert gather(x) is x
    shuffled, permutation = shuffle(x, 0)
    assert torch.equal(shuffled, x[permutation])
    assert torch.equal(unshuffle(shuffled, permutation), x)
    assert unshuffle(x, None) is x
    assert own_rows(3) == slice(0, 3)
