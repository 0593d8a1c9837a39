"""Reconstruct the features of classes with one or two rows from class statistics."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...engine.setup import Setup
from .base import AttackResult, ClassStatistics, ObservedUpload, mean_result, read_statistics

MOST_ROWS = 2  # rows of a class that mean and covariance determine
CLOSE = 1e-3  # relative error at which features count as found


def attack_small_classes(observed: Sequence[ObservedUpload], setup: Setup) -> list[AttackResult]:
    """Reconstruct all classes with one or two rows."""
    found: dict[int, list[float]] = {1: [], 2: []}
    for seen in observed:
        sent, z = read_statistics(seen.upload, setup), seen.client.model.features(seen.params, seen.client.x)
        for c in (seen.counts == 1).logical_or(seen.counts == MOST_ROWS).nonzero().flatten().tolist():
            rows = z[seen.client.y == c].double()
            guess = solve_features(sent, c, len(rows))
            if sent.mean is not None:
                found[len(rows)].append(float(guess is not None and _same(guess, rows)))
    measure = "share of such classes whose features are found"
    return [
        mean_result("reconstruction, 1 sample", measure, found[1]),
        mean_result("reconstruction, 2 samples", measure, found[2]),
    ]


def solve_features(sent: ClassStatistics, c: int, n: int) -> Tensor | None:
    """Compute the features of a class from its mean and covariance.

    A single row equals the mean. Two rows are the mean plus and minus the only principal axis of the covariance.

    Args:
        sent: statistics in the upload.
        c: the class.
        n: number of its rows, 1 or 2.

    Returns:
        Features of shape [n, d], or None if the upload has no statistics of the class.
    """
    if sent.mean is None or not sent.has(c):
        return None
    mean = sent.mean[c].double()
    if n == 1 or sent.sigma is None:
        return mean.expand(n, -1)
    values, vectors = torch.linalg.eigh(sent.sigma[c].double())
    half = (values[-1].clamp(min=0) / 2).sqrt() * vectors[:, -1]
    return torch.stack([mean - half, mean + half])


def _same(guess: Tensor, rows: Tensor) -> bool:
    """Return True if the guess equals the rows in either order."""
    most = CLOSE * float(rows.norm())
    return any(float((guess - order).norm()) <= most for order in (rows, rows.flip(0)))
