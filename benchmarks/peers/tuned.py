"""A loop in torch as fast as one can write it by hand: one client after the other, without any framework.

Gradients without ``.grad``, updates of all tensors in one call, rows taken by slices, images and kernels with channels
last, and pooling before what is negative is cut off; freed memory stays in the process. No evaluation, no checks and no
messages.
"""

import numpy as np
import torch
import torch.nn.functional as F
from shared import load, measure, rows_of
from torch import Tensor

work = load()
torch.set_num_threads(1)
torch.zeros(1).softmax(0)  # loads the kernels, which is no part of a round
is_cnn = work.kind == "cnn"
layout = torch.channels_last if is_cnn else torch.contiguous_format
rng = np.random.default_rng(0)
rows = {
    i: (torch.from_numpy(x).contiguous(memory_format=layout), torch.from_numpy(y))
    for i in range(work.clients)
    for x, y in [rows_of(work, i)]
}


def outputs(weights: list[Tensor], x: Tensor) -> Tensor:
    if is_cnn:
        for kernel, bias in (weights[:2], weights[2:4]):
            x = F.max_pool2d(F.conv2d(x, kernel, bias), 2).relu_()
        weights = weights[4:]
    x = x.flatten(1)
    for at in range(0, len(weights) - 2, 2):
        x = F.linear(x, weights[at], weights[at + 1]).relu_()
    return F.linear(x, *weights[-2:])


def lay(w: Tensor) -> Tensor:
    return w.contiguous(memory_format=layout) if w.ndim == 4 else w


def rounds() -> list[np.ndarray]:
    weights = [lay(torch.from_numpy(w.copy())) for w in work.weights]
    for _ in range(work.rounds):
        total = [torch.zeros_like(v) for v in weights]
        chosen = rng.choice(work.clients, work.sampled, replace=False)
        for i, share in zip(chosen, work.sizes[chosen] / work.sizes[chosen].sum(), strict=True):
            own = [v.clone().requires_grad_() for v in weights]
            x, y = rows[int(i)]
            for batch in torch.randperm(len(y)).split(work.batch):
                grads = torch.autograd.grad(F.cross_entropy(outputs(own, x[batch]), y[batch]), own)
                with torch.no_grad():
                    torch._foreach_add_(own, grads, alpha=-work.lr)
            with torch.no_grad():
                torch._foreach_add_(total, own, alpha=float(share))
        weights = total
    return [w.contiguous().numpy() for w in weights]


measure(rounds, torch.__version__)
