"""Drawing functions: plain data in, a matplotlib figure out. One module for each kind of figure."""

from ..style import inline_svg, save
from .boxes import Box, boxes
from .critical_difference import critical_difference
from .embeddings import Cloud, points
from .gains import Gains, gains
from .heatmaps import Matrix, matrices
from .image_pairs import Pair, pixels
from .lines import Axis, Line, Panel, Up, lines
from .partition import holdings
from .reliability import reliability
from .timeline import Bar, timeline
from .tradeoff import Dot, trade_off
from .weight_norms import Draw, moduli

__all__ = [
    "Axis", "Bar", "Box", "Cloud", "Dot", "Draw", "Gains", "Line", "Matrix", "Pair", "Panel", "Up", "boxes",
    "critical_difference", "gains", "holdings", "inline_svg", "lines", "matrices", "moduli", "pixels", "points",
    "reliability", "save", "timeline", "trade_off",
]  # fmt: skip
