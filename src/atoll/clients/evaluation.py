"""Score models per client, summarise scores over clients, and select the round to report."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.criterion import Criterion
from ..core.group_scores import Columns
from ..core.model import CHUNK, Predictor
from ..core.problems import Problem
from .metrics import Metric, compute_metric

TARGET_MEASURES = ("personal", "weighted", "generic")  # mean over clients, over rows, and of the server's model
RECENT = 10  # rounds at the end of a run whose mean is reported
Score = dict[str, float]  # of one client, or the summary of many; NaN where a metric is undefined


def reserved_names(problem: Problem | type[Problem]) -> tuple[str, ...]:
    """Return the names that are not free for a user's metrics."""
    return ("n", problem.criterion.name, "val", "global", "weighted", "worst_decile", *problem.details)


def predict(predictor: Predictor, x: Tensor) -> Tensor:
    """Compute the outputs of all rows, in batches and without gradients.

    Args:
        predictor: maps rows to outputs, such as logits.
        x: rows, of shape ``[N, ...]``.

    Returns:
        Outputs of shape ``[N, outputs]``; for the next token ``[N, T, V]``.
    """
    with torch.no_grad():
        return torch.cat([predictor(rows) for rows in x.split(CHUNK)])


def measure(problem: Problem, outputs: Tensor, y: Tensor, user_metrics: Mapping[str, Metric] = {}) -> Score:
    """Compute all scores of one client.

    Args:
        problem: what the labels are.
        outputs: outputs of a model, of shape ``[N, outputs]``; for the next token ``[N, T, V]``.
        y: labels.
        user_metrics: further metrics by name.

    Returns:
        The value of each score; NaN where a score is undefined.

    Raises:
        AtollError: a user's metric fails.
    """
    outputs, y = outputs.cpu(), y.cpu()
    first, *rest = problem.scores(outputs, y).items()
    shown = problem.in_unit(outputs)
    user = {name: compute_metric(name, metric, shown, y) for name, metric in user_metrics.items()}
    return {"n": float(len(y)), **dict([first]), **user, **dict(rest)}


def measure_each(
    problem: Problem, outputs: Tensor, y: Tensor, sizes: Sequence[int], user_metrics: Mapping[str, Metric] | None
) -> Columns:
    """Compute all scores of several clients; see :func:`measure`.

    Args:
        problem: what the labels are.
        outputs: outputs for the rows of all clients, one client after the other.
        y: labels, in the same order.
        sizes: number of rows of each client.
        user_metrics: further metrics by name; None computes the criterion alone.

    Returns:
        The scores as columns, in the order of the clients.
    """
    rows, outputs, y = np.asarray(sizes, dtype=np.float64), outputs.cpu(), y.cpu()
    if user_metrics is None:
        return {"n": rows, problem.criterion.name: np.array(problem.score_each(outputs, y, sizes))}
    scores = problem.scores_each(outputs, y, sizes)
    first = {problem.criterion.name: scores.pop(problem.criterion.name)}
    user = _user_metrics_each(problem.in_unit(outputs), y, sizes, user_metrics) if user_metrics else {}
    return {"n": rows, **first, **user, **scores}


def _user_metrics_each(outputs: Tensor, y: Tensor, sizes: Sequence[int], metrics: Mapping[str, Metric]) -> Columns:
    """Compute the user's metrics client by client, because they take the rows of one client."""
    each = list(zip(outputs.split(list(sizes)), y.split(list(sizes)), strict=True))
    return {name: np.array([compute_metric(name, metric, *of) for of in each]) for name, metric in metrics.items()}


def summarise_clients(scores: Columns, problem: Problem) -> Score:
    """Summarise scores over clients.

    Args:
        scores: the scores of the clients, as columns.
        problem: what the labels are.

    Returns:
        The criterion as unweighted mean (under its name), mean weighted by rows (``weighted``) and mean of the worst
        10 % of clients (``worst_decile``); of every other metric the unweighted mean over the clients that define it.
    """
    name = problem.criterion.name
    values, n = scores[name], scores["n"]
    known = ~np.isnan(values)
    if not known.any():
        return {name: math.nan}
    worst_first = np.sort(values[known])[:: 1 if problem.criterion.higher else -1]
    out = {
        name: float(values[known].mean()),
        "weighted": float(np.average(values[known], weights=n[known])),
        "worst_decile": float(worst_first[: max(1, math.ceil(0.1 * known.sum()))].mean()),
    }
    reserved = reserved_names(problem)
    user_metrics = [name for name in scores if name not in reserved]
    for name in ("val", "global", *problem.details, *user_metrics):
        values = scores.get(name, np.array([math.nan]))
        out[name] = float(np.nanmean(values)) if not np.isnan(values).all() else math.nan
    return out


def find_target_round(
    lines: Sequence[Mapping[str, Any]], target: float, criterion: Criterion, measure: str = "personal"
) -> dict[str, Any] | None:
    """Return the costs up to the first round with a score at least as good as ``target``.

    Args:
        lines: lines of metrics.jsonl, in order.
        target: a value of the criterion, such as an accuracy between 0 and 1.
        criterion: the score.
        measure: whose score, one of ``TARGET_MEASURES``.

    Returns:
        Round, bytes, operations, simulated and real seconds; None if no round reached the target.
    """
    for line in lines:
        if criterion.reaches(_measured(line, criterion, measure), target):
            costs = {name: line[name] for name in ("round", "bytes", "flops", "clock", "seconds")}
            return costs | {"bytes": {**line["bytes"], "both": sum(line["bytes"].values())}}
    return None


def _measured(line: Mapping[str, Any], criterion: Criterion, measure: str) -> float:
    """Return the score of a round that a target is about; NaN if there is no generic model."""
    if measure == "generic":
        return float(line["generic"]["global"][criterion.name]) if line["generic"] else math.nan
    return float(line["personal"]["post"]["weighted" if measure == "weighted" else criterion.name])


def choose_round(history: Sequence[tuple[int, Score]], criterion: Criterion) -> int | None:
    """Return the round with the best validation score, the first of equals; None without validation rows.

    Args:
        history: pairs of round and score, in order.
        criterion: the score that selects.
    """
    validated = [at for at in history if not math.isnan(at[1].get("val", math.nan))]
    return criterion.best(validated, lambda at: at[1]["val"])[0] if validated else None


def select_rounds(history: Sequence[tuple[int, Score]], criterion: Criterion) -> dict[str, Any]:
    """Select the final, the best and the validation-selected round of a run, and average the last ten rounds.

    Args:
        history: pairs of round and score, in order, at least one.
        criterion: the score that selects.

    Returns:
        Scores and metrics of the three rounds, and their means over the last ten rounds, as far as these were
        evaluated. The first round wins a tie; without validation rows the final round takes the place of the
        validation-selected one.
    """
    final = history[-1]
    recent = _mean_scores([score for at, score in history if at > final[0] - RECENT])
    best = criterion.best(history, lambda at: at[1][criterion.name])
    by_validation = choose_round(history, criterion)
    chosen = final if by_validation is None else next(at for at in history if at[0] == by_validation)
    return {
        "final": final[1][criterion.name],
        "best": best[1][criterion.name],
        "best_round": best[0],
        "best_by_val": chosen[1][criterion.name],
        "best_by_val_round": chosen[0],
        "last10": recent[criterion.name],
        "worst_decile": chosen[1].get("worst_decile", math.nan),
        "metrics": {"final": final[1], "best": best[1], "best_by_val": chosen[1], "last10": recent},
    }


def _mean_scores(scores: Sequence[Score]) -> Score:
    """Return the mean of each value over several rounds; NaN if it is missing in one of them."""
    return {name: float(np.mean([s.get(name, math.nan) for s in scores])) for name in scores[-1]}
