"""Make uploads differentially private at the client: bound the contribution, then add Gaussian noise.

updates      the change of a received model, sent as a change or as the trained model: clipped to norm R as a whole,
             with noise on every weight. All clients have the same weight, because numbers of rows are private.
statistics   count, sum and second moment of features by class: features clipped row by row to norm R; one row belongs
             to one class, so adding or removing a row moves the release by at most sqrt(1 + R^2 + R^4).

Post-processing of the noisy values (rounding, ratios, projections, leaving classes out) costs no further privacy.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.client import Client
from ..core.params import BUFFERS
from ..core.payloads import Params, Role
from ..core.schema import constraints_at, field_of, tensors_of
from ..errors import AtollError
from ..utils.parsing import Spec, number
from ..utils.secure_random import Normal
from .disclosure import WHERE, Declared, DisclosureControl, count_by_class, replace_tensors

USABLE = 2.0  # standard deviations of noise that a count must reach for its class to count as held


class Budgeted(NamedTuple):
    """Epsilon and delta of ``--dp``."""

    epsilon: float
    delta: float = 1e-5


FORM = Spec(
    "EPSILON or EPSILON:DELTA, such as 8:1e-5",
    number("EPSILON", above=0),
    number("DELTA", above=0, below=1, optional=True),
)


def parse(text: str) -> Budgeted:
    """Read a value of ``--dp``: ``"8"`` or ``"8:1e-6"``."""
    return Budgeted(*FORM.parse("--dp", text))


# ---------------------------------------------------------------------------------------------------------------------
# Updates


def find_update_field(download: Any, upload: Any, declared: Declared) -> str:
    """Return the field of an upload that is its only model or change.

    Raises:
        AtollError: the upload has other fields, which noise would not cover, or its model was not received before.
    """
    tensors = tensors_of(upload)
    roles = {name: constraints_at(name, declared).role for name in tensors}
    if unclear := dict.fromkeys(field_of(name) for name, role in roles.items() if role is None):
        raise AtollError(
            f"it declares no role for {_listed(unclear)} of {type(upload).__name__}. Say {WHERE} role=Role.MODEL for a "
            "trained model, Role.CHANGE for a difference to one, or Role.WEIGHT for a scalar that weighs the client"
        )
    models = list(dict.fromkeys(field_of(n) for n, role in roles.items() if role in (Role.MODEL, Role.CHANGE)))
    if len(models) != 1:
        raise AtollError(f"it uploads {_listed(models) or 'no model'}, not one model (Role.MODEL or Role.CHANGE)")
    weights = _weights(tensors, declared)
    others = [name for name in tensors if field_of(name) != models[0] and name not in weights]
    if others := others + find_plain_scalars(upload):
        raise AtollError(
            f"it also uploads {_listed(others)}; only a scalar tensor with Role.WEIGHT may go with a model"
        )
    _check_model(download, upload, models[0], declared)
    return models[0]


def _check_model(download: Any, upload: Any, name: str, declared: Declared) -> None:
    sent = _inside(upload, name)
    if any(n.startswith(BUFFERS) or not v.is_floating_point() for n, v in sent.items()):
        raise AtollError("its models keep running statistics, which are no weights. Take models without BatchNorm")
    if declared[name].role is Role.MODEL:
        origin = declared[name].of or name
        got = _inside(download, origin)
        if {n: v.shape for n, v in got.items()} != {n: v.shape for n, v in sent.items()}:
            raise AtollError(
                f"its {name} is no trained form of {origin} in what clients received. Name another field with of=..., "
                "or say role=Role.CHANGE if it is a difference"
            )


def _weights(tensors: Params, declared: Declared) -> list[str]:
    return [n for n, v in tensors.items() if not v.ndim and constraints_at(n, declared).role is Role.WEIGHT]


def _inside(p: Any, field: str) -> Params:
    """Return the tensors of one field; the name of a tensor that is a field by itself is empty."""
    return {n.partition("/")[2]: v for n, v in tensors_of(p).items() if field_of(n) == field}


def find_plain_scalars(upload: Any) -> list[str]:
    """Return the fields of an upload that are plain numbers or words."""
    return [f.name for f in fields(upload) if isinstance(getattr(upload, f.name), int | float | str)]


def _listed(names: Iterable[str]) -> str:
    return " and ".join(names)


@dataclass(frozen=True)
class UpdateMechanism:
    """Releases a model as received model + clipped change + noise, or a change as clipped change + noise.

    Args:
        clip: largest norm of a change.
        multiplier: standard deviation of the noise, in units of ``clip``.
    """

    clip: float
    multiplier: float

    def release(self, download: Any, upload: Any, declared: Declared, normal: Normal) -> Any:
        """Return the upload with a clipped and noisy model or change, and all weights set to 1."""
        name = find_update_field(download, upload, declared)
        sent = _inside(upload, name)
        if declared[name].role is Role.MODEL:
            start = _inside(download, declared[name].of or name)
        else:
            start = {n: torch.zeros_like(v) for n, v in sent.items()}
        change = clip_norm({n: sent[n].double() - start[n].double() for n in sent}, self.clip)
        deviation = self.multiplier * self.clip
        noisy = {
            f"{name}/{n}" if n else name: (start[n].double() + v + deviation * normal(tuple(v.shape))).to(sent[n].dtype)
            for n, v in change.items()
        }
        tensors = tensors_of(upload)
        return replace_tensors(upload, noisy | {n: torch.ones_like(tensors[n]) for n in _weights(tensors, declared)})


def clip_norm(change: Params, most: float) -> Params:
    """Scale all tensors together to norm ``most`` or less. A change with NaN or infinity becomes 0."""
    norm = math.sqrt(sum(float(v.square().sum()) for v in change.values()))
    if not math.isfinite(norm):
        return {name: torch.zeros_like(v) for name, v in change.items()}
    scale = most / max(norm, most) * (1 - 1e-12)  # keeps the norm below the bound after rounding
    return {name: v * scale for name, v in change.items()}


# ---------------------------------------------------------------------------------------------------------------------
# Statistics


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

    def release(self, client: Client, upload: Any, declared: Declared, normal: Normal) -> Any:
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


def find_table_names(upload: Any, declared: Declared) -> tuple[str, str, str | None]:
    """Return marker, means and covariances (if any) of an upload of statistics.

    Raises:
        AtollError: the upload has other fields, or a field does not declare that its rows are classes.
    """
    tensors = tensors_of(upload)
    unclear = [name for name in tensors if constraints_at(name, declared).role not in (Role.CLASS_TABLE, Role.COUNT)]
    if unclear := unclear + find_plain_scalars(upload):
        raise AtollError(
            f"it uploads {_listed(unclear)} beside statistics of classes. Say {WHERE} role=Role.CLASS_TABLE, or "
            "Role.COUNT, for what has a row for each class, and send nothing else"
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
