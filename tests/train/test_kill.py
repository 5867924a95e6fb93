"""Killed with SIGKILL at random moments, over and over, and resumed: the weights are the uninterrupted run's."""

import random
import time
from pathlib import Path

import pytest

from tests.train.running import assert_same_runs, command, last_state, lines, start_ranks

KILLS = 20
EPOCHS = 40


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
def test_killed_twenty_times(world: int, tmp_path: Path) -> None:
    """A checkpoint every 3 steps, so that many a kill hits one that is being written."""
    rng = random.Random(world)
    options = ("--method", "mocov2", "--epochs", str(EPOCHS), "--accelerator", "cpu", "--devices", str(world))
    options += ("--monitor.checkpoint_every", "3", "--monitor.loggers", "tensorboard")
    whole, out, log = tmp_path / "whole", tmp_path / "run", tmp_path / "log"
    began = time.monotonic()
    for rank in start_ranks(command(whole, *options), log, world):
        rank.join(600)
        assert rank.exitcode == 0, (tmp_path / "log.0").read_text()
    seconds = time.monotonic() - began

    kills, restarts, steps = 0, 0, []
    while kills < KILLS:
        ranks = start_ranks(command(out, *options), log, world, restart=restarts)
        restarts += 1
        if rng.random() < 0.25:
            time.sleep(rng.uniform(0.0, 1.5))  # while it starts, perhaps before the folder is there
        else:
            # Some steps on from the last checkpoint, few enough that the run lasts for all kills.
            target = (steps[-1] if steps else 0) + rng.uniform(1, 1.4 * EPOCHS * 4 / KILLS)
            end = time.monotonic() + 60
            while lines(out / "metrics.jsonl") < target and ranks[0].is_alive() and time.monotonic() < end:
                time.sleep(0.002)
            time.sleep(rng.uniform(0.0, 0.03))
        victims = [rng.choice(ranks)] if rng.random() < 0.5 else ranks
        alive = [rank for rank in victims if rank.is_alive()]
        for rank in alive:
            rank.kill()
        for rank in ranks:
            rank.join(5)  # it ends by itself, or waits for one that never came: then torchrun's agent ends it
            rank.kill()
            rank.join()
        if not alive:
            assert ranks[0].exitcode == 0, (tmp_path / "log.0").read_text()
            break  # it came to its end before all kills
        kills += 1
        steps.append(last_state(out)[1] if list((out / "checkpoints").glob("*.pt")) else 0)
    assert len(set(steps)) > 5, steps  # most kills hit training
    print(f"{world} process(es): {kills} kills, last checkpoints at steps {steps}, whole run {seconds:.0f} s")
    assert kills == KILLS, steps
    for rank in start_ranks(command(out, *options), log, world, restart=restarts):
        rank.join(600)
        assert rank.exitcode == 0, (tmp_path / "log.0").read_text()
    assert_same_runs(whole, out)
