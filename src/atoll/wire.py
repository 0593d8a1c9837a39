"""Payloads as bytes: canonical, without pickle, with a schema and a digest.

The container is safetensors. The receiver says which payload class it expects; the bytes never choose one.
"""

import json
from hashlib import sha256
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from .errors import AtollError
from .payload import Packed, pack, unpack

T = TypeVar("T")
_HEADER = "atoll"  # one metadata entry, so that the order of entries cannot vary


class WireError(AtollError):
    """Bytes that are not the payload they should be."""


def encode(p: Any) -> bytes:
    """The canonical bytes of a payload: equal payloads give equal bytes, on every machine."""
    packed = pack(p)
    tensors = {name: packed.tensors[name].detach().cpu().contiguous() for name in sorted(packed.tensors)}
    # Safetensors sorts by name; sums over a model run in its own order, which the header keeps.
    header = {"payload": type(p).__name__, "scalars": packed.scalars, "order": list(packed.tensors)}
    return bytes(save(tensors, {_HEADER: json.dumps(header, sort_keys=True, separators=(",", ":"))}))


def decode(cls: type[T], data: bytes) -> T:
    """Read a payload of the class the receiver expects; anything else is a :class:`WireError`."""
    try:
        header = json.loads(_metadata(data)[_HEADER])
        if header["payload"] != cls.__name__:
            raise ValueError(f"it is a {header['payload']}")
        tensors = {name: v.to(torch.get_default_device()) for name, v in load(data).items()}
        if sorted(header["order"]) != sorted(tensors):
            raise ValueError("the order in the header is not that of its tensors")
        return unpack(cls, {name: tensors[name] for name in header["order"]}, dict(header["scalars"]))
    except (SafetensorError, ValueError, KeyError, TypeError, IndexError, RuntimeError) as reason:
        raise WireError(f"These {len(data)} bytes are not a {cls.__name__}: {reason}") from reason


def digest(p: Any) -> str:
    """SHA-256 of the canonical bytes."""
    return sha256(encode(p)).hexdigest()


def schema(p: Any) -> dict[str, Any]:
    """Name, type and shape of everything that travels in this payload."""
    packed: Packed = pack(p)
    shapes = {name: [str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in sorted(packed.tensors.items())}
    return {"payload": type(p).__name__, "tensors": shapes, "scalars": sorted(packed.scalars)}


def _metadata(data: bytes) -> dict[str, str]:
    size = int.from_bytes(data[:8], "little")
    if size > len(data) - 8:
        raise ValueError("the header is cut short")
    metadata: dict[str, str] = json.loads(data[8 : 8 + size])["__metadata__"]
    return metadata
