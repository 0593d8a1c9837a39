"""Decide after which rounds a checkpoint is written."""

import time
from collections.abc import Callable

ROUNDS = 5  # between checkpoints
SHORTEST, LONGEST = 1.0, 60.0  # seconds between checkpoints, whatever the number of rounds


class CheckpointSchedule:
    """The rounds after which a checkpoint is due.

    Without a number of rounds, it is due after five rounds, but not within a second of the last one: rounds of a few
    milliseconds are done again sooner than saved. After a minute it is due after the next round.

    Args:
        every: rounds between checkpoints; None for the schedule by rounds and time.
        clock: returns seconds.
    """

    def __init__(self, every: int | None = None, clock: Callable[[], float] = time.monotonic):
        self._every = every
        self._clock = clock
        self._saved = (0, clock())

    def is_due(self, done: int) -> bool:
        """Return True if a checkpoint is due, now that ``done`` rounds are done."""
        if self._every is not None:
            return done % self._every == 0
        rounds, seconds = done - self._saved[0], self._clock() - self._saved[1]
        return seconds >= LONGEST or (rounds >= ROUNDS and seconds >= SHORTEST)

    def restart(self, done: int) -> None:
        """Count from now on: a checkpoint after ``done`` rounds was written or loaded."""
        self._saved = (done, self._clock())
