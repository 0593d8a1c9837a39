"""List the fields of all messages between clients and server, with sizes and declared roles."""

from collections.abc import Iterator
from dataclasses import fields
from typing import NamedTuple

from torch import Tensor

from ..clients.dry_run import dry_run
from ..clients.pool import ClientPool
from ..core.method import AnyMethod
from ..core.payloads import Packed, Payload, nbytes, pack
from ..data.tables.preparations import Preparations

BEFORE = "before round 1"  # in place of a model, for what no model decides


class Item(NamedTuple):
    """One field of a message."""

    direction: str  # "down" to the client, "up" to the server
    exchange: int
    model: str
    field: str
    shape: str
    bytes: int
    meaning: str
    role: str  # declared role of the field, or ""


def audit(method: AnyMethod, pool: ClientPool, seed: int) -> list[Item]:
    """List every field that is sent in a round.

    Reads the second round of a dry run, because the first may send less.

    Args:
        method: the method.
        pool: the clients; one of each architecture is run.
        seed: seed of the dry run.
    """
    items: list[Item] = []
    for exchange in dry_run(method, pool, seed, rounds=2):
        if exchange.round.t == 1:
            model = pool.models[exchange.client].name
            items += _items("down", exchange.round.exchange, model, exchange.download)
            items += _items("up", exchange.round.exchange, model, exchange.upload)
    return items


def audit_statistics(preparations: Preparations) -> list[Item]:
    """List the fields of the statistics of columns that clients exchange before the first round."""
    items: list[Item] = []
    if preparations.sent and preparations.agreed is not None:
        largest = max(preparations.sent.values(), key=nbytes)
        items += _items("up", 0, BEFORE, largest)
        items += _items("down", 0, BEFORE, preparations.agreed)
    return items


def _items(direction: str, exchange: int, model: str, payload: Payload) -> Iterator[Item]:
    packed = pack(payload)
    for f in fields(payload):
        own = {
            name: t
            for name, t in packed.tensors.items()
            if name == f.name or name.startswith((f.name + "/", f.name + "#"))
        }
        size = sum(t.numel() * t.element_size() for t in own.values())
        role = f.metadata.get("role")
        meaning, role_name = f.metadata.get("about", ""), role.value if role else ""
        if f.name in packed.scalars:
            value = packed.scalars[f.name]
            alone = Packed({}, {f.name: value}).nbytes
            yield Item(direction, exchange, model, f.name, type(value).__name__, alone, meaning, role_name)
        else:
            yield Item(direction, exchange, model, f.name, _shape(own, f.name), size, meaning, role_name)


def _shape(tensors: dict[str, Tensor], name: str) -> str:
    """Describe shapes: ``[2, 500]`` for a tensor, ``4 tensors, 2410 values`` for several, plus labels held."""
    plain = {key: t for key, t in tensors.items() if "#" not in key}
    labels = tensors.get(f"{name}#held")
    if name in plain:
        text = str(list(plain[name].shape))
    elif plain:
        text = f"{len(plain)} tensors, {sum(t.numel() for t in plain.values()):,} values"
    else:
        text = "" if labels is not None else "–"
    return text if labels is None else f"{text} + {len(labels)} labels".removeprefix(" + ")
