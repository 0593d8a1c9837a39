"""What methods that distil on public rows share: the rows of a round, batches of them, and what is made small."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..core import Batch, Client, Key, Loss, Model, Optimiser, Params, Task, fold, permutation
from ..errors import AtollError

Apart = Callable[[Tensor, Tensor], Tensor]  # (targets [B, C], logits [B, C]) -> how far they are apart


def public(of: Client | Task) -> Tensor:
    """All public rows [M, ...]."""
    if of.public is None:
        raise AtollError("This method distils on public rows, and there are none. Set some aside with --public.")
    return of.public


def choose(task: Task, most: int, k: Key) -> Tensor:
    """The numbers of the public rows of a round [m], all in another order if there are no more than ``most``."""
    return permutation(k, len(public(task)))[:most].int()


def chosen(client: Client, rows: Tensor) -> Tensor:
    """The public rows of these numbers."""
    return public(client)[rows.long()]


def lessons(x: Tensor, y: Tensor, optim: Optimiser, k: Key, steps: int | None = None) -> Iterator[Batch]:
    """Shuffled batches of public rows and their targets, for all epochs of ``optim`` or so many steps.

    The batches of an epoch differ in size by one row at most: a last one of a single row would have no statistics.
    """
    pieces = -(-len(x) // optim.batch_size)
    steps = optim.epochs * pieces if steps is None else steps
    for epoch in range(-(-steps // pieces)):
        own = fold(k, epoch)
        batches = permutation(fold(own, 0), len(x)).tensor_split(pieces)
        for at, rows in enumerate(batches[: steps - epoch * pieces]):
            yield Batch(x[rows], y[rows], torch.ones(len(rows)), fold(fold(own, 1), at), {})


def beside_public(client: Client, optim: Optimiser, k: Key) -> Iterator[Batch]:
    """Yield private batches as in plain training, each with a batch of public rows in ``extra["public"]``.

    The labels of the public batch are the numbers of its rows; ``extra["epoch_begins"]`` marks the first batch of an
    epoch. Every epoch shuffles the public rows and goes round them from the start, because the number of batches of an
    epoch may depend on padding.
    """
    rows, seen, order = public(client), 0, torch.empty(0)
    window = torch.arange(min(optim.batch_size, len(rows)))
    for b in client.batches(k, optim.epochs, optim.batch_size):
        epoch, done = divmod(seen, len(client.x))
        own = fold(fold(k, -1), epoch)  # no epoch of the private rows has this number
        if done == 0:
            order = permutation(fold(own, 0), len(rows))
        chosen = order[(window + done) % len(rows)]
        beside = Batch(rows[chosen], chosen, torch.ones(len(chosen)), fold(fold(own, 1), done), {})
        yield b._replace(extra={"public": beside, "epoch_begins": done == 0})
        seen += len(b.x)


def imitation(model: Model, apart: Apart) -> Loss:
    """How far a model's logits are from the targets, which a batch has for labels."""

    def loss(params: Params, b: Batch) -> Tensor:
        return apart(b.y, model.step(params, b).logits)

    return loss


def still(loss: Loss) -> Loss:
    """The loss, without moving running statistics: those of a client follow its private rows, on which it predicts."""
    return lambda params, b: loss(params, b._replace(stats={}))


def divergence(target: Tensor, logits: Tensor) -> Tensor:
    """KL(target || softmax(logits)), summed over classes, mean over rows."""
    return (torch.xlogy(target, target) - target * logits.log_softmax(1)).sum(1).mean()
