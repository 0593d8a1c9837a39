"""Make figures from the files of runs: scores, bytes, operations, simulated time, holdings."""

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from ...core.criterion import Criterion
from ...errors import AtollError, unknown
from ...storage.run_reader import Document, Run, value
from .. import plots
from ..groups import criterion_of
from ..plots.axes import Array
from ..plots.lines import Axis, Line, LineChart, Panel, Up
from ..sheets import Sheet
from ..speedup import CLOCKS, reaches
from ..table import NONE
from .base import FigureSpec, RunsByCase, cases, line_figure, panel

WHOSE = ("both", "personal", "generic", "global")
DASHES = {"personal": "solid", "generic": "dashed", "average": "dashdot"}
KINDS = {"solid": "personal models", "dashed": "generic model", "dashdot": "~ average of personal models"}


class Trace(NamedTuple):
    """One quantity over the rounds that every seed reached."""

    rounds: Array  # [rounds]
    values: Array  # [seeds, rounds]


def over_rounds(runs: Sequence[Run], of: Callable[[Run], Sequence[float | None]]) -> Trace:
    """Collect a quantity of all seeds, without rounds that some seed lacks.

    Args:
        runs: the seeds.
        of: returns a value for each evaluated round of a run.
    """
    tables = [{int(m["round"]): v for m, v in zip(run.metrics, of(run), strict=True) if v is not None} for run in runs]
    shared = sorted(set.intersection(*(set(table) for table in tables)))
    values = np.array([[table[t] for t in shared] for table in tables], dtype=float)
    return Trace(np.array(shared, dtype=float), values.reshape(len(tables), len(shared)))


def trace(runs: Sequence[Run], dotted: str) -> Trace:
    """Collect an entry of metrics.jsonl, given by its dotted path, over rounds."""
    return over_rounds(runs, lambda run: [value(m, dotted) for m in run.metrics])


# -- scores ------------------------------------------------------------------------------------------------------------


def curves(shown: RunsByCase, whose: str = "both") -> list[FigureSpec]:
    """Make a figure of the score by round.

    Args:
        shown: the runs.
        whose: ``personal`` models, the ``generic`` model, ``both``, or ``global`` for either on all test rows.
    """
    if whose not in WHOSE:
        raise unknown("setting whose of curves", whose, WHOSE)
    panels = [
        Panel(
            panel(shown, case),
            [line for (c, name), runs in shown.items() if c == case for line in _curve(name, runs, whose)],
        )
        for case in cases(shown)
    ]
    score, dashes = criterion(shown), {line.dash for p in panels for line in p.lines}
    kinds = {dash: words for dash, words in KINDS.items() if dash in dashes} if dashes - {"solid"} else {}
    chart = LineChart(panels, Axis("round", whole=True), up_axis("test {}", score), kinds)
    caption = f"{score.heading} by round; bands reach from the lowest seed to the highest."
    return [line_figure("curves", caption, chart)]


def criterion(shown: RunsByCase) -> Criterion:
    """Return the score that ranks the runs of a figure."""
    return criterion_of(run for runs in shown.values() for run in runs)


def up_axis(words: str, score: Criterion) -> Up:
    """Return the vertical axis of a score; ``words`` has a place for its name."""
    return Up(words.format(score.title) + score.unit, score.percent)


def _curve(name: str, runs: Sequence[Run], whose: str) -> list[Line]:
    score = runs[0].criterion.name
    found = {"personal": trace(runs, f"personal.post.{score}"), "generic": trace(runs, f"generic.global.{score}")}
    if whose == "global":
        own = found["generic"] if len(found["generic"].rounds) else trace(runs, "personal.post.global")
        return [Line(name, own.rounds.tolist(), own.values)]
    if any(run.averaged for run in runs):
        found["average"] = found.pop("generic")
    wanted = {kind: t for kind, t in found.items() if whose == "both" or (kind == "personal") == (whose == "personal")}
    return [Line(name, t.rounds.tolist(), t.values, DASHES[kind]) for kind, t in wanted.items() if len(t.rounds)]


def boxes(shown: RunsByCase) -> list[FigureSpec]:
    """Make a box plot of the scores of single clients, all seeds together, in the round of the table."""
    found = [_box(panel(shown, case), name, runs) for (case, name), runs in shown.items()]
    score, chosen = criterion(shown), scored_round([run for runs in shown.values() for run in runs])
    draw = partial(plots.boxes, found, up_axis(f"test {{}} of a client {chosen}", score))
    caption = f"{score.heading} by client {chosen}: quartiles, whiskers to 1.5 box lengths, a diamond at the mean."
    return [FigureSpec("boxes", caption, draw)]


def _box(title: str, name: str, runs: Sequence[Run]) -> plots.Box:
    scores = [
        (score, f"client {client}" + (f" of seed {run.config['seed']}" if len(runs) > 1 else ""))
        for run in runs
        for client, score in run.client_scores().items()
    ]
    lowest = min(scores, default=(0.0, ""))[1]
    return plots.Box(title, name, np.array([score for score, _ in scores], float), lowest)


def scored_round(runs: Sequence[Run]) -> str:
    """Return which round the scores of clients are of, in words."""
    by_validation = [value(run.summary, "personal.best_by_val_round") == run.scored_round for run in runs]
    if all(by_validation):
        return "in the round chosen by validation"
    return "in the round chosen by validation, or the last one" if any(by_validation) else "in the last round"


# -- costs -------------------------------------------------------------------------------------------------------------


def traffic(shown: RunsByCase) -> list[FigureSpec]:
    """Make a figure of the personal score so far against the bytes sent so far."""
    panels = [
        Panel(panel(shown, case), [_spent(name, runs) for (c, name), runs in shown.items() if c == case])
        for case in cases(shown)
    ]
    kinds = {"dotted": "sends nothing"} if any(line.dash == "dotted" for p in panels for line in p.lines) else {}
    across = Axis("bytes sent so far, up and down, all clients", log=True, in_bytes=True)
    score = criterion(shown)
    caption = f"{score.heading} against bytes: after each round, all that was sent so far."
    return [line_figure("bytes", caption, LineChart(panels, across, up_axis("personal {} so far", score), kinds))]


def _spent(name: str, runs: Sequence[Run]) -> Line:
    scores = over_rounds(runs, so_far)
    if not any(_sent(m) for run in runs for m in run.metrics):  # a logarithmic axis has no zero
        return Line(name, [], scores.values, "dotted")
    spent = over_rounds(runs, lambda run: [_sent(m) for m in run.metrics])
    at = dict(zip(spent.rounds, spent.values.mean(0), strict=True))
    return Line(name, [float(at[t]) for t in scores.rounds], scores.values.mean(0, keepdims=True))


def _sent(document: Document) -> float:
    return (value(document, "bytes.up") or 0.0) + (value(document, "bytes.down") or 0.0)


def so_far(run: Run) -> list[float | None]:
    """Return, for each round, the test score of the best round so far by validation.

    Before the first validation score, it is the test score of the round itself.
    """
    score, best, reached, result = run.criterion, math.inf, None, []
    for m in run.metrics:
        val, test = value(m, "personal.post.val"), value(m, f"personal.post.{score.name}")
        if val is not None and score.rank(val) < best:
            best, reached = score.rank(val), test
        elif best == math.inf:
            reached = test
        result.append(reached)
    return result


def trade_off(shown: RunsByCase) -> list[FigureSpec]:
    """Make a figure of scores, bytes and operations of whole runs, or until runs with a target reached it."""
    dots = [dot for (case, name), runs in shown.items() for dot in _dots(case, name, runs)]
    targeted = any(run.summary.get("target") for runs in shown.values() for run in runs)
    label = (
        f"bytes sent, up and down, all clients, {'until the target was reached' if targeted else 'in the whole run'}"
    )
    score = criterion(shown)
    heads = [
        "case",
        "method",
        f"{score.title}{score.unit}",
        "bytes",
        "client FLOPs",
        *(["target reached"] if targeted else []),
    ]
    rows = [_cells(dot, score, targeted) for dot in dots]
    numbers = Sheet(f"{score.heading}, bytes and operations", heads, rows)
    caption = f"{score.heading} against bytes; the area of a mark is in proportion to the clients' operations."
    return [
        FigureSpec("trade-off", caption, partial(plots.trade_off, dots, label, up_axis("personal {}", score)), numbers)
    ]


def _cells(dot: plots.Dot, score: Criterion, targeted: bool) -> list[str]:
    spent = [score.digits(score.scale * dot.score), f"{dot.sent:.4g}", f"{dot.operations:.4g}"]
    return [dot.panel, dot.name, *spent, *(["yes" if dot.reached else "no"] if targeted else [])]


def _dots(case: str, name: str, runs: Sequence[Run]) -> list[plots.Dot]:
    known = [v for run in runs if (v := value(run.summary, "personal.best_by_val")) is not None]
    if not known:
        return []
    ends = [_end(run) for run in runs]
    reached = all(of is not run.summary for of, run in zip(ends, runs, strict=True) if run.summary.get("target"))
    operations = [value(end, "flops.clients") or 0.0 for end in ends]
    return [plots.Dot(case, name, fmean(map(_sent, ends)), fmean(known), fmean(operations), reached)]


def _end(run: Run) -> Document:
    """Return the totals at which costs are read: when the target was reached, or at the end."""
    reached: Document | None = (run.summary.get("target") or {}).get("reached")
    return reached or run.summary


# -- time --------------------------------------------------------------------------------------------------------------


def arrivals(shown: RunsByCase, target: float | None = None, measure: str = "") -> list[FigureSpec]:
    """Make a figure of the personal score against simulated time, with and without waiting, and the target."""
    score = criterion(shown)
    measure = measure or score.name
    goal = target or next(
        (run.summary["target"][score.name] for runs in shown.values() for run in runs if run.summary.get("target")),
        None,
    )
    dashes = {"wait_free": "solid", "waiting": "dashed"}
    panels, rows = [], []
    for case in cases(shown):
        own = {name: runs for (c, name), runs in shown.items() if c == case}
        found = [
            _timed(name, runs, clock, dash, measure) for name, runs in own.items() for clock, dash in dashes.items()
        ]
        panels.append(Panel(panel(shown, case), [line for line in found if len(line.x)], goal))
        rows += [[case, name, *_times(runs, goal, measure)] for name, runs in own.items()]
    if not any(p.lines for p in panels):
        raise AtollError("These runs have no simulated time. Run them again with this version.")
    heads = ["case", "method", "rounds", "waiting, s", "wait-free, s", "speed-up"]
    numbers = None if goal is None else Sheet(f"Simulated seconds to {_goal(goal, score)}", heads, rows)
    kinds = {"solid": "wait-free", "dashed": "waiting"}
    chart = LineChart(panels, Axis("simulated seconds"), up_axis("personal {}", score), kinds)
    caption = f"{score.heading} against simulated time, with waiting and without."
    return [line_figure("arrivals", caption, chart, numbers)]


def _goal(goal: float, score: Criterion) -> str:
    return f"{goal:.0%}" if score.percent else f"{score.title} {goal:g}"


def _timed(name: str, runs: Sequence[Run], clock: str, dash: str, measure: str) -> Line:
    scores, seconds = trace(runs, f"personal.post.{measure}"), trace(runs, f"clock.{clock}.personal")
    at = dict(zip(seconds.rounds, seconds.values.mean(0), strict=True))
    kept = [i for i, t in enumerate(scores.rounds) if t in at]
    return Line(name, [float(at[t]) for t in scores.rounds[kept]], scores.values[:, kept], dash)


def _times(runs: Sequence[Run], goal: float | None, measure: str) -> list[str]:
    """Return means over seeds of rounds and seconds to the target, if every seed reached it."""
    lines = [
        next((m for m in run.metrics if goal is not None and reaches(run, m, measure, goal)), None) for run in runs
    ]
    if any(line is None for line in lines):
        return [NONE] * 4
    rounds = fmean(float(line["round"]) for line in lines if line)
    seconds = [fmean(value(line, f"clock.{clock}.personal") or 0.0 for line in lines) for clock in CLOCKS]
    return [f"{rounds:.3g}", *(f"{s:.4g}" for s in seconds), f"{seconds[0] / seconds[1]:.3f}" if seconds[1] else NONE]


# -- data --------------------------------------------------------------------------------------------------------------


def holdings(shown: RunsByCase) -> list[FigureSpec]:
    """Make a figure of rows by client and class for each case, of the first seed."""
    made = []
    for case in cases(shown):
        run = next(runs[0] for (c, _), runs in shown.items() if c == case)
        held = run.holdings
        name = f"holdings-{plain(case)}" if len(cases(shown)) > 1 else "holdings"
        draw = partial(_held, run, panel(shown, case))
        by = f"client and {run.problem.group}" if len(held["classes"]) > 1 else "client"
        made.append(FigureSpec(name, f"Training samples by {by}: {case}.", draw))
    return made


def _held(run: Run, title: str, width: float) -> Figure:
    held = run.holdings
    return plots.holdings(held["train"], held["clients"], held["classes"], width, title, run.problem.group)


def plain(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")
