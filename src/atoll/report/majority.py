"""Judge scores by what is reached without a model: naming each client's most frequent class."""

import numpy as np

from ..core.problems import Classes
from ..storage.run_reader import Run
from .wording import count


def majority_accuracy(run: Run) -> float | None:
    """Return the mean accuracy over clients of naming the class that is most frequent in the client's training rows.

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
    return float(np.mean(right / test[tested].sum(1)))


def describe_majority(run: Run) -> str:
    """Return a sentence on the accuracy of naming the most frequent class; empty if it is not known."""
    reached = majority_accuracy(run)
    return "" if reached is None else f" Naming each client's most frequent class reaches {100 * reached:.2f} %."


def warn_of_single_classes(run: Run) -> list[str]:
    """Return a sentence if test rows of clients are all of one class."""
    counts = _counts(run)
    if counts is None:
        return []
    classes = (counts[1] > 0).sum(1)
    single, tested = int((classes == 1).sum()), int((classes > 0).sum())
    if not single:
        return []
    return [
        f"{single} of {count(tested, 'client')} {'has' if single == 1 else 'have'} test rows of one class only, where "
        "accuracy cannot tell a model from a constant. Look at balanced accuracy and AUROC (`atoll scores RUN`)."
    ]


def _counts(run: Run) -> tuple[np.ndarray, np.ndarray] | None:
    """Return training and test rows by client and class; None if they are not known."""
    if run.problem is not Classes or len(run.holdings["classes"]) < 2:
        return None
    try:
        train, test = (np.asarray(run.holdings[part], dtype=float) for part in ("train", "test"))
    except (TypeError, ValueError):  # Sites may keep their counts to themselves.
        return None
    shape = (len(run.holdings["clients"]), len(run.holdings["classes"]))
    known = train.shape == test.shape == shape and np.isfinite(train).all() and np.isfinite(test).all()
    return (train, test) if known else None
