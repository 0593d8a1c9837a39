"""What commands share in showing things to people."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..errors import AtollError
from ..experiment import Watch
from ..ledger import Line

MEMORY = 600.0  # seconds of progress that the time left is estimated from: rounds may take minutes


def console(stderr: bool = False) -> Console:
    """Wide enough for our tables where the output is not a terminal."""
    made = Console(stderr=stderr)
    return made if made.is_terminal else Console(stderr=stderr, width=max(100, made.width))


@contextmanager
def progress(quiet: bool) -> Iterator[Progress]:
    """Bars that go to standard error, so that standard output stays readable by machines."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[score]}"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console(stderr=True), disable=quiet, speed_estimate_period=MEMORY) as bars:
        try:
            yield bars
        except (AtollError, OSError):
            for task in bars.task_ids:
                bars.remove_task(task)  # the message that follows should stand alone
            raise


def follow(bars: Progress, label: str, rounds: int) -> Watch:
    """A bar for one run: rounds done, accuracy so far, time left."""
    task = bars.add_task(label, total=rounds, score="")

    def watch(done: int, line: Line | None) -> None:
        bars.update(task, completed=done)
        if line:
            bars.update(task, score=_score(line))

    return watch


def _score(line: dict[str, Any]) -> str:
    personal = f"personal {line['personal']['post']['accuracy']:.2%}"
    generic = line["generic"]
    return f"{personal}  generic {generic['global']['accuracy']:.2%}" if generic else personal
