"""The figures: plain data in, a matplotlib figure out, all in one style; a module for each family."""

from ..style import inline_svg, save
from .boxes import Box, boxes
from .bubbles import Dot, trade_off
from .gantt import Bar, timeline
from .holdings import holdings
from .lines import Axis, Line, Panel, lines
from .matrices import Matrix, matrices
from .moduli import Draw, moduli
from .pixels import Pair, pixels
from .points import Cloud, points

__all__ = [
    "Axis", "Bar", "Box", "Cloud", "Dot", "Draw", "Line", "Matrix", "Pair", "Panel", "boxes", "holdings", "inline_svg",
    "lines", "matrices", "moduli", "pixels", "points", "save", "timeline", "trade_off",
]  # fmt: skip
