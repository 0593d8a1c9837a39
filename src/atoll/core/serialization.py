"""Encode payloads as canonical bytes without pickle, decode them safely, and compute their digests.

The container is safetensors. The receiver names the payload class that it expects; the bytes never choose one.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from math import prod
from typing import Any, NamedTuple, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from ..errors import AtollError
from .payloads import Packed, Params, Payload, Scalar, pack, unpack

T = TypeVar("T")
HEADS = 256  # heads of messages that are kept: one for each payload class and architecture
_HEADER = "atoll"  # A single metadata entry: the order of several entries could vary.
# The types that can be sent, with their names in safetensors, in the order in which safetensors places tensors.
_NAMES = {
    torch.int64: "I64", torch.float64: "F64", torch.float32: "F32", torch.int32: "I32", torch.bfloat16: "BF16",
    torch.float16: "F16", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_ORDER = {kind: at for at, kind in enumerate(_NAMES)}
_DTYPES = frozenset(_NAMES.values())
SENDABLE = frozenset(_NAMES)


class Limits(NamedTuple):
    """Limit the size of a message. The limits are checked before any tensor is created.

    A header has about 160 bytes for each tensor, so that models of 4096 tensors fit; ResNet-152 has 932.
    """

    size: int = 2**31  # bytes of a message, and of each tensor in it
    header: int = 2**20  # bytes of the header
    entries: int = 4096  # number of tensors


FROM_OUTSIDE = Limits()
OWN = Limits(2**62, 2**30, 2**24)  # for files that this program wrote: a server may store a tensor for every client


class WireError(AtollError):
    """Report bytes that are not a payload of the expected class."""


def encode(p: Payload) -> bytes:
    """Return the canonical bytes of a payload. Equal payloads give equal bytes on every machine."""
    packed = pack(p)
    layout = tuple([(name, v.dtype, v.shape) for name, v in packed.tensors.items()])
    scalars = _to_text(packed.scalars) if packed.scalars else "{}"
    head, names = _make_head(type(p).__name__, scalars, layout)
    return b"".join([head, *[_bytes_of(packed.tensors[name]) for name in names]])


def _to_text(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _bytes_of(v: Tensor) -> Any:
    """Return the memory of a tensor, or of a contiguous copy on the processor."""
    v = v.detach().cpu().contiguous()
    return (v.view(torch.int16) if v.dtype == torch.bfloat16 else v).numpy()  # numpy has no bfloat16


@lru_cache(maxsize=HEADS)
def _make_head(
    payload: str, scalars: str, layout: tuple[tuple[str, torch.dtype, torch.Size], ...]
) -> tuple[bytes, list[str]]:
    """Return the bytes that ``safetensors.torch.save`` puts before the data, and the order of tensors in the data.

    Uploads of clients have the same head, and making it takes longer than copying a small model.

    Args:
        payload: name of the payload class.
        scalars: scalars of the payload as JSON.
        layout: name, type and shape of each tensor in the model's own order, because sums run in that order.
    """
    order = _to_text([name for name, *_ in layout])
    text = f'{{"order":{order},"payload":{_to_text(payload)},"scalars":{scalars}}}'
    header: dict[str, Any] = {"__metadata__": {_HEADER: text}}
    end = 0
    for name, kind, shape in sorted(layout, key=lambda entry: (_ORDER[entry[1]], entry[0])):
        start, end = end, end + shape.numel() * kind.itemsize
        header[name] = {"dtype": _NAMES[kind], "shape": list(shape), "data_offsets": [start, end]}
    head = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head, [name for name in header if name != "__metadata__"]


def decode(cls: type[T], data: bytes, limits: Limits = FROM_OUTSIDE) -> T:
    """Decode a payload of the expected class.

    Args:
        cls: the payload class that the receiver expects.
        data: bytes made by :func:`encode`.
        limits: the largest message to accept.

    Raises:
        WireError: if the bytes are anything else.

    Example:
        >>> decode(type(payload), encode(payload))
    """
    try:
        header = _read_header(data, limits)
        if header["payload"] != cls.__name__:
            raise ValueError(f"the header names a {str(header['payload'])[:80]}")
        device = torch.get_default_device()
        tensors = {name: v.to(device) for name, v in load(data).items()}
        _check_booleans(tensors)
        if sorted(header["order"]) != sorted(tensors):
            raise ValueError("the order in the header does not list the tensors of the message")
        scalars: dict[str, Scalar] = dict(header["scalars"])
        return unpack(cls, {name: tensors[name] for name in header["order"]}, scalars, limits.size)
    except _NO_PAYLOAD as reason:
        raise WireError(f"These {len(data)} bytes are not a {cls.__name__}: {str(reason)[:500]}") from reason


# What malformed bytes may raise. Any other exception would be a fault of this program.
_NO_PAYLOAD = (SafetensorError, ValueError, KeyError, TypeError, IndexError, RuntimeError, OverflowError, MemoryError)


class Unreadable(NamedTuple):
    """Stand in for an upload that cannot be sent or decoded, so that a bad upload does not end the run."""

    reason: str
    field: str = "payload"


def decode_upload(cls: type[T], data: bytes, limits: Limits = FROM_OUTSIDE) -> T | Unreadable:
    """Decode the payload that a client sent. Returns :class:`Unreadable` with the reason if that fails."""
    try:
        return decode(cls, data, limits)
    except WireError as reason:
        return Unreadable(str(reason))


def digest(p: Payload) -> str:
    """Return the SHA-256 of a payload's canonical bytes, in hexadecimal."""
    return sha256(encode(p)).hexdigest()


def schema(p: Payload) -> dict[str, Any]:
    """Return the names, types and shapes of all tensors in a payload's packed form, and the names of its scalars."""
    packed: Packed = pack(p)
    shapes = {name: [str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in sorted(packed.tensors.items())}
    return {"payload": type(p).__name__, "tensors": shapes, "scalars": sorted(packed.scalars)}


# ---------------------------------------------------------------------------------------------------------------------
# Checks before any tensor is created


def _read_header(data: bytes, limits: Limits) -> dict[str, Any]:
    """Check the whole header, and return the part that :func:`encode` wrote."""
    if len(data) > limits.size:
        raise ValueError(f"a message may have at most {limits.size} bytes")
    size = int.from_bytes(data[:8], "little")
    if size > limits.header:
        raise ValueError(f"the header claims {size} bytes, and at most {limits.header} are allowed")
    if size > len(data) - 8:
        raise ValueError("the header is cut short")
    entries = _parse_object(data[8 : 8 + size])
    metadata = entries.pop("__metadata__")
    if metadata.keys() != {_HEADER}:
        raise ValueError(f"the metadata must hold the entry {_HEADER!r} alone")
    if len(entries) > limits.entries:
        raise ValueError(f"the header lists {len(entries)} tensors, and at most {limits.entries} are allowed")
    for name, entry in entries.items():
        _check_entry(name, entry, limits)
    return _parse_object(metadata[_HEADER].encode())


def _parse_object(text: bytes) -> dict[str, Any]:
    found = json.loads(text.decode("utf-8"), object_pairs_hook=_refuse_duplicates)
    if type(found) is not dict:
        raise ValueError("the header is not a JSON object")
    return found


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dictionary. Duplicate names are refused: parsers disagree on which one counts."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("the header has the same name twice")
    return made


def _check_entry(name: str, entry: Mapping[str, Any], limits: Limits) -> None:
    """Check the type and shape of one tensor. A side of 0 counts as 1: an empty tensor may still claim a huge shape."""
    if entry["dtype"] not in _DTYPES:
        raise ValueError(f"{name[:80]!r} has the unknown type {str(entry['dtype'])[:80]!r}")
    if any(type(side) is not int or side < 0 for side in entry["shape"]):
        raise ValueError(f"{name[:80]!r} has a shape that is not of whole numbers from 0 on")
    if prod(max(side, 1) for side in entry["shape"]) > limits.size:
        raise ValueError(f"{name[:80]!r} would be larger than {limits.size} bytes")


def _check_booleans(tensors: Params) -> None:
    """Refuse boolean tensors with bytes other than 0 and 1, which torch would count as more than one."""
    for name, v in tensors.items():
        if v.dtype == torch.bool and v.numel() and int(v.view(torch.uint8).max()) > 1:
            raise ValueError(f"{name[:80]!r} holds bytes that are neither true nor false")
