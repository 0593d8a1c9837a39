"""Make the figure of ranks over several data sets."""

from functools import partial

from .. import plots
from ..ranks import rank_runs
from .base import FigureSpec, RunsByCase


def ranks(shown: RunsByCase) -> list[FigureSpec]:
    """Make a critical-difference diagram of the methods that all cases have."""
    found = rank_runs(shown)
    means = [float(mean) for mean in found.mean_ranks]
    draw = partial(plots.critical_difference, found.methods, means, found.critical_difference, found.equal_groups())
    caption = f"{found.describe()} Bars join methods that are not further apart."
    return [FigureSpec("ranks", caption, draw, found.sheet())]
