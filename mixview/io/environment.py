"""Facts about this process from the environment."""

import os


def process_rank(*, slurm: bool = True) -> int:
    """This process's rank as its launcher says, before anything is launched from here; 0 without a launcher.

    Args:
        slurm: also ask SLURM, whose variables exist in a batch script too, where nothing has been launched.
    """
    names = ("RANK", "SLURM_PROCID", "LOCAL_RANK") if slurm else ("RANK", "LOCAL_RANK")
    return next((int(os.environ[name]) for name in names if os.environ.get(name)), 0)
