"""Build architectures with a body and a head, by name or from a user's own module."""

from .body_and_head import split, split_at_last_linear
from .catalogue import Row, build, catalogue, describe, feature_dim, kinds, names, options, table
from .external import foreign, is_foreign
from .proxy import proxy
from .registry import Net
from .resize import FitImage

__all__ = [
    "FitImage",
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
    "split_at_last_linear",
    "table",
]
