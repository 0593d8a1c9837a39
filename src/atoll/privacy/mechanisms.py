"""Differential privacy of what leaves a client: bounded contributions, Gaussian noise, made where the client runs.

updates      the change of a model that clients got, which they send as it is or as the trained model: clipped to norm R
             as a whole, noise on every weight. All clients weigh the same, as their numbers of rows would tell of them.
statistics   count, sum and second moment of features by class: features clipped row by row to norm R; one row belongs
             to one class, so adding or removing it moves all that is released by at most sqrt(1 + R^2 + R^4).

Whatever is made of the noisy values afterwards (rounding, ratios, projections, leaving classes out) costs nothing more.
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
from .disclosure import WHERE, Declared, DisclosureControl, rows_of_classes, with_tensors

USABLE = 2.0  # a class counts as held from so many standard deviations of the noise on its count


class Budgeted(NamedTuple):
    """What ``--dp`` says."""

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


def update_field(download: Any, upload: Any, declared: Declared) -> str:
    """Return the field of an upload that is its only model or change.

    Raises:
        AtollError: if anything else leaves that noise would not cover, or if a model is none that the client received.
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
    if others := others + plain_scalars(upload):
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
    """Return the tensors of one field; a tensor that is a field by itself goes without a name."""
    return {n.partition("/")[2]: v for n, v in tensors_of(p).items() if field_of(n) == field}


def plain_scalars(upload: Any) -> list[str]:
    """Return the fields of an upload that are plain numbers or words."""
    return [f.name for f in fields(upload) if isinstance(getattr(upload, f.name), int | float | str)]


def _listed(names: Iterable[str]) -> str:
    return " and ".join(names)


@dataclass(frozen=True)
class UpdateMechanism:
    """Release a model as what was received, plus the clipped change, plus noise; a change without the first."""

    clip: float
    multiplier: float

    def release(self, download: Any, upload: Any, declared: Declared, normal: Normal) -> Any:
        name = update_field(download, upload, declared)
        sent = _inside(upload, name)
        if declared[name].role is Role.MODEL:
            start = _inside(download, declared[name].of or name)
        else:
            start = {n: torch.zeros_like(v) for n, v in sent.items()}
        change = clipped({n: sent[n].double() - start[n].double() for n in sent}, self.clip)
        deviation = self.multiplier * self.clip
        noisy = {
            f"{name}/{n}" if n else name: (start[n].double() + v + deviation * normal(tuple(v.shape))).to(sent[n].dtype)
            for n, v in change.items()
        }
        tensors = tensors_of(upload)
        return with_tensors(upload, noisy | {n: torch.ones_like(tensors[n]) for n in _weights(tensors, declared)})


def clipped(change: Params, most: float) -> Params:
    """Of norm ``most`` or less, all tensors together; a change that is not finite counts as none."""
    norm = math.sqrt(sum(float(v.square().sum()) for v in change.values()))
    if not math.isfinite(norm):
        return {name: torch.zeros_like(v) for name, v in change.items()}
    scale = most / max(norm, most) * (1 - 1e-12)  # rounding must not carry it over the bound
    return {name: v * scale for name, v in change.items()}


# ---------------------------------------------------------------------------------------------------------------------
# Statistics


@dataclass(frozen=True)
class Moments:
    """Of each class: rows [C], sum of features [C, d], and sum of their outer products [C, d, d] if those leave."""

    n: Tensor
    total: Tensor
    second: Tensor | None


@dataclass(frozen=True)
class StatisticsMechanism:
    """Tables of classes leave as what noisy counts, sums and second moments make of them."""

    clip: float
    multiplier: float
    gate: DisclosureControl  # applied to noisy counts: true ones would tell

    def sensitivity(self, covariances: bool) -> float:
        r = self.clip
        return math.sqrt(1 + r**2 + (r**4 if covariances else 0))

    def deviation(self, covariances: bool) -> float:
        return self.multiplier * self.sensitivity(covariances)

    def release(self, client: Client, upload: Any, declared: Declared, normal: Normal) -> Any:
        tensors = tensors_of(upload)
        marker, mean, sigma = table_names(upload, declared)
        covariances = None if sigma is None else tensors[sigma]
        noisy = self.noisy(moments(rows_of_classes(client), tensors[mean], covariances), normal)
        held = noisy.n >= max(1, self.gate.least, USABLE * self.deviation(sigma is not None))
        counts = torch.where(held, noisy.n.round(), 0.0)
        mu = self._means(noisy, held)
        made = {marker: held if tensors[marker].dtype == torch.bool else counts.to(tensors[marker].dtype)}
        made[mean] = mu.to(tensors[mean].dtype)
        if sigma is not None and noisy.second is not None:
            made[sigma] = self._covariances(noisy.second, counts, mu, held).to(tensors[sigma].dtype)
        return self.gate.passed(with_tensors(upload, made), counts, declared)

    def noisy(self, exact: Moments, normal: Normal) -> Moments:
        deviation = self.deviation(exact.second is not None)
        second = None
        if exact.second is not None:
            noise = normal(tuple(exact.second.shape)).triu()
            second = exact.second + deviation * (noise + noise.triu(1).mT)
        n, total = (v + deviation * normal(tuple(v.shape)) for v in (exact.n, exact.total))
        return Moments(n, total, second)

    def _means(self, noisy: Moments, held: Tensor) -> Tensor:
        """No longer than the rows they are of."""
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


def table_names(upload: Any, declared: Declared) -> tuple[str, str, str | None]:
    """Return marker, means and covariances (if any) of an upload of statistics.

    Raises:
        AtollError: if anything else leaves, or if a field does not say that it goes by class.
    """
    tensors = tensors_of(upload)
    unclear = [name for name in tensors if constraints_at(name, declared).role not in (Role.CLASS_TABLE, Role.COUNT)]
    if unclear := unclear + plain_scalars(upload):
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
    """Sums behind means and unbiased covariances."""
    n, mu = counts.double(), mu.double()
    total = n[:, None] * mu
    if sigma is None:
        return Moments(n, total, None)
    inside = (n - 1).clamp(min=0)[:, None, None] * sigma.double()
    return Moments(n, total, inside + total[:, :, None] * mu[:, None, :])


def positive(matrix: Tensor) -> Tensor:
    """The nearest positive semi-definite matrix, exactly symmetric."""
    values, vectors = torch.linalg.eigh((matrix + matrix.mT) / 2)
    made = (vectors * values.clamp(min=0)) @ vectors.mT
    symmetric: Tensor = (made + made.mT) / 2
    return symmetric
