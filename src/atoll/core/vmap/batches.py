"""The batches of many clients at once, each with its own rows in its own order."""

from collections.abc import Iterator
from functools import partial
from math import ceil
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..batch import Batch
from ..batch_order import (
    BatchOrder,
    EpochOrder,
    StepOrder,
    count_batches,
    draw_epoch,
    draw_epoch_by_torch,
    draw_step_by_torch,
)
from ..prng import Key
from .functorch import current_clients
from .operations import on_stacked, take

if TYPE_CHECKING:
    from ..client import Client


class ClientBatches(Iterator[Batch]):
    """Yields the batches of many clients; see ``Client.batches``.

    Args:
        client: all clients.
        key: key of the training of each.
        epochs: passes over the rows.
        sizes: rows of each batch of an epoch, padding included.
        steps: number of batches in place of ``epochs``.
    """

    def __init__(self, client: "Client", key: Key, epochs: float, sizes: list[int], steps: int | None):
        self.client = client
        self.key = key
        self.epochs = epochs
        self.sizes = sizes
        self.steps = steps
        self._begun: Iterator[Batch] | None = None

    @property
    def are_whole_epochs(self) -> bool:
        """Return True if no batch was read yet, and the batches are those of whole epochs of unchanged rows."""
        whole = self.steps is None and self.epochs >= 1 and self.epochs == int(self.epochs)
        return self._begun is None and whole and self.client.augment is None

    def __next__(self) -> Batch:
        if self._begun is None:
            self._begun = self._batches()
        return next(self._begun)

    def _batches(self) -> Iterator[Batch]:
        client = self.client
        for rows, w, k_dropout, k_augment in self._order():
            x, y = take([client.x, client.y], rows)
            x = x if client.augment is None else client.augment(x, k_augment)
            yield Batch(x, y, w, k_dropout, {})

    def _order(self) -> Iterator[BatchOrder]:
        client, sizes = self.client, self.sizes
        if self.steps is None:
            yield from self._epochs(self.epochs)
        elif client.has_batch_statistics:
            # Padding would enter batch statistics, so all clients of a call have equally many rows.
            yield from self._epochs(self.steps / len(sizes))
        else:
            order = StepOrder(sizes)
            for step in range(self.steps):
                if current_clients() is None:
                    yield draw_step_by_torch(self.key, client.n, step, sizes)
                else:
                    yield on_stacked(partial(order.draw, step=step), self.key, client.n)

    def _epochs(self, epochs: float) -> Iterator[BatchOrder]:
        """Draw whole epochs of the largest client, and of the last part of one as many batches as each one's share."""
        for epoch in range(ceil(epochs)):
            drawn = self._draw_epoch(epoch)
            if epochs - epoch >= 1:
                yield from drawn
                continue
            share = _share(self.client.n, epochs - epoch, self.sizes)
            for at, batch in enumerate(drawn[: count_batches(epochs - epoch, len(self.sizes))]):
                rows, w, k_dropout, k_augment = batch
                yield rows, w * (at < share), k_dropout, k_augment

    def _draw_epoch(self, epoch: int) -> EpochOrder:
        n, sizes = self.client.n, self.sizes
        if current_clients() is None:
            return draw_epoch_by_torch(self.key, n, epoch, sizes)
        return on_stacked(partial(draw_epoch, epoch=epoch, sizes=sizes), self.key, n)


def _share(n: Tensor, part: float, sizes: list[int]) -> Tensor:
    """Return the number of batches in a part of an epoch of each client, whose rows are ``n``."""
    starts = torch.tensor(sizes, device=n.device).cumsum(0) - torch.tensor(sizes, device=n.device)
    counts = [count_batches(part, batches) for batches in range(len(sizes) + 1)]
    return torch.tensor(counts, device=n.device).index_select(0, (starts < n).sum().reshape(1))
