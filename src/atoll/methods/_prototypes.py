"""Pull features to class means and train heads on class means, as FedProto, FedGH and DC-PFL do."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from ..core import SGD, Batch, Loss, Model, Params, Step, Term, cross_entropy, key, wmean

PLAIN = SGD(
    lr=0.01, epochs=1, batch_size=64, weight_decay=0.0, clip=0.0, momentum=0.0
)  # The default optimiser of heads on the server.

# Distances of features from class means, given the differences [B, d]. The small number keeps the root smooth at 0.
DISTANCES: dict[str, Callable[[Tensor], Tensor]] = {
    "l2": lambda gap: (gap.square().sum(1) + 1e-12).sqrt(),
    "sq": lambda gap: gap.square().sum(1),
    "mse": lambda gap: gap.square().mean(1),
}


def pull_to_means(means: Tensor, seen: Tensor, lam: float, distance: str) -> Term:
    """Return the term lam / |B| sum_i distance(z_i, means[y_i]), without the rows whose class has no mean.

    Args:
        means: the mean of each class [C, d].
        seen: which classes have a mean [C].
        lam: weight of the term.
        distance: a key of ``DISTANCES``.
    """

    def term(s: Step) -> Tensor:
        known = seen[s.batch.y].to(s.features.dtype)
        return lam * wmean(known * DISTANCES[distance](s.features - means[s.batch.y]), s.batch.w)

    return term


def class_mean_batches(means: Iterable[tuple[Tensor, Tensor]]) -> list[Batch]:
    """Return one batch for each client: the means of its classes, with their labels.

    Args:
        means: for each client its table of class means [C, d] and the flags of the classes it has [C].
    """
    return [
        Batch(table[held], held.nonzero().flatten(), torch.ones(int(held.sum())), key("no noise"), {})
        for table, held in means
        if held.any()
    ]


def head_loss(model: Model) -> Loss:
    """Return the cross-entropy of the head alone, as a function of its params and a batch of features."""

    def loss(head: Params, b: Batch) -> Tensor:
        return cross_entropy(model.classify(head, b.x), b)

    return loss
