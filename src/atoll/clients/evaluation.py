"""Score models per client, summarise scores over clients, and select the round to report."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.model import CHUNK, Predictor
from .metrics import Metric, compute_metric

Score = dict[str, float]  # of one client, or the summary of many; NaN where a metric is undefined
DETAILS = ("precision", "recall", "f1", "auc", "macro_precision", "macro_recall", "macro_f1", "macro_auc")
RESERVED_NAMES = ("n", "accuracy", "val", "global", "weighted", "worst_decile", *DETAILS)  # not free for user metrics


def predict(predictor: Predictor, x: Tensor) -> Tensor:
    """Compute logits of all rows, in batches and without gradients.

    Args:
        predictor: maps rows to logits, or to other scores whose largest entry is the predicted class.
        x: rows, of shape ``[N, ...]``.

    Returns:
        Scores of shape ``[N, C]``.
    """
    with torch.no_grad():
        return torch.cat([predictor(rows) for rows in x.split(CHUNK)])


def accuracy(logits: Tensor, y: Tensor) -> float:
    """Return the fraction of rows whose largest logit belongs to the true class; NaN without rows."""
    return (logits.argmax(1) == y).double().mean().item()


def measure(logits: Tensor, y: Tensor, user_metrics: Mapping[str, Metric] = {}) -> Score:
    """Compute all metrics of one client.

    Precision, recall, F1 and AUC are averaged over classes twice: weighted by support, and unweighted (``macro``). AUC
    is one-vs-rest over the classes that have positive and negative rows, and NaN for a client with one class.

    Args:
        logits: predictions of shape ``[N, C]``.
        y: labels of shape ``[N]``.
        user_metrics: further metrics by name.

    Returns:
        The value of each metric; NaN where a metric is undefined.

    Raises:
        AtollError: a user's metric fails.
    """
    logits, y = logits.cpu(), y.cpu()
    score = {"n": float(len(y)), "accuracy": accuracy(logits, y)}
    score |= {name: compute_metric(name, metric, logits, y) for name, metric in user_metrics.items()}
    if len(y) == 0:
        return score | dict.fromkeys(DETAILS, math.nan)
    truth, guess = y.numpy(), logits.argmax(1).numpy()
    support, each = _by_class(truth, guess)
    for name, values in each.items():
        score |= {name: float(np.average(values, weights=support)), f"macro_{name}": float(np.mean(values))}
    # In single precision, confident probabilities would tie at 1.
    score["auc"], score["macro_auc"] = _areas_under_roc(truth, logits.double().softmax(1).numpy())
    return score


def _by_class(truth: NDArray[Any], guess: NDArray[Any]) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
    """Return support, and precision, recall and F1 of each true or predicted class; 0 where a ratio is 0/0."""
    size = 1 + max(truth.max(), guess.max())
    support, guessed, hits = (np.bincount(v, minlength=size) for v in (truth, guess, truth[truth == guess]))
    known = np.flatnonzero(support + guessed)
    support, guessed, hits = support[known], guessed[known], hits[known]
    each = {"precision": (hits, guessed), "recall": (hits, support), "f1": (2 * hits, support + guessed)}
    return support, {name: some / np.maximum(of, 1) for name, (some, of) in each.items()}


def _areas_under_roc(truth: NDArray[Any], p: NDArray[Any]) -> tuple[float, float]:
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


def summarise_clients(scores: Mapping[str, Score]) -> Score:
    """Summarise scores over clients.

    Args:
        scores: the scores of each client, by name.

    Returns:
        Accuracy as unweighted mean (``accuracy``), mean weighted by rows (``weighted``) and mean of the worst 10 % of
        clients (``worst_decile``); of every other metric the unweighted mean over the clients that define it.
    """
    each = list(scores.values())
    accuracies, n = np.array([s["accuracy"] for s in each]), np.array([s["n"] for s in each])
    known = ~np.isnan(accuracies)
    if not known.any():
        return {"accuracy": math.nan}
    worst = np.sort(accuracies[known])[: max(1, math.ceil(0.1 * known.sum()))]
    out = {
        "accuracy": float(accuracies[known].mean()),
        "weighted": float(np.average(accuracies[known], weights=n[known])),
        "worst_decile": float(worst.mean()),
    }
    user_metrics = dict.fromkeys(name for score in each for name in score if name not in RESERVED_NAMES)
    for name in ("val", "global", *DETAILS, *user_metrics):
        values = np.array([s.get(name, math.nan) for s in each])
        out[name] = float(np.nanmean(values)) if not np.isnan(values).all() else math.nan
    return out


def find_target_round(lines: Sequence[Mapping[str, Any]], target: float) -> dict[str, Any] | None:
    """Return the costs up to the first round with a mean personal accuracy of at least ``target``.

    Args:
        lines: lines of metrics.jsonl, in order.
        target: an accuracy between 0 and 1.

    Returns:
        Round, bytes, operations, simulated and real seconds; None if no round reached the target.
    """
    for line in lines:
        if line["personal"]["post"]["accuracy"] >= target:
            return {name: line[name] for name in ("round", "bytes", "flops", "clock", "seconds")}
    return None


def select_rounds(history: Sequence[tuple[int, Score]]) -> dict[str, Any]:
    """Select the final, the best and the validation-selected round of a run.

    Args:
        history: pairs of round and score, in order, at least one.

    Returns:
        Accuracies and metrics of the three rounds. The first round wins a tie; without validation rows the final round
        takes the place of the validation-selected one.
    """
    final = history[-1]
    best = max(history, key=lambda at: at[1]["accuracy"])
    validated = [at for at in history if not math.isnan(at[1].get("val", math.nan))]
    chosen = max(validated, key=lambda at: at[1]["val"]) if validated else final
    return {
        "final": final[1]["accuracy"],
        "best": best[1]["accuracy"],
        "best_round": best[0],
        "best_by_val": chosen[1]["accuracy"],
        "best_by_val_round": chosen[0],
        "worst_decile": chosen[1].get("worst_decile", math.nan),
        "metrics": {"final": final[1], "best": best[1], "best_by_val": chosen[1]},
    }
