"""Cached gradients against the full batch's, in float64."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from mixview import mixture_generators, sim, wbsim
from mixview.distributed import own_rows
from mixview.methods import SimCLR, backward, cached_backward
from mixview.nn import MLP, split_batch_norm
from mixview.objective import Term
from tests.networks import METHODS, OBJECTIVES, WIDTH, encoder
from tests.processes import spawn

WORLD = 2


def views_of(count: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    first, second = torch.rand(2, count, 3, 16, 16, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return first, second


def make(name: str = "simclr", norm: bool = False) -> SimCLR:
    torch.manual_seed(0)
    method = METHODS[name](norm).double()
    assert isinstance(method, SimCLR)
    return method


def draw(objective: str, views: tuple[Tensor, Tensor], **options: int) -> list[Term]:
    return OBJECTIVES[objective]().draw(views[0], mixture_generators(3, 0, **options))


def assert_same_gradients(one: nn.Module, other: nn.Module, tolerance: float = 1e-10) -> None:
    for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        assert a.grad is not None, name
        assert b.grad is not None, name
        assert a.grad.abs().max() > 0, name
        torch.testing.assert_close(a.grad, b.grad, rtol=tolerance, atol=tolerance * 1e-2, msg=name)


@pytest.mark.parametrize(("count", "micro_batch"), [(8, 4), (7, 3), (9, 4), (5, 1), (6, 6), (4, 9)])
@pytest.mark.parametrize("objective", ["sim", "bsim", "wbsim", "own"])
@pytest.mark.parametrize("name", ["simclr", "simclr-one-sided"])
def test_gradient_equals_the_full_batch(name: str, objective: str, count: int, micro_batch: int) -> None:
    views = views_of(count)
    terms = draw(objective, views)
    full, cached = make(name), make(name)
    expected, _ = backward(full, views, terms)
    loss, targets = cached_backward(cached, views, terms, micro_batch=micro_batch)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    assert targets is None
    assert not loss.requires_grad
    assert_same_gradients(cached, full)


def test_gradients_accumulate() -> None:
    full, cached = make(), make()
    for seed in range(2):
        views = views_of(6, seed)
        backward(full, views, draw("wbsim", views))
        cached_backward(cached, views, draw("wbsim", views), micro_batch=4)
    assert_same_gradients(cached, full)


def test_batch_norm_in_groups_of_a_micro_batch() -> None:
    """Plain batch norm under GradCache is split batch norm on the full batch."""

    def network() -> SimCLR:
        torch.manual_seed(0)
        return SimCLR(encoder(norm=True), WIDTH, MLP((WIDTH, 5), norm=False)).double()

    views = views_of(12)
    terms = draw("wbsim", views)
    cached, full = network(), split_batch_norm(network(), 3)
    backward(full, views, terms)
    cached_backward(cached, views, terms, micro_batch=4)
    assert_same_gradients(cached, full)


def test_running_statistics_move_once_a_micro_batch() -> None:
    """As they would if the micro-batches had gone through the network once, in the same order."""
    method = make(norm=True)
    once = copy.deepcopy(method)
    views = views_of(12)
    cached_backward(method, views, sim().draw(views[0], torch.Generator()), micro_batch=4)
    for view in views:
        for part in view.split(4):
            once.online(part)
    for (name, buffer), expected in zip(method.named_buffers(), once.buffers(), strict=True):
        assert torch.equal(buffer, expected), name
    assert next(b for name, b in method.named_buffers() if "num_batches" in name) == 6


def test_random_layers_draw_the_same_in_both_passes() -> None:
    def network() -> SimCLR:
        torch.manual_seed(0)
        random = nn.Sequential(encoder(norm=False), nn.Dropout(0.5))
        return SimCLR(random, WIDTH, MLP((WIDTH, 5), norm=False)).double()

    views = views_of(7)
    terms = draw("wbsim", views)
    cached, joint = network(), network()
    torch.manual_seed(5)
    loss, _ = cached_backward(cached, views, terms, micro_batch=3)
    after = torch.rand(1)
    torch.manual_seed(5)
    expected = joint.loss(lambda images: torch.cat([joint.online(part) for part in images.split(3)]), views, terms)
    expected.backward()
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-12, atol=1e-12)
    assert_same_gradients(cached, joint)
    assert torch.equal(after, torch.rand(1)), "the generator goes on where one pass would have left it"


@pytest.mark.parametrize("outside", [True, False], ids=["around", "context"])
def test_autocast_leaves_every_weight_its_gradient(outside: bool) -> None:
    """Autocast keeps weights that were cast without a graph: a second pass would not reach the parameters."""
    views = views_of(6, dtype=torch.float32)
    terms = draw("wbsim", views)
    full, cached = make().float(), make().float()
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = full(views, terms)
    loss.backward()

    def autocast() -> torch.autocast:
        return torch.autocast("cpu", torch.bfloat16)

    if outside:
        with autocast():
            cached_backward(cached, views, terms, micro_batch=6)
    else:
        cached_backward(cached, views, terms, micro_batch=6, context=autocast)
    for one, other in zip(cached.parameters(), full.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-2, atol=1e-4)


def test_the_scale_of_a_loss_carries_through() -> None:
    views = views_of(6)
    terms = draw("wbsim", views)
    plain, scaled = make(), make()
    loss, _ = cached_backward(plain, views, terms, micro_batch=4)
    unscaled, _ = cached_backward(scaled, views, terms, micro_batch=4, call=lambda loss: (1024 * loss).backward())
    assert torch.equal(loss, unscaled)
    for one, other in zip(plain.parameters(), scaled.parameters(), strict=True):
        torch.testing.assert_close(one.grad * 1024, other.grad, rtol=1e-12, atol=1e-12)


def saved_bytes(run: Any) -> int:
    """The most that autograd held at a time for the backward."""
    held, most = 0, 0

    class Saved:
        def __init__(self, tensor: Tensor) -> None:
            nonlocal held, most
            self.tensor, self.size = tensor, tensor.numel() * tensor.element_size()
            held += self.size
            most = max(most, held)

        def __del__(self) -> None:
            nonlocal held
            held -= self.size

    with torch.autograd.graph.saved_tensors_hooks(Saved, lambda saved: saved.tensor):
        run()
    return most


def test_activations_of_a_micro_batch_only() -> None:
    views = views_of(32)
    terms = draw("wbsim", views)
    full = saved_bytes(lambda: backward(make(), views, terms))
    cached = saved_bytes(lambda: cached_backward(make(), views, terms, micro_batch=4))
    assert cached < full / 8  # 32 images through 4 encodings, against 4 images through 1


@pytest.mark.parametrize("name", ["moco-v2", "byol", "simsiam"])
def test_other_methods_are_refused(name: str) -> None:
    views = views_of(4)
    with pytest.raises(TypeError, match=r"cannot be cached for (MoCo|BYOL|SimSiam): .*with `backward` instead"):
        cached_backward(METHODS[name](False).double(), views, draw("sim", views), micro_batch=2)


def test_a_micro_batch_of_nothing_is_refused() -> None:
    views = views_of(4)
    with pytest.raises(ValueError, match=r"micro_batch must be at least 1, got 0"):
        cached_backward(make(), views, draw("sim", views), micro_batch=0)


# Two processes


def gradients(name: str, objective: str, rows: slice, wrap: bool, **options: int) -> dict[str, Any]:
    """Three batches accumulated: two cached, the second of which synchronizes, and one plain; alone, all plain."""
    method = make(name)
    module: nn.Module = DistributedDataParallel(method) if wrap else method
    losses = []
    for seed in range(3):
        first, second = views_of(10, seed)
        views = first[rows], second[rows]
        terms = draw(objective, views, **options)
        if wrap and seed < 2:
            loss, _ = cached_backward(module, views, terms, micro_batch=2, synchronize=seed == 1)
        else:  # DistributedDataParallel still works as ever after the cached ones
            loss, _ = backward(module, views, terms)
        losses.append(loss)
    return {"losses": torch.stack(losses), "gradients": [p.grad for p in method.parameters()]}


def work(process: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=process, world_size=WORLD)
    rows = own_rows(5)
    results = {
        (name, objective): gradients(name, objective, rows, True, rank=process)
        for name in ("simclr", "simclr-one-sided")
        for objective in ("sim", "bsim", "wbsim")
    }
    method = make()
    views = tuple(view[rows] for view in views_of(10))
    cached_backward(method, views, draw("wbsim", views, rank=process), micro_batch=3)
    bare = [p.grad for p in method.parameters()]
    torch.save((results, bare), Path(folder) / f"{process}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[dict[Any, Any], list[Tensor]]]:
    folder = tmp_path_factory.mktemp("world")
    spawn(work, (str(folder),), nprocs=WORLD)
    return [torch.load(folder / f"{process}.pt", weights_only=True) for process in range(WORLD)]


@pytest.mark.parametrize("objective", ["sim", "bsim", "wbsim"])
@pytest.mark.parametrize("name", ["simclr", "simclr-one-sided"])
def test_two_processes_equal_one_on_the_joined_batch(name: str, objective: str, world) -> None:
    """Wrapped in DistributedDataParallel, accumulating over three batches, the last one not cached."""
    alone = gradients(name, objective, slice(None), False, mix_groups=WORLD)
    found = [results[name, objective] for results, _ in world]
    mean = torch.stack([result["losses"] for result in found]).mean(0)
    torch.testing.assert_close(mean, alone["losses"], rtol=1e-10, atol=1e-12)
    for result in found:
        for one, other in zip(result["gradients"], alone["gradients"], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_two_processes_without_a_wrapper(world) -> None:
    method, views = make(), views_of(10)
    backward(method, views, wbsim().draw(views[0], mixture_generators(3, 0, mix_groups=WORLD)))
    for _, bare in world:
        for one, other in zip(bare, method.parameters(), strict=True):
            torch.testing.assert_close(one, other.grad, rtol=1e-10, atol=1e-12)
