"""Two gloo processes against one process on the joined batch."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from timm.layers.norm_act import BatchNormAct2d
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from mixview import mixture_generators
from mixview.distributed import (
    CPUSyncBatchNorm,
    SyncBatchNorm,
    convert_batch_norm,
    gather,
    own_rows,
    rank,
    shuffle,
    synchronize_batch_norm,
    unshuffle,
    world_size,
)
from mixview.losses import l2_normalize
from mixview.methods import backward
from mixview.nn import SplitBatchNorm2d, split_batch_norm
from tests.networks import METHODS, NEWER, OBJECTIVES, RELATIVES
from tests.processes import spawn

# MoCHi's negatives are drawn apart on every process.
TOLD_APART = [
    *((name, objective) for name in METHODS for objective in OBJECTIVES),
    *((name, "wbsim") for name in RELATIVES if name != "mochi"),
    *((name, objective) for name in NEWER for objective in ("sim", "bsim", "own", "one-per-pair")),
]
# With batch norm, under mixtures; those of MoCo shuffle, which is not one process's batch norm.
SYNCHRONIZED = {
    "simclr": "2 in encoder, 2 in projector",
    "byol": "3 in online, 1 in predictor, 3 in target",
    "simsiam": "4 in online, 1 in predictor",
    "swav": "3 in online",
    "dino": "3 in online, 3 in target",
    "distillation": "3 in online, 2 in teacher",
    "imix": "2 in encoder, 1 in projector",
    "barlow-twins": "2 in encoder, 2 in projector",
    "barlow-twins-mixed": "2 in encoder, 2 in projector",
    "vicreg": "2 in encoder, 2 in projector",
    "mocov3": "4 in online, 1 in predictor, 4 in target",
    "unmix-simclr": "2 in encoder, 2 in projector",
    "unmix-byol": "3 in online, 1 in predictor, 3 in target",
}
LEFT_OUT = [("byol", "online"), ("byol", "predictor"), ("byol", "target"), ("simsiam", "predictor")]
LEFT_OUT += [("mocov3", "online"), ("mocov3", "predictor"), ("mocov3", "target")]
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: nn.BatchNorm2d(3),
    "average": lambda: nn.BatchNorm2d(3, momentum=None, affine=False),
    "stateless": lambda: nn.BatchNorm2d(3, track_running_stats=False),
    "timm": lambda: BatchNormAct2d(3, act_layer=nn.SiLU),
}
CPU = torch.device("cpu")
WORLD = 2
EACH = 5  # images a process; odd, so that a middle image is its own partner
STEPS = 3


def train(
    name: str,
    objective: str,
    rows: slice,
    generators: dict[str, int],
    wrap: bool,
    norm: bool = False,
    left_out: str | None = None,
) -> dict[str, Any]:
    """A few steps of a method on these rows of the joined batch: losses, first gradients, final state.

    With batch norm, it is synchronized, except in the network that is left out.
    """
    torch.manual_seed(0)
    method = (METHODS | RELATIVES)[name](norm).double()
    local = None if left_out is None else copy.deepcopy(getattr(method, left_out))
    notes = synchronize_batch_norm(method, CPU) if norm else []
    if left_out is not None:
        setattr(method, left_out, local)
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
        method.update(targets, progress=step / STEPS)
        losses.append(loss)
    state = {key: value for key, value in method.state_dict().items() if isinstance(value, Tensor)}
    return {"losses": torch.stack(losses), "gradients": gradients, "state": state, "notes": notes}


def collectives() -> dict[str, Any]:
    """The pieces on their own: gather and its gradient, the shuffle, and batches that differ."""
    me = rank()
    local = (torch.arange(3.0) + 10 * me).view(3, 1).requires_grad_()
    everything = gather(local)
    weights = torch.arange(6.0).view(6, 1) * (me + 1)
    (everything * weights).sum().backward()

    images = torch.arange(4.0).view(4, 1, 1, 1) + 100 * me
    shuffled, permutation = shuffle(images, seed=torch.tensor(3))
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


def sync_batch_norms() -> dict[str, Any]:
    """One layer on its own, on parts of the batch that differ in length: what it computes, forward and backward."""
    values = torch.randn(9, 3, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = {}
    for name, layer in LAYERS.items():
        layer = convert_batch_norm(layer().double(), CPU)
        for _ in range(2):
            own = values[:4] if rank() == 0 else values[4:]
            own = own.clone().requires_grad_()
            output = layer(own)
            (output**3).sum().backward()
        found[name] = {"output": output.detach(), "gradient": own.grad, "state": layer.state_dict()}
    return found


def shuffled_statistics() -> Tensor:
    """Keys of MoCo with real batch norms: each process normalizes over images of both."""
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
    for name in SYNCHRONIZED:
        results[name, "synchronized"] = train(name, "wbsim", rows, {"rank": process}, wrap=True, norm=True)
    for name, left_out in LEFT_OUT:
        results[name, left_out] = train(name, "wbsim", rows, {"rank": process}, True, True, left_out)
    extra = {"collectives": collectives(), "keys": shuffled_statistics(), "norms": sync_batch_norms()}
    torch.save((results, extra), Path(folder) / f"{process}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[dict[Any, Any], dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("world")
    spawn(work, (str(folder),), nprocs=WORLD)
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


@pytest.mark.parametrize("name", SYNCHRONIZED)
def test_two_processes_equal_one_with_batch_norm(name: str, world) -> None:
    """In every network: the statistics of the target and the predictor count as much as the encoder's."""
    alone = train(name, "wbsim", slice(None), {"mix_groups": WORLD}, wrap=False, norm=True)
    assert any(key.endswith("running_mean") for key in alone["state"])
    for results, _ in world:
        result = results[name, "synchronized"]
        assert result["notes"] == [f"Batch norm is synchronized over 2 processes: {SYNCHRONIZED[name]}."]
        for one, other in zip(result["gradients"], alone["gradients"], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-10)
        for key, value in alone["state"].items():
            torch.testing.assert_close(result["state"][key], value, rtol=1e-7, atol=1e-9, msg=key)


@pytest.mark.parametrize(("name", "left_out"), LEFT_OUT)
def test_a_network_that_is_left_out_would_be_noticed(name: str, left_out: str, world) -> None:
    alone = train(name, "wbsim", slice(None), {"mix_groups": WORLD}, wrap=False, norm=True)
    state = world[0][0][name, left_out]["state"]
    trained = [key for key, _ in (METHODS | NEWER)[name](True).online.named_parameters(prefix="online")]
    assert max(float((state[key] - alone["state"][key]).abs().max()) for key in trained) > 1e-6


@pytest.mark.parametrize("name", LAYERS)
def test_a_synchronized_batch_norm_is_the_layer_on_the_joined_batch(name: str, world) -> None:
    layer = LAYERS[name]().double()
    values = torch.randn(9, 3, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    for _ in range(2):
        output = layer(values)
    (output**3).sum().backward()
    found = [extra["norms"][name] for _, extra in world]
    torch.testing.assert_close(torch.cat([each["output"] for each in found]), output.detach())
    torch.testing.assert_close(torch.cat([each["gradient"] for each in found]), values.grad)
    for each in found:
        assert list(each["state"]) == list(layer.state_dict())
        torch.testing.assert_close(each["state"], layer.state_dict())


@pytest.mark.parametrize(("device", "kind"), [("cpu", CPUSyncBatchNorm), ("cuda", nn.SyncBatchNorm)])
def test_conversion_keeps_tensors_and_options(device: str, kind: type[nn.Module]) -> None:
    """On accelerators by torch's own layers. An unknown kind of batch norm is left alone."""
    network = nn.Sequential(nn.BatchNorm2d(4, eps=1e-3, momentum=0.3), SplitBatchNorm2d(4, 2), BatchNormAct2d(4)).eval()
    network[0].requires_grad_(False)
    before = list(network)
    assert convert_batch_norm(network, torch.device(device)) is network
    assert [isinstance(layer, kind) for layer in network] == [True, False, True]
    for old, new in zip(before, network, strict=True):
        assert new.weight is old.weight  # known to an optimizer
        assert new.running_var is old.running_var
        assert (new.eps, new.momentum, new.training) == (old.eps, old.momentum, False)
        images = torch.randn(2, 4, 2, 2)
        torch.testing.assert_close(new(images), old(images))


def test_one_process_synchronizes_nothing() -> None:
    method = METHODS["byol"](True)
    assert synchronize_batch_norm(method, CPU) == []
    assert not any(isinstance(layer, SyncBatchNorm | CPUSyncBatchNorm) for layer in method.modules())


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


def test_shuffled_keys_are_normalized_over_both_processes(world) -> None:
    """One process with the same permutation and split batch norm gives the same keys."""
    torch.manual_seed(0)
    method = METHODS["moco-v2"](True).double()
    images = torch.rand(WORLD * 4, 3, 16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    permutation = torch.randperm(WORLD * 4, generator=torch.Generator().manual_seed(0))
    target = split_batch_norm(method.target, WORLD)
    assert any(isinstance(part, SplitBatchNorm2d) for part in target.modules())
    expected = l2_normalize(target(images[permutation]))[torch.argsort(permutation)]
    torch.testing.assert_close(torch.cat([extra["keys"] for _, extra in world]), expected)


def test_batches_that_differ_are_refused_on_every_process(world) -> None:
    for _, extra in world:
        assert (
            "every process needs a batch of the same size, but ranks 0 … 1 have [3, 4]"
            in (extra["collectives"]["refusal"])
        )


def test_world_sizes_that_disagree_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(RuntimeError, match=r"one of 4 processes.*torch.distributed is not initialized"):
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
    shuffled, permutation = shuffle(x, torch.tensor(0))
    assert torch.equal(shuffled, x[permutation])
    assert torch.equal(unshuffle(shuffled, permutation), x)
    assert unshuffle(x, None) is x
    assert own_rows(3) == slice(0, 3)
