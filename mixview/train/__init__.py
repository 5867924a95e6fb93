"""Training: the loop, optimisers and schedules, checkpoints, the folder that a run leaves behind."""
