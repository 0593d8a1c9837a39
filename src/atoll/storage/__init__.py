"""Files of a run: directory, checkpoints, audit log, and readers of finished and unfinished runs."""
