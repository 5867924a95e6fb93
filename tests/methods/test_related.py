"""i-Mix, MixCo, MoCHi, SwAV, Un-Mix: against their papers' equations as loops, and that they combine with the rest."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from mixview import CutMix, Identity, Mixture, Mixup, RandomChoice, bsim, mixture_generators, sim, unmix, wbsim
from mixview.encoders import backbones
from mixview.losses import byol_loss, info_nce
from mixview.methods import MoCoV2Config, RunLength, SwAV, UnMix, backward, moco_v2
from mixview.methods.imix import batch_keys, n_pair, virtual_labels
from mixview.methods.mixco import semi_positive
from mixview.methods.mochi import HardNegatives, draw
from mixview.methods.swav import sinkhorn, swapped_prediction
from mixview.nn import MLP
from mixview.objective import Term
from mixview.train.build import build_method, build_objective
from mixview.train.config import MixingConfig, OptimizerConfig
from mixview.train.optim import build_optimizer
from tests import reference
from tests.methods.test_methods import two_views
from tests.networks import METHODS, OBJECTIVES, RELATIVES, WIDTH, encoder
from tests.test_host_sync import put_on_fake_cuda
from tests.test_losses import any_mixture, assert_same_value_and_gradient, features, mixtures

seeds = st.integers(0, 10**6)


def make(name: str, norm: bool = True):
    torch.manual_seed(0)
    return (METHODS | RELATIVES)[name](norm)


# --- against the equations --------------------------------------------------------------------------------------------


@given(mixture=mixtures, k=st.integers(0, 5), tau=st.floats(0.05, 2), seed=seeds)
@settings(max_examples=40, deadline=None)
def test_virtual_labels_are_i_mix(mixture: Mixture, k: int, tau: float, seed: int) -> None:
    n, queue = len(mixture), features(k, 4, seed + 2) if k else None
    assert_same_value_and_gradient(
        lambda q, key: virtual_labels(q, key, mixture, tau, queue=queue),
        lambda q, key: reference.virtual_labels(q, key, mixture, tau, queue),
        features(n, 4, seed),
        features(n, 4, seed + 1),
    )


def test_i_mix_without_a_mixture_is_the_n_pair_loss() -> None:
    query, keys = features(6, 4, 0), features(6, 4, 1)
    cosines = torch.nn.functional.normalize(query) @ torch.nn.functional.normalize(keys).T
    expected = torch.nn.functional.cross_entropy(cosines / 0.2, torch.arange(6))
    plain = Identity().draw(torch.zeros(6, 3, 4, 4))
    torch.testing.assert_close(n_pair(query, keys, plain, 0.2), expected, rtol=1e-12, atol=1e-12)


def test_i_mix_on_byol_has_the_gradient_of_equation_4() -> None:
    mixture, target = any_mixture(5, 0, "any", "permutation"), torch.nn.functional.normalize(features(5, 4, 1))

    def squared(prediction):
        between = mixture.lam.unsqueeze(1) * target + (1 - mixture.lam.unsqueeze(1)) * target[mixture.partner]
        return (torch.nn.functional.normalize(prediction) - between).pow(2).sum(1).mean()

    prediction = features(5, 4, 0).requires_grad_()
    (ours,) = torch.autograd.grad(byol_loss(prediction, target, mixture), prediction)
    (theirs,) = torch.autograd.grad(squared(prediction), prediction)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_mixco_is_moco_and_semi_positive_pairs_at_a_temperature_of_their_own() -> None:
    query, keys, queue = features(6, 4, 0), features(6, 4, 1), features(9, 4, 2)
    mixture, plain = any_mixture(6, 0, "any", "permutation"), Identity().draw(torch.zeros(6, 3, 4, 4))
    mixed = semi_positive(0.9, query, keys, queue, mixture, 0.2, 0)
    torch.testing.assert_close(
        mixed, reference.virtual_labels(query, keys, mixture, 0.9, queue), rtol=1e-10, atol=1e-10
    )
    unmixed = semi_positive(0.9, query, keys, queue, plain, 0.2, 0)
    assert torch.equal(unmixed, info_nce(query, keys, queue, plain, 0.2))


@given(mixture=mixtures, seed=seeds, tau=st.floats(0.05, 2))
@settings(max_examples=25, deadline=None)
def test_mochi_mixes_the_hardest_negatives(mixture: Mixture, seed: int, tau: float) -> None:
    n, queue = len(mixture), features(9, 4, seed + 2)
    hard = HardNegatives(hardest=5, pairs=4, with_query=3)
    drawn = draw(torch.tensor(seed), 0, n, 5, 4, 3)
    assert_same_value_and_gradient(
        lambda q, key: hard(q, key, queue, mixture, tau, torch.tensor(seed)),
        lambda q, key: reference.mochi(q, key, queue, mixture, tau, 5, drawn),
        features(n, 4, seed),
        features(n, 4, seed + 1),
    )


def test_mochis_draws() -> None:
    first, second, a, third, b = draw(torch.tensor(0), 0, 4, 3, 200, 100)
    assert not torch.equal(first, draw(torch.tensor(0), 1, 4, 3, 200, 100)[0])  # of another process
    assert (first != second).all()
    assert {*first.flatten().tolist()} == {*second.flatten().tolist()} == {*third.flatten().tolist()} == {0, 1, 2}
    assert 0 <= a.min() < 0.1
    assert 0.9 < a.max() <= 1
    assert 0.45 < b.max() <= 0.5
    query, keys, queue = features(4, 4, 0), features(4, 4, 1), features(9, 4, 2)
    plain = Identity().draw(torch.zeros(4, 3, 4, 4))
    hard = HardNegatives(3, 4, 2, start=5)
    before, *later = [hard(query, keys, queue, plain, 0.2, torch.tensor(step)) for step in (4, 5, 6, 5)]
    torch.testing.assert_close(before, info_nce(query, keys, queue, plain, 0.2))
    assert later[0] > info_nce(query, keys, queue, plain, 0.2)  # more negatives
    assert later[0] == later[2] != later[1]
    with pytest.raises(ValueError, match="10 hardest negatives of a queue of 9: choose fewer"):
        HardNegatives(10, 4, 2)(query, keys, queue, plain, 0.2, torch.tensor(0))
    with pytest.raises(ValueError, match="at least 2 hardest"):
        HardNegatives(1)


@given(n=st.integers(2, 9), k=st.integers(2, 6), seed=seeds, iterations=st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_sinkhorn_is_swavs(n: int, k: int, seed: int, iterations: int) -> None:
    scores = torch.rand(n, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1
    ours, theirs = sinkhorn(scores, 0.05, iterations), reference.sinkhorn(scores, 0.05, iterations)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_sinkhorn_balances_and_does_not_overflow() -> None:
    scores = torch.rand(40, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    codes = sinkhorn(scores, 0.05, 200)
    torch.testing.assert_close(codes.sum(1), torch.ones(40), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(codes.sum(0), torch.full((8,), 5.0), rtol=1e-3, atol=1e-3)
    assert torch.isfinite(sinkhorn(scores * 10, 0.001)).all()


@given(mixture=mixtures, seed=seeds, tau=st.floats(0.05, 2))
@settings(max_examples=25, deadline=None)
def test_swapped_prediction_is_swavs(mixture: Mixture, seed: int, tau: float) -> None:
    n = len(mixture)
    codes = torch.softmax(features(n, 5, seed + 1), dim=1)
    assert_same_value_and_gradient(
        lambda scores: swapped_prediction(scores, codes, mixture, tau),
        lambda scores: reference.swapped_prediction(scores, codes, mixture, tau),
        features(n, 5, seed) / 10,
    )


def test_swav_keeps_its_prototypes_at_length_one_and_its_codes_without_gradient() -> None:
    method, views = make("swav"), two_views()
    optimizer = torch.optim.SGD(method.parameters(), lr=1.0)
    loss, targets = backward(method, views, sim().draw(views[0], mixture_generators(0, 0)))
    assert not any(code.requires_grad for code in targets)
    optimizer.step()
    assert not torch.allclose(method.prototypes.weight.norm(dim=1), torch.ones(4))
    method.update(targets, progress=0.1)
    torch.testing.assert_close(method.prototypes.weight.norm(dim=1), torch.ones(4))
    assert torch.isfinite(loss)


@pytest.mark.parametrize("processes", [1, 2])
def test_swavs_queue_is_the_published_one(processes: int) -> None:
    """The published code keeps a part of the queue on every process; one queue of all gives the same codes and loss."""
    torch.manual_seed(0)
    method = SwAV(encoder(False), WIDTH, MLP((WIDTH, 9, 5), False), 5, prototypes=7, queue_size=12, queue_start=1)
    method = method.double()
    published = reference.SwAVCodes(processes, 12, 1, 0.05, 3)
    optimizer = torch.optim.SGD(method.parameters(), lr=0.5)
    for step in range(10):
        views = two_views(seed=step, dtype=torch.float64)
        weight = method.prototypes.weight.detach().clone()
        with torch.no_grad():
            z = [torch.nn.functional.normalize(method.online(view)) for view in views]
        codes = [torch.cat(parts) for parts in published.codes([list(each.chunk(processes)) for each in z], weight)]
        published.step += 1
        plain = Identity().draw(views[0])
        expected = sum(
            reference.swapped_prediction(z[view] @ weight.T, codes[1 - view], plain, 0.1) / 2 for view in (0, 1)
        )
        loss, targets = backward(method, views, sim().draw(views[0], mixture_generators(0, step)))
        torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)
        for ours, theirs, rows in zip(targets[:2], codes, z, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
            alone = torch.allclose(ours, sinkhorn(rows @ weight.T), rtol=1e-3)
            assert alone == (step < 3)  # it fills in the steps 1 and 2
        optimizer.step()
        optimizer.zero_grad()
        method.update(targets, progress=step / 10)


def test_swavs_queue_takes_unmixed_projections_of_all_micro_batches() -> None:
    for objective in (sim(), bsim(), wbsim()):
        method = make("swav-queue", norm=False)
        parts = [two_views(4, seed=seed) for seed in (0, 1)]
        before = [queue.keys.clone() for queue in method.queues]
        targets = [
            backward(method, views, objective.draw(views[0], mixture_generators(0, 0, rank=rank)))[1]
            for rank, views in enumerate(parts)
        ]
        assert all(torch.equal(queue.keys, old) for queue, old in zip(method.queues, before, strict=True))
        expected = [
            torch.nn.functional.normalize(method.online(torch.cat(views))) for views in zip(*parts, strict=True)
        ]
        method.update(*targets, progress=0.0)
        for queue, z, old in zip(method.queues, expected, before, strict=True):
            torch.testing.assert_close(queue.keys, torch.cat([z.detach(), old[8:]]))
    with pytest.raises(TypeError, match="queue needs the projections of the step"):
        method.update(None, progress=0.0)


@pytest.mark.parametrize("wrapped", [False, True], ids=["swav", "unmix"])
@pytest.mark.parametrize("name", ["sgd", "lars", "adamw"])
def test_swavs_prototypes_are_frozen_at_first(name: str, wrapped: bool) -> None:
    """Their gradient is canceled, as published: neither weight decay nor the optimizer's state touches them."""
    swav = make("swav-queue")
    swav.freeze_steps = 2
    method = UnMix(swav) if wrapped else swav
    settings = OptimizerConfig(name=name, lr=0.1, weight_decay=0.1)
    optimizer = build_optimizer(method, settings, 8)
    first, others = swav.prototypes.weight.detach().clone(), swav.online.projector[0].weight.detach().clone()
    for step in range(4):
        targets = []
        for part in range(2):  # micro-batches
            views = two_views(4, seed=2 * step + part)
            terms = (unmix(Mixup()) if wrapped else wbsim()).draw(views[0], mixture_generators(0, step, rank=part))
            targets.append(backward(method, views, terms)[1])
        optimizer.step()
        optimizer.zero_grad()
        method.update(*targets, progress=step / 4)
        frozen = step < 2
        assert bool(optimizer.state.get(swav.prototypes.weight)) != frozen
        assert torch.allclose(swav.prototypes.weight, first, atol=1e-6) == frozen
        assert not torch.allclose(swav.online.projector[0].weight, others)


def test_swav_without_a_mixture_is_sim() -> None:
    """lam = 1 for every image: the loss and the gradients of SIM, the queue in use."""
    results = []
    for terms in ("sim", "bsim", "wbsim"):
        method = make("swav-queue", norm=False).double()
        for step in range(4):
            views = two_views(dtype=torch.float64, seed=step)
            whole = CutMix().draw(views[0], torch.Generator().manual_seed(0), lam=1.0)
            plain = Identity().draw(views[0])
            chosen = {"sim": [(1.0, plain)], "bsim": [(1.0, whole)], "wbsim": [(0.5, whole), (0.5, plain)]}[terms]
            loss, targets = backward(method, views, [Term(*each) for each in chosen])
            method.update(targets, progress=0.0)
        assert method.queued == 15
        results.append([loss, *(each.grad for each in method.parameters())])
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-12)


def test_swavs_queue_and_step_are_in_its_state() -> None:
    method, again = make("swav-queue"), make("swav-queue")
    views = two_views(8)
    for step in range(3):
        _, targets = backward(method, views, sim().draw(views[0], mixture_generators(0, step)))
        method.update(targets, progress=0.0)
    again.load_state_dict(method.state_dict())
    assert (again.steps, again.queued) == (3, 15)
    for one, other in zip(method.queues, again.queues, strict=True):
        assert torch.equal(one.keys, other.keys)
        assert one.pointer == other.pointer == 3 * 8 % 15
    with pytest.raises(ValueError, match="must be 0 or more, got -1, 0 and 0"):
        SwAV(encoder(), WIDTH, queue_size=-1)


def test_unmix_on_moco_mixes_the_queries() -> None:
    """As published: the loss of q, + lam times that of the mixtures, + (1 - lam) times theirs reversed."""
    views = two_views(dtype=torch.float64)
    moco = make("moco-v2").double()
    mixed, plain = unmix(Mixup()).draw(views[0], mixture_generators(0, 0))
    lam = float(mixed.mixture.lam[0])
    loss, keys = copy.deepcopy(moco)(views, [mixed, plain])
    torch.testing.assert_close(keys, copy.deepcopy(moco).encode_keys(views[1]))

    k = torch.nn.functional.normalize(moco.encode_keys(views[1]))
    q, q_mixed = moco.online(views[0]), moco.online(mixed.mixture(views[0]))
    expected = torch.zeros((), dtype=torch.float64)
    for weight, queries in ((1.0, q), (lam, q_mixed), (1 - lam, q_mixed.flip(0))):
        for i in range(len(queries)):
            positive = torch.exp(reference.cosine(queries[i], k[i]) / 0.2)
            negatives = sum(torch.exp(reference.cosine(queries[i], n) / 0.2) for n in moco.queue.keys)
            expected = expected - weight * torch.log(positive / (positive + negatives)) / len(q)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)
    with pytest.raises(TypeError, match="use MoCo itself, with the objective unmix"):
        UnMix(moco)
    config = MoCoV2Config(hidden=8, dim=8, queue_size=16)
    backbone = backbones.build("small", size=8)
    built = build_method(config, backbone, RunLength(8, 1, 4), "unmix")
    assert not isinstance(built, UnMix)


def test_unmix_on_byol_mixes_one_of_the_views() -> None:
    """The published listing: loss + lam loss(x, mixture) + (1 - lam) loss(x, mixture reversed), both ways."""
    method, views = make("unmix-byol", norm=False).double(), two_views(dtype=torch.float64)
    mixed, plain = unmix(Mixup()).draw(views[0], mixture_generators(0, 0))
    byol, lam = copy.deepcopy(method.method), float(mixed.mixture.lam[0])
    loss, _ = method(views, [mixed, plain])
    mixture = mixed.mixture(views[1])
    alone = sim().draw(views[0], mixture_generators(0, 0))
    expected = sum(
        weight * byol((views[0], second), alone)[0]
        for weight, second in ((1.0, views[1]), (lam, mixture), (1 - lam, mixture.flip(0)))
    )
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)


def test_unmix_with_nothing_mixed_is_twice_the_method() -> None:
    for name in ("byol", "simclr", "simsiam"):
        views = two_views(dtype=torch.float64)
        method = make(name).double()
        alone, _ = copy.deepcopy(method)(views, sim().draw(views[0], mixture_generators(0, 0)))
        mixer = CutMix()
        both = [
            (1.0, mixer.draw(views[0], torch.Generator().manual_seed(0), lam=1.0)),
            (1.0, Identity().draw(views[0])),
        ]
        loss, _ = UnMix(method)(views, both)
        torch.testing.assert_close(loss, 2 * alone, rtol=1e-10, atol=1e-10)
    with pytest.raises(TypeError, match="mixes its targets already"):
        UnMix(UnMix(method))


def test_unmix_refuses_mixtures_that_it_cannot_swap() -> None:
    with pytest.raises(ValueError, match="unmix needs mutual partners that share one lam"):
        build_objective("unmix", MixingConfig())
    objective = build_objective("unmix", MixingConfig(mixer="random_choice", lam_per="batch"))
    assert repr(objective).startswith("Objective([(1, RandomChoice(Mixup(")


def test_either_takes_both() -> None:
    mixer = RandomChoice(Mixup(), CutMix(), p=0.5)
    images = torch.rand(4, 3, 8, 8)
    drawn = [type(mixer.draw(images, mixture_generators(0, step)).pixels).__name__ for step in range(40)]
    assert 8 < drawn.count("Blend") < 32
    assert drawn == [type(mixer.draw(images, mixture_generators(0, step)).pixels).__name__ for step in range(40)]
    with pytest.raises(ValueError, match="p is a probability"):
        RandomChoice(Mixup(), CutMix(), p=2)


# --- with the rest ----------------------------------------------------------------------------------------------------

PASSES = {"imix": (3, 0), "imix-moco": (2, 1), "mixco": (2, 1), "mochi": (2, 1), "swav": (4, 0), "swav-queue": (4, 0)}
PASSES |= {"unmix-byol": (4, 4), "unmix-simclr": (4, 0), "unmix-vicreg": (4, 0), "mocov3": (4, 2)}
PASSES |= {"mocov3-sdmp": (4, 4), "moco-v2-sdmp": (2, 2), "simclr-sdmp": (4, 0), "simclr-one-sided-sdmp": (4, 0)}
PASSES |= {"barlow-twins": (3, 0), "barlow-twins-symmetric": (4, 0), "barlow-twins-mixed": (4, 0)}
PASSES |= {"vicreg": (3, 0), "vicreg-symmetric": (4, 0)}
PASSES |= {"dino": (2, 1)}  # its views of a size go together
PASSES |= {"distillation": (4, 0)}


@pytest.mark.parametrize("name", RELATIVES)
def test_sequential_and_joint_are_equal_and_passes_are_as_said(name: str) -> None:
    views = two_views(dtype=torch.float64)
    terms = wbsim().draw(views[0], mixture_generators(0, 0))
    joint, sequential = make(name).double(), make(name).double()
    counts = [0, 0]
    for module in (joint.online, getattr(getattr(joint, "method", joint), "target", None)):
        if module is not None:
            module.encoder.register_forward_hook(lambda *_: counts.__setitem__(0, counts[0] + torch.is_grad_enabled()))
            module.encoder.register_forward_hook(lambda *_: counts.__setitem__(1, counts[1] + 1))
    loss, _ = joint(views, terms)
    assert (counts[0], counts[1] - counts[0]) == PASSES[name]
    loss.backward()
    for parameter in joint.frozen:
        parameter.grad = None
    total, _ = backward(sequential, views, terms)
    torch.testing.assert_close(total, loss.detach(), rtol=1e-12, atol=1e-12)
    for one, other in zip(joint.parameters(), sequential.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", RELATIVES)
def test_every_related_method_takes_every_objective_and_odd_batches(name: str) -> None:
    objectives = OBJECTIVES | {"folded": lambda: bsim(CutMix(1.0, "image", "permutation", lam_at_least_half=True))}
    for objective_name, objective in objectives.items():
        method = make(name)
        if name.startswith("unmix") and objective_name in ("one-per-pair", "three-parents"):
            views = two_views(7)
            with pytest.raises(ValueError, match="Un-Mix needs a mixture of two images for every image"):
                backward(method, views, objective().draw(views[0], mixture_generators(0, 0)))
            continue
        for n in (7, 3 if objective_name == "one-per-pair" else 2):
            views = two_views(n)
            loss, targets = backward(method, views, objective().draw(views[0], mixture_generators(0, 0)))
            method.update(targets, progress=0.5)
            assert torch.isfinite(loss)
        assert all(p.grad is not None for p in method.parameters() if p.requires_grad)


@pytest.mark.parametrize("name", RELATIVES)
def test_no_related_method_waits_for_the_accelerator(name: str) -> None:
    method = make(name)
    with FakeTensorMode(allow_non_fake_inputs=True):  # the number of the step, which the CPU counts for itself
        put_on_fake_cuda(method)
        views = torch.rand(6, 3, 16, 16, device="cuda"), torch.rand(6, 3, 16, 16, device="cuda")
        _, targets = backward(method, views, wbsim().draw(views[0], mixture_generators(0, 0)), call=lambda loss: None)
        method.update(targets, progress=0.5)


def test_a_queue_that_is_told_from_the_batch() -> None:
    torch.manual_seed(0)
    method = moco_v2(encoder(), WIDTH, dim=5, queue_size=24, loss_fn=batch_keys)
    views = two_views()
    terms = bsim().draw(views[0], mixture_generators(0, 0))
    again = copy.deepcopy(method)
    loss, keys = method(views, terms)
    q = again.online(terms[0].mixture(views[0]))
    expected = virtual_labels(q, keys, terms[0].mixture, 0.2, queue=method.queue.keys)
    torch.testing.assert_close(loss, expected)
