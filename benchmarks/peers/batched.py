"""Clients batched by hand: what FedAvg takes for a network of one hidden layer if nothing but the products is left.

No evaluation, no checks and no messages: a bound, and no framework.
"""

import numpy as np
import torch
from shared import load, measure
from torch import Tensor

work = load()
if work.kind != "mlp":
    raise SystemExit("clients are batched by hand for the MLP alone")
torch.set_num_threads(1)
torch.zeros(1).softmax(0)  # loads the kernels, which is no part of a round
rng = np.random.default_rng(0)
x, y = torch.from_numpy(work.x).flatten(1), torch.from_numpy(work.y)
one_hot = torch.eye(len(work.weights[-1]))


def trained(weights: list[Tensor], rows: Tensor, is_row: Tensor) -> list[Tensor]:
    """Train the clients of a round, each from the same weights, on rows of shape ``[clients, rows]``."""
    own = [w.expand(len(rows), *w.shape).clone() for w in weights]
    for at in range(0, rows.shape[1], work.batch):
        batch, real = rows[:, at : at + work.batch], is_row[:, at : at + work.batch]
        inputs, wanted = x[batch], one_hot[y[batch]]
        hidden = torch.baddbmm(own[1][:, None], inputs, own[0].mT).relu_()
        share = real / real.sum(1, keepdim=True).clamp(min=1)
        slopes = (torch.baddbmm(own[3][:, None], hidden, own[2].mT).softmax(-1) - wanted) * share[..., None]
        below = slopes.bmm(own[2]) * (hidden > 0)
        grads = [below.mT.bmm(inputs), below.sum(1), slopes.mT.bmm(hidden), slopes.sum(1)]
        torch._foreach_add_(own, grads, alpha=-work.lr)
    return own


def rounds() -> list[np.ndarray]:
    weights = [torch.from_numpy(w.copy()) for w in work.weights]
    for _ in range(work.rounds):
        chosen = rng.choice(work.clients, work.sampled, replace=False)
        sizes = work.sizes[chosen]
        rows = torch.zeros(len(chosen), -(-int(sizes.max()) // work.batch) * work.batch, dtype=torch.int64)
        is_row = torch.arange(rows.shape[1]) < torch.from_numpy(sizes)[:, None]
        for at, i in enumerate(chosen):
            rows[at, : sizes[at]] = torch.from_numpy(work.starts[i] + rng.permutation(int(sizes[at])))
        share = torch.from_numpy(sizes / sizes.sum()).float()
        weights = [torch.tensordot(share, own, 1) for own in trained(weights, rows, is_row.float())]
    return [w.numpy() for w in weights]


measure(rounds, torch.__version__)
