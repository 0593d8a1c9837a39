"""Draw the order in which training visits a client's rows."""

import numpy as np
import torch
from torch import Tensor

from .prng import Key, fold, permutation

EpochOrder = list[tuple[Tensor, Tensor, Key, Key]]  # for each batch: rows, which are real, keys: dropout, augmentation


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
    arrays = [v.reshape(-1).cpu().numpy() for v in (k, n)]
    order, others = fold(fold(arrays[0], epoch), np.arange(2)).T
    chosen = permutation(order, sum(sizes), arrays[1])
    real = (chosen < arrays[1][:, None]).astype(np.float32)
    made = chosen, real, fold(others, np.arange(2 * len(sizes)))
    rows, w, own = (torch.from_numpy(v).to(k.device).view(*k.shape, -1) for v in made)
    keys = own.unbind(-1)
    return list(zip(rows.split(sizes, -1), w.split(sizes, -1), keys[::2], keys[1::2], strict=True))


def draw_epoch_by_torch(k: Key, n: Tensor, epoch: int, sizes: list[int]) -> EpochOrder:
    """Draw the batches of :func:`draw_epoch` inside ``torch.func.vmap``, which numpy cannot look into."""
    order, others = fold(fold(k, epoch), torch.arange(2, device=k.device)).unbind(-1)
    rows = permutation(order, sum(sizes), n)
    w = (rows < n).float()
    keys = fold(others, torch.arange(2 * len(sizes), device=k.device)).unbind(-1)
    return list(zip(rows.split(sizes), w.split(sizes), keys[::2], keys[1::2], strict=True))
