"""Training: the loop, optimisers and schedules, checkpoints, and what watches a run."""
