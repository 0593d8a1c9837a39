"""What the last layer knows of classes: soft labels, class relations, lengths of weight vectors."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import AtollError
from ..inference.models import SavedRun, TrainedModels
from ..methods.feddw import DW, relation

Array = NDArray[np.float64]


class Relations(NamedTuple):
    """FedDW's two matrices, both [classes, classes] with rows that sum to 1."""

    soft: Array  # Omega: what clients' models predicted for rows of a class, on average, in the last round
    weights: Array  # A: softmax of the inner products of weight vectors

    @property
    def distance(self) -> float:
        return float(np.linalg.norm(self.soft - self.weights))

    @property
    def correlation(self) -> float:
        """Of the entries off the diagonals; NaN where one of them is constant."""
        off = ~np.eye(len(self.soft), dtype=bool)
        a, b = self.soft[off], self.weights[off]
        return float(np.corrcoef(a, b)[0, 1]) if a.std() and b.std() else float("nan")


def relations(run: SavedRun) -> Relations:
    """From the server's state; only a run with the term DW has collected soft labels."""
    kept = getattr(run.server, "extra", {})
    soft = kept.get(f"{DW.__name__}.omega")
    if soft is None:
        raise AtollError(
            f"The run in {str(run.path)!r} has collected no soft labels. Run feddw, or add them to a method that "
            "averages whole models, without any effect on training: --with dw:mu=0."
        )
    return Relations(soft.double().cpu().numpy(), relation(run.server.params).double().cpu().numpy())


class Lengths(NamedTuple):
    shares: Array  # [classes]: of the client's training rows
    moduli: Array  # [classes]: of the sum of the lengths of weight vectors


def lengths(models: TrainedModels) -> list[Lengths]:
    """Of every client's own model: one draw of class shares each."""
    return [_lengths(models, i) for i in models.clients]


def _lengths(models: TrainedModels, i: str) -> Lengths:
    labels = models.pool.train[models.pool.position(i)].y.cpu().numpy()
    counts = np.bincount(labels, minlength=models.pool.num_classes).astype(float)
    norms = models.params(i)["head.weight"].norm(dim=1).double().cpu().numpy()
    return Lengths(counts / max(counts.sum(), 1.0), norms / norms.sum())


class Tendency(NamedTuple):
    """How shares and lengths go together, over draws."""

    draws: int
    rho: float  # mean of Spearman's correlations
    contrary: int  # draws whose correlation is positive


def tendency(found: list[Lengths]) -> Tendency:
    from scipy.stats import spearmanr

    rhos = np.array([spearmanr(f.shares, f.moduli).statistic for f in found if f.shares.std() and f.moduli.std()])
    known = rhos[np.isfinite(rhos)]
    return Tendency(len(known), float(known.mean()) if len(known) else float("nan"), int((known > 0).sum()))
