"""Evaluation of encoders on labeled images, by any number of protocols (`mixview.evaluate.base`).

from mixview.evaluate import evaluate, evaluate_all, show

result = evaluate("runs/first", "knn", data="imagenette/", k=10)
result.metrics["top-1"]
evaluate_all("runs/first", data="imagenette/", fast=True)
show(["runs/first"])
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mixview.evaluate.base import EvalContext, LabeledFeatures, Protocol
    from mixview.evaluate.results import Result

__all__ = ["EvalContext", "LabeledFeatures", "Protocol", "Result", "evaluate", "evaluate_all", "show"]


def evaluate(encoder: str, protocol: str, **options: Any) -> "Result":
    """Evaluate an encoder, write the result into its run's folder and show it.

    Args:
        encoder: a run's folder, a file of weights, a model by name, random, or pixels.
        protocol: knn, svm, low-shot, linear, probe, semi-supervised, supervised, detection, or an import path.
        options: fields of the protocol's class, such as `data`; groups of options may be dictionaries.

    Returns:
        The result; of several `trials`, their mean.
    """
    from mixview.evaluate.base import build

    return build(protocol, {"encoder": encoder, **options}).run()


def evaluate_all(encoder: str, **options: Any) -> "list[Result]":
    """Evaluate an encoder by every protocol that the labels allow, and say which were left out and why.

    Args:
        encoder: a run's folder, a file of weights, a model by name, random, or pixels.
        options: fields of `mixview.evaluate.all.EvaluateAll`, such as `data`.
    """
    from mixview.evaluate.all import EvaluateAll

    return EvaluateAll(encoder=encoder, **options).run()


def show(folders: Sequence[str]) -> None:
    """Show the results in folders: mean ± std over runs that differ only in the seed.

    Args:
        folders: folders of runs, or those given as --out.
    """
    from mixview.evaluate.results import show_runs

    show_runs(folders)


def __getattr__(name: str) -> Any:
    # Importing torch takes seconds: it waits until something needs it.
    if name in ("EvalContext", "LabeledFeatures", "Protocol"):
        from mixview.evaluate import base

        return getattr(base, name)
    if name == "Result":
        from mixview.evaluate.results import Result

        return Result
    raise AttributeError(f"module 'mixview.evaluate' has no attribute {name!r}")
