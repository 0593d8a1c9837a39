"""Make figures of sweeps: scores against the quantity in which the cases differ."""

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ...errors import AtollError
from ...storage.run_reader import Run, value
from ..plots.lines import Axis, Line, LineChart, Panel
from .base import FigureSpec, RunsByCase, cases, line_figure
from .metrics import criterion, plain, up_axis


class Place(NamedTuple):
    """The position of a case in a sweep, from its name: ``CIFAR-10, 2 classes`` or ``CIFAR-10, practical, mu=0.1``."""

    panel: str
    quantity: str
    at: str

    @property
    def number(self) -> float | None:
        found = re.findall(r"[-+]?\d[\d.]*(?:e[-+]?\d+)?", self.at)
        return float(found[0]) if len(found) == 1 else None


def place(case: str) -> Place:
    before, _, last = case.rpartition(", ")
    quantity, sign, at = last.partition("=")
    if sign:
        return Place(before, quantity, at)
    return Place(before, re.sub(r"[\d.%]+", "", last).strip(), last)


def sweep(
    shown: RunsByCase, x: str = "", measure: str = "personal.best_by_val", log: bool | None = None, by: str = ""
) -> list[FigureSpec]:
    """Make a figure of the score for each quantity in which the cases differ.

    ``x`` is the label of the axis, ``measure`` an entry of summaries. ``by`` takes positions from the
    configuration of runs, not from the names of cases: an option such as ``rate``, or a setting such as ``mu``.
    """
    shown = _regrouped(shown, by) if by else shown
    quantities = defaultdict[str, list[str]](list)
    for case in cases(shown):
        quantities[place(case).quantity].append(case)
    several = len(quantities) > 1
    return [
        _swept(
            {key: runs for key, runs in shown.items() if key[0] in own},
            x or quantity,
            measure,
            log,
            f"sweep-{plain(quantity)}" if several else "sweep",
        )
        for quantity, own in quantities.items()
    ]


def _regrouped(shown: RunsByCase, by: str) -> RunsByCase:
    found = defaultdict[tuple[str, str], list[Run]](list)
    for run in (run for runs in shown.values() for run in runs):
        setting = run.config.get(by, run.config.get("settings", {}).get(by))
        if setting is None:
            raise AtollError(
                f"The run in {run.path} has no entry {by!r}. Name an option of `atoll run`, or a setting that all "
                "of these runs were given."
            )
        found[f"{by}={setting}", run.label].append(run)
    return found


def _swept(shown: RunsByCase, label: str, measure: str, log: bool | None, name: str) -> FigureSpec:
    places = {case: place(case) for case in cases(shown)}
    numbers = [p.number for p in places.values()]
    known = [n for n in numbers if n is not None]
    numeric = len(known) == len(numbers)
    names = [] if numeric else list(dict.fromkeys(p.at for p in places.values()))
    wide = numeric and min(known) > 0 and max(known) / min(known) > 50
    at = {case: p.number if numeric else float(names.index(p.at)) for case, p in places.items()}
    panels = []
    for title in dict.fromkeys(p.panel for p in places.values()):
        own = {key: runs for key, runs in shown.items() if places[key[0]].panel == title}
        methods = dict.fromkeys(method for _, method in own)
        panels.append(Panel(title, [_swept_line(own, method, at, measure) for method in methods]))
    across = Axis(label, log=wide if log is None else log, names=names, each=True)
    score = criterion(shown)
    up = up_axis("global {}" if measure.startswith("generic") else "personal {}", score)
    shown_panels = panels if len(panels) > 1 else [panels[0]._replace(title="")]
    caption = f"{score.heading} against {label}; bands reach from the lowest seed to the highest."
    return line_figure(name, caption, LineChart(shown_panels, across, up))


def _swept_line(shown: RunsByCase, method: str, at: Mapping[str, float | None], measure: str) -> Line:
    """Return the line of a method, with the seeds that all cases have, so that positions are comparable."""
    own = sorted(
        ((at[case] or 0.0, runs) for (case, name), runs in shown.items() if name == method), key=lambda pair: pair[0]
    )
    seeds = set.intersection(*({run.seed for run in runs} for _, runs in own))
    table = [[value(run.summary, measure) for run in runs if run.seed in seeds] for _, runs in own]
    y = np.array([[math.nan if v is None else v for v in row] for row in table], dtype=float).T
    return Line(method, [x for x, _ in own], y)
