"""Compute scores of predictions: of classes, several labels, numbers and tokens. NaN where a score is undefined."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Scores = dict[str, float]
Array = NDArray[Any]


def accuracy(logits: Tensor, y: Tensor) -> float:
    """Return the fraction of rows whose largest logit belongs to the true class; NaN without rows."""
    return (logits.argmax(1) == y).double().mean().item()


def class_scores(logits: Tensor, y: Tensor) -> Scores:
    """Return precision, recall, F1 and AUC over classes: weighted by support, and unweighted (``macro``).

    AUC is one-vs-rest over the classes that have positive and negative rows, and NaN for rows of one class.

    Args:
        logits: predictions of shape ``[N, C]``, with at least one row.
        y: labels of shape ``[N]``.
    """
    truth, guess = y.numpy(), logits.argmax(1).numpy()
    support, each = _by_class(truth, guess)
    scores: Scores = {}
    for name, values in each.items():
        scores |= {name: float(np.average(values, weights=support)), f"macro_{name}": float(np.mean(values))}
    # In single precision, confident probabilities would tie at 1.
    scores["auc"], scores["macro_auc"] = areas_under_roc(truth, logits.double().softmax(1).numpy())
    return scores


def mean_average_precision(logits: Tensor, y: Tensor) -> float:
    """Return the mean of the average precision over the labels that occur in ``y``; NaN if none does.

    The average precision of a label is sum_n (R_n - R_{n-1}) P_n, with recall and precision among the rows whose logit
    is at least the n-th largest distinct logit.

    Args:
        logits: predictions of shape ``[N, L]``.
        y: 0 or 1, of shape ``[N, L]``.
    """
    each = [average_precision(s, t) for s, t in zip(logits.numpy().T, y.numpy().T, strict=True) if t.any()]
    return float(np.mean(each)) if each else math.nan


def label_scores(logits: Tensor, y: Tensor) -> Scores:
    """Return F1 at the threshold 0.5, of all decisions together (micro) and as a mean over labels (macro).

    Labels that neither occur nor are predicted have no F1 and are left out of the macro mean.

    Args:
        logits: predictions of shape ``[N, L]``.
        y: 0 or 1, of shape ``[N, L]``.
    """
    truth, guess = y.numpy() > 0.5, logits.numpy() > 0
    hits, both = (truth & guess).sum(0), truth.sum(0) + guess.sum(0)
    if not both.any():
        return {"micro_f1": math.nan, "macro_f1": math.nan}
    known = both > 0
    return {"micro_f1": float(2 * hits.sum() / both.sum()), "macro_f1": float((2 * hits[known] / both[known]).mean())}


def mean_squared_error(guess: Tensor, y: Tensor) -> float:
    """Return the mean squared error over rows and targets; NaN without rows."""
    return (guess.double() - y.double()).square().mean().item()


def number_scores(guess: Tensor, y: Tensor) -> Scores:
    """Return the mean absolute error, and R², the mean over targets of 1 - squared error / variance of the target.

    R² is NaN where a target has the same value in all rows.

    Args:
        guess: predictions of shape ``[N, T]``, in the unit of the targets.
        y: targets of shape ``[N, T]``.
    """
    guess, y = guess.double(), y.double()
    spread = (y - y.mean(0)).square().sum(0)
    share = (guess - y).square().sum(0) / spread
    r2 = (1 - share).mean().item() if bool((spread > 0).all()) else math.nan
    return {"mae": (guess - y).abs().mean().item(), "r2": r2}


def _by_class(truth: Array, guess: Array) -> tuple[Array, dict[str, Array]]:
    """Return support, and precision, recall and F1 of each true or predicted class; 0 where a ratio is 0/0."""
    size = 1 + max(truth.max(), guess.max())
    support, guessed, hits = (np.bincount(v, minlength=size) for v in (truth, guess, truth[truth == guess]))
    known = np.flatnonzero(support + guessed)
    support, guessed, hits = support[known], guessed[known], hits[known]
    each = {"precision": (hits, guessed), "recall": (hits, support), "f1": (2 * hits, support + guessed)}
    return support, {name: some / np.maximum(of, 1) for name, (some, of) in each.items()}


def areas_under_roc(truth: Array, p: Array) -> tuple[float, float]:
    """Return the support-weighted and the unweighted mean of one-vs-rest areas under the ROC curve.

    An area is the probability that a positive row scores above a negative one; ties count half.
    """
    support = np.bincount(truth, minlength=p.shape[1])
    classes = np.flatnonzero((support > 0) & (support < len(truth)))
    if len(classes) == 0:
        return math.nan, math.nan
    areas = []
    for c in classes:
        inside, outside = p[truth == c, c], np.sort(p[truth != c, c])
        beaten = np.searchsorted(outside, inside, "left") + np.searchsorted(outside, inside, "right")
        areas.append(beaten.mean() / (2 * len(outside)))
    return float(np.average(areas, weights=support[classes])), float(np.mean(areas))


def average_precision(score: Array, truth: Array) -> float:
    """Return the average precision of one label that occurs; rows of equal score count together."""
    order = np.argsort(-score, kind="stable")
    score, hits = score[order], np.cumsum(truth[order] > 0.5)
    last = np.flatnonzero(np.append(np.diff(score) != 0, True))  # the last row of each group of equal scores
    gained = np.diff(hits[last], prepend=0)
    return float((gained * hits[last] / (last + 1)).sum() / hits[-1])
