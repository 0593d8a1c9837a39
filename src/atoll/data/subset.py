"""Draw rows from data sets: fewer rows of every client, or public rows from another data set."""

from dataclasses import replace

import numpy as np
import torch
from numpy.random import Generator
from torch.nn.functional import interpolate

from ..errors import AtollError
from .dataset import Array, Dataset
from .federated_dataset import PARTS, FederatedDataset, Part, all_groups, short_hash
from .split import apportion, grouped, pick


def keep_rows(
    federation: FederatedDataset, rows: int | None, test_rows: int | None, rng: Generator
) -> FederatedDataset:
    """Keep fewer rows of every client, in proportion to what the clients hold; the partition stays as it is.

    Args:
        federation: the partition of the whole data set.
        rows: number of training rows over all clients, validation rows included; None keeps all.
        test_rows: number of test rows over all clients; None keeps all.
        rng: source of randomness.

    Raises:
        AtollError: a client would be left without a row, or the data has fewer rows.
    """
    train, val, test = (federation.counts(part) for part in PARTS)
    if rows is not None:
        totals = _client_totals(train.sum(1), val.sum(1), rows, "--rows", max(1, len(federation.dataset.groups)))
        validated = _validation_share(totals, train, val)
        train = _with_all_classes(_thin(train, totals - validated, rng), train)
        val = _thin(val, validated, rng)
    if test_rows is not None:
        test = _thin(test, _client_totals(test.sum(1), np.zeros_like(test.sum(1)), test_rows, "--test-rows", 1), rng)
    parts = [_draw(federation, part, kept, rng) for part, kept in zip(PARTS, (train, val, test), strict=True)]
    name = short_hash(federation.name, rows, test_rows)
    recipe = f"{federation.recipe}, at most {rows or 'all'} training and {test_rows or 'all'} test rows"
    return replace(federation, train=parts[0], val=parts[1], test=parts[2], name=name, recipe=recipe)


def _client_totals(trained: Array, validated: Array, rows: int, flag: str, least: int) -> Array:
    """Return how many rows each client keeps: one for each client that has any, and the rest in proportion."""
    first = np.minimum(trained, 1)
    owned = trained + validated
    least = max(least, int(first.sum()))
    if not least <= rows <= owned.sum():
        raise AtollError(
            f"{flag} {rows}: the clients hold {owned.sum()} such samples, and every client and every class keeps one. "
            f"Ask for {flag} {least} to {owned.sum()}, or leave it out for all."
        )
    ties = np.arange(len(owned))[None]
    rest = (owned - first)[None]
    totals: Array = first + apportion(np.array([rows - first.sum()]), rest, rest, ties)[0]
    return totals


def _validation_share(totals: Array, train: Array, val: Array) -> Array:
    """Return how many of a client's rows are validation rows: the share that they had, rounded down."""
    trained, validated = train.sum(1), val.sum(1)
    share: Array = totals * validated // np.maximum(trained + validated, 1)
    return share


def _thin(counts: Array, totals: Array, rng: Generator) -> Array:
    """Return how many rows of each class a client keeps, [clients, classes], in proportion to its classes."""
    return apportion(totals, counts, counts, rng.random(counts.shape))


def _with_all_classes(kept: Array, counts: Array) -> Array:
    """Give each class that lost all its rows one row back, in place of a row of a client's most frequent class."""
    kept = kept.copy()
    for c in np.flatnonzero((kept.sum(0) == 0) & (counts.sum(0) > 0)):
        owner = int(np.where(counts[:, c] > 0, kept.max(1), -1).argmax())
        donor = int(kept[owner].argmax())
        kept[owner, donor] -= 1
        kept[owner, c] = 1
    return kept


def _draw(federation: FederatedDataset, part: Part, kept: Array, rng: Generator) -> tuple[Array, ...]:
    """Draw the given numbers of rows of each client and class from one part."""
    rows = federation.part(part)
    owner = np.repeat(np.arange(len(rows)), [len(r) for r in rows])
    flat = np.concatenate(rows)
    cells = owner * kept.shape[1] + all_groups(federation.dataset)[flat]
    chosen = pick(cells, kept.ravel(), rng)
    return grouped(flat[chosen], owner[chosen], len(rows))


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
            f"--public-data {data.name!r} needs a number of samples. Add --public with 1 to {totals.sum()}, the number "
            "of its training samples."
        )
    even = apportion(np.array([rows]), (totals > 0)[None].astype(int), totals[None], rng.random((1, len(totals))))[0]
    return _to_shape(data.x_train[pick(data.group_numbers(data.y_train), even, rng)], shape, data.name)


def _to_shape(x: Array, shape: tuple[int, ...], name: str) -> Array:
    """Convert images to another size and number of channels; refuse other rows of another shape."""
    if x.shape[1:] == shape:
        return x
    if len(shape) != 3 or x.ndim != 4 or x.dtype != np.uint8:
        raise AtollError(
            f"Public samples of {name!r} have shape {x.shape[1:]}, but the clients' samples have {shape}. "
            "Choose a data set with samples of that shape; only images are converted."
        )
    images = torch.from_numpy(x.astype(np.float32))
    if images.shape[1] != shape[0]:
        images = images.mean(1, keepdim=True).expand(-1, shape[0], -1, -1)
    images = interpolate(images, size=shape[1:], mode="bilinear", antialias=True, align_corners=False)
    return images.round().clamp(0, 255).to(torch.uint8).numpy()
