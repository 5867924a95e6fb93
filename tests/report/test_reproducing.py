"""The command of a run makes the same run."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from mixview.cli import main
from mixview.report.reproducing import command
from mixview.train.optimisers import Optimizer
from mixview.train.pretraining import Pretraining
from mixview.train.run_folder import plain
from mixview.train.settings import Head, Mixing
from mixview.train.watching import Watch


@pytest.mark.parametrize(
    "options",
    [
        {"data": "scenes", "data_options": {"count": 64, "size": 16}},
        {"data": "my photos/it's", "method": "mocov2", "objective": "bsim", "mixing": Mixing("mixup", 0.25, False)},
        {"data": "x", "epochs": 7, "head": Head(0.2, symmetric=False), "optimizer": Optimizer("lars", lr=0.3)},
        {"data": "x", "seed": 3, "channels_last": False, "watch": Watch(look_every=0, tensorboard=False), "batch": 96},
    ],
)
def test_the_command_means_the_same_settings(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = Pretraining(**options, out="runs/again")
    given: list[Pretraining] = []
    monkeypatch.setattr(Pretraining, "run", lambda self: given.append(self) or Path())
    words = shlex.split(command(plain(wanted.config(), "config")))
    assert words[:2] == ["mixview", "pretrain"]
    main(words[1:])
    assert plain(given[0].config(), "config") == plain(wanted.config(), "config")
