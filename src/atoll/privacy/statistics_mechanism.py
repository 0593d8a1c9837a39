"""Make class statistics differentially private: clip the features of every row, then add Gaussian noise.

Count, sum and second moment of features are released for each class. Features are clipped row by row to norm R, and
one row belongs to one class, so adding or removing a row moves the release by at most sqrt(1 + R^2 + R^4).

Post-processing of the noisy values (rounding, ratios, projections, leaving classes out) costs no further privacy.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.client import Client
from ..core.payloads import Payload, Role
from ..core.schema import constraints_at, replace_tensors, tensors_of
from ..errors import AtollError
from ..utils.secure_random import Normal
from .disclosure import (
    WHERE,
    Declared,
    DisclosureControl,
    P,
    count_by_class,
    find_plain_scalars,
)

USABLE = 2.0  # standard deviations of noise that a count must reach for its class to count as held


@dataclass(frozen=True)
class Moments:
    """Moments of the features of each class.

    Args:
        n: numbers of rows, of shape ``[C]``.
        total: sums of features, of shape ``[C, d]``.
        second: sums of outer products, of shape ``[C, d, d]``; None if covariances are not sent.
    """

    n: Tensor
    total: Tensor
    second: Tensor | None


@dataclass(frozen=True)
class StatisticsMechanism:
    """Releases class tables that are computed from noisy counts, sums and second moments.

    Args:
        clip: largest norm of a row's features.
        multiplier: standard deviation of the noise, in units of the sensitivity.
        gate: disclosure control, applied to noisy counts because true counts are private.
    """

    clip: float
    multiplier: float
    gate: DisclosureControl

    def sensitivity(self, covariances: bool) -> float:
        """Return the largest change of all released sums by one row."""
        r = self.clip
        return math.sqrt(1 + r**2 + (r**4 if covariances else 0))

    def deviation(self, covariances: bool) -> float:
        """Return the standard deviation of the noise on each number."""
        return self.multiplier * self.sensitivity(covariances)

    def release(self, client: Client, upload: P, declared: Declared, normal: Normal) -> P:
        """Return the upload with class tables from noisy moments."""
        tensors = tensors_of(upload)
        marker, mean, sigma = find_table_names(upload, declared)
        covariances = None if sigma is None else tensors[sigma]
        noisy = self.noisy(moments(count_by_class(client), tensors[mean], covariances), normal)
        held = noisy.n >= max(1, self.gate.least, USABLE * self.deviation(sigma is not None))
        counts = torch.where(held, noisy.n.round(), 0.0)
        mu = self._means(noisy, held)
        made = {marker: held if tensors[marker].dtype == torch.bool else counts.to(tensors[marker].dtype)}
        made[mean] = mu.to(tensors[mean].dtype)
        if sigma is not None and noisy.second is not None:
            made[sigma] = self._covariances(noisy.second, counts, mu, held).to(tensors[sigma].dtype)
        return self.gate.filter_upload(replace_tensors(upload, made), counts, declared)

    def noisy(self, exact: Moments, normal: Normal) -> Moments:
        """Add noise to moments. The noise on second moments is symmetric."""
        deviation = self.deviation(exact.second is not None)
        second = None
        if exact.second is not None:
            noise = normal(tuple(exact.second.shape)).triu()
            second = exact.second + deviation * (noise + noise.triu(1).mT)
        n, total = (v + deviation * normal(tuple(v.shape)) for v in (exact.n, exact.total))
        return Moments(n, total, second)

    def _means(self, noisy: Moments, held: Tensor) -> Tensor:
        """Compute means of norm ``clip`` or less, the bound on the norm of every row."""
        mu = noisy.total / noisy.n.clamp(min=1)[:, None]
        mu = mu * (self.clip / mu.norm(dim=1, keepdim=True).clamp(min=self.clip))
        return torch.where(held[:, None], mu, 0.0)

    def _covariances(self, second: Tensor, counts: Tensor, mu: Tensor, held: Tensor) -> Tensor:
        n = counts.clamp(min=1)[:, None, None]
        raw = (second / n - mu[:, :, None] * mu[:, None, :]) * n / (n - 1).clamp(min=1)
        out = torch.zeros_like(raw)
        for c in held.nonzero().flatten().tolist():
            out[c] = positive(raw[c])
        return out


def find_table_names(upload: Payload, declared: Declared) -> tuple[str, str, str | None]:
    """Return marker, means and covariances (if any) of an upload of statistics.

    Raises:
        AtollError: the upload has other fields, or a field does not declare that its rows are classes.
    """
    tensors = tensors_of(upload)
    unclear = [name for name in tensors if constraints_at(name, declared).role not in (Role.CLASS_TABLE, Role.COUNT)]
    if unclear := unclear + find_plain_scalars(upload):
        raise AtollError(
            f"it uploads {' and '.join(unclear)} beside statistics of classes. Say {WHERE} role=Role.CLASS_TABLE, or "
            "Role.COUNT, for what has a row for each class, and send nothing else"
        )
    if any(constraints_at(name, declared).factor for name in tensors):
        raise AtollError(
            "it uploads factors of covariances, and noise is for covariances themselves. Set cov_source=client"
        )
    sigma = [name for name in tensors if name in declared and declared[name].psd]
    means = [name for name in tensors if name in declared and declared[name].rows and name not in sigma]
    markers = {str(declared[name].rows) for name in [*means, *sigma]}
    if len(means) != 1 or len(sigma) > 1 or len(markers) != 1 or len(tensors) != 2 + len(sigma):
        raise AtollError("it uploads more than counts, means and covariances of classes")
    return markers.pop(), means[0], sigma[0] if sigma else None


def moments(counts: Tensor, mu: Tensor, sigma: Tensor | None) -> Moments:
    """Compute moments from means and unbiased covariances."""
    n, mu = counts.double(), mu.double()
    total = n[:, None] * mu
    if sigma is None:
        return Moments(n, total, None)
    inside = (n - 1).clamp(min=0)[:, None, None] * sigma.double()
    return Moments(n, total, inside + total[:, :, None] * mu[:, None, :])


def positive(matrix: Tensor) -> Tensor:
    """Return the nearest positive semi-definite matrix, exactly symmetric."""
    values, vectors = torch.linalg.eigh((matrix + matrix.mT) / 2)
    made = (vectors * values.clamp(min=0)) @ vectors.mT
    symmetric: Tensor = (made + made.mT) / 2
    return symmetric
