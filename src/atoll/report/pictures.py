"""Draw figures as inline SVG for HTML pages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup
from matplotlib.figure import Figure

from . import style
from .figures.base import FigureSpec
from .interactive import embed_chart


@dataclass(frozen=True)
class Picture:
    """A figure, drawn once for a wide window and once for a narrow one."""

    wide: Markup
    narrow: Markup
    values: Markup | None = None  # what the script of the page draws in its place, as JSON


def draw_spec(figures: Sequence[FigureSpec], prefix: str) -> Picture:
    """Draw the only figure of a list; ``prefix`` keeps ids in the SVG unique on the page."""
    (one,) = figures
    drawn = draw_picture(one.draw, f"{prefix}-{one.name}")
    return drawn if one.lines is None else replace(drawn, values=embed_chart(one.lines))


def draw_picture(draw: Callable[[float], Figure], name: str) -> Picture:
    """Draw a figure in both widths; ``name`` keeps ids in the SVG unique on the page."""
    wide, narrow = (
        Markup(style.inline_svg(draw(width), f"{name}-{kind}"))  # matplotlib escapes texts
        for kind, width in (("w", style.WIDE), ("n", style.NARROW))
    )
    return Picture(wide, narrow)
