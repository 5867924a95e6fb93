"""The memory that a step holds for its backward: saved activations, counted by hooks, the same on every device."""

import weakref
from typing import Any, Self

import torch
from torch import Tensor, nn

from mixview.methods import Method, Views, backward
from mixview.mixing import mixture_generators
from mixview.objective import Objective


class SavedBytes:
    """Counts the bytes of distinct storages that autograd holds for the backward, parameters left out."""

    def __init__(self, method: nn.Module) -> None:
        self.holders: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        self.ignored = {key_of(tensor) for tensor in (*method.parameters(), *method.buffers())}
        self.peak = 0

    def __enter__(self) -> Self:
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, lambda held: held.tensor)
        self.hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.hooks.__exit__(*error)

    def pack(self, tensor: Tensor) -> Any:
        key = key_of(tensor)
        held = Held(tensor)
        if key not in self.ignored:
            self.holders[key] = self.holders.get(key, 0) + 1
            self.sizes[key] = tensor.untyped_storage().nbytes()
            self.peak = max(self.peak, sum(self.sizes.values()))
            weakref.finalize(held, self.release, key)
        return held

    def release(self, key: int) -> None:
        self.holders[key] -= 1
        if not self.holders[key]:
            del self.holders[key], self.sizes[key]


def key_of(tensor: Tensor) -> int:
    """The identity of its storage, on the meta device too, where no storage has an address."""
    return int(tensor.untyped_storage()._cdata)


class Held:
    """The stand-in for a saved tensor that autograd holds; it is dropped when the graph is."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def peak_activations(method: Method, objective: Objective, views: Views, *, joint: bool = False) -> int:
    """The most bytes that a step on these views holds; `joint` sums all terms before it goes backward."""
    terms = objective.draw(views[0], mixture_generators(0, 0))
    with SavedBytes(method) as saved:
        if joint:
            loss, _ = method(views, terms)
            loss.backward()
        else:
            backward(method, views, terms)
    method.zero_grad()
    return saved.peak
