"""What FedProto, FedGH and DC-PFL do with class means: pull features towards them, train a head on them."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from ..core import SGD, Batch, Loss, Model, Params, Step, Term, cross_entropy, key, wmean

PLAIN = SGD(lr=0.01, epochs=1, batch_size=64, weight_decay=0.0, clip=0.0, momentum=0.0)  # for heads on the server

# How far a feature z is from its mean, from the differences [B, d]; the small number keeps the root smooth at 0.
DISTANCES: dict[str, Callable[[Tensor], Tensor]] = {
    "l2": lambda gap: (gap.square().sum(1) + 1e-12).sqrt(),
    "sq": lambda gap: gap.square().sum(1),
    "mse": lambda gap: gap.square().mean(1),
}


def towards(means: Tensor, seen: Tensor, lam: float, distance: str) -> Term:
    """lam / |B| * sum over the batch of the distance to the mean of the row's class, 0 where that is unknown."""

    def term(s: Step) -> Tensor:
        known = seen[s.batch.y].to(s.features.dtype)
        return lam * wmean(known * DISTANCES[distance](s.features - means[s.batch.y]), s.batch.w)

    return term


def lessons(means: Iterable[tuple[Tensor, Tensor]]) -> list[Batch]:
    """One batch for each client: the means (table, flags) of the classes it has, with their labels."""
    return [
        Batch(table[held], held.nonzero().flatten(), torch.ones(int(held.sum())), key("no noise"), {})
        for table, held in means
        if held.any()
    ]


def head_loss(model: Model) -> Loss:
    """CE of the head alone, on features."""

    def loss(head: Params, b: Batch) -> Tensor:
        return cross_entropy(model.classify(head, b.x), b)

    return loss
