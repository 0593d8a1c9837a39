"""Print tables and progress bars, for all commands."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import click
from rich.console import Console, ConsoleDimensions
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

from ..core.problems import criterion_named
from ..engine.experiment import Watch
from ..errors import AtollError
from ..storage.metrics import RoundMetrics
from ..utils.progress import Observer, is_quiet, observed, quiet, silent

F = TypeVar("F", bound=Callable[..., object])

FIRST_LINE, NEXT_LINE = 10.0, 30.0  # Seconds to the first plain line of a run without a terminal, and between two.
ROOM = 3  # columns at the right of bars: ^C, which a terminal echoes there, would wrap and shift the bars by a line
NARROW = 76  # columns; in fewer, a bar has the personal score alone
ESTIMATE_PERIOD = 600.0  # Seconds of progress behind the estimate of the time left: rounds may take minutes.


def console(stderr: bool = False) -> Console:
    """Return a console, at least 100 columns wide if the output is not a terminal."""
    made = Console(stderr=stderr)
    return made if made.is_terminal else Console(stderr=stderr, width=max(100, made.width))


class _BarConsole(Console):
    """A console that leaves room at the right edge."""

    @property  # type: ignore[misc]  # The setter is not needed: the size is that of the terminal.
    def size(self) -> ConsoleDimensions:
        width, height = super().size
        return ConsoleDimensions(max(1, width - ROOM), height)


class _Time(ProgressColumn):
    """Show the time left, of a run that has ended the time that it took, or that a run has not begun."""

    def render(self, task: Task) -> Text:
        if task.finished:
            return Text(f"took {_clock(task.finished_time)}", style="progress.elapsed")
        if not task.fields.get("began", True):
            return Text("waiting", style="dim")
        return Text(f"{_clock(task.time_remaining)} left", style="progress.remaining")


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return "--:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


@contextmanager
def progress(quiet: bool) -> Iterator[Progress]:
    """Show progress bars on standard error, so that standard output stays machine-readable.

    Without a terminal there are no bars; :func:`follow` then prints plain lines.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[score]}"),
        _Time(),
    )
    out = _BarConsole(stderr=True)
    with Progress(
        *columns, console=out, disable=quiet or not out.is_terminal, speed_estimate_period=ESTIMATE_PERIOD
    ) as bars:
        try:
            with observed(_steps(bars)):
                yield bars
        except (AtollError, OSError):
            for task in bars.task_ids:
                bars.remove_task(task)  # The error message that follows should stand alone.
            raise


def _steps(bars: Progress) -> Observer:
    """Return an observer that shows the steps within a round in one more bar, below the others."""
    tasks: dict[str, TaskID] = {}

    def observer(what: str, done: int, total: int) -> None:
        if bars.disable or total < 2:
            return
        if not tasks:
            tasks[""] = bars.add_task(what, total=total, score="")
        bars.update(tasks[""], description=what, completed=done, total=total)

    return observer


@contextmanager
def working(text: str) -> Iterator[None]:
    """Show a spinner during work without countable steps; none with --quiet or without a terminal."""
    out = console(stderr=True)
    if is_quiet() or not out.is_terminal:
        yield
        return
    with out.status(text):
        yield


def quiet_option(command: F) -> F:
    """Add ``--quiet``, which also turns off the bars of downloads."""

    def set_quiet(ctx: click.Context, param: click.Parameter, value: bool) -> bool:
        if value:
            ctx.with_resource(quiet())
        return value

    return click.option(
        "--quiet", is_flag=True, is_eager=True, callback=set_quiet, help="Show no progress bar and no table."
    )(command)


def follow(bars: Progress, label: str, rounds: int) -> Watch:
    """Add a bar for one run: rounds done, latest score, time left. Without a terminal, print a line now and then."""
    if bars.disable:
        return silent if is_quiet() else _log_lines(label, rounds)
    task = bars.add_task(label, total=rounds, score="", began=False)
    began = False

    def watch(done: int, line: RoundMetrics | None) -> None:
        nonlocal began
        if not began:
            bars.reset(task, began=True, score="")
            began = True
        bars.update(task, completed=done)
        if line:
            bars.update(task, score=_score(line, bars.console.width < NARROW))

    return watch


def _log_lines(label: str, rounds: int, clock: Callable[[], float] = time.monotonic) -> Watch:
    """Return a watch that prints rounds, score and time left as plain lines, for log files of long runs."""
    began = due = 0.0  # The clock starts with the first round, because several runs may wait for one another.
    first = 0
    latest = ""

    def watch(done: int, line: RoundMetrics | None) -> None:
        nonlocal began, due, first, latest
        now = clock()
        latest = _score(line) if line else latest
        if not began:
            began, due, first = now, now + FIRST_LINE, done
        elif now >= due:
            due = now + NEXT_LINE
            left = (rounds - done) * (now - began) / max(1, done - first)
            scores = f", {latest}" if latest else ""
            click.echo(f"{label}: round {done} of {rounds}{scores}, about {_duration(left)} left", err=True)

    return watch


def _duration(seconds: float) -> str:
    """Write a time in the largest unit that gives at least 2."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def counted(bars: Progress, label: str) -> Callable[[int, int], None]:
    """Add a bar for items; return a function that takes the number of items done and the total."""
    task = bars.add_task(label, total=None, score="")

    def watch(done: int, total: int) -> None:
        bars.update(task, completed=done, total=total)

    return watch


def _score(line: RoundMetrics, short: bool = False) -> str:
    post, generic = line["personal"]["post"], line["generic"]
    score = next(iter(post))  # the criterion is the first entry

    def shown(value: float | None) -> str:
        return "withheld" if value is None else criterion_named(score).named(value)  # null in files, if no site tells

    personal = shown(post[score]) if short else f"personal {shown(post[score])}"
    if short or not generic:
        return personal
    return f"{personal}, generic {'~' if generic['source'] == 'average' else ''}{shown(generic['global'][score])}"
