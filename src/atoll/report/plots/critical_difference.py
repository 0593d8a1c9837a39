"""Draw mean ranks on a line, with bars over methods that a test cannot tell apart (Demšar, JMLR 2006)."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from ..style import INK, MUTED, WIDE, colour, figure, styled
from .axes import NAME, short

ROW = 0.26  # inches, the height of a name or a bar


@styled
def critical_difference(
    names: Sequence[str],
    mean_ranks: Sequence[float],
    difference: float,
    equal: Sequence[tuple[int, int]],
    width: float = WIDE,
) -> Figure:
    """Draw a critical-difference diagram.

    Args:
        names: the methods, the best mean rank first.
        mean_ranks: their mean ranks.
        difference: the critical difference, drawn as a scale.
        equal: first and last method of each group that the test cannot tell apart.
        width: inches.
    """
    k, half = len(names), (len(names) + 1) // 2
    fig = figure(width, ROW * (half + len(equal) + 4))
    ax = fig.subplots()
    low, high = 1.0, float(k)
    ax.plot([low, high], [0, 0], color=INK, linewidth=1)
    for tick in range(1, k + 1):
        ax.plot([tick, tick], [0, 0.25], color=INK, linewidth=1)
        ax.annotate(f"{tick}", (tick, 0.35), ha="center", va="bottom", fontsize=9)
    ax.plot([low, low + difference], [1.6, 1.6], color=INK, linewidth=2)
    ax.annotate(f"critical difference {difference:.2f}", (low, 1.75), ha="left", va="bottom", fontsize=9)
    for at, (first, last) in enumerate(equal):
        y = -0.55 - 0.5 * at
        ax.plot([mean_ranks[first] - 0.03, mean_ranks[last] + 0.03], [y, y], color=INK, linewidth=3)
    below = -0.6 - 0.5 * len(equal)
    for i, (name, rank) in enumerate(zip(names, mean_ranks, strict=True)):
        left = i < half
        y = below - (i if left else k - 1 - i)
        edge = low - 0.15 if left else high + 0.15
        ax.plot([rank, rank, edge], [0, y, y], color=colour(i), linewidth=1.2)
        text = f"{short(name, NAME)}  {rank:.2f}" if left else f"{rank:.2f}  {short(name, NAME)}"
        ax.annotate(text, (edge, y), ha="right" if left else "left", va="center", fontsize=9)
    margin = 0.45 * (high - low)
    ax.set_xlim(low - margin, high + margin)
    ax.set_ylim(below - half, 2.6)
    ax.annotate("mean rank", (high, 1.6), ha="right", va="bottom", fontsize=9, color=MUTED)
    ax.axis("off")
    return fig
