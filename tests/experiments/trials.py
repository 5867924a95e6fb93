"""A tiny study that the tests share, and results that were not run."""

import copy
from typing import Any

from mixview.experiments.results import RunResult
from mixview.experiments.study_run import StudyRun

TRIAL: dict[str, Any] = {
    "about": {"what": "A trial.", "cost": "seconds"},
    "settings": {
        "backbone": "small",
        "size": 16,
        "batch_size": 16,
        "epochs": 4,
        "workers": 0,
        "devices": 1,
        "accelerator": "cpu",
        "monitor": {"estimate": False, "loggers": "none", "eval_every": 2, "images": 40, "checkpoint_every": 4},
    },
    "data": {
        "scenes": {
            "data": "scenes",
            "data_options": {"count": 64, "size": 16},
            "evaluate": {"data_options": {"count": 64, "size": 16}, "test": "val"},
        }
    },
    "methods": {"MoCo v2": {"method": {"name": "mocov2", "queue_size": 64}}},
    "objectives": {"SIM": {"objective": "sim"}, "WBSIM": {"objective": "wbsim"}, "random": {"encoder": "random"}},
    "evaluate": {"k-NN": {"protocol": "knn", "k": 5, "metric": "top-1"}},
    "seeds": [0, 1],
    "grids": [{"objectives": ["SIM", "WBSIM"]}, {"methods": [""], "objectives": ["random"]}],
    "baseline": "SIM",
    "match_compute": True,
}


def trial(settings: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """The text of the study, changed."""
    text = copy.deepcopy(TRIAL) | changes
    text["settings"] |= settings or {}
    return text


def invented(run: StudyRun, value: float) -> RunResult:
    """A result as a run would have written it."""
    trained = run.encoder is None
    steps = 4 * run.epochs
    return RunResult(
        data=run.data,
        method=run.method,
        variant=run.variant,
        objective=run.objective,
        seed=run.seed,
        metrics=dict.fromkeys(run.evaluate, value),
        evaluate=run.evaluate,
        eval_data=run.eval_data,
        steps=steps,
        images_seen=16 * steps,
        passes=(run.passes.with_gradient, run.passes.without),
        cpu_seconds=3.0 * steps,
        evaluation_seconds=1.0,
        curve=[(4, value - 2), (8, value)] if trained else [],
        descriptions=dict.fromkeys(run.evaluate, "described, weight decay 0.1 chosen."),
        settings=run.resolved,
        collapse_metrics={"effective_rank": 12.4} if trained else {},
    )
