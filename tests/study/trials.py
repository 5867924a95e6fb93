"""A tiny study that the tests share, and results that were not run."""

import copy
from typing import Any

from mixview.study.grid import Cell
from mixview.study.results import CellResult

TRIAL: dict[str, Any] = {
    "about": {"what": "A trial.", "cost": "seconds"},
    "settings": {
        "backbone": "small",
        "size": 16,
        "batch": 16,
        "epochs": 4,
        "workers": 0,
        "devices": 1,
        "accelerator": "cpu",
        "watch": {"estimate": False, "tensorboard": False, "look_every": 2, "images": 40, "checkpoint_every": 4},
    },
    "data": {
        "scenes": {
            "data": "scenes",
            "data_options": {"count": 64, "size": 16},
            "evaluate": {"data_options": {"count": 64, "size": 16}, "test": "val"},
        }
    },
    "methods": {"MoCo v2": {"method": "mocov2", "head": {"queue_size": 64}}},
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


def invented(cell: Cell, value: float) -> CellResult:
    """A result as a cell would have written it."""
    trained = cell.encoder is None
    steps = 4 * cell.epochs
    return CellResult(
        name=cell.name,
        data=cell.data,
        method=cell.method,
        knob=cell.knob,
        objective=cell.objective,
        seed=cell.seed,
        metrics=dict.fromkeys(cell.evaluate, value),
        evaluate=cell.evaluate,
        steps=steps,
        images_seen=16 * steps,
        passes=(cell.passes.with_gradient, cell.passes.without),
        cpu_seconds=3.0 * steps,
        judging_seconds=1.0,
        curve=[(4, value - 2), (8, value)] if trained else [],
        protocols=dict.fromkeys(cell.evaluate, "in words, weight decay 0.1 chosen."),
        settings=cell.resolved(),
        signs={"effective_rank": 12.4} if trained else {},
    )
