"""Compute averages of rows that a few outlying rows cannot decide.

All functions take uploads x [K, D], one row for each client, and most take weights w [K], such as numbers of samples;
both in double precision.
"""

from collections.abc import Callable

import torch
from torch import Tensor

ITERATIONS = 64  # steps of Weiszfeld's algorithm: a fixed number, so that runs can be repeated
COLUMNS_AT_ONCE = 2**16  # columns that are sorted together: more only cost memory
NEGLIGIBLE = 1e-9  # share of the weight that may be left by rounding


def weighted_mean(x: Tensor, w: Tensor) -> Tensor:
    """Return the weighted mean of rows, added up row by row as a stream of uploads is."""
    total = torch.zeros_like(x[0])
    for row, share in zip(x, w, strict=True):
        total = total + share * row
    return total / w.sum()


def median(x: Tensor, w: Tensor) -> Tensor:
    """Return the weighted median of each column. Ties give the midpoint."""
    ordered, order = x.sort(0)
    reached, half = w[order].cumsum(0), w.sum() / 2
    first, last = (reached < half).sum(0), (reached <= half).sum(0).clamp(max=len(x) - 1)
    return (ordered.gather(0, first[None]) + ordered.gather(0, last[None]))[0] / 2


def trimmed_mean(x: Tensor, w: Tensor, share: float) -> Tensor:
    """Return the weighted mean of each column without ``share`` of the weight at either end.

    The weight of a row on the boundary is cut in part.
    """
    ordered, order = x.sort(0)
    mass, whole = w[order], w.sum()
    end = mass.cumsum(0)
    kept = (end.clamp(max=whole * (1 - share)) - (end - mass).clamp(min=whole * share)).clamp(min=0)
    kept = torch.where(kept > NEGLIGIBLE * whole, kept, 0)
    return (kept / kept.sum(0) * ordered).sum(0)


def geometric_median(x: Tensor, w: Tensor) -> Tensor:
    """Return the point with the least weighted sum of distances to the rows, by Weiszfeld's algorithm.

    Starts at the median of columns. A step that starts on a row is shortened as by Vardi and Zhang (PNAS 2000), so that
    the iteration does not stop at that row.
    """
    z = apply_by_columns(median, x, w)
    for _ in range(ITERATIONS):
        far = distances(x, z)
        away = far > 0
        if not away.any():
            break
        pull = torch.where(away, w / far, 0)
        way = weighted_mean(x, pull) - z
        held, force = w[~away].sum(), way.norm() * pull.sum()
        if held >= force:  # True as well if the force is 0
            break
        z = z + (1 - held / force) * way
    return z


def krum(x: Tensor, f: int, most: int | None = None) -> Tensor:
    """Return the positions of the rows that multi-Krum selects, in ascending order (Blanchard et al., NeurIPS 2017).

    The score of a row is the sum of its squared distances to its K - f - 2 nearest rows. The rows with the lowest
    scores are selected; ties go to earlier rows. Weights have no influence.

    Args:
        x: uploads [K, D].
        f: number of Byzantine clients.
        most: number of rows to select; None for K - f - 2.
    """
    near = max(len(x) - f - 2, 1)
    squares = torch.stack([distances(x, row).square() for row in x])
    score = squares.sort(1).values[:, 1 : 1 + near].sum(1)  # The first entry is the row itself.
    return score.argsort(stable=True)[: near if most is None else most].sort().values


def clip_rows(x: Tensor, around: Tensor, norm: float) -> Tensor:
    """Scale the difference between each row and ``around`` to a length of at most ``norm``."""
    far = distances(x, around)[:, None]
    return torch.where(far > norm, around + norm / far * (x - around), x)


def distances(x: Tensor, z: Tensor) -> Tensor:
    """Return the Euclidean distance of each row from ``z``. Shape [K]."""
    return torch.stack([(row - z).norm() for row in x])


def apply_by_columns(f: Callable[[Tensor, Tensor], Tensor], x: Tensor, w: Tensor) -> Tensor:
    """Apply a rule of single columns to ``COLUMNS_AT_ONCE`` columns at a time."""
    return torch.cat([f(columns, w) for columns in x.split(COLUMNS_AT_ONCE, 1)])
