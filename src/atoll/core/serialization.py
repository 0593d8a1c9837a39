"""Payloads as bytes: canonical, without pickle, with a schema and a digest.

The container is safetensors. The receiver says which payload class it expects; the bytes never choose one.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from math import prod
from typing import Any, NamedTuple, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from ..errors import AtollError
from .payloads import Packed, Params, Scalar, pack, unpack

T = TypeVar("T")
_HEADER = "atoll"  # one metadata entry, so that the order of entries cannot vary
_DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL")


class Limits(NamedTuple):
    """How much a message may be, checked before anything is made of it.

    A header has about 160 bytes for each tensor, so that models of 4096 tensors fit; ResNet-152 has 932.
    """

    size: int = 2**31  # bytes of a message, and of each tensor that comes of it
    header: int = 2**20  # bytes
    entries: int = 4096  # tensors


FROM_OUTSIDE = Limits()
OWN = Limits(2**62, 2**30, 2**24)  # what this program wrote itself: a server may keep a tensor for every client


class WireError(AtollError):
    """Bytes that are not the payload they should be."""


def encode(p: Any) -> bytes:
    """The canonical bytes of a payload: equal payloads give equal bytes, on every machine."""
    packed = pack(p)
    tensors = {name: packed.tensors[name].detach().cpu().contiguous() for name in sorted(packed.tensors)}
    # Safetensors sorts by name; sums over a model run in its own order, which the header keeps.
    header = {"payload": type(p).__name__, "scalars": packed.scalars, "order": list(packed.tensors)}
    return bytes(save(tensors, {_HEADER: json.dumps(header, sort_keys=True, separators=(",", ":"))}))


def decode(cls: type[T], data: bytes, limits: Limits = FROM_OUTSIDE) -> T:
    """Read a payload of the class the receiver expects; anything else is a :class:`WireError`."""
    try:
        header = _checked_header(data, limits)
        if header["payload"] != cls.__name__:
            raise ValueError(f"it is a {str(header['payload'])[:80]}")
        device = torch.get_default_device()
        tensors = {name: v.to(device) for name, v in load(data).items()}
        _check_booleans(tensors)
        if sorted(header["order"]) != sorted(tensors):
            raise ValueError("the order in the header is not that of its tensors")
        scalars: dict[str, Scalar] = dict(header["scalars"])
        return unpack(cls, {name: tensors[name] for name in header["order"]}, scalars, limits.size)
    except _NO_PAYLOAD as reason:
        raise WireError(f"These {len(data)} bytes are not a {cls.__name__}: {str(reason)[:500]}") from reason


# What reading nonsense may raise; anything else would be a mistake of ours.
_NO_PAYLOAD = (SafetensorError, ValueError, KeyError, TypeError, IndexError, RuntimeError, OverflowError, MemoryError)


class Unreadable(NamedTuple):
    """What takes the place of an upload whose bytes are no payload: a bad upload, not the end of a run."""

    reason: str


def received(cls: type[T], data: bytes, limits: Limits = FROM_OUTSIDE) -> T | Unreadable:
    """The payload that a client sent, or why there is none."""
    try:
        return decode(cls, data, limits)
    except WireError as reason:
        return Unreadable(str(reason))


def digest(p: Any) -> str:
    """SHA-256 of the canonical bytes."""
    return sha256(encode(p)).hexdigest()


def schema(p: Any) -> dict[str, Any]:
    """Name, type and shape of everything that travels in this payload."""
    packed: Packed = pack(p)
    shapes = {name: [str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in sorted(packed.tensors.items())}
    return {"payload": type(p).__name__, "tensors": shapes, "scalars": sorted(packed.scalars)}


# ---------------------------------------------------------------------------------------------------------------------
# What is checked before any tensor is made


def _checked_header(data: bytes, limits: Limits) -> dict[str, Any]:
    """Our own part of the header, once all of it is known to be harmless."""
    if len(data) > limits.size:
        raise ValueError(f"{limits.size} bytes are the most that is taken")
    size = int.from_bytes(data[:8], "little")
    if size > limits.header:
        raise ValueError(f"the header claims {size} bytes, and {limits.header} are the most that is taken")
    if size > len(data) - 8:
        raise ValueError("the header is cut short")
    entries = _parsed(data[8 : 8 + size])
    metadata = entries.pop("__metadata__")
    if metadata.keys() != {_HEADER}:
        raise ValueError("the header holds more than it should")
    if len(entries) > limits.entries:
        raise ValueError(f"it has {len(entries)} tensors, and {limits.entries} are the most that is taken")
    for name, entry in entries.items():
        _check_entry(name, entry, limits)
    return _parsed(metadata[_HEADER].encode())


def _parsed(text: bytes) -> dict[str, Any]:
    found = json.loads(text.decode("utf-8"), object_pairs_hook=_once)
    if type(found) is not dict:
        raise ValueError("the header is not an object")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object in which no name comes twice: readers would not agree on which of them counts."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name comes twice in the header")
    return made


def _check_entry(name: str, entry: Mapping[str, Any], limits: Limits) -> None:
    """A shape may be huge and yet hold nothing, if one side is 0; what is made of it would not be."""
    if entry["dtype"] not in _DTYPES:
        raise ValueError(f"{name[:80]!r} is of an unknown type")
    if any(type(side) is not int or side < 0 for side in entry["shape"]):
        raise ValueError(f"{name[:80]!r} has sides that are not whole numbers")
    if prod(max(side, 1) for side in entry["shape"]) > limits.size:
        raise ValueError(f"{name[:80]!r} would be larger than {limits.size} bytes")


def _check_booleans(tensors: Params) -> None:
    """A byte that is neither 0 nor 1 is both true and more than 1."""
    for name, v in tensors.items():
        if v.dtype == torch.bool and v.numel() and int(v.view(torch.uint8).max()) > 1:
            raise ValueError(f"{name[:80]!r} holds bytes that are neither true nor false")
