"""Corrupt the uploads of byzantine clients.

A byzantine client trains like any other and changes its upload. The upload keeps the form that the server checks and
the true numbers of rows, because a rejected upload does no harm. In a model, the attack changes the difference to the
received model; elsewhere (prototypes, statistics, predictions) it changes the values. Matrices that must stay positive
semi-definite are not changed, except that ``swap`` assigns them to other classes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from ..core.payloads import Params, Payload
from ..core.prng import Key, fold, normal
from ..core.schema import FieldConstraints, replace_tensors, tensors_of
from ..typing import ClientId

if TYPE_CHECKING:
    from ..clients.tasks import ClientUpload

P = TypeVar("P", bound=Payload)

STRENGTH = 10.0  # factor by which ``signflip``, ``scale`` and ``random`` enlarge a value
WITHIN = 1.5  # standard deviations from the mean of the byzantine clients that ALIE moves
ALIE = "alie"


@dataclass(frozen=True)
class UploadTensor:
    """One tensor of an upload, with the knowledge of a byzantine client about it.

    Args:
        name: name of the tensor in a packed payload.
        value: the honest value.
        start: the same tensor of the received model, or 0.
        constraints: constraints that the server checks.
        held: for a class table, a mask of the classes that it holds.
        classes: number of classes.
        k: randomness of the attack.
    """

    name: str
    value: Tensor
    start: Tensor
    constraints: FieldConstraints
    held: Tensor | None
    classes: int
    k: Key


# ---------------------------------------------------------------------------------------------------------------------
# Attacks of one client


def signflip(p: UploadTensor) -> Tensor:
    """Negate and enlarge a value; reverse the order of probabilities (FDLA, arXiv 2401.03685)."""
    if p.constraints.probabilities:
        order = p.value.argsort(-1)
        return torch.zeros_like(p.value).scatter(-1, order.flip(-1), p.value.gather(-1, order))
    return p.start - STRENGTH * (p.value - p.start)


def scale(p: UploadTensor) -> Tensor:
    """Enlarge a value by the factor ``STRENGTH``."""
    return p.start + STRENGTH * (p.value - p.start)


def random(p: UploadTensor) -> Tensor:
    """Replace a value by noise of ``STRENGTH`` times its norm."""
    step = p.value - p.start
    return p.start + STRENGTH * step.square().mean().sqrt() * normal(p.k, *step.shape).to(step.dtype)


def swap(p: UploadTensor) -> Tensor:
    """Assign each class's values to the next class: rows of tables and heads, columns of predictions."""
    if p.held is not None:
        return p.value.index_put((p.held,), p.value[p.held].roll(1, 0))
    _, in_model, name = p.name.partition("/")
    if in_model:
        return p.value.roll(1, 0) if name.startswith("head.") and len(p.value) == p.classes else p.value
    return p.value.roll(1, -1) if p.value.shape[-1] == p.classes else p.value


KINDS: dict[str, Callable[[UploadTensor], Tensor] | None] = {
    "signflip": signflip,
    "scale": scale,
    "random": random,
    "swap": swap,
    ALIE: None,  # needs several clients: see ``collude``
}


def corrupt(
    kind: str, upload: P, download: Payload, classes: int, constraints: Mapping[str, FieldConstraints], k: Key
) -> P:
    """Corrupt the upload of one byzantine client.

    Args:
        kind: the attack, one of ``KINDS``.
        upload: the honest upload.
        download: the message that the client received.
        classes: number of classes.
        constraints: constraints of the upload's tensors.
        k: randomness of the attack.

    Returns:
        An upload that passes validation; the honest one for attacks of several clients.
    """
    attack = KINDS[kind]
    if attack is None:
        return upload
    found = [
        p
        for p in upload_tensors(upload, download, classes, constraints, k)
        if attack is swap or not p.constraints.covariance
    ]
    return replace_tensors(upload, {p.name: _allowed(attack(p), p.value, p.held, p.constraints) for p in found})


def upload_tensors(
    upload: Payload, download: Payload, classes: int, constraints: Mapping[str, FieldConstraints], k: Key
) -> Iterator[UploadTensor]:
    """Yield the tensors of an upload that an attack can change: all but counts and markers of classes."""
    received, tensors = tensors_of(download), tensors_of(upload)
    for at, (name, v) in enumerate(tensors.items()):
        mark = constraints.get(name, FieldConstraints())
        if _can_change(name, v, constraints):
            known = received.get(name) if "/" in name else None
            start = known if known is not None and known.shape == v.shape else torch.zeros_like(v)
            yield UploadTensor(name, v, start, mark, _held(tensors, mark), classes, fold(k, at))


def _can_change(name: str, v: Tensor, constraints: Mapping[str, FieldConstraints]) -> bool:
    is_marker = any(mark.rows == name for mark in constraints.values())
    is_count = v.ndim == 0 or (name in constraints and constraints[name].count)
    return v.is_floating_point() and v.numel() > 0 and not is_count and not is_marker


def _held(tensors: Params, mark: FieldConstraints) -> Tensor | None:
    return None if mark.rows is None else tensors[mark.rows] != 0


def _allowed(new: Tensor, old: Tensor, held: Tensor | None, mark: FieldConstraints) -> Tensor:
    """Make a value pass validation: zero for classes not held, symmetric, probabilities with their former sums."""
    if held is not None:
        new = torch.where(held.reshape(-1, *[1] * (new.ndim - 1)), new, torch.zeros_like(new))
    if mark.symmetric:
        new = (new + new.mT) / 2
    if mark.probabilities:
        new = new.clamp(min=0)
        new = new * (old.sum(-1, keepdim=True) / new.sum(-1, keepdim=True).clamp(min=1e-12))
    return new


# ---------------------------------------------------------------------------------------------------------------------
# Attacks of several clients


def collude(
    outcomes: Iterable["ClientUpload"], byzantine: frozenset[ClientId], constraints: Mapping[str, FieldConstraints]
) -> list["ClientUpload"]:
    """Replace the uploads of colluding byzantine clients (ALIE; Baruch et al., NeurIPS 2019).

    All byzantine clients send the mean of their uploads minus 1.5 standard deviations, number by number; in a class
    table over the clients that hold the class. They do not know honest uploads. A single byzantine client has no
    deviation and sends its honest upload.

    Args:
        outcomes: the uploads of all clients.
        byzantine: the clients that collude.
        constraints: constraints of the uploads' tensors.
    """
    received = list(outcomes)
    # What takes the place of the upload of a lost client is no payload.
    colluding = [o for o in received if o.sender in byzantine and hasattr(o.upload, "_kinds")]
    shared = [tensors_of(o.upload) for o in colluding]
    made = {o.sender: _aligned(o.upload, shared, constraints) for o in colluding}
    return [o._replace(upload=made[o.sender], fingerprint=None) if o.sender in made else o for o in received]


def _aligned(upload: P, shared: list[Params], constraints: Mapping[str, FieldConstraints]) -> P:
    tensors, new = tensors_of(upload), {}
    for name, v in tensors.items():
        mark = constraints.get(name, FieldConstraints())
        if _can_change(name, v, constraints) and not mark.covariance:
            peers = [t for t in shared if name in t and t[name].shape == v.shape]
            new[name] = _allowed(_edge(peers, name, mark).to(v.dtype), v, _held(tensors, mark), mark)
    return replace_tensors(upload, new)


def _edge(peers: list[Params], name: str, mark: FieldConstraints) -> Tensor:
    """Return the mean minus ``WITHIN`` standard deviations; 0 for a class that no peer holds."""
    values = torch.stack([t[name] for t in peers]).double()
    held = torch.stack([torch.ones(()) if (h := _held(t, mark)) is None else h for t in peers]).double()
    w = held.reshape(*held.shape, *[1] * (values.ndim - held.ndim))
    n = w.sum(0).clamp(min=1)
    centre = (w * values).sum(0) / n
    spread = ((w * (values - centre).square()).sum(0) / n).sqrt()
    return centre - WITHIN * spread
