"""Copy a client's model from its outputs for public rows."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...core.schema import tensors_of
from ...engine.setup import Setup
from .base import AttackResult, ObservedUpload, mean_result


def attack_outputs(observed: Sequence[ObservedUpload], setup: Setup) -> list[AttackResult]:
    """Fit a linear model to a client's outputs for public rows, and predict its outputs for private rows."""
    public, values = setup.pool.public, []
    for seen in observed if public is not None else ():
        assert public is not None
        sent = next((v for v in tensors_of(seen.upload).values() if v.ndim == 2 and len(v) == len(public)), None)
        if sent is None:
            continue
        model, private = seen.client.model, seen.client.x
        logits = sent.shape[1] != model.feature_dim
        truth = model(seen.params, private) if logits else model.features(seen.params, private)
        if sent.shape[1] == truth.shape[1]:
            values.append(
                _explained_variance(_add_constant(public), sent.double(), _add_constant(private), truth.double())
            )
    measure = "share of the variance of outputs for private samples that it explains"
    return [mean_result("copy of the model", measure, values)]


def _explained_variance(x: Tensor, y: Tensor, unseen: Tensor, truth: Tensor) -> float:
    """Fit ridge regression to ``x`` and ``y``; return the share of the variance of ``truth`` that it explains."""
    ridge = x.T @ x + 1e-1 * torch.eye(x.shape[1], dtype=torch.double)
    predicted = unseen @ torch.linalg.solve(ridge, x.T @ y)
    return float(1 - (predicted - truth).square().sum() / (truth - truth.mean(0)).square().sum().clamp(min=1e-12))


def _add_constant(x: Tensor) -> Tensor:
    flat = x.reshape(len(x), -1).double()
    return torch.cat([flat, torch.ones(len(flat), 1, dtype=torch.double)], 1)
