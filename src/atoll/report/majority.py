"""Judge scores by what is reached without a model: naming each client's most frequent class."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..core.problems import Classes
from ..storage.run_reader import Run
from .wording import count


class MajorityScores(NamedTuple):
    """Accuracies that are reached without a model, over clients: their mean, and the mean of the worst 10 %."""

    mean: float
    worst_decile: float


def majority_scores(run: Run) -> MajorityScores | None:
    """Return the accuracy of naming, for each client, the class that is most frequent in its training rows.

    None for other problems than classes, and for runs whose sites do not tell their rows.
    """
    counts = _counts(run)
    if counts is None:
        return None
    train, test = counts
    tested = test.sum(1) > 0
    if not tested.any():
        return None
    named = train[tested].argmax(1)
    right = np.take_along_axis(test[tested], named[:, None], axis=1)[:, 0]
    reached = np.sort(right / test[tested].sum(1))
    return MajorityScores(float(reached.mean()), float(reached[: math.ceil(0.1 * len(reached))].mean()))


def warn_of_single_classes(runs: Sequence[Run]) -> list[str]:
    """Return a sentence if test rows of clients are all of one class; a split of the rows counts once."""
    splits = {run.holdings["name"]: run for run in runs}
    known = [counts[1] for run in splits.values() if (counts := _counts(run)) is not None]
    classes = [int(n) for test in known for n in (test > 0).sum(1) if n]
    single = classes.count(1)
    if not single:
        return []
    over = f" over {len(known)} splits of the samples" if len(known) > 1 else ""
    return [
        f"{single} of {count(len(classes), 'client')}{over} {'has' if single == 1 else 'have'} test samples of one "
        "class only, where accuracy cannot tell a model from a constant. Look at balanced accuracy and AUROC "
        "(`atoll scores RUN`)."
    ]


def _counts(run: Run) -> tuple[np.ndarray, np.ndarray] | None:
    """Return training and test rows by client and class; None if they are not known."""
    if run.problem is not Classes or len(run.holdings.get("classes", ())) < 2:
        return None
    try:
        train, test = (np.asarray(run.holdings[part], dtype=float) for part in ("train", "test"))
    except (TypeError, ValueError):  # Sites may keep their counts to themselves.
        return None
    shape = (len(run.holdings["clients"]), len(run.holdings["classes"]))
    known = train.shape == test.shape == shape and np.isfinite(train).all() and np.isfinite(test).all()
    return (train, test) if known else None
