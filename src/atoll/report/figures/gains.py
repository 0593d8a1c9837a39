"""Make the figure of what each client gains over training alone."""

from functools import partial

from ...errors import AtollError
from .. import plots
from ..groups import Group
from ..owners import ALONE, OwnerGains, compare_with_alone, format_p
from .base import FigureSpec, RunsByCase, cases, panel
from .metrics import criterion


def gains(shown: RunsByCase) -> list[FigureSpec]:
    """Make a figure of each client's gain over training alone, sorted, with a panel for each method.

    Raises:
        AtollError: no run trained alone.
    """
    found = [
        plots.Gains(": ".join(filter(None, [panel(shown, case), _title(one)])), one.by_owner)
        for case in cases(shown)
        for one in compare_with_alone([Group(name, tuple(runs)) for (c, name), runs in shown.items() if c == case])
    ]
    if not found:
        raise AtollError(f"The figure gains compares methods with training alone. Add the method {ALONE} to the runs.")
    score = criterion(shown)
    draw = partial(plots.gains, found, f"gain in {score.title}{', points' if score.percent else ''}")
    caption = (
        f"Gain of each client over training alone, in {score.title}: bars of clients, sorted; orange bars lose. "
        "p is that of Wilcoxon's signed-rank test over clients."
    )
    return [FigureSpec("gains", caption, draw)]


def _title(one: OwnerGains) -> str:
    return f"{one.method}: {one.mean:+.2f}, p {format_p(one.p)}"
