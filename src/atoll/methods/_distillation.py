"""Distil on public rows: sample the rows of a round, make batches of them, and measure divergences."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..core import Batch, Client, Key, Loss, Model, Optimiser, Params, Task, fold, permutation
from ..errors import AtollError

Divergence = Callable[[Tensor, Tensor], Tensor]  # (targets [B, C], logits [B, C]) -> divergence


def public_rows(of: Client | Task) -> Tensor:
    """Return all public rows [M, ...]; raise an AtollError if there are none."""
    if of.public is None:
        raise AtollError("This method distils on public samples, and the run has none. Set some aside with --public N.")
    return of.public


def sample_public_rows(task: Task, limit: int, k: Key) -> Tensor:
    """Draw the indices of the public rows of a round [m]: at most ``limit``, in random order."""
    return permutation(k, len(public_rows(task)))[:limit].int()


def select_public_rows(client: Client, rows: Tensor) -> Tensor:
    """Return the public rows with the indices ``rows``."""
    return public_rows(client)[rows.long()]


def target_batches(x: Tensor, y: Tensor, optim: Optimiser, k: Key, steps: int | None = None) -> Iterator[Batch]:
    """Yield shuffled batches of public rows and their targets, for all epochs of ``optim`` or for ``steps`` steps.

    The batches of an epoch differ in size by one row at most: a last batch of one row would have no statistics.
    """
    pieces = -(-len(x) // optim.batch_size)
    steps = optim.count(pieces) if steps is None else steps
    for epoch in range(-(-steps // pieces)):
        own = fold(k, epoch)
        batches = permutation(fold(own, 0), len(x)).tensor_split(pieces)
        for at, rows in enumerate(batches[: steps - epoch * pieces]):
            yield Batch(x[rows], y[rows], torch.ones(len(rows)), fold(fold(own, 1), at), {})


def batches_with_public(client: Client, optim: Optimiser, k: Key) -> Iterator[Batch]:
    """Yield private batches as in plain training, each with a batch of public rows in ``extra["public"]``.

    The labels of the public batch are the indices of its rows; ``extra["epoch_begins"]`` marks the first batch of an
    epoch. Every epoch shuffles the public rows and cycles through them from the start, because the number of batches
    of an epoch may depend on padding.
    """
    rows = public_rows(client)
    order = torch.empty(0)
    seen = 0
    window = torch.arange(min(optim.batch_size, len(rows)))
    for b in optim.client_batches(client, k):
        epoch, done = divmod(seen, len(client.x))
        own = fold(fold(k, -1), epoch)  # The private rows use the keys of epochs from 0 on.
        if done == 0:
            order = permutation(fold(own, 0), len(rows))
        drawn_rows = order[(window + done) % len(rows)]
        beside = Batch(rows[drawn_rows], drawn_rows, torch.ones(len(drawn_rows)), fold(fold(own, 1), done), {})
        yield b._replace(extra={"public": beside, "epoch_begins": done == 0})
        seen += len(b.x)


def imitation_loss(model: Model, divergence: Divergence) -> Loss:
    """Return the loss that pulls a model's logits to targets, which batches carry in place of labels."""

    def loss(params: Params, b: Batch) -> Tensor:
        return divergence(b.y, model.step(params, b).logits)

    return loss


def freeze_statistics(loss: Loss) -> Loss:
    """Return the same loss without updates of running statistics.

    The running statistics of a client must follow its private rows, because it predicts on such rows.
    """
    return lambda params, b: loss(params, b._replace(stats={}))


def kl_divergence(target: Tensor, logits: Tensor) -> Tensor:
    """Return KL(target || softmax(logits)), summed over classes, averaged over rows."""
    return (torch.xlogy(target, target) - target * logits.log_softmax(1)).sum(1).mean()
