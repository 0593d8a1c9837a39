"""Build and print the comparison table: one row for each method, means over seeds, the best first."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ..clients.evaluation import reserved_names
from ..core.criterion import ACCURACY, Criterion
from ..errors import unknown
from ..storage.run_reader import Run, value
from ..utils.stats import Stat
from .groups import Group, criterion_of, groups
from .seed_statistics import holm, paired_difference
from .sheets import Sheet

NONE = "–"
AVERAGED = "~ the average of the personal models: the method has no generic one"


@dataclass(frozen=True)
class Row:
    """A row of the table. Scores are in the unit that is shown (shares in percent), costs are means over seeds."""

    name: str
    seeds: tuple[int, ...]
    remark: str  # empty if every run finished and no client was poisoned
    best_by_val: Stat | None
    final: Stat | None
    best: Stat | None
    worst_decile: Stat | None
    generic: Stat | None
    averaged: bool  # the generic model is the average of the personal ones
    mb_up: float | None  # for one client and round; 1 MB is 1,000,000 bytes
    mb_down: float | None
    gflops: float | None  # all clients, whole run
    simulated: float | None  # seconds between the devices of the simulated clock
    seconds: float | None
    own: dict[str, Stat | None] = field(default_factory=dict)  # the user's metrics, in their own units
    criterion: Criterion = ACCURACY
    divisions: int = 1  # different divisions of the rows among clients and parts


@dataclass(frozen=True)
class Column:
    """A column: `field` of a row, `title` on a page, `short` in a terminal.

    If a terminal is too narrow, columns with the highest `spare` are dropped first.
    """

    field: str
    title: str
    short: str
    family: str
    spare: int = 0
    printed: bool = True  # in a terminal too


PERSONAL, GENERIC = "Personal {title}{unit}", "Generic{unit}"
OWN, METRIC = "Own metrics, of the round chosen by validation", "own."
MB, COST = "MB per client and round", "Whole run"
COLUMNS = (
    Column("best_by_val", "best by validation", "by val", PERSONAL),
    Column("final", "final", "final", PERSONAL, 2),
    Column("best", "best", "best", PERSONAL, 4),
    Column("worst_decile", "worst decile", "worst 10%", PERSONAL, 1),
    Column("generic", "best by validation", "generic", GENERIC, 3),
    Column("mb_up", "up", "MB up", MB),
    Column("mb_down", "down", "MB down", MB),
    Column("gflops", "GFLOPs, clients", "GFLOPs", COST, 6),
    Column("simulated", "simulated seconds", "sim s", COST, printed=False),
    Column("seconds", "seconds", "s", COST, 5),
)


def columns(rows: Sequence[Row]) -> tuple[Column, ...]:
    """Return all columns, including one for each metric that the user added."""
    names = dict.fromkeys(name for row in rows for name in row.own)
    score = rows[0].criterion if rows else ACCURACY
    titled = (replace(c, family=c.family.format(title=score.title, unit=score.unit)) for c in COLUMNS)
    return (*titled, *(Column(f"{METRIC}{name}", name, name, OWN, 7) for name in names))


def rows(runs: Iterable[Run]) -> list[Row]:
    """Return a row for each group of runs, the best first."""
    return [row(group) for group in groups(runs)]


def row(group: Group) -> Row:
    """Return the row of a group of runs."""
    return Row(
        name=group.name,
        seeds=group.seeds,
        remark=remark(group),
        best_by_val=score(group, "personal.best_by_val"),
        final=score(group, "personal.final"),
        best=score(group, "personal.best"),
        worst_decile=score(group, "personal.worst_decile"),
        generic=score(group, "generic.best_by_val"),
        averaged=any((run.summary["generic"] or {}).get("source") == "average" for run in group.runs),
        mb_up=_cost(group, "bytes.per_client_round.up", 1e6),
        mb_down=_cost(group, "bytes.per_client_round.down", 1e6),
        gflops=_cost(group, "flops.clients", 1e9),
        simulated=_cost(group, "clock.seconds", 1.0),
        seconds=_cost(group, "seconds", 1.0),
        own={name: group.stat(f"personal.metrics.best_by_val.{name}") for name in _metrics(group)},
        criterion=group.criterion,
        divisions=count_divisions(group.runs),
    )


def count_divisions(runs: Iterable[Run]) -> int:
    """Return the number of different divisions of the rows; runs that do not tell theirs count as one."""
    return len({run.holdings.get("name", "") for run in runs})


def _metrics(group: Group) -> list[str]:
    """Return the names of the metrics that the user added; all runs of a group have the same."""
    reserved = reserved_names(group.runs[0].problem)
    return [name for name in group.runs[0].summary["personal"]["metrics"]["best_by_val"] if name not in reserved]


def remark(group: Group) -> str:
    """Return which runs did not finish and how many clients were byzantine."""
    counts = Counter(run.status for run in group.runs if run.status != "finished")
    total = f" of {len(group.runs)}" if len(group.runs) > 1 else ""
    unfinished = [f"{n}{total} {status}" if total else status for status, n in counts.items()]
    return ", ".join([*unfinished, *_poisoned(group)])


def _poisoned(group: Group) -> list[str]:
    """Describe byzantine clients. The runs of a group differ only in their seeds, so all have the same number."""
    summary = group.runs[0].summary
    if not (byzantine := len(summary.get("poisoned", []))):
        return []
    honest = score(group, "personal_honest.best_by_val")
    shown = format_score(honest, group.criterion, "±") + ("%" if group.criterion.percent else "")
    return [f"{byzantine} of {summary['clients']} clients poisoned, the honest have {shown}"]


def score(group: Group, dotted: str, form: Criterion | None = None) -> Stat | None:
    """Return mean and deviation of a summary entry in the unit that is shown: percent for shares."""
    stat, scale = group.stat(dotted), (form or group.criterion).scale
    return stat and Stat(scale * stat.mean, None if stat.std is None else scale * stat.std)


def _cost(group: Group, dotted: str, unit: float) -> float | None:
    known = [v for run in group.runs if (v := value(run.summary, dotted)) is not None]
    return statistics.fmean(known) / unit if known else None


def cell(row: Row, column: Column, sign: str = " ± ") -> str:
    """Return the text of one cell."""
    if column.field.startswith(METRIC):
        return _measure(row.own.get(column.field.removeprefix(METRIC)), sign)
    entry: Stat | float | None = getattr(row, column.field)
    if not isinstance(entry, Stat):
        return quantity(entry)
    return ("~" if column.field == "generic" and row.averaged else "") + format_score(entry, row.criterion, sign)


def format_score(stat: Stat | None, form: Criterion = ACCURACY, sign: str = " ± ") -> str:
    """Format a score in the unit that is shown: shares with two decimals, other scores with four digits."""
    if stat is None:
        return NONE
    if not form.percent:
        return _measure(stat, sign)
    return form.digits(stat.mean) if stat.std is None else f"{form.digits(stat.mean)}{sign}{form.digits(stat.std)}"


def _measure(stat: Stat | None, sign: str) -> str:
    """Format a metric that the user added with four digits, because its scale is unknown."""
    if stat is None:
        return NONE
    return f"{stat.mean:.4g}" + ("" if stat.std is None else f"{sign}{stat.std:.2g}")


def quantity(x: float | None) -> str:
    """Format a number with three significant digits and no exponent: 0.00123, 1.20, 345, 12.3k, 4.56M."""
    if x is None:
        return NONE
    for unit, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if x >= 0.9995 * factor:
            return f"{_digits(x / factor)}{unit}"
    return _digits(x)


def _digits(x: float) -> str:
    if x == 0:
        return "0"
    rounded = float(f"{x:.2e}")  # first, so that 9.996 has as many digits as 10
    places = 2 - math.floor(math.log10(rounded))
    return f"{rounded:.{max(0, places)}f}"


def leaders(rows: Sequence[Row], column: Column) -> set[str]:
    """Return the names of the rows that lead a column of scores; equal printed values tie, one row never leads."""
    if column.field.startswith(METRIC):  # unknown whether higher is better
        return set()
    entries = {row.name: stat for row in rows if isinstance(stat := getattr(row, column.field), Stat)}
    if len(entries) < 2:
        return set()
    form = rows[0].criterion
    top = form.digits(form.best(entries.values(), lambda stat: stat.mean).mean)
    return {name for name, stat in entries.items() if form.digits(stat.mean) == top}


P_VALUE = "p"  # the column of paired tests in exported tables


def sheet(runs: Iterable[Run], chosen: Sequence[str] = ()) -> Sheet:
    """Return columns as text for a file, with a paired t-test of each method against the best one, over seeds.

    Args:
        runs: the runs.
        chosen: names of columns, such as ``best_by_val``, in their order, under short headings; none: all columns.

    Raises:
        AtollError: there is no such column.
    """
    runs = list(runs)
    criterion_of(runs)
    found = groups(runs)
    made = [row(group) for group in found]
    title = (
        f"means over seeds ± standard deviation; p: paired t-test against {found[0].name} over seeds, corrected by Holm"
    )
    shown = columns(made)
    made_cells = [
        {"seeds": str(len(r.seeds)), **{c.field: cell(r, c) for c in shown}, P_VALUE: versus}
        for r, versus in zip(made, ["", *_p_values(found)], strict=True)
    ]
    headings = {"seeds": "seeds", **{c.field: f"{c.family}: {c.title}" for c in shown}, P_VALUE: P_VALUE}
    if chosen:
        headings |= {c.field: c.short for c in shown}
    for name in chosen:
        if name not in headings:
            raise unknown("column", name, headings)
    names = list(chosen) or list(headings)
    lines = [[r.name, *(cells[name] for name in names)] for r, cells in zip(made, made_cells, strict=True)]
    return Sheet(title, ["method", *(headings[name] for name in names)], lines)


def _p_values(found: Sequence[Group]) -> list[str]:
    """Return the p-value of every method but the first, against the first; none from fewer than two common seeds."""
    scores = [_by_seed(group) for group in found]
    tests = [paired_difference(scores[0], other) for other in scores[1:]]
    corrected = iter(holm([test.p for test in tests if test is not None]))
    return [NONE if test is None else f"{next(corrected):.2g}" for test in tests]


def _by_seed(group: Group) -> dict[int, float]:
    chosen = ((run.seed, value(run.summary, "personal.best_by_val")) for run in group.runs)
    return {seed: score for seed, score in chosen if score is not None}
