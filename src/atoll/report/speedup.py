"""Compare the time to a target score with and without waiting, as rounds times seconds per round."""

from typing import NamedTuple

from rich.table import Table

from ..errors import AtollError
from ..storage.run_reader import Document, Run, value

CLOCKS = ("waiting", "wait_free")
MEASURES = ("weighted", "accuracy")


class Arrival(NamedTuple):
    """The first round in which personal models reached a target, and its simulated time in seconds."""

    label: str
    clock: str
    rounds: int
    seconds: float

    @property
    def round_time(self) -> float:
        return self.seconds / self.rounds


class Speedup(NamedTuple):
    waiting: Arrival
    wait_free: Arrival

    @property
    def rounds(self) -> float:
        """Return the speed-up from fewer rounds to the target."""
        return self.waiting.rounds / self.wait_free.rounds

    @property
    def round_time(self) -> float:
        """Return the speed-up from shorter rounds; overlap alone gives less than 2."""
        return self.waiting.round_time / self.wait_free.round_time

    @property
    def total(self) -> float:
        return self.rounds * self.round_time


def arrival(run: Run, clock: str, target: float, measure: str = "weighted") -> Arrival:
    """Return the first evaluated round whose personal score is at least as good as ``target``."""
    measure, score = _entry(run, measure), run.criterion
    for line in run.metrics:
        if reaches(run, line, measure, target):
            seconds = value(line, f"clock.{clock}.personal")
            if seconds is None:
                raise AtollError(f"The run in {run.path} has no simulated time. Run it again with this version.")
            return Arrival(run.label, clock, int(line["round"]), seconds)
    known = [v for line in run.metrics if (v := value(line, f"personal.post.{measure}")) is not None]
    top = score.format(score.best(known, lambda v: v)) if known else "unknown"
    easier = "lower" if score.higher else "higher"
    raise AtollError(
        f"The run in {run.path} never reached {score.format(target)}; its best is {top}. Give a {easier} --target."
    )


def reaches(run: Run, line: Document, measure: str, target: float) -> bool:
    """Return True if a line of metrics has a personal score that is at least as good as the target."""
    found = value(line, f"personal.post.{measure}")
    return found is not None and run.criterion.reaches(found, target)


def _entry(run: Run, measure: str) -> str:
    """Return the name of the entry in metrics: ``accuracy`` asks for the mean over clients of any score."""
    return run.criterion.name if measure == "accuracy" else measure


def speedup(waiting: Run, wait_free: Run, target: float, measure: str = "weighted") -> Speedup:
    return Speedup(arrival(waiting, "waiting", target, measure), arrival(wait_free, "wait_free", target, measure))


def as_dict(found: Speedup) -> dict[str, object]:
    factors = {"rounds": found.rounds, "round_time": found.round_time, "total": found.total}
    return {name: getattr(found, name)._asdict() for name in CLOCKS} | {"speedup": factors}


def as_table(found: Speedup) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for head in ("run", "clock", "rounds to target", "seconds per round", "seconds to target"):
        table.add_column(head, justify="left" if head in ("run", "clock") else "right")
    for a in found:
        table.add_row(a.label, a.clock.replace("_", "-"), str(a.rounds), f"{a.round_time:.4g}", f"{a.seconds:.4g}")
    table.add_row("speed-up", "", f"{found.rounds:.3f}", f"{found.round_time:.3f}", f"{found.total:.3f}")
    return table
