"""Make the updates of clients differentially private: clip the change of a model, then add Gaussian noise.

The change of a received model, sent as a change or as the trained model, is clipped to norm R as a whole, and every
weight gets noise. All clients have the same weight, because numbers of rows are private.
"""

import math
from dataclasses import dataclass

import torch

from ..core.params import BUFFERS
from ..core.payloads import Params, Payload, Role
from ..core.schema import constraints_at, field_of, replace_tensors, tensors_of
from ..errors import AtollError
from ..utils.secure_random import Normal
from .disclosure import WHERE, Declared, P, find_plain_scalars


def find_update_field(download: Payload, upload: Payload, declared: Declared) -> str:
    """Return the field of an upload that is its only model or change.

    Raises:
        AtollError: the upload has other fields, which noise would not cover, or its model was not received before.
    """
    tensors = tensors_of(upload)
    roles = {name: constraints_at(name, declared).role for name in tensors}
    if unclear := dict.fromkeys(field_of(name) for name, role in roles.items() if role is None):
        raise AtollError(
            f"it declares no role for {' and '.join(unclear)} of {type(upload).__name__}. Say {WHERE} "
            "role=Role.MODEL for a trained model, Role.CHANGE for a difference to one, or Role.WEIGHT for a scalar "
            "that weighs the client"
        )
    models = list(dict.fromkeys(field_of(n) for n, role in roles.items() if role in (Role.MODEL, Role.CHANGE)))
    if len(models) != 1:
        raise AtollError(f"it uploads {' and '.join(models) or 'no model'}, not one model (Role.MODEL or Role.CHANGE)")
    weights = _weights(tensors, declared)
    others = [name for name in tensors if field_of(name) != models[0] and name not in weights]
    if others := others + find_plain_scalars(upload):
        raise AtollError(
            f"it also uploads {' and '.join(others)}; only a scalar tensor with Role.WEIGHT may go with a model"
        )
    _check_model(download, upload, models[0], declared)
    return models[0]


def _check_model(download: Payload, upload: Payload, name: str, declared: Declared) -> None:
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


def _inside(p: Payload, field: str) -> Params:
    """Return the tensors of one field; the name of a tensor that is a field by itself is empty."""
    return {n.partition("/")[2]: v for n, v in tensors_of(p).items() if field_of(n) == field}


@dataclass(frozen=True)
class UpdateMechanism:
    """Releases a model as received model + clipped change + noise, or a change as clipped change + noise.

    Args:
        clip: largest norm of a change.
        multiplier: standard deviation of the noise, in units of ``clip``.
    """

    clip: float
    multiplier: float

    def release(self, download: Payload, upload: P, declared: Declared, normal: Normal) -> P:
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
