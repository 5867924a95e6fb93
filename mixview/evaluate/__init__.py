"""Evaluation of encoders on labeled images, by any number of protocols (`mixview.evaluate.base`).

from mixview.evaluate import evaluate, evaluate_all, show

result = evaluate("runs/first", "knn", data="imagenette/", k=10)
result.metrics["top-1"]
evaluate_all("runs/first", data="imagenette/", fast=True)
show(["runs/first"])
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mixview.lazy import attach

if TYPE_CHECKING:
    from mixview.evaluate.base import EvalContext as EvalContext
    from mixview.evaluate.base import LabeledFeatures as LabeledFeatures
    from mixview.evaluate.base import Protocol as Protocol
    from mixview.evaluate.results import Result as Result


def evaluate(encoder: str, protocol: str, **options: Any) -> "Result":
    """Evaluate an encoder, write the result into its run's folder and show it.

    Args:
        encoder: a run's folder, a file of weights, a model by name, random, or pixels.
        protocol: knn, svm, low-shot, linear, probe, semi-supervised, supervised, detection, or an import path.
        options: fields of the protocol's class, such as `data`; groups of options may be dictionaries.

    Returns:
        The result; of several `trials`, their mean.

    Example:
        >>> options = {"data": "scenes", "data_options": {"count": 50, "size": 16}, "workers": 0}
        >>> result = evaluate("pixels", "knn", k=10, **options)  # doctest: +ELLIPSIS
        encoder ...
        >>> list(result.metrics)
        ['top-1', 'top-5']
    """
    from mixview.evaluate.base import build

    return build(protocol, {"encoder": encoder, **options}).run()


def evaluate_all(encoder: str, **options: Any) -> "list[Result]":
    """Evaluate an encoder by every protocol that the labels allow, and say which were left out and why.

    Args:
        encoder: a run's folder, a file of weights, a model by name, random, or pixels.
        options: fields of `mixview.evaluate.all.EvaluateAll`, such as `data`.

    Example:
        >>> options = {"data": "scenes", "data_options": {"count": 50, "size": 16}, "workers": 0}
        >>> options |= {"fast": True, "skip": ["svm", "low-shot", "segmentation"]}
        >>> results = evaluate_all("runs/first", **options)  # doctest: +ELLIPSIS
        encoder ...
        >>> [result.protocol for result in results]
        ['knn', 'linear']
    """
    from mixview.evaluate.all import EvaluateAll

    return EvaluateAll(encoder=encoder, **options).run()


def show(folders: Sequence[str]) -> None:
    """Show the results in folders: mean ± std over runs that differ only in the seed.

    Args:
        folders: Folders of runs, or those given as --out.

    Example:
        >>> options = {"data": "scenes", "data_options": {"count": 50, "size": 16}, "workers": 0}
        >>> result = evaluate("pixels", "knn", out="results", **options)  # doctest: +ELLIPSIS
        encoder ...
        >>> show(["results"])  # doctest: +ELLIPSIS
        encoder ...
    """
    from mixview.evaluate.results import show_runs

    show_runs(folders)


PUBLIC = {
    **dict.fromkeys(("EvalContext", "LabeledFeatures", "Protocol"), "mixview.evaluate.base"),
    "Result": "mixview.evaluate.results",
}
"""The public names that are imported when they are first used, and the modules that define them."""

__all__ = [*PUBLIC, "evaluate", "evaluate_all", "show"]
__getattr__, __dir__ = attach(__name__, PUBLIC)
