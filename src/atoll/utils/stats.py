"""Mean and spread over seeds."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Stat(NamedTuple):
    """A mean over seeds. ``std`` is the sample standard deviation (n - 1), None for one seed."""

    mean: float
    std: float | None


def spread(values: Sequence[float]) -> Stat:
    """Return mean and standard deviation of one or more values."""
    return Stat(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)
