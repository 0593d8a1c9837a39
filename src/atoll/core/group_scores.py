"""Compute the scores of many groups of rows at once, such as those of all clients, with the results of one by one."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]
Columns = dict[str, NDArray[np.float64]]  # values of each score, with an entry for each group; NaN where undefined
NUMBERS = 2**22  # logits that are looked at together: more would only take memory


def accuracy_each(logits: Tensor, y: Tensor, sizes: Sequence[int]) -> list[float]:
    """Return the accuracy of consecutive groups of rows; NaN for a group without rows.

    Args:
        logits: predictions of shape ``[N, C]``.
        y: labels of shape ``[N]``.
        sizes: number of rows of each group.
    """
    starts = torch.tensor([0, *sizes]).cumsum(0)
    counts = torch.cat([starts[:1], (logits.argmax(1) == y).cumsum(0)]).double()[starts]  # exact: whole numbers
    return (counts.diff() / starts.diff()).tolist()


def cross_entropy_each(logits: Tensor, y: Tensor, sizes: Sequence[int]) -> NDArray[np.float64]:
    """Return the mean cross-entropy of consecutive groups of rows; NaN for a group without rows.

    Losses of rows are added up in double precision, so that a mean does not depend on the other groups.

    Args:
        logits: predictions of shape ``[N, C]``.
        y: labels of shape ``[N]``.
        sizes: number of rows of each group.
    """
    losses = F.cross_entropy(logits, y, reduction="none").double().cpu().numpy()
    rows = np.asarray(sizes, dtype=np.int64)
    held = rows > 0
    means = np.full(len(rows), np.nan)
    if held.any():  # Groups without rows are left out, because they would be given a row of the next group.
        means[held] = np.add.reduceat(losses, (rows.cumsum() - rows)[held]) / rows[held]
    return means


def class_scores_each(logits: Tensor, y: Tensor, sizes: Sequence[int]) -> Columns:
    """Return ``class_scores`` of consecutive groups of rows; NaN for a group without rows.

    Args:
        logits: predictions of shape ``[N, C]``.
        y: labels of shape ``[N]``.
        sizes: number of rows of each group.
    """
    blocks = _blocks(sizes, max(1, NUMBERS // max(1, logits.shape[1])))
    found, start = list[Columns](), 0
    for first, last in blocks:
        rows = slice(start, start + sum(sizes[first:last]))
        found.append(_block_scores(logits[rows], y[rows].numpy(), np.asarray(sizes[first:last])))
        start = rows.stop
    return {name: np.concatenate([block[name] for block in found]) for name in found[0]}


def _blocks(sizes: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Divide groups into blocks of consecutive ones with at most so many rows, or with a single group."""
    blocks, first, rows = list[tuple[int, int]](), 0, 0
    for at, size in enumerate(sizes):
        if rows and rows + size > most:
            blocks.append((first, at))
            first, rows = at, 0
        rows += size
    return [*blocks, (first, len(sizes))]


def _block_scores(logits: Tensor, truth: Array, sizes: Array) -> Columns:
    groups, classes = len(sizes), logits.shape[1]
    group, guess = np.repeat(np.arange(groups), sizes), logits.argmax(1).numpy()

    def count(rows: Array, of: Array) -> Array:
        return np.bincount(rows * classes + of, minlength=groups * classes).reshape(groups, classes)

    right = truth == guess
    support, guessed, hits = count(group, truth), count(group, guess), count(group[right], truth[right])
    known = support + guessed > 0
    each = {"precision": (hits, guessed), "recall": (hits, support), "f1": (2 * hits, support + guessed)}
    with np.errstate(invalid="ignore"):  # groups without rows are 0 / 0
        scores = {
            mean: value
            for name, (some, of) in each.items()
            for mean, value in _means(name, some / np.maximum(of, 1), support, known).items()
        }
        # In single precision, confident probabilities would tie at 1.
        areas, defined = _areas(group, truth, logits.double().softmax(1).numpy(), support, sizes)
        return scores | _means("auc", areas, support * defined, defined)


def _means(name: str, values: Array, weights: Array, known: Array) -> Columns:
    """Return the means of each row of ``values``: weighted, and unweighted (``macro``) over the known ones."""
    return {
        name: (values * weights).sum(1) / weights.sum(1),
        f"macro_{name}": np.where(known, values, 0).sum(1) / known.sum(1),
    }


def _areas(group: Array, truth: Array, p: Array, support: Array, sizes: Array) -> tuple[Array, Array]:
    """Return the one-vs-rest area under the ROC curve of each group and class, and where it is defined.

    An area is the probability that a positive row scores above a negative one; ties count half. All pairs of a row and
    a class are sorted together, by group, class and score.
    """
    classes = p.shape[1]
    defined = (support > 0) & (support < sizes[:, None])
    rows, of = np.nonzero(defined[group])
    curve, score, positive = group[rows] * classes + of, p[rows, of], truth[rows] == of
    order = np.lexsort((score, curve))
    curve, score, positive = curve[order], score[order], positive[order]
    below = np.concatenate([[0], np.cumsum(~positive)])  # negative rows before each place
    starts = _runs(lambda: curve[1:] != curve[:-1], len(curve))
    ties = _runs(lambda: (curve[1:] != curve[:-1]) | ~_same(score[1:], score[:-1]), len(curve))
    first, last = _ends(ties, len(curve))
    begin, _ = _ends(starts, len(curve))
    beaten = (below[first] + below[last] - 2 * below[begin])[positive]
    totals = np.bincount(curve[positive], weights=beaten, minlength=support.size).reshape(support.shape)
    negative = sizes[:, None] - support
    return totals / np.maximum(support, 1) / np.maximum(2 * negative, 1), defined


def _same(a: Array, b: Array) -> Array:
    """Return where two arrays are equal; NaN equals NaN, as in a sorted array."""
    same: Array = (a == b) | (np.isnan(a) & np.isnan(b))
    return same


def _runs(differs: Callable[[], Array], size: int) -> Array:
    """Return the starts of runs of equal entries, given where an entry differs from the one before it."""
    return np.concatenate([[0], np.flatnonzero(differs()) + 1]) if size else np.zeros(0, int)


def _ends(starts: Array, size: int) -> tuple[Array, Array]:
    """Return the start of the run of each entry, and the start of the next run."""
    lengths = np.diff(np.append(starts, size))
    return np.repeat(starts, lengths), np.repeat(starts + lengths, lengths)
