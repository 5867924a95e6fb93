"""The command of a run makes the same run."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from mixview.cli import main
from mixview.methods import SimCLRConfig
from mixview.report.reproducing import command
from mixview.runs.run_directory import to_serializable
from mixview.train.config import MixingConfig, MonitorConfig, OptimizerConfig, PretrainConfig, to_plain


@pytest.mark.parametrize(
    "options",
    [
        {"data": "scenes", "data_options": {"count": 64, "size": 16}},
        {
            "data": "my photos/it's",
            "method": "mocov2",
            "objective": "bsim",
            "mixing": MixingConfig("mixup", 0.25, "batch"),
        },
        {
            "data": "x",
            "epochs": 7,
            "method": SimCLRConfig(temperature=0.2, symmetric=False),
            "optimizer": OptimizerConfig("lars", lr=0.3),
        },
        {
            "data": "x",
            "seed": 3,
            "channels_last": False,
            "monitor": MonitorConfig(eval_every=0, loggers="none"),
            "batch_size": 96,
        },
    ],
)
def test_the_command_means_the_same_settings(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = PretrainConfig(**options, out="runs/again")
    given: list[PretrainConfig] = []
    monkeypatch.setattr("mixview.train.pretraining.pretrain", lambda config: given.append(config) or Path())
    words = shlex.split(command(to_serializable(to_plain(wanted), "config")))
    assert words[:2] == ["mixview", "pretrain"]
    main(words[1:])
    assert to_serializable(to_plain(given[0]), "config") == to_serializable(to_plain(wanted), "config")
