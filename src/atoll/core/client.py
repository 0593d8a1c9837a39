"""A client as a method sees it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from . import vmap
from .batch import Batch
from .model import Model
from .payload import Params
from .prng import Key, fold, permutation
from .vmap import is_batched

Augment = Callable[[Tensor, Key], Tensor]


@dataclass(frozen=True)
class Client:
    """What a method may read on a client. Nothing here leaves it except through an upload."""

    x: Tensor
    y: Tensor
    n: Tensor  # number of real examples; rows past it are padding
    model: Model
    num_classes: int
    proxy: Model | None = None  # what travels in place of the client's own model, if the method has such a thing
    public: Tensor | None = None
    augment: Augment | None = None
    bound: float | None = None  # largest norm of a row's features in statistics that leave; None: any

    def features(self, params: Params) -> Tensor:
        """Features of the client's own rows for statistics that leave it, none of them longer than ``bound``."""
        z = self.model.features(params, self.x)
        if self.bound is None:
            return z
        norms: Tensor = z.norm(dim=1, keepdim=True)
        return z * (self.bound / norms.clamp(min=self.bound))

    def batches(self, k: Key, epochs: int, size: int) -> Iterator[Batch]:
        """Shuffled, augmented batches; their order is a function of the key alone."""
        sizes = self._sizes(size)
        full = not is_batched() and float(self.n) == len(self.x)
        for epoch in range(epochs):
            for chosen, w, k_drop, k_change in vmap.on_stacked(partial(_drawn, epoch, sizes), k, self.n):
                x, y = vmap.take([self.x, self.y], chosen)
                yield Batch(x if self.augment is None else self.augment(x, k_change), y, w, k_drop, {}, full=full)

    def _sizes(self, size: int) -> list[int]:
        """Batches of ``size``, the last one shorter; with batch statistics, never of one row, which has no variance."""
        n = len(self.x)
        sizes = [min(size, n - start) for start in range(0, n, size)]
        if self.has_buffers and size > 1 and n > 1 and sizes[-1] == 1:
            sizes[-2:] = [size - 1, 2] if size > 2 else [size + 1]
        return sizes

    @property
    def has_buffers(self) -> bool:
        """Whether batches have statistics that somebody keeps: its own model, or the one that travels."""
        return self.model.has_buffers or (self.proxy is not None and self.proxy.has_buffers)

    def members(self) -> Tensor:
        """One-hot labels [N, C]; padding rows are zero."""
        real = torch.arange(len(self.y), device=self.y.device) < self.n
        classes = torch.arange(self.num_classes, device=self.y.device)
        return ((self.y[:, None] == classes) & real[:, None]).float()


def _drawn(epoch: int, sizes: list[int], k: Key, n: Tensor) -> list[tuple[Tensor, Tensor, Key, Key]]:
    """The batches of an epoch: which rows, which of them are real, keys for dropout and for what changes the rows.

    All at once and by arrays: for so few numbers, torch would take several times as long.
    """
    arrays = [v.reshape(-1).cpu().numpy() for v in (k, n)]
    order, others = fold(fold(arrays[0], epoch), np.arange(2)).T
    chosen = permutation(order, sum(sizes), arrays[1])
    real = (chosen < arrays[1][:, None]).astype(np.float32)
    made = chosen, real, fold(others, np.arange(2 * len(sizes)))
    rows, w, own = (torch.from_numpy(v).to(k.device).view(*k.shape, -1) for v in made)
    keys = own.unbind(-1)
    return list(zip(rows.split(sizes, -1), w.split(sizes, -1), keys[::2], keys[1::2], strict=True))
