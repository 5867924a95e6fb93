"""Comparison of the starting weights, evaluated as epoch 0, with the trained encoder.

compare(read_metrics("runs/first"))          # "k-NN 61.2 % → 68.9 %"
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

PATIENCE = 3
"""Evaluations in a row that may be worse than that of the starting weights: of a run that stops if it gets worse."""

Records = Sequence[Mapping[str, Any]]
"""Lines of a run's metrics."""


def evaluations(records: Records) -> list[Mapping[str, Any]]:
    """The online evaluations among the metrics; nothing if that of the starting weights is not the first."""
    evaluated = [record for record in records if "loss" not in record and ("knn" in record or "std" in record)]
    return evaluated if evaluated and evaluated[0]["step"] == 0 else []


def accuracies(records: Records) -> list[tuple[int, float]]:
    """Step and k-NN accuracy of the evaluations that have one; nothing if the starting weights have none."""
    pairs = [(int(record["step"]), record["knn"]) for record in evaluations(records) if is_number(record.get("knn"))]
    return pairs if pairs and pairs[0][0] == 0 else []


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def best_step(records: Records) -> int | None:
    """The step of the best encoder, the earliest of several: 0 for the starting weights."""
    pairs = accuracies(records)
    return max(pairs, key=lambda pair: pair[1])[0] if pairs else None


def is_worse(records: Records) -> bool:
    """Return True if the last evaluation is worse than that of the starting weights."""
    pairs = accuracies(records)
    return bool(pairs) and pairs[-1][1] < pairs[0][1]


def should_stop_early(records: Records) -> bool:
    """Return True if the last `PATIENCE` evaluations are worse than that of the starting weights."""
    pairs = accuracies(records)
    return len(pairs) > PATIENCE and all(knn < pairs[0][1] for _, knn in pairs[-PATIENCE:])


def describe_start(records: Records) -> str | None:
    """The metrics of the starting weights in one sentence; None if they were not evaluated."""
    first = next(iter(evaluations(records)), None)
    if first is None or first is not evaluations(records)[-1]:
        return None
    shown = [text for name in ("knn", "effective_rank", "std") if (text := show(name, first.get(name)))]
    return f"Epoch 0, the starting weights: {', '.join(shown)}."


def compare(records: Records, kept: bool = False) -> str | None:
    """The starting weights and the last encoder in one line: `k-NN 61.2 % → 68.9 %`. None if either was not evaluated.

    Args:
        records: metrics of the run.
        kept: True if the run itself has kept the better of them.
    """
    pairs, evaluated = accuracies(records), evaluations(records)
    if len(pairs) > 1:
        text = f"k-NN {100 * pairs[0][1]:.1f} % → {100 * pairs[-1][1]:.1f} %"
        if not is_worse(records):
            return text
        best = best_step(records)
        if not kept:
            return f"{text}: the starting weights were better: keep them"
        what = "the starting weights were better" if not best else f"the encoder of step {best} was better"
        return f"{text}: {what}: encoder.safetensors has it, and encoder-last.safetensors the last one"
    if len(evaluated) < 2:
        return None
    first, last = evaluated[0], evaluated[-1]
    names = [name for name in ("effective_rank", "std") if is_number(first.get(name)) and is_number(last.get(name))]
    changes = ", ".join(f"{show(name, first[name])} → {last[name]:.3g}" for name in names)
    return f"{changes}; without labels there is no k-NN accuracy to say whether that is better" if names else None


def show(name: str, value: Any) -> str:
    """A metric in words; nothing if it is not a number."""
    if not is_number(value):
        return ""
    return f"k-NN {100 * value:.1f} %" if name == "knn" else f"{name.replace('_', ' ')} {value:.3g}"
