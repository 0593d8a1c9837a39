"""Compare classes in the last layer: soft labels, class relations, norms of weight vectors."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import AtollError
from ..inference.models import SavedRun, TrainedModels
from ..methods.feddw import DW, relation

Array = NDArray[np.float64]


class Relations(NamedTuple):
    """FedDW's two matrices, both of shape ``[classes, classes]`` with rows that sum to 1."""

    soft: Array  # Omega: mean prediction for the rows of each class in the last round
    weights: Array  # A: softmax of the inner products of weight vectors

    @property
    def distance(self) -> float:
        """Return the Frobenius norm of the difference of both matrices."""
        return float(np.linalg.norm(self.soft - self.weights))

    @property
    def correlation(self) -> float:
        """Return the correlation of the off-diagonal entries; NaN if a matrix is constant there."""
        off = ~np.eye(len(self.soft), dtype=bool)
        a, b = self.soft[off], self.weights[off]
        return float(np.corrcoef(a, b)[0, 1]) if a.std() and b.std() else float("nan")


def relations(run: SavedRun) -> Relations:
    """Compute both matrices from a run's server state. Raises an AtollError for a run without soft labels."""
    kept = getattr(run.server, "extra", {})
    soft = kept.get(f"{DW.__name__}.omega")
    if soft is None:
        raise AtollError(
            f"The run in {str(run.path)!r} has collected no soft labels. Run feddw, or add them to a method that "
            "averages whole models, without any effect on training: --with dw:mu=0."
        )
    return Relations(soft.double().cpu().numpy(), relation(run.server.params).double().cpu().numpy())


class WeightNorms(NamedTuple):
    """Class shares and relative norms of weight vectors of one client, both of shape ``[classes]``."""

    shares: Array  # fraction of the client's training rows
    moduli: Array  # fraction of the sum of all norms


def weight_norms(models: TrainedModels) -> list[WeightNorms]:
    """Compute class shares and norms of weight vectors for every client's model."""
    return [_client_norms(models, i) for i in models.clients]


def _client_norms(models: TrainedModels, i: str) -> WeightNorms:
    labels = models.pool.train[models.pool.position(i)].y.cpu().numpy()
    counts = np.bincount(labels, minlength=models.pool.problem.num_classes).astype(float)
    norms = models.params(i)["head.weight"].norm(dim=1).double().cpu().numpy()
    return WeightNorms(counts / max(counts.sum(), 1.0), norms / norms.sum())


class NormCorrelation(NamedTuple):
    """Correlation of class shares and norms over clients."""

    draws: int  # number of clients
    rho: float  # mean of Spearman's correlations
    contrary: int  # number of clients with a positive correlation


def correlate_norms(found: list[WeightNorms]) -> NormCorrelation:
    """Correlate class shares and norms of each client, and summarise over clients."""
    from scipy.stats import spearmanr

    rhos = np.array([spearmanr(f.shares, f.moduli).statistic for f in found if f.shares.std() and f.moduli.std()])
    known = rhos[np.isfinite(rhos)]
    return NormCorrelation(len(known), float(known.mean()) if len(known) else float("nan"), int((known > 0).sum()))
