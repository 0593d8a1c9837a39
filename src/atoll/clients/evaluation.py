"""How good are the models: per client, over all clients, and which round to report."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.model import CHUNK, Predictor
from .metrics import Metric, value

Score = dict[str, float]  # of one client, or the summary of many; NaN where a measure is undefined
DETAILS = ("precision", "recall", "f1", "auc", "macro_precision", "macro_recall", "macro_f1", "macro_auc")
OWN = ("n", "accuracy", "val", "global", "weighted", "worst_decile", *DETAILS)  # names that are taken


def predict(predictor: Predictor, x: Tensor) -> Tensor:
    """Logits (or any scores whose order counts) of all rows, in batches."""
    with torch.no_grad():
        return torch.cat([predictor(rows) for rows in x.split(CHUNK)])


def accuracy(logits: Tensor, y: Tensor) -> float:
    """Share of rows whose largest score is at the label; NaN without rows."""
    return (logits.argmax(1) == y).double().mean().item()


def measure(logits: Tensor, y: Tensor, more: Mapping[str, Metric] = {}) -> Score:
    """All measures of one client on its rows, those of the user's own included.

    Precision, recall, F1 and AUC are averaged over classes by support, and plainly (``macro``). AUC is one against the
    rest, over the classes that have both kinds of rows; a client with one class has none.
    """
    logits, y = logits.cpu(), y.cpu()
    score = {"n": float(len(y)), "accuracy": accuracy(logits, y)}
    score |= {name: value(name, metric, logits, y) for name, metric in more.items()}
    if len(y) == 0:
        return score | dict.fromkeys(DETAILS, math.nan)
    truth, guess = y.numpy(), logits.argmax(1).numpy()
    support, each = _by_class(truth, guess)
    for name, values in each.items():
        score |= {name: float(np.average(values, weights=support)), f"macro_{name}": float(np.mean(values))}
    score["auc"], score["macro_auc"] = _areas(truth, logits.double().softmax(1).numpy())  # singles would tie at 1
    return score


def _by_class(truth: NDArray[Any], guess: NDArray[Any]) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
    """Rows, precision, recall and F1 of each class that is there or was guessed; 0 where a measure has no rows."""
    size = 1 + max(truth.max(), guess.max())
    support, guessed, hits = (np.bincount(v, minlength=size) for v in (truth, guess, truth[truth == guess]))
    known = np.flatnonzero(support + guessed)
    support, guessed, hits = support[known], guessed[known], hits[known]
    each = {"precision": (hits, guessed), "recall": (hits, support), "f1": (2 * hits, support + guessed)}
    return support, {name: some / np.maximum(of, 1) for name, (some, of) in each.items()}


def _areas(truth: NDArray[Any], p: NDArray[Any]) -> tuple[float, float]:
    """Areas under the ROC curves: how often a row of the class scores above one of another, ties counting half."""
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


def population(scores: Mapping[str, Score]) -> Score:
    """Over clients: unweighted mean, mean weighted by rows, the worst tenth, and the mean of every other measure."""
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
    more = dict.fromkeys(name for score in each for name in score if name not in OWN)
    for name in ("val", "global", *DETAILS, *more):
        values = np.array([s.get(name, math.nan) for s in each])
        out[name] = float(np.nanmean(values)) if not np.isnan(values).all() else math.nan
    return out


def reached(lines: Sequence[Mapping[str, Any]], target: float) -> dict[str, Any] | None:
    """What it took until the mean personal accuracy first reached ``target``; None if it never did."""
    for line in lines:
        if line["personal"]["post"]["accuracy"] >= target:
            return {name: line[name] for name in ("round", "bytes", "flops", "clock", "seconds")}
    return None


def select(history: Sequence[tuple[int, Score]]) -> dict[str, Any]:
    """Final, best and validation-selected values of a curve of (round, score); the first round wins a tie.

    Without validation rows the final round stands in for the selected one.
    """
    final = history[-1]
    best = max(history, key=lambda at: at[1]["accuracy"])
    judged = [at for at in history if not math.isnan(at[1].get("val", math.nan))]
    chosen = max(judged, key=lambda at: at[1]["val"]) if judged else final
    return {
        "final": final[1]["accuracy"],
        "best": best[1]["accuracy"],
        "best_round": best[0],
        "best_by_val": chosen[1]["accuracy"],
        "best_by_val_round": chosen[0],
        "worst_decile": chosen[1].get("worst_decile", math.nan),
        "metrics": {"final": final[1], "best": best[1], "best_by_val": chosen[1]},
    }
