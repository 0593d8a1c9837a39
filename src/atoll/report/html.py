"""Write the report of runs as one self-contained HTML file that requests nothing from other hosts."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from ..errors import AtollError
from ..storage.run_reader import FILES, Document, Run, find, load
from . import style, table
from .figures import metrics
from .figures.base import FigureSpec, title
from .groups import Group, groups, settings
from .plots import holdings as holdings_chart
from .sheets import Sheet

LISTED = 5  # rejected uploads named in a note before the rest is only counted


@dataclass(frozen=True)
class Picture:
    """A figure, drawn once for a wide window and once for a narrow one."""

    wide: Markup
    narrow: Markup


@dataclass(frozen=True)
class Chapter:
    """Runs whose accuracies may be compared, with their tables and figures."""

    title: str
    about: str
    standing: str
    cards: list[tuple[str, str, str]]  # what, how much, who
    rows: list[table.Row]
    leaders: dict[str, set[str]]  # field of a column: names of rows
    extra: list[tuple[str, list[str]]]  # further metrics: name, one cell for each column of `extra_columns`
    extra_columns: list[str]
    curves: Picture
    boxes: Picture
    traffic: Picture
    trade_off: Picture


@dataclass(frozen=True)
class Holding:
    """The rows of each client and class in one division of the data."""

    title: str
    picture: Picture
    totals: str
    open: bool


def write(run_dirs: list[Path], out: Path, figures: Sequence[FigureSpec] = ()) -> Path:
    """Write the report of the runs in `run_dirs` (or below them) to `out` and return its path.

    `figures` come before all others: what the runs were made for.
    """
    return write_runs([load(path) for path in find(run_dirs)], out, figures)


def write_runs(runs: Sequence[Run], out: Path, figures: Sequence[FigureSpec] = ()) -> Path:
    """Write the report of runs that have been read to ``out``, a file or a directory; return the path of the file."""
    if not runs:
        raise AtollError("There is nothing to report on. Give the directory of a run or of a comparison.")
    out = Path(out)
    if out.is_dir():
        out = out / "report.html"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(render(runs, out.parent, figures), encoding="utf-8")
    return out


def render(runs: Sequence[Run], base: Path, figures: Sequence[FigureSpec] = ()) -> str:
    """Return the page. Directories are shown relative to `base`."""
    comparable = settings(runs)
    chapters = [_chapter(members, f"c{i}") for i, members in enumerate(comparable)]
    columns = table.columns([row for chapter in chapters for row in chapter.rows])
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(
        heading=_heading(runs),
        figures=_own(figures),
        chapters=chapters,
        columns=columns,
        averaged=table.AVERAGED,
        families=Counter(column.family for column in columns),
        cell=table.cell,
        state=_state(runs),
        holdings=_holdings(runs),
        configs=[(_who(group), _yaml(group.runs[0].config)) for part in comparable for group in groups(part)],
        notes=_notes(runs),
        runs=[_pointer(run, base) for run in runs],
        files=FILES,
        colours={"light": style.variables(dark=False), "dark": style.variables(dark=True)},
        swatch=_swatch,
        versions=sorted({str(run.summary["version"]) for run in runs}),
    )


def _chapter(runs: Sequence[Run], prefix: str) -> Chapter:
    found = groups(runs)
    rows = [table.row(group) for group in found]
    names, extra = _extra(found)
    shown = {("", group.name): group.runs for group in found}
    return Chapter(
        title=title(runs[0].summary),
        about=_about(found),
        standing=_standing(rows),
        cards=_cards(rows),
        rows=rows,
        leaders={column.field: table.leaders(rows, column) for column in table.columns(rows)},
        extra=extra,
        extra_columns=names,
        curves=_drawn(metrics.curves(shown), prefix),
        boxes=_drawn(metrics.boxes(shown), prefix),
        traffic=_drawn(metrics.traffic(shown), prefix),
        trade_off=_drawn(metrics.trade_off(shown), prefix),
    )


def _own(figures: Sequence[FigureSpec]) -> list[tuple[str, Picture, Sheet | None]]:
    return [(f.caption, _picture(f.draw, f"own{i}"), f.numbers) for i, f in enumerate(figures) if f.inline]


def _drawn(figures: Sequence[FigureSpec], prefix: str) -> Picture:
    (one,) = figures
    return _picture(one.draw, f"{prefix}-{one.name}")


def _picture(draw: Callable[[float], Figure], name: str) -> Picture:
    wide, narrow = (
        Markup(style.inline_svg(draw(width), f"{name}-{kind}"))  # matplotlib escapes what it writes
        for kind, width in (("w", style.WIDE), ("n", style.NARROW))
    )
    return Picture(wide, narrow)


# -- words ---------------------------------------------------------------------------------------------------------


def _heading(runs: Sequence[Run]) -> str:
    labels = list(dict.fromkeys(run.label for run in runs))
    data = dict.fromkeys(str(run.summary["data"]) for run in runs)
    return f"{labels[0] if len(labels) == 1 else _many(len(labels), 'method')} on {', '.join(data)}"


def _about(found: Sequence[Group]) -> str:
    runs = [run for group in found for run in group.runs]
    summary = runs[0].summary
    rounds = sorted({run.planned for run in runs})
    models = list(dict.fromkeys(str(model) for run in runs for model in run.summary["models"]))
    seeds = _span(sorted({len(group.runs) for group in found}), "seed") + (" each" if len(found) > 1 else "")
    noun = "method" if len({run.label for run in runs}) == len(found) else "configuration"
    return (
        f"{_many(len(found), noun)}, {seeds}, on {summary['data']}: "
        f"{_many(int(summary['clients']), 'client')} (partition {summary['partition']}, split {summary['split']}), "
        f"{_span(rounds, 'round')}, {'model' if len(models) == 1 else 'models'} {', '.join(models)}."
    )


def _standing(rows: Sequence[table.Row]) -> str:
    """Return the leading method, its lead, and whether the lead exceeds chance over seeds."""
    ranked = [row for row in rows if row.best_by_val]
    if not ranked or not (first := ranked[0].best_by_val):
        return "No run has an accuracy chosen by validation yet."
    said = f"{ranked[0].name} reaches {table.accuracy(first)} % personal accuracy"
    if len(ranked) == 1 or not (second := ranked[1].best_by_val):
        return f"{said}."
    gap = round(first.mean, 2) - round(second.mean, 2)  # as a reader of the table would reckon
    spread = max(first.std or 0.0, second.std or 0.0)
    doubt = ", less than the spread over seeds" if gap < spread else ""
    if first.std is None or second.std is None:
        doubt = ", on a single seed"
    return f"{said}, {gap:.2f} points ahead of {ranked[1].name}{doubt}."


def _cards(rows: Sequence[table.Row]) -> list[tuple[str, str, str]]:
    lead = rows[0]
    cards = [("Personal accuracy", f"{table.accuracy(lead.best_by_val)} %", lead.name)]
    for what, field in (("Worst decile of clients", "worst_decile"), ("Generic model", "generic")):
        known = [(stat, row.name) for row in rows if (stat := getattr(row, field))]
        if known:
            stat, name = max(known, key=lambda pair: pair[0].mean)
            cards.append((what, f"{table.accuracy(stat)} %", name))
    up, down = table.quantity(lead.mb_up), table.quantity(lead.mb_down)
    return [
        *cards,
        ("MB per client and round", f"↑\N{NO-BREAK SPACE}{up}\N{EM SPACE}↓\N{NO-BREAK SPACE}{down}", lead.name),
    ]


def _extra(found: Sequence[Group]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return every metric of the round that validation selected, in percent."""
    where = "personal.metrics.best_by_val"
    kept = [run.summary["personal"].get("metrics", {}).get("best_by_val") or {} for g in found for run in g.runs]
    names = list(dict.fromkeys(name for metrics in kept for name in metrics))
    cells = [(g.name, [table.accuracy(table.percent(g, f"{where}.{name}")) for name in names]) for g in found]
    return [name.replace("_", " ") for name in names], cells


def _state(runs: Sequence[Run]) -> str:
    counts = Counter(run.status for run in runs)
    if set(counts) == {"finished"}:
        return f"{_many(len(runs), 'run')}, {'all ' if len(runs) > 1 else ''}finished"
    return f"{_many(len(runs), 'run')}: " + ", ".join(f"{n} {status}" for status, n in counts.most_common())


def _notes(runs: Sequence[Run]) -> list[str]:
    """Return notes on unfinished runs, rejected uploads, changed partitions and privacy."""
    return [*_cut_short(runs), *_refused(runs), *_mended(runs), *_private(runs)]


def _cut_short(runs: Sequence[Run]) -> list[str]:
    return [
        f"{run.label}, seed {run.seed}: {run.status}"
        + (f" after round {run.metrics[-1]['round']}" if run.metrics else " before the first evaluation")
        + f" of {run.planned}. Its numbers are those of the rounds it reached."
        for run in runs
        if run.status != "finished"
    ]


def _refused(runs: Sequence[Run]) -> list[str]:
    notes = []
    for run in runs:
        refused = [f"round {m['round']}: {_plain(entry)}" for m in run.metrics for entry in m["rejected"]]
        if refused:
            more = f"; and {len(refused) - LISTED} more" if len(refused) > LISTED else ""
            listed = "; ".join(refused[:LISTED])
            notes.append(f"{run.label}, seed {run.seed}: {_many(len(refused), 'upload')} rejected ({listed}{more}).")
    return notes


def _mended(runs: Sequence[Run]) -> list[str]:
    return [f"{_split_title(shared)}: {note}" for shared in _partitions(runs) for note in shared[0].holdings["notes"]]


def _private(runs: Sequence[Run]) -> list[str]:
    """Return what is guaranteed and what is not for runs with a privacy mechanism."""
    stated = ((run, run.summary.get("privacy") or {}) for run in runs)
    return [
        f"{run.label}, seed {run.seed}: {' '.join(privacy['statement'])}"
        for run, privacy in stated
        if privacy.get("gate") or privacy.get("dp")
    ]


def _plain(entry: object) -> str:
    """Describe a rejected upload: the client and, if known, the reason."""
    if not isinstance(entry, dict):
        return f"client {entry}"
    why = ": ".join(str(entry[name]) for name in ("field", "reason") if entry.get(name))
    return f"client {entry.get('client')} ({why})" if why else f"client {entry.get('client')}"


# -- data, settings, files -----------------------------------------------------------------------------------------


def _holdings(runs: Sequence[Run]) -> list[Holding]:
    """Return one figure for each division of the data; further seeds of a setting are folded."""
    seen: set[str] = set()
    found = []
    for i, members in enumerate(_partitions(runs)):
        name = title(members[0].summary)
        found.append(_holding(members, f"h{i}", is_open=name not in seen))
        seen.add(name)
    return found


def _partitions(runs: Iterable[Run]) -> list[list[Run]]:
    """Group runs by the division of the data that they share."""
    owners: dict[str, list[Run]] = {}
    for run in runs:
        owners.setdefault(str(run.holdings["name"]), []).append(run)
    return list(owners.values())


def _split_title(runs: Sequence[Run]) -> str:
    seeds = sorted({run.seed for run in runs})
    return f"{title(runs[0].summary)}, {'seed' if len(seeds) == 1 else 'seeds'} {_listed(seeds)}"


def _holding(runs: Sequence[Run], name: str, is_open: bool) -> Holding:
    holdings = runs[0].holdings
    train, clients, classes = holdings["train"], holdings["clients"], holdings["classes"]
    rows = {part: sum(map(sum, holdings[part])) for part in ("train", "val", "test")}
    held = [sum(1 for n in row if n) for row in train]
    told = f" of {_range(held)} of {len(classes)} classes" if len(classes) > 1 else ""  # sites do not tell of classes
    return Holding(
        title=_split_title(runs),
        picture=_picture(lambda width: holdings_chart(train, clients, classes, width), name),
        totals=(
            f"{rows['train']:,} training, {rows['val']:,} validation and {rows['test']:,} test rows. "
            f"A client holds {_range(list(map(sum, train)))} training rows{told}."
        ),
        open=is_open,
    )


def _yaml(config: Document) -> str:
    return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)


def _who(group: Group) -> str:
    if len(group.runs) == 1:
        return f"{group.name}, seed {group.seeds[0]}"
    return f"{group.name}, seeds {_listed(group.seeds)}"


def _pointer(run: Run, base: Path) -> dict[str, str]:
    return {
        "path": Path(os.path.relpath(run.path.resolve(), base.resolve())).as_posix(),
        "label": run.label,
        "seed": str(run.seed),
        "status": run.status,
        "digest": str(run.summary["digest"])[:12],
    }


def _swatch(i: int) -> Markup:
    """Return the colour of the i-th method, the same as that of its lines."""
    return Markup('<i class="swatch" style="background: var(--series-{})"></i>').format(i % len(style.SERIES))


def _many(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def _span(numbers: Sequence[int], noun: str) -> str:
    """Return `3 rounds` or `3 to 5 rounds`."""
    return _many(numbers[0], noun) if len(numbers) == 1 else f"{numbers[0]:,} to {_many(numbers[-1], noun)}"


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers, default=0), max(numbers, default=0)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
