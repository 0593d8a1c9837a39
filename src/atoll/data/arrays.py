"""Turn arrays as files store them into a ``Dataset``: layout of rows, numbers of labels, names of owners."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..core.problems import Classes, NextToken, Numbers
from ..errors import AtollError
from .dataset import Array, Dataset, Kind
from .tables.columns import TEXT, Bounds, Column
from .targets import RawTargets, plain, read_targets

CHANNELS = (1, 3, 4)
MOST_TOKENS = 2**22  # The largest vocabularies in use have about a million tokens.


class RawSplit(NamedTuple):
    """Rows, labels and owners as a file stores them."""

    x: Array
    y: Array
    owner: Array | None = None


class RawDataset(NamedTuple):
    """The result of a reader of ``data/readers``."""

    train: RawSplit
    test: RawSplit | None = None
    classes: tuple[str, ...] | None = None  # if given, labels are indices into these names, or columns with them
    channels_first: bool = False  # images are known to be [N, channels, H, W]
    task: str = Classes.task  # what the labels are, unless the user says something else
    columns: tuple[Column, ...] = ()  # of raw rows, which are prepared by statistics of training rows
    target_bounds: tuple[Bounds | None, ...] = ()  # declared bounds of numbers to predict
    notes: tuple[str, ...] = ()  # what the reader inferred, left out or changed
    names_test_rows: bool = (
        False  # whether a table says which rows are for testing, so that the default split keeps them
    )
    split_by_time: bool = False  # whether the test part is later than the training part, so that no other split is fair


def assemble(name: str, parts: RawDataset, order: Sequence[str] | None = None, task: str | None = None) -> Dataset:
    """Build a ``Dataset`` from the arrays of a reader.

    Args:
        name: name of the data set, for messages.
        parts: the arrays.
        order: names of the classes in the order of their numbers, if the reader does not name them; default: the
            sorted distinct training labels.
        task: what the labels are, a value of ``--task``; by default what the reader says.
    """
    if not len(parts.train.y):
        raise AtollError(f"Data set {name!r} has no training samples.")
    train, test = parts.train, _test_part(parts)
    kind, x_train = _rows(f"Data set {name!r}, train part", train.x, parts)
    test_kind, x_test = _rows(f"Data set {name!r}, test part", test.x, parts)
    if (kind, x_train.dtype) != (test_kind, x_test.dtype):
        raise AtollError(
            f"Data set {name!r}: training samples are {kind} of {x_train.dtype}, test samples {test_kind} of "
            f"{x_test.dtype}. Store both in the same type."
        )
    if (task or parts.task) == NextToken.task and kind != "text":
        raise AtollError(
            f"Data set {name!r}: --task next-token reads a plain text file (.txt), or token ids [N, length] as samples "
            f"and as labels, but samples are {kind} data."
        )
    targets = read_targets(task or parts.task, RawTargets(name, train.y, test.y, parts.classes, order))
    return Dataset(
        name=name,
        kind=kind,
        x_train=x_train,
        y_train=targets.train,
        x_test=x_test,
        y_test=targets.test,
        classes=targets.names,
        owner_train=_owners(name, train.owner),
        owner_test=_owners(name, test.owner),
        problem=targets.problem,
        columns=parts.columns,
        target_bounds=parts.target_bounds if isinstance(targets.problem, Numbers) else (),
        standardise_targets=isinstance(targets.problem, Numbers),
        notes=parts.notes,
        names_test_rows=parts.names_test_rows,
        split_by_time=parts.split_by_time,
        open_classes=isinstance(targets.problem, Classes) and parts.classes is None and order is None,
    )


def _rows(where: str, x: Array, parts: RawDataset) -> tuple[Kind, Array]:
    if parts.columns:
        return "text" if parts.columns[0].kind == TEXT else "table", x
    return rows(where, x, parts.channels_first)


def rows(where: str, x: Array, channels_first: bool = False) -> tuple[Kind, Array]:
    """Bring rows into the layout of ``Dataset`` and infer the kind of data from shape and type.

    Two dimensions are a table (floats) or token ids (integers). Three or four dimensions are images: [N, H, W],
    [N, H, W, channels] or [N, channels, H, W] with 1, 3 or 4 channels. If both four-dimensional readings are possible,
    the one with square images is taken, otherwise the former. Integers from 0 to 255 become uint8; floats are taken as
    already scaled.

    Args:
        where: name of the rows in messages.
        x: the rows.
        channels_first: whether images are known to be [N, channels, H, W].
    """
    whole, real = np.issubdtype(x.dtype, np.integer), np.issubdtype(x.dtype, np.floating)
    if not (whole or real):
        raise AtollError(f"{where}: samples are of type {x.dtype}. Store numbers: uint8, integers or floats.")
    if x.ndim == 2:
        return ("text", _tokens(where, x)) if whole else ("table", x.astype(np.float32, copy=False))
    if x.ndim not in (3, 4):
        raise AtollError(
            f"{where}: an array of shape {x.shape} is neither a table [N, columns] nor images [N, H, W] or "
            "[N, H, W, channels]. Reshape it."
        )
    pixels = _pixels(where, x) if whole else x.astype(np.float32, copy=False)
    return "image", pixels if channels_first and x.ndim == 4 else _channels_first(where, pixels)


def _test_part(parts: RawDataset) -> RawSplit:
    if parts.test is not None and len(parts.test.y):
        return parts.test
    x, y, owner = parts.train
    return RawSplit(x[:0], y[:0], None if owner is None else owner[:0])


def _tokens(where: str, x: Array) -> Array:
    if x.size and x.min() < 0:
        raise AtollError(f"{where}: token id {x.min()} is negative. Count from 0 (padding); store a table as floats.")
    if x.size and x.max() >= MOST_TOKENS:
        raise AtollError(
            f"{where}: token id {x.max()} is too large: a model has an embedding for each id, and at most "
            f"{MOST_TOKENS:,} fit. Number the tokens from 0; store a table as floats."
        )
    return x.astype(np.int64, copy=False)


def _pixels(where: str, x: Array) -> Array:
    if x.dtype == np.uint8:
        return x
    if x.size and (x.min() < 0 or x.max() > 255):
        raise AtollError(f"{where}: pixels run from {x.min()} to {x.max()}. Scale them to 0 to 255, or store floats.")
    return x.astype(np.uint8)


def _channels_first(where: str, x: Array) -> Array:
    if x.ndim == 3:
        return x[:, None]
    _, a, b, c = x.shape
    if c in CHANNELS and not (a in CHANNELS and b == c and a != b):
        return np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    if a in CHANNELS:
        return x
    raise AtollError(f"{where}: images of shape {x.shape[1:]} have no axis of 1, 3 or 4 channels. Put it last.")


def _owners(name: str, owner: Array | None) -> Array | None:
    return None if owner is None else plain(f"{name!r}, owners", owner).astype(str)
