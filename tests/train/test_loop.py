"""What a step does to the weights: the engine against the same steps spelled out in plain torch.

Nothing of the engine, of the optimizers or of the methods' losses is used on the other side: only the networks, which
are copies, and the mixtures that (seed, step, micro-batch) stand for.
"""

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Tensor, nn

from mixview import CutMix, Mixup, Objective, bsim, distributed, sim, wbsim
from mixview.data.loader import EpochSampler
from mixview.methods import Method, Views
from mixview.mixing import mixture_generators
from mixview.rng import seed_from
from mixview.train import build, pretraining
from mixview.train.config import MixingConfig, OptimizerConfig, PretrainConfig, method_config
from mixview.train.loop import Engine
from mixview.train.optim import build_optimizer
from tests.networks import METHODS
from tests.train.running import build_plain_method, last_state, tiny

BATCH, EPOCH_STEPS, EPOCHS, SEED = 8, 3, 2, 5
STEPS = EPOCH_STEPS * EPOCHS
CONSTANT = OptimizerConfig("sgd", lr=0.1, momentum=0.0, weight_decay=0.0, schedule="constant")
"""A step of which is w - 0.1 g."""
PUBLISHED = OptimizerConfig(
    "sgd", lr=0.5, momentum=0.9, weight_decay=0.01, schedule="cosine", warmup_epochs=1, clip=1.8
)
"""Everything at once; the clip is shorter than some gradients and longer than others."""


def make(name: str, norm: bool = False) -> Method:
    torch.manual_seed(0)
    return METHODS[name](norm).double()


def some_views(steps: int = EPOCH_STEPS) -> list[tuple[tuple[Tensor, Tensor], Tensor]]:
    generator = torch.Generator().manual_seed(1)
    shape = (steps, 2, BATCH, 3, 12, 12)
    pairs = torch.rand(shape, generator=generator, dtype=torch.float64)
    return [((first, second), torch.arange(BATCH)) for first, second in pairs]


def make_engine(
    method: Method,
    settings: OptimizerConfig,
    objective: Objective,
    mix_groups: int = 1,
    warmup: tuple[float, float] | None = None,
    **options: Any,
) -> Engine:
    fabric = Fabric(accelerator="cpu", devices=1, precision="64-true")
    module, optimizer = fabric.setup(method, build_optimizer(method, settings, BATCH))
    mixing = MixingConfig(mix_groups=mix_groups, warmup=warmup)
    return Engine(
        fabric=fabric,
        module=module,
        network=method,
        optimizer=optimizer,
        config=PretrainConfig(optimizer=settings, mixing=mixing, epochs=EPOCHS, seed=SEED, **options),
        objective=objective,
        sampler=EpochSampler(EPOCH_STEPS * BATCH, BATCH, SEED),
        loader=some_views(),
    )


def train(engine: Engine) -> list[tuple[float, float]]:
    """All steps: the loss and the learning rate that the engine says each was taken at."""
    taken = []
    while engine.step < engine.steps:
        for views, _ in engine.loader:
            loss, lr = engine.take_step(views)
            taken.append((float(loss), lr))
    return taken


def step_once(method: Method, settings: OptimizerConfig, objective: Objective, **options: Any) -> dict[str, Tensor]:
    """What one step adds to the trained weights."""
    before = {name: weight.detach().clone() for name, weight in method.named_parameters() if weight.requires_grad}
    engine = make_engine(method, settings, objective, **options)
    engine.take_step(some_views()[0][0])
    return {name: weight.detach() - before[name] for name, weight in method.named_parameters() if name in before}


def length(tensors: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float(each.square().sum()) for each in tensors.values()))


class ByHand:
    """The same training, spelled out."""

    def __init__(
        self, name: str, method: Method, settings: OptimizerConfig, *, accumulate_grad_batches: int, steps: int = STEPS
    ) -> None:
        self.loss = {"byol": self.byol, "moco-v2": self.moco, "mocov2": self.moco, "simsiam": self.simsiam}[name]
        self.method, self.settings, self.accumulate_grad_batches, self.steps = (
            method,
            settings,
            accumulate_grad_batches,
            steps,
        )
        self.trained = {name: each for name, each in method.named_parameters() if each.requires_grad}
        self.velocity = {name: torch.zeros_like(each) for name, each in self.trained.items()}
        self.keys: list[Tensor] = []

    def step(
        self, number: int, first: Tensor, second: Tensor, objective: Objective, seed: int = SEED
    ) -> tuple[float, float]:
        """One optimizer step; returns its loss and its learning rate."""
        total = torch.zeros((), dtype=first.dtype)
        parts = zip(first.chunk(self.accumulate_grad_batches), second.chunk(self.accumulate_grad_batches), strict=True)
        self.keys = []
        for micro_batch, views in enumerate(parts):
            generators = mixture_generators(seed, number, rank=micro_batch)
            terms = objective.draw(views[0], generators)
            loss = sum(term.weight * self.loss(*views, term.mixture.partner, term.mixture.lam) for term in terms)
            total = total + len(views[0]) / len(first) * loss
        gradients = torch.autograd.grad(total, list(self.trained.values()))
        norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
        scale = 1.0 if self.settings.clip is None else min(1.0, self.settings.clip / (norm + 1e-6))
        rate = self.rate(number)
        with torch.no_grad():
            for (name, weight), gradient in zip(self.trained.items(), gradients, strict=True):
                fixed = self.settings.fixed_predictor_lr and name.startswith("predictor")
                step = scale * gradient + self.settings.weight_decay * weight
                self.velocity[name] = self.settings.momentum * self.velocity[name] + step
                weight -= (self.settings.lr if fixed else rate) * self.velocity[name]
        self.follow(number)
        return float(total.detach()), rate

    def rate(self, number: int) -> float:
        """A line up to lr over the warm-up, then half a cosine down to 0."""
        warmup = self.settings.warmup_epochs * self.steps / EPOCHS
        if number < warmup:
            return self.settings.lr * number / warmup
        return self.settings.lr * (1 + math.cos(math.pi * (number - warmup) / (self.steps - warmup))) / 2

    @torch.no_grad()
    def follow(self, number: int) -> None:
        """Once a step: the target follows, and a queue takes the keys of all micro-batches."""
        target, online = getattr(self.method, "target", None), self.method.online
        if target is None:
            return
        momentum = self.method.momentum
        if not self.keys:  # BYOL: from the base to 1 along a cosine
            momentum = 1 - (1 - momentum) * (1 + math.cos(math.pi * number / self.steps)) / 2
        for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
            slow.copy_(momentum * slow + (1 - momentum) * fast)
        if self.keys:
            queue, keys = self.method.queue, torch.cat(self.keys)
            for row, key in enumerate(keys):
                queue.keys[(number * len(keys) + row) % len(queue.keys)] = key

    def byol(self, first: Tensor, second: Tensor, partner: Tensor, lam: Tensor) -> Tensor:
        """2 - 2 cos, weighted over both parents, summed over both directions."""
        with torch.no_grad():
            targets = self.method.target(second), self.method.target(first)
        return sum(
            (2 - 2 * self.cosine(self.method.predictor(self.method.online(mix(view, partner, lam))), z, partner, lam))
            .mean()
            for view, z in zip((first, second), targets, strict=True)
        )  # fmt: skip

    def simsiam(self, first: Tensor, second: Tensor, partner: Tensor, lam: Tensor) -> Tensor:
        """-cos, weighted over both parents, the mean of both directions."""
        targets = self.method.online(second).detach(), self.method.online(first).detach()
        sides = [
            -self.cosine(self.method.predictor(self.method.online(mix(view, partner, lam))), z, partner, lam).mean()
            for view, z in zip((first, second), targets, strict=True)
        ]
        return (sides[0] + sides[1]) / 2

    def moco(self, first: Tensor, second: Tensor, partner: Tensor, lam: Tensor) -> Tensor:
        """Two cross-entropies, the key of one parent at a time before the queue."""
        with torch.no_grad():
            keys = F.normalize(self.method.target(second), dim=1)
        if not any(torch.equal(keys, seen) for seen in self.keys):  # two terms of one micro-batch have the same keys
            self.keys.append(keys)
        q = F.normalize(self.method.online(mix(first, partner, lam)), dim=1)
        negatives = q @ self.method.queue.keys.clone().T
        truth = torch.zeros(len(q), dtype=torch.int64)
        losses = [
            F.cross_entropy(
                torch.cat([(q * k).sum(1, keepdim=True), negatives], 1) / self.method.temperature,
                truth,
                reduction="none",
            )
            for k in (keys, keys[partner])
        ]
        return (lam * losses[0] + (1 - lam) * losses[1]).mean()

    @staticmethod
    def cosine(p: Tensor, z: Tensor, partner: Tensor, lam: Tensor) -> Tensor:
        return lam * F.cosine_similarity(p, z) + (1 - lam) * F.cosine_similarity(p, z[partner])


def mix(images: Tensor, partner: Tensor, lam: Tensor) -> Tensor:
    weight = lam.view(-1, 1, 1, 1)
    return weight * images + (1 - weight) * images[partner]


@pytest.mark.parametrize("accumulate_grad_batches", [1, 2, 3])  # 3 of 8 images: parts of 3, 3 and 2
@pytest.mark.parametrize("name", ["byol", "moco-v2", "simsiam"])
def test_training_is_what_it_is_by_hand(name: str, accumulate_grad_batches: int) -> None:
    settings = replace(PUBLISHED, fixed_predictor_lr=name == "simsiam")
    method = make(name)
    hand = ByHand(name, copy.deepcopy(method), settings, accumulate_grad_batches=accumulate_grad_batches)
    objective = wbsim(0.4, 0.6, Mixup(lam_per="image"))
    engine = make_engine(method, settings, objective, accumulate_grad_batches=accumulate_grad_batches)
    found = train(engine)
    for number, (loss, rate) in enumerate(found):
        expected = hand.step(number, *some_views()[number % EPOCH_STEPS][0], objective)
        assert (loss, rate) == pytest.approx(expected, rel=1e-5), number
    assert len(found) == STEPS
    close: dict[str, float] = {"rtol": 1e-5, "atol": 1e-6}  # Fabric hands keys on in float32
    torch.testing.assert_close(dict(method.named_parameters()), dict(hand.method.named_parameters()), **close)
    buffers = dict(hand.method.named_buffers()) | pointer(method)
    torch.testing.assert_close(dict(method.named_buffers()), buffers, **close)


def pointer(method: Method) -> dict[str, Tensor]:
    """Where a queue goes on after all steps: every image of every step took one place."""
    queue = getattr(method, "queue", None)
    return {} if queue is None else {"queue.pointer": torch.tensor(STEPS * BATCH % len(queue.keys))}


def test_the_clip_is_the_length_of_the_whole_gradient() -> None:
    free = step_once(make("byol"), CONSTANT, sim())
    short = length(free) / CONSTANT.lr / 4
    clipped = step_once(make("byol"), replace(CONSTANT, clip=short), sim())
    assert length(clipped) == pytest.approx(CONSTANT.lr * short, rel=1e-4)
    for name, move in free.items():  # all by the same factor: none is clipped by itself
        torch.testing.assert_close(clipped[name], move / 4, rtol=1e-4, atol=1e-9)
    loose = step_once(make("byol"), replace(CONSTANT, clip=4 * length(free) / CONSTANT.lr), sim())
    torch.testing.assert_close(loose, free)


@pytest.mark.parametrize("name", ["byol", "moco-v2", "simsiam"])
def test_accumulated_gradients_are_those_of_the_whole_batch(name: str) -> None:
    """Where a loss is a mean over images that do not meet, micro-batches change nothing."""
    whole = step_once(make(name), CONSTANT, sim())
    assert length(whole) > 1e-4
    for accumulate in (2, 3, 4):
        torch.testing.assert_close(step_once(make(name), CONSTANT, sim(), accumulate_grad_batches=accumulate), whole)


def test_cached_gradients_are_those_of_the_whole_batch() -> None:
    whole = step_once(make("simclr"), CONSTANT, bsim(Mixup()))
    method, seen = make("simclr"), []
    method.encoder.register_forward_hook(lambda module, images, features: seen.append(len(features)))
    cached = step_once(method, CONSTANT, bsim(Mixup()), accumulate_grad_batches=4, grad_cache=True)
    torch.testing.assert_close(cached, whole)
    assert set(seen) == {BATCH // 4}  # images in memory at a time
    parts = step_once(
        make("simclr"), CONSTANT, bsim(Mixup()), accumulate_grad_batches=4
    )  # fewer negatives: another gradient
    assert any(not torch.allclose(parts[name], whole[name]) for name in whole)


def test_every_micro_batch_of_every_step_has_a_mixture_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    objective = bsim(CutMix())
    engine = make_engine(make("byol"), CONSTANT, objective, accumulate_grad_batches=2, mix_groups=2)
    drawn: list[Tensor] = []
    draw = Engine.draw_terms

    def watched(self: Engine, images: Tensor, group: int) -> Any:
        terms = draw(self, images, group)
        drawn.append(terms[0].mixture.lam)
        return terms

    monkeypatch.setattr(Engine, "draw_terms", watched)
    train(engine)
    images = some_views()[0][0][0][: BATCH // 2]
    expected = [
        objective.draw(images, mixture_generators(SEED, step, rank=group, mix_groups=2))[0].mixture.lam
        for step in range(engine.steps)
        for group in range(2)
    ]
    torch.testing.assert_close(drawn, expected)
    assert len({tuple(lam.tolist()) for lam in drawn}) == 2 * engine.steps


def test_ema_and_queue_change_once_a_step() -> None:
    method = make("moco-v2")
    first_keys, target = method.queue.keys.clone(), copy.deepcopy(method.target.state_dict())
    step_once(method, CONSTANT, sim(), accumulate_grad_batches=4)
    assert int(method.queue.pointer) == BATCH
    changed = (method.queue.keys != first_keys).any(1)
    assert changed[:BATCH].all()
    assert not changed[BATCH:].any()
    for name, slow in method.target.named_parameters():
        fast = dict(method.online.named_parameters())[name]
        torch.testing.assert_close(slow, method.momentum * target[name] + (1 - method.momentum) * fast)


def test_the_target_of_byol_ends_up_standing_still() -> None:
    """Momentum goes from its base to 1 along a cosine over the steps of the whole run."""
    method = make("byol")
    momenta = []
    engine = make_engine(method, CONSTANT, sim())
    for views, _ in some_views() * EPOCHS:
        before = copy.deepcopy(dict(method.target.named_parameters()))
        engine.take_step(views)
        moved = {name: slow.detach() - before[name] for name, slow in method.target.named_parameters()}
        whole = {name: fast.detach() - before[name] for name, fast in method.online.named_parameters()}
        momenta.append(1 - length(moved) / length(whole))
    expected = [1 - 0.1 * (1 + math.cos(math.pi * step / STEPS)) / 2 for step in range(STEPS)]
    assert momenta == pytest.approx(expected, abs=1e-9)


def test_lars_leaves_norms_and_biases_out_of_decay_and_adaptation() -> None:
    """Whatever their layer is called: whatever has one dimension moves as under SGD without decay."""
    settings = OptimizerConfig("lars", lr=0.2, momentum=0.0, weight_decay=0.1, schedule="constant")
    gradients = {name: -move / CONSTANT.lr for name, move in step_once(make("simclr", True), CONSTANT, sim()).items()}
    weights = dict(make("simclr", True).named_parameters())
    assert {weight.ndim for weight in weights.values()} == {1, 2, 4}
    for name, move in step_once(make("simclr", True), settings, sim()).items():
        weight, gradient = weights[name].detach(), gradients[name]
        if weight.ndim == 1:
            expected = -0.2 * gradient
        else:
            trust = 1e-3 * weight.norm() / (gradient.norm() + 0.1 * weight.norm())
            expected = -0.2 * trust * (gradient + 0.1 * weight)
        torch.testing.assert_close(move, expected)


def test_mixtures_grow_with_the_training() -> None:
    engine = make_engine(make("byol"), CONSTANT, bsim(Mixup()), warmup=(0.5, 1.0))
    whole = make_engine(make("byol"), CONSTANT, bsim(Mixup()))
    images = some_views()[0][0][0]
    for step, strength in ((0, 0.0), (3, 0.0), (4, 1 / 3), (5, 2 / 3)):
        engine.step = whole.step = step
        [part], [full] = (each.draw_terms(images, 0) for each in (engine, whole))
        torch.testing.assert_close(1 - part.mixture.lam, strength * (1 - full.mixture.lam))


@pytest.mark.parametrize("name", ["byol", "mocov2"])
def test_a_run_is_what_it_is_by_hand(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the options of `mixview pretrain` to the weights in the checkpoint."""
    seen: list[tuple[Tensor, Tensor]] = []

    class Watched(Engine):
        def take_step(self, views: Views) -> tuple[Tensor, float]:
            first, second = views
            seen.append((first.clone(), second.clone()))
            return super().take_step(views)

    monkeypatch.setattr(build, "Engine", Watched)
    monkeypatch.setattr(build, "build_method", build_plain_method)
    settings = replace(PUBLISHED, lr=0.2, scale_lr=False, clip=0.05)
    options = tiny(
        tmp_path / "run", method=name, objective="wbsim", optimizer=settings, accumulate_grad_batches=2, seed=3
    )
    mixing = MixingConfig(mixer="mixup", lam_per="batch", alpha=0.7, weight=0.3, sim_weight=0.9)
    pretraining.pretrain(**options, mixing=mixing)
    assert len(seen) == 8
    method = build_plain_method(method_config(name))
    hand = ByHand(name, method, settings, accumulate_grad_batches=2, steps=8)
    objective = wbsim(0.3, 0.9, Mixup(0.7))
    for number, (first, second) in enumerate(seen):
        hand.step(number, first, second, objective, seed=3)
    state, step = last_state(tmp_path / "run")
    assert step == 8
    for part in ("online", "target"):
        network: nn.Module = getattr(method, part)
        for weight_name, weight in network.named_parameters():
            stored = state["method"][f"{part}.{weight_name}"]
            torch.testing.assert_close(stored, weight.detach(), rtol=1e-4, atol=1e-6)


def test_the_seed_makes_the_first_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Begun(Exception):
        pass

    def first_weights(seed: int, out: str) -> dict[str, Tensor]:
        begun: list[Method] = []

        def stop(*, module: nn.Module, **_: Any) -> None:
            begun.append(module.module)  # type: ignore[arg-type]
            raise Begun

        monkeypatch.setattr(build, "Engine", stop)
        with pytest.raises(Begun):
            pretraining.pretrain(**tiny(tmp_path / out, backbone="small", method="byol", seed=seed))
        return dict(begun[0].state_dict())

    first, again, other = first_weights(0, "first"), first_weights(0, "again"), first_weights(1, "other")
    torch.testing.assert_close(again, first, rtol=0, atol=0)
    for part in ("online.encoder", "online.projector", "predictor"):
        drawn = [name for name, weight in first.items() if name.startswith(part) and weight.ndim > 1]
        assert drawn
        assert not any(torch.equal(first[name], other[name]) for name in drawn)


@pytest.mark.parametrize("name", ["simclr", "byol", "simsiam", "moco-v2"])
def test_a_run_synchronizes_batch_norm_where_the_method_does_not_shuffle(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    method = make(name, norm=True)
    norms = sum(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in method.modules())
    fabric = Fabric(accelerator="cpu", devices=1)
    notes = build.prepare_for_devices(PretrainConfig(channels_last=False), fabric, method, False)
    synchronized = sum(isinstance(layer, distributed.SYNCHRONIZED) for layer in method.modules())
    assert norms > 1
    assert synchronized == (0 if name == "moco-v2" else norms)
    assert bool(notes) == bool(synchronized)


def test_every_step_has_a_seed_of_its_own_and_notes_nothing() -> None:
    engine = make_engine(make("simsiam"), CONSTANT, sim())
    noted = len(torch.cuda._queued_calls)
    for step in range(2):
        engine.take_step(some_views()[0][0])
        assert torch.initial_seed() == seed_from("step", SEED, step, 0)
    assert len(torch.cuda._queued_calls) == noted
