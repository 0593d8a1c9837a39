"""Minimise a quadratic form over the weights of a mixture."""

import torch
from torch import Tensor


def minimise_on_simplex(q: Tensor) -> Tensor:
    """Return the a >= 0 of sum 1 that minimises a' Q a, by Wolfe's active-set algorithm, which ends with the solution.

    Args:
        q: positive semi-definite matrix [K, K], in double precision.
    """
    q = q + 1e-12 * q.trace().clamp(min=1e-12) * torch.eye(len(q))  # some solution, if there are several
    a = torch.zeros(len(q), dtype=q.dtype)
    a[q.diag().argmin()] = 1
    free = a > 0  # entries that may differ from 0
    for _ in range(10 * len(q)):
        best = torch.linalg.solve(q[free][:, free], torch.ones(int(free.sum()), dtype=q.dtype))
        step = torch.zeros_like(a)
        step[free] = best / best.sum() - a[free]
        falling = free & (a + step < 0)
        if falling.any():  # go as far as the first entry allows, and hold that entry at 0
            limits = torch.where(falling, a / -step, torch.inf)
            a = (a + limits.min() * step).clamp(min=0)
            free = free & (torch.arange(len(a)) != limits.argmin())
            continue
        a = a + step
        slope = q @ a
        if slope.min() >= a @ slope - 1e-10 * q.trace():  # no entry at 0 would gain
            break
        free = free | (torch.arange(len(a)) == slope.argmin())
    return a
