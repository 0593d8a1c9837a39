"""Clocks for benchmarks."""

from collections.abc import Callable, Mapping
from statistics import median
from time import process_time

Work = Callable[[], object]


def seconds(work: Work) -> float:
    """Processor time of this process."""
    start = process_time()
    work()
    return process_time() - start


def interleaved(works: Mapping[str, Work], repeats: int) -> dict[str, float]:
    """The median seconds of each, taken in turn; a first turn warms up and does not count."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(repeats + 1):
        for name, work in works.items():
            took = seconds(work)
            if turn:
                times[name].append(took)
    return {name: median(taken) for name, taken in times.items()}
