"""What the environment says about this process."""

import os


def process_rank(*, slurm: bool = True) -> int:
    """This process's rank as its launcher says, before anything is launched from here; 0 without a launcher.

    Args:
        slurm: whether to ask SLURM, whose variables are also there in a batch script, where nothing has been launched.
    """
    names = ("RANK", "SLURM_PROCID", "LOCAL_RANK") if slurm else ("RANK", "LOCAL_RANK")
    return next((int(os.environ[name]) for name in names if os.environ.get(name)), 0)
