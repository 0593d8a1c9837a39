"""What liars send in place of what they learnt.

A liar trains as it should and changes what leaves it. Its upload keeps the form that the server checks, and tells the
truth about its numbers of rows: an upload that is refused does no harm. Models are changed by their distance from what
was received; everything else (prototypes, statistics, predictions) by its own values. Matrices that must stay positive
semi-definite are left alone, except that ``swap`` gives them to other classes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..core.payloads import Params
from ..core.prng import Key, fold, normal
from ..core.schema import FieldConstraints, tensors_of
from ..typing import ClientId

if TYPE_CHECKING:
    from ..clients.tasks import ClientUpload

STRENGTH = 10.0  # how many times as large as the truth a crude lie is
WITHIN = 1.5  # standard deviations from the liars' mean that ALIE dares
ALIE = "alie"


@dataclass(frozen=True)
class UploadTensor:
    """One tensor of an upload, and what a liar knows of it."""

    name: str  # as in a packed payload
    value: Tensor
    start: Tensor  # the same tensor of the model that was received, or 0
    constraints: FieldConstraints
    held: Tensor | None  # of a class table: which classes it tells of
    classes: int
    k: Key


# ---------------------------------------------------------------------------------------------------------------------
# The lies of one client


def signflip(p: UploadTensor) -> Tensor:
    """The opposite, ten times as large; of probabilities, the order turned round (FDLA, arXiv 2401.03685)."""
    if p.constraints.probabilities:
        order = p.value.argsort(-1)
        return torch.zeros_like(p.value).scatter(-1, order.flip(-1), p.value.gather(-1, order))
    return p.start - STRENGTH * (p.value - p.start)


def scale(p: UploadTensor) -> Tensor:
    """Ten times as much."""
    return p.start + STRENGTH * (p.value - p.start)


def random(p: UploadTensor) -> Tensor:
    """Noise, ten times as long."""
    step = p.value - p.start
    return p.start + STRENGTH * step.square().mean().sqrt() * normal(p.k, *step.shape).to(step.dtype)


def swap(p: UploadTensor) -> Tensor:
    """What is known of one class is said of the next: rows of tables and of heads, columns of predictions."""
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
    ALIE: None,  # takes several: see conspire
}


def corrupt(
    kind: str, upload: Any, download: Any, classes: int, constraints: Mapping[str, FieldConstraints], k: Key
) -> Any:
    """The upload of a client who lies on its own."""
    tell = KINDS[kind]
    if tell is None:
        return upload
    found = [
        p for p in upload_tensors(upload, download, classes, constraints, k) if tell is swap or not p.constraints.psd
    ]
    return _with(upload, {p.name: _allowed(tell(p), p.value, p.held, p.constraints) for p in found})


def upload_tensors(
    upload: Any, download: Any, classes: int, constraints: Mapping[str, FieldConstraints], k: Key
) -> Iterator[UploadTensor]:
    """What can be lied about: all numbers but those of rows."""
    received, tensors = tensors_of(download), tensors_of(upload)
    for at, (name, v) in enumerate(tensors.items()):
        mark = constraints.get(name, FieldConstraints())
        if _open(name, v, constraints):
            known = received.get(name) if "/" in name else None
            start = known if known is not None and known.shape == v.shape else torch.zeros_like(v)
            yield UploadTensor(name, v, start, mark, _held(tensors, mark), classes, fold(k, at))


def _open(name: str, v: Tensor, constraints: Mapping[str, FieldConstraints]) -> bool:
    says_who_is_there = any(mark.rows == name for mark in constraints.values())
    counts = v.ndim == 0 or (name in constraints and constraints[name].count)
    return v.is_floating_point() and v.numel() > 0 and not counts and not says_who_is_there


def _held(tensors: Params, mark: FieldConstraints) -> Tensor | None:
    return None if mark.rows is None else tensors[mark.rows] != 0


def _allowed(new: Tensor, old: Tensor, held: Tensor | None, mark: FieldConstraints) -> Tensor:
    """As the server wants it: nothing of classes not held, symmetric, and probabilities that sum to what they did."""
    if held is not None:
        new = torch.where(held.reshape(-1, *[1] * (new.ndim - 1)), new, torch.zeros_like(new))
    if mark.symmetric:
        new = (new + new.mT) / 2
    if mark.probabilities:
        new = new.clamp(min=0)
        new = new * (old.sum(-1, keepdim=True) / new.sum(-1, keepdim=True).clamp(min=1e-12))
    return new


# ---------------------------------------------------------------------------------------------------------------------
# The lies of several


def collude(
    outcomes: Iterable["ClientUpload"], byzantine: frozenset[ClientId], constraints: Mapping[str, FieldConstraints]
) -> list["ClientUpload"]:
    """A little is enough (Baruch et al., NeurIPS 2019): liars who know one another's uploads stay inside their spread.

    All send their mean less 1.5 standard deviations, number by number; in a table class by class, over those who hold
    the class. Of the honest they know nothing. A liar without company sends what it has learnt.
    """
    received = list(outcomes)
    told = [tensors_of(o.upload) for o in received if o.sender in byzantine]
    made = {o.sender: _aligned(o.upload, told, constraints) for o in received if o.sender in byzantine}
    return [o._replace(upload=made[o.sender], fingerprint=None) if o.sender in made else o for o in received]


def _aligned(upload: Any, told: list[Params], constraints: Mapping[str, FieldConstraints]) -> Any:
    tensors, new = tensors_of(upload), {}
    for name, v in tensors.items():
        mark = constraints.get(name, FieldConstraints())
        if _open(name, v, constraints) and not mark.psd:
            peers = [t for t in told if name in t and t[name].shape == v.shape]
            new[name] = _allowed(_edge(peers, name, mark).to(v.dtype), v, _held(tensors, mark), mark)
    return _with(upload, new)


def _edge(peers: list[Params], name: str, mark: FieldConstraints) -> Tensor:
    """Their mean less so many standard deviations; of a class nobody holds, 0."""
    values = torch.stack([t[name] for t in peers]).double()
    held = torch.stack([torch.ones(()) if (h := _held(t, mark)) is None else h for t in peers]).double()
    w = held.reshape(*held.shape, *[1] * (values.ndim - held.ndim))
    n = w.sum(0).clamp(min=1)
    centre = (w * values).sum(0) / n
    spread = ((w * (values - centre).square()).sum(0) / n).sqrt()
    return centre - WITHIN * spread


def _with(upload: Any, new: Params) -> Any:
    """The upload with other tensors, which are named as in a packed payload."""
    values: dict[str, Any] = {}
    for f in fields(upload):
        value = getattr(upload, f.name)
        if isinstance(value, dict):
            values[f.name] = {name: new.get(f"{f.name}/{name}", v) for name, v in value.items()}
        elif f.name in new:
            values[f.name] = new[f.name]
    return replace(upload, **values)
