"""Compute scores for decisions by predicted probabilities: discrimination, calibration, errors at a chosen point.

With two classes, the positive class is the second one. With more, discrimination is the unweighted mean of each class
against all others, and scores at a point are refused. Scores are NaN where they are undefined.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ..errors import AtollError
from .scores import Array, areas_under_roc, average_precision

BINS = 10  # of equal width, for the calibration error
Score = Callable[[Tensor, Tensor], float]  # (logits [N, C], labels [N]), N > 0


def balanced_accuracy(logits: Tensor, y: Tensor) -> float:
    """Return the mean over the classes in ``y`` of the share of their rows that are predicted right."""
    truth, right = y.numpy(), (logits.argmax(1) == y).numpy()
    return float(np.mean([right[truth == c].mean() for c in np.unique(truth)]))


def auroc(logits: Tensor, y: Tensor) -> float:
    """Return the area under the ROC curve."""
    return areas_under_roc(y.numpy(), _probabilities(logits))[1]


def auprc(logits: Tensor, y: Tensor) -> float:
    """Return the area under the precision-recall curve, as average precision."""
    p, truth = _probabilities(logits), y.numpy()
    classes = [1] if p.shape[1] == 2 else range(p.shape[1])
    each = [average_precision(p[:, c], (truth == c).astype(float)) for c in classes if (truth == c).any()]
    return float(np.mean(each)) if each else math.nan


def brier(logits: Tensor, y: Tensor) -> float:
    """Return the mean squared error of the positive class's probability; of more classes, summed over classes."""
    p, truth = _probabilities(logits), y.numpy()
    if p.shape[1] == 2:
        return float(np.square(p[:, 1] - truth).mean())
    return float(np.square(p - np.eye(p.shape[1])[truth]).sum(1).mean())


def calibration_error(logits: Tensor, y: Tensor) -> float:
    """Return the expected calibration error: the mean distance between confidence and accuracy, over rows."""
    bins = reliability(logits, y)
    rows = sum(bin.rows for bin in bins)
    return sum(bin.rows * abs(bin.confidence - bin.accuracy) for bin in bins) / rows


def sensitivity(logits: Tensor, y: Tensor, point: float = 0.5) -> float:
    """Return the share of positive rows whose probability is at least ``point``."""
    flagged, truth = _flagged(logits, point), y.numpy()
    return float(flagged[truth == 1].mean()) if (truth == 1).any() else math.nan


def specificity(logits: Tensor, y: Tensor, point: float = 0.5) -> float:
    """Return the share of negative rows whose probability is below ``point``."""
    flagged, truth = _flagged(logits, point), y.numpy()
    return float(1 - flagged[truth == 0].mean()) if (truth == 0).any() else math.nan


class Bin(NamedTuple):
    """Rows of similar confidence.

    Args:
        rows: their number.
        confidence: mean probability of the predicted class.
        accuracy: share of rows that are predicted right.
    """

    rows: int
    confidence: float
    accuracy: float


def reliability(logits: Tensor, y: Tensor) -> list[Bin]:
    """Return the bins of a reliability diagram that have rows: confidence in (0, 0.1], (0.1, 0.2], ..., (0.9, 1]."""
    p = _probabilities(logits)
    confidence, right = p.max(1), p.argmax(1) == y.numpy()
    at = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    groups = [at == b for b in range(BINS)]
    return [
        Bin(int(rows.sum()), float(confidence[rows].mean()), float(right[rows].mean())) for rows in groups if rows.any()
    ]


class Interval(NamedTuple):
    """A score with a bootstrap interval."""

    value: float
    low: float
    high: float


def bootstrap(score: Score, logits: Tensor, y: Tensor, draws: int = 1000, seed: int = 0) -> Interval:
    """Return a score and its 95 % percentile interval over resampled rows.

    Draws in which the score is undefined, such as those without a positive row, are left out.

    Args:
        score: the score.
        logits: predictions of shape ``[N, C]``, with at least one row.
        y: labels of shape ``[N]``.
        draws: number of resamples.
        seed: seed of the draws.
    """
    rng = np.random.default_rng(seed)
    found = [score(logits[rows], y[rows]) for rows in rng.integers(0, len(y), (draws, len(y)))]
    known = [value for value in found if not math.isnan(value)]
    low, high = np.quantile(known, (0.025, 0.975)) if known else (math.nan, math.nan)
    return Interval(score(logits, y), float(low), float(high))


def _probabilities(logits: Tensor) -> Array:
    # In single precision, confident probabilities would tie at 1.
    return logits.double().softmax(1).numpy()


def _flagged(logits: Tensor, point: float) -> Array:
    p = _probabilities(logits)
    if p.shape[1] != 2:
        raise AtollError(
            f"Sensitivity and specificity need two classes, and there are {p.shape[1]}. Group labels with 'classes' in "
            "a schema file, or leave these scores out."
        )
    return p[:, 1] >= point


SCORES: dict[str, Score] = {
    "balanced_accuracy": balanced_accuracy,
    "auroc": auroc,
    "auprc": auprc,
    "brier": brier,
    "ece": calibration_error,
}
AT_POINT: dict[str, Callable[[Tensor, Tensor, float], float]] = {
    "sensitivity": sensitivity,
    "specificity": specificity,
}


def at_point(name: str, point: float) -> Score:
    """Return sensitivity or specificity where probabilities from ``point`` on count as positive."""
    return lambda logits, y: AT_POINT[name](logits, y, point)


def all_scores(classes: int, point: float = 0.5) -> dict[str, Score]:
    """Return every score of this module that a number of classes allows, by name."""
    return SCORES | ({name: at_point(name, point) for name in AT_POINT} if classes == 2 else {})
