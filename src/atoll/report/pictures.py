"""Draw figures as inline SVG for HTML pages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup
from matplotlib.figure import Figure

from . import style
from .figures.base import FigureSpec


@dataclass(frozen=True)
class Picture:
    """A figure, drawn once for a wide window and once for a narrow one."""

    wide: Markup
    narrow: Markup


def draw_spec(figures: Sequence[FigureSpec], prefix: str) -> Picture:
    """Draw the only figure of a list; ``prefix`` keeps ids in the SVG unique on the page."""
    (one,) = figures
    return draw_picture(one.draw, f"{prefix}-{one.name}")


def draw_picture(draw: Callable[[float], Figure], name: str) -> Picture:
    """Draw a figure in both widths; ``name`` keeps ids in the SVG unique on the page."""
    wide, narrow = (
        Markup(style.inline_svg(draw(width), f"{name}-{kind}"))  # matplotlib escapes texts
        for kind, width in (("w", style.WIDE), ("n", style.NARROW))
    )
    return Picture(wide, narrow)
