"""Discount stale uploads, which answer a download of an earlier version of the server's state.

Of an upload that is ``s`` aggregations late, with x a model (``Role.MODEL``), x_then what the client started from and
x_now what the server would send now:

FedBuff   x <- x_now + w(s) (x - x_then)             Nguyen et al., AISTATS 2022, Algorithm 1. arxiv.org/abs/2106.06639
FedAsync  x <- x_now + alpha w(s) (x - x_now)        Xie et al., 2019, Algorithm 1. arxiv.org/abs/1903.03934
          w(s) = (1 + s)^-a: a = 1/2 in FedBuff's experiments, a = 0 for a constant weight

The mean over K uploads is then FedBuff's x_now + 1/K sum_k w(s_k) Delta_k, with the weights of the method in place of
1/K, and for one upload FedAsync's (1 - alpha_t) x_now + alpha_t x, alpha_t = alpha w(s). A change (``Role.CHANGE``) is
scaled. The rows behind a class table (``Role.COUNT``) count as w(s) rows each. Everything else is used as it was sent.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from ..core.payloads import Payload, Role
from ..core.schema import FieldConstraints, constraints_at, field_of, replace_tensors, tensors_of

Declared = Mapping[str, FieldConstraints]  # constraints of the tensors of an upload, by name


@dataclass(frozen=True)
class StalenessWeight:
    """The weight of uploads by their staleness.

    Args:
        exponent: a in w(s) = (1 + s)^-a.
        mixing: alpha of FedAsync; None for FedBuff.
    """

    exponent: float = 0.5
    mixing: float | None = None

    def factor(self, staleness: int) -> float:
        """Return the weight of an upload that is ``staleness`` aggregations late."""
        return (1.0 if self.mixing is None else self.mixing) * float((1 + staleness) ** -self.exponent)

    def is_full(self, staleness: int) -> bool:
        """Return True if an upload counts as it was sent: one that is not stale, under FedBuff."""
        return staleness == 0 and self.mixing is None

    def discount(self, upload: Payload, staleness: int, then: Payload, now: Payload, declared: Declared) -> Payload:
        """Return the upload as the server uses it.

        Args:
            upload: the client's message.
            staleness: aggregations since the client's download was made.
            then: the client's download.
            now: the download that the server would make now.
            declared: constraints of the upload's tensors.
        """
        factor = self.factor(staleness)
        origins = tensors_of(then if self.mixing is None else now)
        current = tensors_of(now)
        counts = _counts(declared)
        new: dict[str, Tensor] = {}
        for name, value in tensors_of(upload).items():
            marks = constraints_at(name, declared)
            source = name.replace(field_of(name), marks.of or field_of(name), 1)
            if not value.is_floating_point():
                continue
            if marks.role is Role.MODEL and source in current and source in origins:
                new[name] = current[source] + factor * (value - origins[source])
            elif marks.role is Role.CHANGE or (marks.role is Role.COUNT and name in counts):
                new[name] = factor * value
        return replace_tensors(upload, new)


def is_discounted(declared: Declared) -> bool:
    """Return True if a method's uploads have a field that staleness weighs."""
    counts = _counts(declared)
    return any(
        field.role in (Role.MODEL, Role.CHANGE) or (field.role is Role.COUNT and name in counts)
        for name, field in declared.items()
    )


def _counts(declared: Declared) -> set[str | None]:
    """Return the names of the tensors that say how many rows are behind each row of a class table."""
    return {field.rows for field in declared.values() if field.role is Role.CLASS_TABLE}
