import copy
import math

import pytest
import torch
import torch.nn.functional as F
from lightly.loss import NegativeCosineSimilarity, NTXentLoss
from lightning.fabric import Fabric
from torch import Tensor, nn

from mixview import CutMix, Mixer, Mixture, bsim, mixture_generators, sim, wbsim
from mixview.losses import byol_loss
from mixview.methods import BYOL, Method, MoCo, SimCLR, SimSiam, backward, moco_v2
from mixview.methods.base import memoize
from mixview.nn import MLP, EncoderWithProjector, split_batch_norm
from tests.networks import METHODS, OBJECTIVES, WIDTH, encoder


def make(name: str, norm: bool = True, seed: int = 0) -> Method:
    torch.manual_seed(seed)
    return METHODS[name](norm)


def two_views(n: int = 6, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    first, second = torch.rand(2, n, 3, 16, 16, generator=generator, dtype=dtype)
    return first, second


# Encoder passes: online with gradient, online without, target network.
PASSES = {
    ("simclr", "sim"): (2, 0, 0),
    ("simclr", "bsim"): (4, 0, 0),
    ("simclr", "wbsim"): (4, 0, 0),
    ("simclr-one-sided", "sim"): (2, 0, 0),
    ("simclr-one-sided", "bsim"): (2, 0, 0),
    ("simclr-one-sided", "wbsim"): (3, 0, 0),
    ("moco-v1", "sim"): (1, 0, 1),
    ("moco-v1", "bsim"): (1, 0, 1),
    ("moco-v1", "wbsim"): (2, 0, 1),
    ("moco-v2", "sim"): (1, 0, 1),
    ("moco-v2", "bsim"): (1, 0, 1),
    ("moco-v2", "wbsim"): (2, 0, 1),
    ("byol", "sim"): (2, 0, 2),
    ("byol", "bsim"): (2, 0, 2),
    ("byol", "wbsim"): (4, 0, 2),
    ("simsiam", "sim"): (2, 0, 0),
    ("simsiam", "bsim"): (2, 2, 0),
    ("simsiam", "wbsim"): (4, 0, 0),
}


@pytest.mark.parametrize("joint", [True, False], ids=["joint", "sequential"])
@pytest.mark.parametrize(("name", "objective"), PASSES)
def test_encoder_passes(name: str, objective: str, joint: bool) -> None:
    method, views = make(name), two_views()
    with_gradient, without, target = [], [], []
    method.encoder.register_forward_hook(lambda *_: (with_gradient if torch.is_grad_enabled() else without).append(1))
    if isinstance(method, MoCo | BYOL):
        method.target.encoder.register_forward_hook(lambda *_: target.append(1))
    terms = OBJECTIVES[objective]().draw(views[0], mixture_generators(0, 0))
    if joint:
        method(views, terms)
    else:
        backward(method, views, terms)
    assert (len(with_gradient), len(without), len(target)) == PASSES[name, objective]


# In forward passes of a whole batch, a backward pass counting as two, relative to SIM.
COST_OF_ONE_PER_PAIR = {
    "simclr": (1.5, 1.5),
    "simclr-one-sided": (0.75, 1.25),
    "moco-v1": (0.625, 1.375),
    "moco-v2": (0.625, 1.375),
    "byol": (0.625, 1.375),
    "simsiam": (5 / 6, 1.5),
}


@pytest.mark.parametrize("name", COST_OF_ONE_PER_PAIR)
def test_one_mixture_per_pair_costs_half_the_passes(name: str) -> None:
    mixer = CutMix(lam_per="pair", anchors="one_per_pair")
    work = []
    for objective in (sim(), bsim(mixer), wbsim(0.5, 0.5, mixer)):
        method, views, images = make(name), two_views(), {True: 0, False: 0}

        def count(module: nn.Module, batch: tuple[Tensor, ...], images=images) -> None:
            images[torch.is_grad_enabled()] += len(batch[0])

        for module in method.modules():
            if isinstance(module, EncoderWithProjector):
                module.encoder.register_forward_pre_hook(count)
        backward(method, views, objective.draw(views[0], mixture_generators(0, 0)))
        work.append((3 * images[True] + images[False]) / len(views[0]))
    assert (work[1] / work[0], work[2] / work[0]) == pytest.approx(COST_OF_ONE_PER_PAIR[name])


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", METHODS)
def test_sequential_and_joint_gradients_are_equal(name: str, objective: str) -> None:
    views = two_views(dtype=torch.float64)
    terms = OBJECTIVES[objective]().draw(views[0], mixture_generators(0, 0))
    joint, sequential = make(name).double(), make(name).double()
    loss, _ = joint(views, terms)
    loss.backward()
    total, _ = backward(sequential, views, terms)
    torch.testing.assert_close(total, loss.detach(), rtol=1e-12, atol=1e-12)
    for one, other in zip(joint.parameters(), sequential.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-10, atol=1e-12)


def train(method: Method, steps: int, objective=sim) -> list[float]:
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    losses = []
    for step in range(steps):
        views = two_views(seed=step, dtype=method.encoder[0].weight.dtype)
        optimizer.zero_grad()
        loss, targets = backward(method, views, objective().draw(views[0], mixture_generators(0, step)))
        optimizer.step()
        method.update(targets, progress=step / steps)
        losses.append(float(loss))
    return losses


def train_as_published(method: Method, steps: int) -> list[float]:
    """The published methods as their papers' pseudo-code has them, with lightly's losses, on a method's own modules."""
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    losses = []
    for step in range(steps):
        x1, x2 = two_views(seed=step, dtype=torch.float64)
        loss = published_loss(method, x1, x2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if isinstance(method, BYOL):
            m = 1 - (1 - method.momentum) * (math.cos(math.pi * step / steps) + 1) / 2
            move(method.target, method.online, m)
        if isinstance(method, MoCo):
            move(method.target, method.online, method.momentum)
        losses.append(float(loss.detach()))
    return losses


def published_loss(method: Method, x1: Tensor, x2: Tensor) -> Tensor:
    if isinstance(method, SimCLR):
        return NTXentLoss(method.temperature)(method.online(x1), method.online(x2))
    if isinstance(method, SimSiam):
        z1, z2 = method.online(x1), method.online(x2)
        p1, p2 = method.predictor(z1), method.predictor(z2)
        criterion = NegativeCosineSimilarity()
        return 0.5 * (criterion(p1, z2.detach()) + criterion(p2, z1.detach()))
    if isinstance(method, BYOL):
        p1, p2 = method.predictor(method.online(x1)), method.predictor(method.online(x2))
        with torch.no_grad():
            z1, z2 = method.target(x1), method.target(x2)
        return sum(F.mse_loss(*map(F.normalize, pair), reduction="none").sum(1).mean() for pair in ((p1, z2), (p2, z1)))
    assert isinstance(method, MoCo)
    q = F.normalize(method.online(x1), dim=1)
    with torch.no_grad():
        k = F.normalize(method.target(x2), dim=1)
    logits = torch.cat([(q * k).sum(1, keepdim=True), q @ method.queue.keys.clone().T], dim=1) / method.temperature
    start = int(method.queue.pointer)
    method.queue.keys[start : start + len(k)] = k
    method.queue.pointer.fill_((start + len(k)) % len(method.queue.keys))
    return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))


@torch.no_grad()
def move(target: nn.Module, online: nn.Module, momentum: float) -> None:
    for t, o in zip(target.parameters(), online.parameters(), strict=True):
        t.mul_(momentum).add_(o, alpha=1 - momentum)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "simclr-one-sided"])
def test_sim_trains_as_published(name: str) -> None:
    ours, published = make(name).double(), make(name).double()
    if isinstance(ours, MoCo):  # made in float32: of length one to 1e-8 only
        for method in (ours, published):
            method.queue.keys.copy_(F.normalize(method.queue.keys, dim=1))
    torch.testing.assert_close(train(ours, 10), train_as_published(published, 10), rtol=1e-10, atol=1e-10)
    expected = dict(published.named_parameters())
    for key, value in ours.named_parameters():
        torch.testing.assert_close(value, expected[key], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "simclr-one-sided"])
def test_sim_leaves_the_published_batch_norm_buffers(name: str) -> None:
    ours, published = make(name), make(name)
    views = two_views()
    backward(ours, views, sim().draw(views[0], mixture_generators(0, 0)))
    published_loss(published, *views)
    expected = dict(published.named_buffers())
    for key, value in ours.named_buffers():
        if not key.startswith("queue"):
            assert torch.equal(value, expected[key]), key


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_every_objective_and_odd_batches(name: str, objective: str) -> None:
    method = make(name)
    for n in (7, 3 if objective == "one-per-pair" else 2):  # a single mixture cannot be batch-normalized
        views = two_views(n)
        loss, targets = backward(method, views, OBJECTIVES[objective]().draw(views[0], mixture_generators(0, 0)))
        method.update(targets, progress=0.5)
        assert torch.isfinite(loss)
        assert all(p.grad is not None for p in method.parameters() if p.requires_grad)
        assert not any(p.requires_grad for p in getattr(method, "target", nn.Module()).parameters())


def test_wbsim_is_the_weighted_sum_of_bsim_and_sim() -> None:
    for name in METHODS:
        method, views = make(name), two_views()
        mixed, plain = wbsim(0.3, 0.6).draw(views[0], mixture_generators(0, 0))
        both, _ = copy.deepcopy(method)(views, [mixed, plain])
        parts = [copy.deepcopy(method)(views, [term])[0] for term in (mixed, plain)]
        torch.testing.assert_close(both, parts[0] + parts[1], rtol=1e-5, atol=1e-6)


def test_moco_changes_queue_and_target_only_in_advance() -> None:
    method, views = make("moco-v2"), two_views()
    queue, target = method.queue.keys.clone(), copy.deepcopy(list(method.target.parameters()))
    loss, keys = method(views, wbsim().draw(views[0], mixture_generators(0, 0)))
    loss.backward()
    assert torch.equal(method.queue.keys, queue)
    with torch.no_grad():
        for parameter in method.online.parameters():
            parameter.add_(1)
    assert all(torch.equal(a, b) for a, b in zip(method.target.parameters(), target, strict=True))
    method.update(keys, progress=0)
    assert torch.equal(method.queue.keys[:6], keys)
    assert torch.equal(method.queue.keys[6:], queue[6:])
    for moved, before in zip(method.target.parameters(), target, strict=True):
        torch.testing.assert_close(moved, before + 0.1)


def test_moco_enqueues_every_micro_batch_once_and_a_short_last_batch() -> None:
    method = make("moco-v2")
    first, second, short = torch.randn(10, 5), torch.randn(10, 5), torch.randn(3, 5)
    method.update(first, second, progress=0)
    assert torch.equal(method.queue.keys[:20], torch.cat([first, second]))
    method.update(short, progress=0)
    method.update(first, progress=0)  # wraps around a queue of 24
    assert torch.equal(method.queue.keys[23], first[0])
    assert torch.equal(method.queue.keys[:9], first[1:])
    assert int(method.queue.pointer) == 9
    with pytest.raises(ValueError, match="25 keys per step do not fit a queue of 24: use a queue of at least 25"):
        method.update(torch.randn(25, 5), progress=0)


def test_moco_keys_are_unmixed_and_of_length_one() -> None:
    method, views = make("moco-v2"), two_views()
    _, keys = method(views, bsim().draw(views[0], mixture_generators(0, 0)))
    twin = make("moco-v2")
    torch.testing.assert_close(keys, F.normalize(twin.target(views[1]), dim=1))


def test_byol_target_moves_by_a_cosine_to_standstill() -> None:
    method = make("byol")
    for progress, expected in ((0.0, 0.1), (0.5, 0.05), (1.0, 0.0)):
        target = method.target.encoder[0].weight.clone()
        with torch.no_grad():
            method.online.encoder[0].weight.copy_(target + 1)
        method.update(None, progress=progress)
        torch.testing.assert_close(method.target.encoder[0].weight, target + expected)


def test_byols_interpolated_target() -> None:
    torch.manual_seed(0)
    method = BYOL(encoder(), WIDTH, MLP((WIDTH, 9, 5)), MLP((5, 9, 5)), target="interpolated")
    views = two_views()
    (term,) = bsim(CutMix(lam_per="image")).draw(views[0], mixture_generators(0, 0))
    twin = copy.deepcopy(method)
    loss, (z1, z2) = method(views, [term])
    p1, p2 = (twin.predictor(twin.online(term.mixture(view))) for view in views)
    expected = sum(byol_loss(p, z, term.mixture, interpolated=True) for p, z in ((p1, z2), (p2, z1)))
    torch.testing.assert_close(loss, expected)
    with pytest.raises(ValueError, match='target must be "parents" or "interpolated", got \'mean\''):
        BYOL(encoder(), WIDTH, target="mean")  # type: ignore[arg-type]


def test_defaults_are_the_published_heads() -> None:
    wide = nn.Identity()
    simclr = SimCLR(wide, 2048)
    assert [(m.in_features, m.out_features) for m in simclr.online.projector if isinstance(m, nn.Linear)] == [
        (2048, 2048),
        (2048, 128),
    ]
    moco = moco_v2(wide, 2048, queue_size=4)
    assert [type(m) for m in moco.online.projector] == [nn.Linear, nn.ReLU, nn.Linear]
    assert (moco.temperature, moco.momentum) == (0.2, 0.999)
    byol = BYOL(wide, 2048)
    assert [m.out_features for m in byol.online.projector if isinstance(m, nn.Linear)] == [4096, 256]
    assert [m.out_features for m in byol.predictor if isinstance(m, nn.Linear)] == [4096, 256]
    simsiam = SimSiam(wide, 2048)
    assert [m.out_features for m in simsiam.online.projector if isinstance(m, nn.Linear)] == [2048] * 3
    assert simsiam.online.projector[-1].affine is False
    assert [m.out_features for m in simsiam.predictor if isinstance(m, nn.Linear)] == [512, 2048]


def test_a_checkpoint_is_read_without_running_code(tmp_path) -> None:
    method = make("moco-v2")
    train(method, 2)
    torch.save(method.state_dict(), tmp_path / "state.pt")
    other = make("moco-v2", seed=1)
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert other.steps == 2
    assert train(copy.deepcopy(method), 2) == train(other, 2)


def test_bad_input_is_refused_with_the_remedy() -> None:
    views, one = two_views(), two_views(1)
    terms = sim().draw(views[0], mixture_generators(0, 0))
    wrong = SimCLR(nn.Conv2d(3, 4, 3), WIDTH)
    with pytest.raises(ValueError, match=r"the encoder made features of shape \[6, 4, 14, 14\].*expected \[6, 8\]"):
        wrong(views, terms)
    with pytest.raises(ValueError, match=r"expected two views \[N, C, H, W\] of one shape"):
        make("byol")((views[0], views[1][:3]), terms)
    with pytest.raises(ValueError, match="a batch of one image cannot be batch-normalized"):
        make("simsiam")(one, sim().draw(one[0], mixture_generators(0, 0)))
    with pytest.raises(ValueError, match="drawn for 6 images and is called on 4"):
        make("simclr")((views[0][:4], views[1][:4]), bsim().draw(views[0], mixture_generators(0, 0)))
    with pytest.raises(ValueError, match="temperature must be a positive number, got 0"):
        SimCLR(encoder(), WIDTH, temperature=0)


def test_misuse_is_named() -> None:
    views = two_views()
    with pytest.raises(TypeError, match=r"MoCo's queue needs the keys of the step.*got \['list'\]"):
        make("moco-v2").update([torch.zeros(2, 5)], progress=0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"progress is the share of training that is done, 0 to 1, got 500"):
        make("byol").update(None, progress=500)
    with pytest.raises(ValueError, match=r"momentum must be within \[0, 1\], got 2"):
        BYOL(encoder(), WIDTH, momentum=2)
    with pytest.raises(ValueError, match="there are no terms to train on"):
        backward(make("simclr"), views, [])
    with pytest.raises(ValueError, match="pass both, or neither"):
        SimSiam(encoder(), WIDTH, projector=nn.Identity())
    with pytest.raises(TypeError, match="expected a mixview Method, or a wrapper around one, got Linear"):
        backward(nn.Linear(2, 2), views, sim().draw(views[0], mixture_generators(0, 0)))


def test_an_empty_projector_is_a_projector() -> None:
    assert isinstance(SimCLR(encoder(), WIDTH, nn.Sequential()).online.projector, nn.Sequential)
    assert len(SimCLR(encoder(), WIDTH, nn.Sequential()).online.projector) == 0


class MixesNothing(Mixer):
    """A user's own mixture that happens to hand the batch back."""

    def draw(self, images, generator, *, mix_groups=1):
        count = len(images)
        return Mixture(torch.arange(count), torch.ones(count), lambda batch: batch)


@pytest.mark.parametrize("name", METHODS)
def test_an_own_mixture_that_mixes_nothing_still_trains_the_encoder(name: str) -> None:
    method, views = make(name), two_views()
    backward(method, views, bsim(MixesNothing()).draw(views[0], mixture_generators(0, 0)))
    assert all(p.grad is not None for p in method.parameters() if p.requires_grad)


def test_moco_on_one_device_normalizes_keys_among_other_images_than_queries() -> None:
    torch.manual_seed(0)
    method = moco_v2(split_batch_norm(encoder(), 3), WIDTH, dim=5, queue_size=24)
    calm = two_views()[0]
    moved = calm.clone()
    moved[0] += 1

    def disturbed(encode) -> set[int]:
        with torch.no_grad():
            return set((encode(calm) - encode(moved)).abs().amax(1).nonzero().flatten().tolist())

    queries, keys = disturbed(method.online), disturbed(method.encode_keys)
    assert queries == {0, 1}
    assert 0 in keys
    assert keys != queries
    assert len(keys) == 2


@pytest.mark.parametrize("name", METHODS)
def test_joint_and_sequential_leave_the_same_statistics(name: str) -> None:
    views = two_views()
    terms = wbsim().draw(views[0], mixture_generators(0, 0))
    joint, sequential = make(name), make(name)
    joint(views, terms)
    backward(sequential, views, terms)
    expected = dict(sequential.named_buffers())
    assert all(torch.equal(value, expected[key]) for key, value in joint.named_buffers())


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("name", METHODS)
def test_under_fabric(name: str, precision: str) -> None:
    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
    method, views = make(name), two_views()
    terms = wbsim().draw(views[0], mixture_generators(0, 0))
    optimizer = torch.optim.SGD(method.parameters(), lr=0.1)
    wrapped, optimizer = fabric.setup(method, optimizer)
    loss, targets = backward(
        wrapped, views, terms, call=fabric.backward, no_sync=lambda: fabric.no_backward_sync(wrapped)
    )
    optimizer.step()
    wrapped.update(targets, progress=0.5)
    expected, _ = make(name)(views, terms)
    tolerance = 1e-5 if precision == "32-true" else 0.1
    torch.testing.assert_close(loss, expected.detach(), rtol=tolerance, atol=tolerance)


def test_a_batch_of_one_says_that_simclr_learns_nothing() -> None:
    method, views = make("simclr", norm=False), two_views(1)
    with pytest.warns(UserWarning, match="a batch of one has no negatives"):
        loss, _ = method(views, bsim().draw(views[0], mixture_generators(0, 0)))
    torch.testing.assert_close(loss.detach(), torch.tensor(0.0), rtol=0, atol=1e-6)


def test_a_batch_of_one_is_fine_for_moco() -> None:
    method, views = make("moco-v2", norm=False), two_views(1)
    loss, keys = backward(method, views, wbsim().draw(views[0], mixture_generators(0, 0)))
    method.update(keys, progress=0)
    assert torch.isfinite(loss)


def test_once_encodes_a_tensor_once_and_never_confuses_two() -> None:
    calls = []

    def encode(x: Tensor) -> Tensor:
        calls.append(x)
        return x + len(calls)

    remembered = memoize(encode)
    a = torch.zeros(2)
    assert remembered(a) is remembered(a)
    for _ in range(50):
        remembered(torch.zeros(2))  # freed at once, were it not held
    assert len(calls) == 51
