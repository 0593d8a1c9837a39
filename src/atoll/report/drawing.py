"""The figures of runs by name, for those who hold results in their hands."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from ..errors import unknown
from . import plots
from .runs import Run

KINDS = {"curves": plots.curves, "boxes": plots.boxes, "bytes": plots.bytes_accuracy}


def draw(kind: str, runs: Sequence[Run]) -> Figure:
    """Accuracy by round (``curves``), by client (``boxes``) or by bytes (``bytes``)."""
    if kind not in KINDS:
        raise unknown("plot", kind, KINDS)
    return KINDS[kind](runs)
