"""The figures: accuracy by round, by client and by bytes, and who holds what."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from .groups import Group, groups
from .runs import Run, value
from .style import GRID, INK, MUTED, NARROW, PAPER, SERIES, WIDE, colour, figure, inline_svg, mark, save, styled

__all__ = ["boxes", "bytes_accuracy", "curves", "holdings", "inline_svg", "save"]

Array = NDArray[np.float64]

PERSONAL = "personal.post.accuracy"
GENERIC = "generic.global.accuracy"
MOST = 150  # clients, or classes, that one chart can show apart
ROOMY = 0.36  # inches between two rows of bubbles, where there is room
TIGHT = 0.095  # and where there is not
EASY = 0.2  # inches, the diameter of a bubble that is easy to see
FILL = 0.94  # of its cell, by the largest bubble
LETTER = 0.078  # inches, the width of a wide letter of a tick label
LINE = 0.15  # inches, the height of a tick label
LONGEST = 18  # letters of a tick label
NAME = 34  # letters of a method's name


class Trace(NamedTuple):
    """One quantity over the rounds that every seed reached; [seed, round]."""

    rounds: Array  # [rounds]
    values: Array  # [seeds, rounds]


# -- accuracy by round ---------------------------------------------------------------------------------------------


@styled
def curves(runs: Iterable[Run], width: float = WIDE) -> Figure:
    """Accuracy by round: the mean over seeds, with a band from the lowest seed to the highest."""
    found = groups(runs)
    fig = figure(width, 4.6 if _is_wide(width) else 3.4 + _legend_height(found))
    ax = fig.add_subplot()
    for i, group in enumerate(found):
        _curve(ax, i, _trace(group, PERSONAL), "-")
        _curve(ax, i, _trace(group, GENERIC), (0, (4, 2)))
    ax.set_xlabel("round")
    ax.set_ylabel("test accuracy, %")
    ax.xaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    ax.margins(x=0.02)
    _percent(ax)
    has_generic = any(len(_trace(group, GENERIC).rounds) for group in found)
    _legend(fig, [_handle(i, group) for i, group in enumerate(found)], width, _line_kinds() if has_generic else [])
    return fig


def _curve(ax: Axes, i: int, trace: Trace, dashes: Any) -> None:
    if not len(trace.rounds):
        return
    ax.plot(trace.rounds, 100 * trace.values.mean(0), linestyle=dashes, **_look(i, len(trace.rounds)))
    if len(trace.values) > 1:
        low, high = 100 * trace.values.min(0), 100 * trace.values.max(0)
        ax.fill_between(trace.rounds, low, high, color=colour(i), alpha=0.15, linewidth=0)


def _trace(group: Group, dotted: str) -> Trace:
    return _over_rounds(group, lambda run: [value(m, dotted) for m in run.metrics])


def _over_rounds(group: Group, of: Callable[[Run], Sequence[float | None]]) -> Trace:
    """`of` gives one value for each evaluated round of a run; rounds that some seed lacks are left out."""
    tables = [
        {int(m["round"]): v for m, v in zip(run.metrics, of(run), strict=True) if v is not None} for run in group.runs
    ]
    shared = sorted(set.intersection(*(set(table) for table in tables)))
    values = np.array([[table[t] for t in shared] for table in tables], dtype=float)
    return Trace(np.array(shared, dtype=float), values.reshape(len(tables), len(shared)))


# -- accuracy by client --------------------------------------------------------------------------------------------


@styled
def boxes(runs: Iterable[Run], width: float = WIDE) -> Figure:
    """Final accuracy of every client, a box for each method: quartiles, whiskers to 1.5 IQR, a diamond at the mean."""
    found = groups(runs)
    fig = figure(width, 0.9 + 0.42 * len(found))
    ax = fig.add_subplot()
    for i, group in enumerate(found):
        _box(ax, i, _final_accuracies(group))
    ax.set_yticks(range(len(found)), [_short(group.name, NAME if _is_wide(width) else LONGEST) for group in found])
    ax.set_ylim(len(found) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.grid(visible=False, axis="y")
    ax.set_xlabel("test accuracy of a client in the last round, %")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    return fig


def _box(ax: Axes, i: int, values: Array) -> None:
    if not len(values):
        return
    ax.boxplot(
        [100 * values],
        positions=[i],
        widths=0.56,
        orientation="horizontal",
        manage_ticks=False,
        patch_artist=True,
        showmeans=True,
        boxprops={"facecolor": colour(i), "alpha": 0.45, "edgecolor": colour(i)},
        whiskerprops={"color": colour(i)},
        capprops={"color": colour(i)},
        medianprops={"color": INK, "linewidth": 1.6},
        meanprops={"marker": "D", "markerfacecolor": PAPER, "markeredgecolor": INK, "markersize": 5},
        flierprops={"marker": "o", "markerfacecolor": "none", "markeredgecolor": colour(i), "markersize": 3.5},
    )


def _final_accuracies(group: Group) -> Array:
    """Every client of every seed."""
    return np.concatenate([_final(run) for run in group.runs])


def _final(run: Run) -> Array:
    rounds: Array = run.clients["round"].to_numpy()
    accuracy: Array = run.clients["accuracy"].to_numpy().astype(float)
    last = accuracy[rounds == rounds.max()] if len(rounds) else accuracy
    return last[np.isfinite(last)]


# -- accuracy by bytes ---------------------------------------------------------------------------------------------


@styled
def bytes_accuracy(runs: Iterable[Run], width: float = WIDE) -> Figure:
    """Personal accuracy reached so far against bytes sent so far, up and down, by all clients together."""
    found = groups(runs)
    fig = figure(width, 4.2 if _is_wide(width) else 3.4 + _legend_height(found))
    ax = fig.add_subplot()
    ax.set_xscale("log")
    for i, group in enumerate(found):
        _spent(ax, i, group)
    ax.set_xlabel("bytes sent so far, up and down, all clients")
    ax.set_ylabel("personal accuracy so far, %")
    ax.xaxis.set_major_locator(LogLocator(numticks=8 if _is_wide(width) else 5))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: size(v)))
    ax.xaxis.set_minor_formatter(NullFormatter())
    _percent(ax)
    handles = [_handle(i, group) if _sends(group) else _silent(i, group.name) for i, group in enumerate(found)]
    _legend(fig, handles, width, [] if all(map(_sends, found)) else [_silent(None, "sends nothing")])
    return fig


def _silent(i: int | None, name: str) -> Line2D:
    return Line2D([], [], color=MUTED if i is None else colour(i), linestyle=":", label=_short(name, NAME))


def _spent(ax: Axes, i: int, group: Group) -> None:
    accuracy = _over_rounds(group, so_far)
    if not len(accuracy.rounds):
        return
    mean = 100 * accuracy.values.mean(0)
    if not _sends(group):  # a logarithm has no place for zero
        ax.axhline(mean[-1], color=colour(i), linestyle=":")
        return
    spent = _over_rounds(group, lambda run: [float(m["bytes"]["up"] + m["bytes"]["down"]) for m in run.metrics])
    at = dict(zip(spent.rounds, spent.values.mean(0), strict=True))
    ax.plot([at[t] for t in accuracy.rounds], mean, **_look(i, len(mean)))


def so_far(run: Run) -> list[float | None]:
    """At each round the test accuracy of the best round yet by validation; before any, that of the round itself."""
    best, reached, result = -math.inf, None, []
    for m in run.metrics:
        val, accuracy = value(m, "personal.post.val"), value(m, PERSONAL)
        if val is not None and val > best:
            best, reached = val, accuracy
        elif best == -math.inf:
            reached = accuracy
        result.append(reached)
    return result


def _sends(group: Group) -> bool:
    return any(m["bytes"]["up"] + m["bytes"]["down"] > 0 for run in group.runs for m in run.metrics)


def size(n: float) -> str:
    """A number of bytes for people: 1 kB is 1,000 bytes."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= factor:
            return f"{n / factor:.3g} {unit}"
    return f"{n:.3g} B"


# -- who holds what ------------------------------------------------------------------------------------------------


@styled
def holdings(
    counts: Sequence[Sequence[int]], clients: Sequence[str], classes: Sequence[str], width: float = WIDE
) -> Figure:
    """A bubble for every client and class, its area in proportion to the rows held.

    Wide charts have clients across, narrow ones down. Beyond 150 clients or classes an even choice of them is shown.
    """
    table = np.array(counts, dtype=float).reshape(len(clients), len(classes))
    some, few = _even(len(clients)), _even(len(classes))
    table = table[np.ix_(some, few)]
    who = _Axis(_counted("client", len(some), len(clients)), [str(clients[i]) for i in some])
    what = _Axis(_counted("class", len(few), len(classes)), [str(classes[i]) for i in few])
    if _is_wide(width):
        return _bubbles(table, who, what, width)
    return _bubbles(table.T, what, who, max(width, 0.9 + TIGHT * len(what.names)))


class _Axis(NamedTuple):
    title: str
    names: list[str]


def _bubbles(table: Array, across: _Axis, down: _Axis, width: float) -> Figure:
    """table [across, down]"""
    margin = 0.5 + LETTER * min(LONGEST, max(map(len, down.names)))
    step_x = (width - margin) / len(across.names)
    step_y = min(ROOMY if _is_wide(width) else 0.75 * ROOMY, max(TIGHT, 9.0 / len(down.names)))
    fig = figure(width, 1.5 + step_y * max(4, len(down.names)))
    ax = fig.add_subplot()
    ax.grid(color=GRID, linewidth=0.5)
    largest = 72 * _largest(table, min(step_x, step_y))  # points
    top = max(1.0, table.max(initial=1.0))
    for count in np.unique(table[table > 0]):  # one marker for each size keeps the SVG small
        x, y = np.nonzero(table == count)
        ax.plot(x, y, **_bubble(largest * math.sqrt(count / top)))
    ax.set_xlim(-0.6, len(across.names) - 0.4)
    ax.set_ylim(len(down.names) - 0.4, -0.6)
    ax.set_xlabel(across.title)
    ax.set_ylabel(down.title)
    _tick_across(ax, across.names, step_x)
    _tick_down(ax, down.names, step_y)
    _sizes(fig, top, largest)
    return fig


def _largest(table: Array, cell: float) -> float:
    """The diameter of the largest bubble, in inches.

    It fills its cell. Where cells are small and nine bubbles in ten much smaller than the largest, it may overlap its
    neighbours so that the others can be seen.
    """
    held = table[table > 0]
    common = math.sqrt(np.quantile(held, 0.9) / held.max()) if len(held) else 1.0
    return max(FILL * cell, min(FILL * cell / common, 1.8 * cell, EASY))


def _tick_across(ax: Axes, names: list[str], step: float) -> None:
    labels = [_short(name) for name in names]
    upright = max(map(len, labels)) * LETTER > step and max(map(len, labels)) > 3
    every = math.ceil((LINE if upright else max(map(len, labels)) * LETTER + 0.04) / step)
    ax.set_xticks(range(0, len(names), every), labels[::every], rotation=90 if upright else 0)


def _tick_down(ax: Axes, names: list[str], step: float) -> None:
    every = math.ceil(LINE / step)
    ax.set_yticks(range(0, len(names), every), [_short(name) for name in names[::every]])


def _bubble(diameter: float) -> dict[str, Any]:
    return {
        "linestyle": "",
        "marker": "o",
        "markersize": diameter,
        "color": SERIES[0],
        "alpha": 0.8,
        "markeredgewidth": 0,
    }


def _sizes(fig: Figure, top: float, largest: float) -> None:
    """A legend of three sizes: the largest bubble, and about a quarter and a twentieth of it."""
    shown = sorted({max(1, round(top / part)) for part in (20, 4, 1)})
    handles = [
        Line2D([], [], label=f"{n:,} row{'s' if n > 1 else ''}", **_bubble(largest * math.sqrt(n / top))) for n in shown
    ]
    room = max(1.0, largest / matplotlib.rcParams["legend.fontsize"])  # legends measure in letters
    place: dict[str, Any] = {"loc": "outside upper right", "ncols": len(handles)}
    fig.legend(handles=handles, handlelength=room, handleheight=room, handletextpad=0.5, **place)


def _even(n: int) -> list[int]:
    return list(range(n)) if n <= MOST else [i * n // MOST for i in range(MOST)]


def _counted(noun: str, shown: int, total: int) -> str:
    return noun if shown == total else f"{noun} ({shown} of {total:,} shown)"


# -- shared --------------------------------------------------------------------------------------------------------


def _is_wide(width: float) -> bool:
    return width >= (WIDE + NARROW) / 2


def _look(i: int, points: int) -> dict[str, Any]:
    """Colour, and about eight marks on the line, at other places than its neighbours' marks."""
    step = max(1, points // 8)
    return {
        "color": colour(i),
        "marker": mark(i),
        "markevery": (i % step, step),
        "markeredgecolor": PAPER,
        "markeredgewidth": 0.5,
    }


def _line_kinds() -> list[Line2D]:
    return [
        Line2D([], [], color=MUTED, linestyle="-", label="personal"),
        Line2D([], [], color=MUTED, linestyle=(0, (4, 2)), label="generic"),
    ]


def _handle(i: int, group: Group) -> Line2D:
    return Line2D([], [], color=colour(i), marker=mark(i), label=_short(group.name, NAME))


def _legend(fig: Figure, handles: Sequence[Line2D], width: float, more: Sequence[Line2D]) -> None:
    entries = [*handles, *more]
    if _is_wide(width):
        fig.legend(handles=entries, loc="outside right upper", ncols=1 + len(entries) // 20)
    else:
        columns = _legend_columns([str(entry.get_label()) for entry in entries])
        fig.legend(handles=entries, loc="outside lower left", ncols=columns, columnspacing=1.2)


def _legend_columns(names: Sequence[str]) -> int:
    return 2 if max(map(len, names), default=0) <= 16 else 1


def _legend_height(found: Sequence[Group]) -> float:
    """Inches to add to a narrow figure for the legend below it."""
    return 0.2 * (2 + math.ceil(len(found) / _legend_columns([_short(group.name, NAME) for group in found])))


def _percent(ax: Axes) -> None:
    low, high = ax.get_ylim()
    ax.set_ylim(max(low, -1.0), min(high, 101.0))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))


def _short(name: str, longest: int = LONGEST) -> str:
    """A long name without its middle: the ends tell names apart."""
    if len(name) <= longest:
        return name
    tail = longest // 2 - 1
    return f"{name[: longest - 1 - tail]}…{name[-tail:]}"
