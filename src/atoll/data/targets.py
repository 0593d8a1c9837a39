"""Turn labels as files store them into the labels of a problem: classes, several labels, numbers or tokens."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ..core.problems import Classes, Labels, NextToken, Numbers, Problem
from ..errors import AtollError, unknown
from .dataset import Array
from .tables.labels import class_order


class Targets(NamedTuple):
    """Labels of both parts, the names of the outputs of a model, and the problem."""

    train: Array
    test: Array
    names: tuple[str, ...]
    problem: Problem


class RawTargets(NamedTuple):
    """Labels of both parts as a file stores them.

    Args:
        data: name of the data set, for messages.
        train: labels of the training rows.
        test: labels of the test rows.
        names: names of the classes, if labels are indices into them; of label columns; or of tokens.
        order: names of the classes in the order of their numbers, if the file does not name them.
    """

    data: str
    train: Array
    test: Array
    names: tuple[str, ...] | None = None
    order: Sequence[str] | None = None


def read_targets(task: str, raw: RawTargets) -> Targets:
    """Convert labels to those of the problem that ``task`` names.

    Raises:
        AtollError: the task is unknown, or the labels do not suit it.
    """
    if task not in _READERS:
        raise unknown("task", task, _READERS)
    return _READERS[task](raw)


def plain(where: str, values: Array) -> Array:
    """Convert a column of labels or owners to int64 or str; floats that are whole numbers become integers."""
    column = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if column.ndim != 1:
        raise AtollError(
            f"{where}: an array of shape {values.shape}. Give one value for each sample, or say what the labels are "
            "with --task multilabel or --task regression."
        )
    if column.dtype.kind in "biu":
        return column.astype(np.int64)
    if column.dtype.kind == "f":
        wrong = column[column != np.floor(column)]  # NaN differs from itself
        if len(wrong) or np.isinf(column).any():
            raise AtollError(
                f"{where}: {wrong[0] if len(wrong) else 'infinity'} is no class. Give integers or names, or predict "
                "numbers with --task regression."
            )
        return column.astype(np.int64)
    if column.dtype.kind == "U" or all(isinstance(value, str) for value in column):
        return column.astype(str)
    raise AtollError(f"{where}: values of type {column.dtype}. Give integers or names.")


def _classes(raw: RawTargets) -> Targets:
    if raw.order is not None and raw.names is not None:
        raise AtollError(f"Data set {raw.data!r} already names its classes. Leave out '?classes='.")
    train, test = plain(f"{raw.data!r}, training labels", raw.train), plain(f"{raw.data!r}, test labels", raw.test)
    if raw.names is not None:
        return Targets(_indices(raw.data, train), _indices(raw.data, test), raw.names, Classes(len(raw.names)))
    found = sorted({str(label) for label in np.unique(train)}, key=class_order)
    names = tuple(raw.order) if raw.order is not None else tuple(found)
    train, test = (_number(raw.data, part, y, names) for part, y in (("training", train), ("test", test)))
    return Targets(train, test, names, Classes(len(names)))


def _labels(raw: RawTargets) -> Targets:
    train, test = (_matrix(raw, y) for y in (raw.train, raw.test))
    for y in (train, test):
        wrong = y[(y != 0) & (y != 1)]
        if len(wrong):
            raise AtollError(
                f"Data set {raw.data!r}: a label is {wrong[0]:g}. With --task multilabel every label column holds 0 "
                "and 1; for other numbers take --task regression."
            )
    count = train.shape[1]
    return Targets(train, test, _column_names(raw, count), Labels(count))


def _numbers(raw: RawTargets) -> Targets:
    train, test = (_matrix(raw, y) for y in (raw.train, raw.test))
    count = train.shape[1]
    return Targets(train, test, _column_names(raw, count), Numbers(count))


def _tokens(raw: RawTargets) -> Targets:
    for y in (raw.train, raw.test):
        if y.dtype.kind not in "iu" or y.ndim != 2:
            raise AtollError(
                f"Data set {raw.data!r}: labels are {y.dtype} of shape {y.shape}. With --task next-token, data are a "
                "plain text file (.txt), or token ids [N, length] as samples and as labels."
            )
    train, test = raw.train.astype(np.int64), raw.test.astype(np.int64)
    size = 1 + max(int(y.max()) for y in (train, test) if y.size)
    names = raw.names if raw.names is not None else tuple(str(i) for i in range(size))
    return Targets(train, test, names, NextToken(len(names), train.shape[1]))


_READERS: dict[str, Callable[[RawTargets], Targets]] = {
    Classes.task: _classes,
    Labels.task: _labels,
    Numbers.task: _numbers,
    NextToken.task: _tokens,
}


def _matrix(raw: RawTargets, y: Array) -> Array:
    """Return labels as float32 [N, columns]."""
    if y.dtype.kind not in "biuf" or y.ndim not in (1, 2):
        example = f", such as {str(y.flat[0])!r}" if y.size else ""
        raise AtollError(
            f"Data set {raw.data!r}: labels are {y.dtype} of shape {y.shape}{example}. Give a number for each sample, "
            "or columns of numbers."
        )
    wide = (y[:, None] if y.ndim == 1 else y).astype(np.float32)
    if not np.isfinite(wide).all():
        row = int(np.flatnonzero(~np.isfinite(wide).all(1))[0])
        raise AtollError(
            f"Data set {raw.data!r}: the label of sample {row} is NaN or infinite. Fill or remove such samples."
        )
    return wide


def _column_names(raw: RawTargets, count: int) -> tuple[str, ...]:
    if raw.names is not None and len(raw.names) == count:
        return raw.names
    return ("y",) if count == 1 else tuple(f"y{i}" for i in range(count))


def _number(name: str, part: str, y: Array, names: Sequence[str]) -> Array:
    values, place = np.unique(y, return_inverse=True)
    index = {label: i for i, label in enumerate(names)}
    for value in values:
        if str(value) not in index:
            raise AtollError(
                f"Data set {name!r}: a {part} sample has the label {str(value)!r}, which is not one of the "
                f"{len(names)} classes ({_some(names)}). Remove such samples, or list all classes with '?classes='."
            )
    return np.array([index[str(value)] for value in values], dtype=np.int64)[place]


def _indices(name: str, y: Array) -> Array:
    if y.dtype.kind != "i":
        raise AtollError(f"Data set {name!r}: labels must be class numbers here, not names such as {str(y[0])!r}.")
    return y


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
