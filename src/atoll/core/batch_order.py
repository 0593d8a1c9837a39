"""Draw the order in which training visits a client's rows."""

from collections.abc import Iterator
from math import ceil

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .prng import Key, fold, permutation

BatchOrder = tuple[Tensor, Tensor, Key, Key]  # rows of a batch, which are real, keys: dropout, augmentation
EpochOrder = list[BatchOrder]
Ints = NDArray[np.int64]


def count_batches(epochs: float, per_epoch: int) -> int:
    """Return the number of batches in ``epochs`` passes of ``per_epoch`` batches each; a part of a batch is a batch.

    Example:
        >>> count_batches(1.5, 3)
        5
    """
    return ceil(round(epochs * per_epoch, 6))  # 1.1 times 10 is a little more than 11


def draw_batches(k: Key, n: Tensor, sizes: list[int], count: int) -> Iterator[BatchOrder]:
    """Draw the first ``count`` batches of one client, epoch by epoch; see :func:`draw_epoch`."""
    for epoch in range(-(-count // len(sizes)) if sizes else 0):
        yield from draw_epoch(k, n, epoch, sizes)[: count - epoch * len(sizes)]


def draw_epoch(k: Key, n: Tensor, epoch: int, sizes: list[int]) -> EpochOrder:
    """Draw the batches of an epoch.

    All batches are drawn at once and by numpy: for so few numbers, torch would take several times as long.

    Args:
        k: the key of the training, or a key for each of several clients.
        n: number of real rows, of the shape of ``k``. Rows from ``n`` on are padding and come last.
        epoch: number of the epoch.
        sizes: rows of each batch, padding included.

    Returns:
        For each batch the numbers of its rows, weights that are 1 for real rows and 0 for padding, a key for dropout
        and a key for augmentation; each with the dimensions of ``k`` first.
    """
    keys, counts = _arrays(k, n)
    chosen, own = _draw(keys, counts, epoch, sizes)
    real = (chosen < counts[:, None]).astype(np.float32)
    rows, w, drawn = (torch.from_numpy(v).to(k.device).view(*k.shape, -1) for v in (chosen, real, own))
    each = drawn.unbind(-1)
    return list(zip(rows.split(sizes, -1), w.split(sizes, -1), each[::2], each[1::2], strict=True))


def draw_order(k: Key, n: Tensor, epoch: int, size: int) -> tuple[Ints, NDArray[np.bool_]]:
    """Draw the order of each client's rows in an epoch, as :func:`draw_epoch` does.

    Args:
        k: a key for each client.
        n: number of real rows of each client.
        epoch: number of the epoch.
        size: rows of the epoch, padding included.

    Returns:
        The numbers of the rows of each client, of shape ``[clients, size]``, and which of them are real.
    """
    keys, counts = _arrays(k, n)
    order = permutation(fold(fold(keys, epoch), 0), size, counts)
    return order, order < counts[:, None]


def _arrays(k: Key, n: Tensor) -> tuple[Ints, Ints]:
    keys, counts = (v.reshape(-1).cpu().numpy() for v in (k, n))
    return keys, counts


def _draw(keys: Ints, n: Ints, epoch: int, sizes: list[int]) -> tuple[Ints, Ints]:
    """Return each client's order of rows in an epoch [K, N], and its keys, two for each batch [K, 2 batches]."""
    order, others = fold(fold(keys, epoch), np.arange(2)).T
    return permutation(order, sum(sizes), n), fold(others, np.arange(2 * len(sizes)))


def draw_epoch_by_torch(k: Key, n: Tensor, epoch: int, sizes: list[int]) -> EpochOrder:
    """Draw the batches of :func:`draw_epoch` inside ``torch.func.vmap``, which numpy cannot look into."""
    order, others = fold(fold(k, epoch), torch.arange(2, device=k.device)).unbind(-1)
    rows = permutation(order, sum(sizes), n)
    w = (rows < n).float()
    keys = fold(others, torch.arange(2 * len(sizes), device=k.device)).unbind(-1)
    return list(zip(rows.split(sizes), w.split(sizes), keys[::2], keys[1::2], strict=True))


class StepOrder:
    """Draw batches step by step for several clients, each of which goes through epochs of its own length.

    A client with few rows is in its third epoch while another is in its first, so that no client waits for others.

    Args:
        sizes: rows of each batch in an epoch of the largest client. A client's own epoch ends with its last real row.
    """

    def __init__(self, sizes: list[int]):
        self._sizes = sizes
        self._ends = np.cumsum(sizes)
        self._starts = self._ends - sizes
        self._drawn: tuple[Ints, Ints] | None = None  # orders and keys of every client's current epoch

    def draw(self, k: Key, n: Tensor, step: int) -> BatchOrder:
        """Return the batch of each client in a step; call this for the steps 0, 1, 2, ... in turn.

        Args:
            k: a key for each client.
            n: number of real rows of each client.
            step: number of the step.
        """
        keys, counts = _arrays(k, n)
        epochs, at = np.divmod(step, (self._starts < counts[:, None]).sum(1).clip(1))
        orders, own = self._turn(keys, counts, epochs, begins=at == 0)
        places = self._starts[at][:, None] + np.arange((self._ends - self._starts)[at].max())
        rows = np.take_along_axis(orders, places.clip(max=orders.shape[1] - 1), 1)
        real = (places < self._ends[at][:, None]) & (rows < counts[:, None])
        each = np.take_along_axis(own, 2 * at[:, None] + np.arange(2), 1)
        made = rows, real.astype(np.float32), each[:, 0], each[:, 1]
        rows_, w, k_dropout, k_augment = (torch.from_numpy(v).to(k.device) for v in made)
        return rows_, w, k_dropout, k_augment

    def _turn(self, keys: Ints, n: Ints, epochs: Ints, begins: NDArray[np.bool_]) -> tuple[Ints, Ints]:
        """Draw the epochs that begin with this step, and return the orders and keys of all clients."""
        if self._drawn is None:
            self._drawn = _draw(keys, n, 0, self._sizes)
            return self._drawn
        for epoch in np.unique(epochs[begins]):
            turned = begins & (epochs == epoch)
            for kept, new in zip(self._drawn, _draw(keys[turned], n[turned], int(epoch), self._sizes), strict=True):
                kept[turned] = new
        return self._drawn


def draw_step_by_torch(k: Key, n: Tensor, step: int, sizes: list[int]) -> BatchOrder:
    """Draw the batch of :meth:`StepOrder.draw` inside ``torch.func.vmap``, which numpy cannot look into."""
    ends = torch.tensor(sizes, device=k.device).cumsum(0)
    starts = ends - torch.tensor(sizes, device=k.device)
    per_epoch = (starts < n).sum().clamp(min=1)
    at = (step % per_epoch).reshape(1)
    order, others = fold(fold(k, step // per_epoch), torch.arange(2, device=k.device)).unbind(-1)
    places = starts.index_select(0, at) + torch.arange(max(sizes), device=k.device)
    rows = permutation(order, sum(sizes), n).index_select(0, places.clamp(max=sum(sizes) - 1))
    real = (places < ends.index_select(0, at)) & (rows < n)
    k_dropout, k_augment = fold(others, 2 * at + torch.arange(2, device=k.device)).unbind(-1)
    return rows, real.float(), k_dropout, k_augment
