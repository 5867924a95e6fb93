"""What every run needs: its directory, checkpoints, logging, launching and graceful stops."""
