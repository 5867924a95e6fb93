from typing import get_args

import pytest
import torch

from mixview.backbones import build
from mixview.methods import BYOL, MoCo, SimCLR, SimSiam
from mixview.nn import SplitBatchNorm2d
from mixview.train.settings import Head, MethodName, Mixing, build_method, build_objective

PUBLISHED = Head()


def make(name: str, head: Head = PUBLISHED, images: int = 1000, steps: int = 100, batch: int = 64):
    return build_method(name, build("small", size=16), head, images=images, steps=steps, batch=batch)


def test_objectives_by_name() -> None:
    mixing = Mixing(alpha=0.5, weight=0.3, sim_weight=0.6, per_sample=False)
    assert repr(build_objective("sim", mixing)) == "Objective([(1, Identity())])"
    assert repr(build_objective("wbsim", mixing)).startswith("Objective([(0.3, CutMix(alpha=0.5, per_sample=False")
    assert "MixAug(CutMix" in repr(build_objective("mixaug", mixing))
    assert "Mixup" in repr(build_objective("bsim", Mixing(mixer="mixup")))


def test_methods_by_name_are_as_published() -> None:
    assert isinstance(simclr := make("simclr"), SimCLR)
    assert (simclr.temperature, simclr.symmetric) == (0.1, True)
    assert isinstance(v1 := make("mocov1", steps=10**6, images=10**6), MoCo)
    assert (v1.temperature, v1.momentum, len(v1.queue.keys)) == (0.07, 0.999, 65_536)
    assert isinstance(byol := make("byol", steps=10**6), BYOL)
    assert byol.momentum == 0.996
    assert isinstance(simsiam := make("simsiam"), SimSiam)
    assert simsiam.predictor[0].out_features == 512


def test_a_small_run_gets_a_queue_and_a_momentum_that_can_work() -> None:
    method = make("mocov2", images=1000, steps=100, batch=64)
    assert len(method.queue.keys) == 448  # half of the images, in whole batches
    assert method.momentum == 0.99
    assert len(make("mocov2", images=80, batch=64).queue.keys) == 64


def test_what_is_set_is_set() -> None:
    head = Head(temperature=0.3, momentum=0.9, queue_size=128, hidden=32, dim=16, other_parent=True, bn_splits=4)
    method = make("mocov2", head)
    assert (method.temperature, method.momentum, method.queue.keys.shape) == (0.3, 0.9, (128, 16))
    assert method.online.projector[0].out_features == 32
    assert method.other_parent
    assert any(isinstance(part, SplitBatchNorm2d) for part in method.target.modules())
    assert make("byol", Head(momentum=0.0)).momentum == 0
    assert make("byol", Head(target="interpolated")).interpolated
    assert not make("simclr", Head(symmetric=False)).symmetric


def test_swav_counts_its_epochs_in_steps() -> None:
    """One epoch frozen, no queue unless there is to be one, which starts after 15 epochs, as in the published code."""
    imagenet = {"images": 1_281_167, "steps": 200 * 312, "batch": 4096}
    published = make("swav", Head(hidden=8, dim=8), **imagenet)
    assert (published.freeze_steps, published.queue_size, len(published.prototypes.weight)) == (312, 0, 3000)
    imagenet = {"images": 1_281_167, "steps": 200 * 5004, "batch": 256}
    small_batch = make("swav", Head(hidden=8, dim=8, queue_size=3840), **imagenet)
    assert (small_batch.freeze_steps, small_batch.queue_size, small_batch.queue_start) == (5004, 3840, 15 * 5004)
    assert len(small_batch.prototypes.weight) == 3000
    assert (small_batch.epsilon, small_batch.iterations, small_batch.temperature) == (0.05, 3, 0.1)
    short = make("swav", Head(hidden=8, queue_size=128, freeze_prototypes=0), images=640, steps=100, batch=64)
    assert (short.freeze_steps, short.queue_start, len(short.prototypes.weight)) == (0, 50, 192)
    chosen = Head(hidden=8, queue_size=128, freeze_prototypes=2.5, epoch_queue_starts=3)
    chosen_method = make("swav", chosen, images=640, steps=100, batch=64)
    assert (chosen_method.freeze_steps, chosen_method.queue_start) == (25, 30)
    with pytest.raises(ValueError, match="queue_size 32 does not hold a batch of 64: set at least 64, or 0"):
        make("swav", Head(queue_size=32))


@pytest.mark.parametrize("name", get_args(MethodName))
def test_every_method_takes_a_small_encoder(name: str) -> None:
    method = make(name, Head(hidden=8, dim=8))
    assert method.online(torch.rand(4, 3, 16, 16)).shape == (4, 8)
