"""Build and print the comparison table: one row for each method, means over seeds, the best first."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ..clients.evaluation import reserved_names
from ..core.criterion import ACCURACY, Criterion
from ..storage.run_reader import Run, value
from ..utils.stats import Stat, spread
from .groups import Group, groups, settings
from .majority import majority_scores
from .seed_statistics import holm, paired_difference

NONE = "–"
MAJORITY = "majority"
P_VALUE = "p: two-sided paired t-test over the means of seeds against the first row, corrected by Holm"
WITHOUT_MODEL = f"{MAJORITY}: naming for each client the class that is most frequent in its training samples"
AVERAGED = "~ the average of the personal models: the method has no generic one"


@dataclass(frozen=True)
class Row:
    """A row of the table. Scores are in the unit that is shown (shares in percent), costs are means over seeds."""

    name: str
    seeds: tuple[int, ...]
    remark: str = ""  # empty if every run finished and no client was poisoned
    best_by_val: Stat | None = None
    p: float | None = None  # of a paired t-test over seeds against the first row, corrected by Holm
    final: Stat | None = None
    best: Stat | None = None
    worst_decile: Stat | None = None
    generic: Stat | None = None
    averaged: bool = False  # the generic model is the average of the personal ones
    mb_up: float | None = None  # for one client and round; 1 MB is 1,000,000 bytes
    mb_down: float | None = None
    gflops: float | None = None  # all clients, whole run
    simulated: float | None = None  # seconds between the devices of the simulated clock
    seconds: float | None = None
    own: dict[str, Stat | None] = field(default_factory=dict)  # the user's metrics, in their own units
    criterion: Criterion = ACCURACY
    splits: int = 1  # different splits of the rows among clients and parts
    is_method: bool = True  # False for the score without a model


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
    Column("p", "p", "p", PERSONAL, printed=False),
    Column("final", "final", "final", PERSONAL, 2),
    Column("best", "best", "best", PERSONAL, 4),
    Column("worst_decile", "worst 10 %", "worst 10%", PERSONAL, 1),
    Column("generic", "best by validation", "generic", GENERIC, 3),
    Column("mb_up", "up", "MB up", MB),
    Column("mb_down", "down", "MB down", MB),
    Column("gflops", "GFLOPs, clients", "GFLOPs", COST, 6),
    Column("simulated", "simulated seconds", "sim s", COST, printed=False),
    Column("seconds", "seconds", "s", COST, 5),
)


def columns(rows: Sequence[Row], untested: bool = False) -> tuple[Column, ...]:
    """Return all columns, including one for each metric that the user added.

    Args:
        rows: the rows of the table.
        untested: keep the column of p-values if there are none, as with one seed.
    """
    names = dict.fromkeys(name for row in rows for name in row.own)
    tested = untested or any(row.p is not None for row in rows)
    score = rows[0].criterion if rows else ACCURACY
    titled = (
        replace(c, family=c.family.format(title=score.title, unit=score.unit))
        for c in COLUMNS
        if c.field != "p" or tested
    )
    return (*titled, *(Column(f"{METRIC}{name}", name, name, OWN, 7) for name in names))


def rows(runs: Iterable[Run]) -> list[Row]:
    """Return a row for each method, the best first, and last what naming each client's most frequent class reaches."""
    runs = list(runs)
    return [*method_rows(groups(runs)), *majority_row(runs)]


def method_rows(found: Sequence[Group]) -> list[Row]:
    """Return a row for each group of runs, with the p-value of its difference from the first group."""
    by_seed = [_by_seed(group) for group in found]
    tests = [paired_difference(by_seed[0], other) for other in by_seed[1:]]
    corrected = iter(holm([test.p for test in tests if test is not None]))
    p_values = [None, *(None if test is None else next(corrected) for test in tests)]
    return [replace(row(group), p=p) for group, p in zip(found, p_values, strict=True)]


def _by_seed(group: Group) -> dict[int, float]:
    chosen = ((run.seed, value(run.summary, "personal.best_by_val")) for run in group.runs)
    return {seed: score for seed, score in chosen if score is not None}


def majority_row(runs: Sequence[Run]) -> list[Row]:
    """Return the row of the majority class, a mean over seeds; none if runs differ in their data, or do not tell it."""
    by_seed = {run.seed: majority_scores(run) for run in runs}
    known = [found for found in by_seed.values() if found is not None]
    if not known or len(known) < len(by_seed) or len(settings(runs)) > 1:
        return []
    mean, worst = (spread([100 * score for score in scores]) for scores in zip(*known, strict=True))
    return [Row(MAJORITY, tuple(sorted(by_seed)), best_by_val=mean, worst_decile=worst, is_method=False)]


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
        averaged=any(run.averaged for run in group.runs),
        mb_up=_cost(group, "bytes.per_client_round.up", 1e6),
        mb_down=_cost(group, "bytes.per_client_round.down", 1e6),
        gflops=_cost(group, "flops.clients", 1e9),
        simulated=_cost(group, "clock.seconds", 1.0),
        seconds=_cost(group, "seconds", 1.0),
        own={name: group.stat(f"personal.metrics.best_by_val.{name}") for name in _metrics(group)},
        criterion=group.criterion,
        splits=count_splits(group.runs),
    )


def count_splits(runs: Iterable[Run]) -> int:
    """Return the number of different splits of the rows; runs that do not tell theirs count as one."""
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
    if column.field == "p":
        return NONE if row.p is None else f"{row.p:.2g}"
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
