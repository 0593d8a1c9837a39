"""Draw rows from data sets: a smaller data set for a quick trial, or public rows from another data set."""

from dataclasses import replace

import numpy as np
import torch
from numpy.random import Generator
from torch.nn.functional import interpolate

from ..errors import AtollError
from .dataset import Array, Dataset
from .split import apportion, pick, shares


def subsample(data: Dataset, rows: int, rng: Generator) -> Dataset:
    """Draw ``rows`` rows of a data set, in proportion from its training and test part and from its classes."""
    parts = np.array([len(data.y_train), len(data.y_test)])
    if not len(data.groups) <= rows <= parts.sum():
        raise AtollError(
            f"{rows} rows cannot be drawn from data set {data.name!r}: it has {parts.sum()} rows and "
            f"{len(data.groups)} classes. Ask for --rows {len(data.groups)} to {parts.sum()}, or leave it out for all."
        )
    trained, tested = (int(n[0]) for n in shares(np.array([rows]), *parts.tolist()))
    train = _proportional(data.group_numbers(data.y_train), trained, rng)
    test = _proportional(data.group_numbers(data.y_test), tested, rng)
    return replace(
        data,
        x_train=data.x_train[train],
        y_train=data.y_train[train],
        x_test=data.x_test[test],
        y_test=data.y_test[test],
        owner_train=None if data.owner_train is None else data.owner_train[train],
        owner_test=None if data.owner_test is None else data.owner_test[test],
    )


def _proportional(labels: Array, rows: int, rng: Generator) -> Array:
    totals = np.bincount(labels)
    quota = apportion(np.array([rows]), totals[None], totals[None], rng.random((1, len(totals))))[0]
    return pick(labels, quota, rng)


def sample_public_rows(data: Dataset, rows: int, shape: tuple[int, ...], rng: Generator) -> Array:
    """Draw public rows from the training part of another data set.

    Args:
        data: the data set to draw from, evenly over its classes.
        rows: number of rows.
        shape: shape of the clients' rows; images are resized and their channels converted to it.
        rng: source of randomness.
    """
    totals = np.bincount(data.group_numbers(data.y_train), minlength=len(data.groups))
    if not 0 < rows <= totals.sum():
        raise AtollError(
            f"--public-data {data.name!r} needs a number of rows. Add --public with 1 to {totals.sum()}, the number of "
            "its training rows."
        )
    even = apportion(np.array([rows]), (totals > 0)[None].astype(int), totals[None], rng.random((1, len(totals))))[0]
    return _to_shape(data.x_train[pick(data.group_numbers(data.y_train), even, rng)], shape, data.name)


def _to_shape(x: Array, shape: tuple[int, ...], name: str) -> Array:
    """Convert images to another size and number of channels; refuse other rows of another shape."""
    if x.shape[1:] == shape:
        return x
    if len(shape) != 3 or x.ndim != 4 or x.dtype != np.uint8:
        raise AtollError(
            f"Public rows of {name!r} have shape {x.shape[1:]}, but the clients' rows have {shape}. "
            "Choose a data set with rows of that shape; only images are converted."
        )
    images = torch.from_numpy(x.astype(np.float32))
    if images.shape[1] != shape[0]:
        images = images.mean(1, keepdim=True).expand(-1, shape[0], -1, -1)
    images = interpolate(images, size=shape[1:], mode="bilinear", antialias=True, align_corners=False)
    return images.round().clamp(0, 255).to(torch.uint8).numpy()
