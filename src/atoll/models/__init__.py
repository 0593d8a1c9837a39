"""Architectures with a body and a head, by name or from any module of the user's own."""

from .adapt import split
from .fit import Fit
from .foreign import foreign, is_foreign
from .proxy import proxy
from .registry import Net
from .zoo import Row, build, catalogue, describe, feature_dim, kinds, names, options, table

__all__ = [
    "Fit",
    "Net",
    "Row",
    "build",
    "catalogue",
    "describe",
    "feature_dim",
    "foreign",
    "is_foreign",
    "kinds",
    "names",
    "options",
    "proxy",
    "split",
    "table",
]
