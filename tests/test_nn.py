import copy

import pytest
import torch
from torch import nn

from mixview.nn import MLP, KeyQueue, SplitBatchNorm2d, ema_update, momentum_copy, split_batch_norm
from tests.networks import encoder


def test_follow_is_the_exponential_moving_average() -> None:
    online, target = encoder().double(), momentum_copy(encoder().double())
    for momentum in (0.0, 0.3, 0.999, 1.0):
        expected = [
            momentum * t + (1 - momentum) * o for t, o in zip(target.parameters(), online.parameters(), strict=True)
        ]
        ema_update(target, online, momentum)
        for parameter, value in zip(target.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter, value, rtol=1e-12, atol=1e-14)
        for parameter in online.parameters():
            parameter.data.normal_()
    with pytest.raises(ValueError, match=r"momentum must be within \[0, 1\], got 1.5"):
        ema_update(target, online, 1.5)


def test_follow_is_exact_at_both_ends_and_leaves_buffers_alone() -> None:
    online, target = encoder(), momentum_copy(encoder())
    online[1].running_mean.fill_(7)
    before = copy.deepcopy(target)
    ema_update(target, online, 1.0)
    assert all(torch.equal(a, b) for a, b in zip(target.parameters(), before.parameters(), strict=True))
    ema_update(target, online, 0.0)
    assert all(torch.equal(a, b) for a, b in zip(target.parameters(), online.parameters(), strict=True))
    assert torch.equal(target[1].running_mean, before[1].running_mean)
    assert target.training


def test_queue_is_a_ring_of_any_batch() -> None:
    queue = KeyQueue(7, 2)
    pushed = []
    for n in (3, 3, 2, 7, 1):
        keys = torch.randn(n, 2)
        queue.push(keys)
        pushed += list(keys)
        newest = {tuple(key.tolist()) for key in pushed[-7:]}
        if len(pushed) >= 7:
            assert {tuple(key.tolist()) for key in queue.keys} == newest
    assert int(queue.pointer) == 16 % 7
    torch.testing.assert_close(KeyQueue(5, 3).keys.norm(dim=1), torch.ones(5))


def test_split_batch_norm_is_one_batch_norm_a_part() -> None:
    network = encoder()
    split = split_batch_norm(copy.deepcopy(network), 3)
    assert sum(isinstance(m, SplitBatchNorm2d) for m in split.modules()) == 2
    images = torch.rand(9, 3, 16, 16)
    parts = [copy.deepcopy(network) for _ in range(3)]
    expected = torch.cat([part(x) for part, x in zip(parts, images.chunk(3), strict=True)])
    torch.testing.assert_close(split(images), expected)
    for name, buffer in split.named_buffers():
        each = torch.stack([dict(part.named_buffers())[name].double() for part in parts])
        torch.testing.assert_close(buffer.double(), each.mean(0), rtol=1e-5, atol=1e-6)
    split.eval()
    network.load_state_dict(split.state_dict())
    torch.testing.assert_close(split(images), network.eval()(images))


def test_split_batch_norm_keeps_what_a_batch_norm_is() -> None:
    frozen = nn.BatchNorm2d(3, eps=0.1, momentum=0.0).requires_grad_(False)
    split = split_batch_norm(frozen, 2)
    assert isinstance(split, SplitBatchNorm2d)
    assert (split.eps, split.momentum, split.weight.requires_grad) == (0.1, 0.0, False)
    assert split.weight is frozen.weight
    for options in ({"affine": False}, {"track_running_stats": False}):
        plain = nn.BatchNorm2d(3, **options)
        images = torch.rand(4, 3, 5, 5)
        expected = torch.cat([plain(part) for part in images.chunk(2)])
        torch.testing.assert_close(split_batch_norm(nn.BatchNorm2d(3, **options), 2)(images), expected)
    with pytest.raises(ValueError, match="give it a momentum"):
        split_batch_norm(nn.BatchNorm2d(3, momentum=None), 2)


def test_a_momentum_copy_in_half_precision_is_refused() -> None:
    network = encoder().to(torch.bfloat16)
    with pytest.raises(TypeError, match=r"does not move.*bf16-mixed instead of bf16-true"):
        ema_update(momentum_copy(network), network, 0.999)


def test_split_batch_norm_refuses_a_batch_that_does_not_split() -> None:
    with pytest.raises(ValueError, match="a batch of 4 does not split into 3 batch-norm groups"):
        SplitBatchNorm2d(2, 3)(torch.rand(4, 2, 3, 3))


def test_mlp_layers() -> None:
    kinds = [type(layer) for layer in MLP((4, 6, 5, 3), last_norm="plain")]
    hidden = [nn.Linear, nn.BatchNorm1d, nn.ReLU]
    assert kinds == [*hidden, *hidden, nn.Linear, nn.BatchNorm1d]
    assert [type(layer) for layer in MLP((4, 3))] == [nn.Linear]
    assert MLP((4, 3))[0].bias is not None
    assert [MLP((4, 3), last_norm=kind)[-1].affine for kind in ("plain", "affine")] == [False, True]
    assert [MLP((4, 6, 3), norm=norm)[0].bias is None for norm in (True, False)] == [True, False]
    with pytest.raises(ValueError, match="at least an input and an output width"):
        MLP((4,))
    with pytest.raises(ValueError, match="last_norm must be None"):
        MLP((4, 3), last_norm="layer")
