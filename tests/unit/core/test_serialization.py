"""Payloads as bytes: canonical, and harmless whatever arrives."""

import json
from contextlib import suppress
from hashlib import sha256
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from support.payloads import Flagged, Mixed, Table, mixed, table

from atoll.core.payloads import Nothing, equal
from atoll.core.serialization import SENDABLE, Limits, WireError, _read_header, decode, digest, encode, schema
from atoll.errors import AtollError
from atoll.methods.local import State

TABLE = table(torch.tensor([4.0, 0.0, 1.0]), 2)
DATA = encode(TABLE)
HEADER = 8 + int.from_bytes(DATA[:8], "little")


@pytest.mark.parametrize(
    "p",
    [
        TABLE,
        table(torch.zeros(3), 2),
        table(torch.ones(3), 2, covariances=False),
        Flagged(torch.ones(2, 3), torch.ones(2, dtype=torch.bool)),
        mixed(),
        mixed(torch.arange(3)),
        Nothing(),
    ],
)
def test_decode_restores_encoded_payloads(p: Any) -> None:
    back = decode(type(p), encode(p))
    assert equal(back, p)
    assert encode(back) == encode(p)


def test_params_keep_their_order() -> None:
    """Sums over a model run in its own order, so a model that came over the wire must add up to the same bits."""
    p = mixed()
    turned = Mixed({n: p.params[n] for n in reversed(p.params)}, p.square, None, "warm", 3, 0.5, True)
    assert list(decode(Mixed, encode(turned)).params) == list(turned.params) != list(p.params)
    assert encode(turned) != encode(p)


def test_equal_payloads_give_equal_bytes() -> None:
    """The layout of a tensor in memory does not show."""
    p = mixed()
    strided = {n: v.T.contiguous().T if v.ndim == 2 else v for n, v in p.params.items()}
    assert not strided["b.weight"].is_contiguous()
    assert encode(Mixed(strided, p.square, None, "warm", 3, 0.5, True)) == encode(p)


@pytest.mark.parametrize("seed", range(20))
def test_bytes_are_those_of_safetensors(seed: int) -> None:
    """Of tensors of all types and of odd names and shapes, in the order of names."""
    made = torch.Generator().manual_seed(seed)

    def pick(options: Any) -> Any:
        return options[int(torch.randint(len(options), (), generator=made))]

    names = sorted(f'\xfc"{n}\\.w' for n in torch.randperm(40, generator=made)[:9].tolist())
    kinds, shapes = sorted(SENDABLE, key=str), [(), (0,), (3,), (2, 5), (1, 2, 3)]
    params = {name: torch.randint(0, 2, pick(shapes), generator=made).to(pick(kinds)) for name in names}
    data = encode(State(params))

    text = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    assert data == bytes(save({f"params/{name}": v for name, v in params.items()}, text))


def test_digest_is_that_of_the_bytes_and_sees_every_bit() -> None:
    assert digest(TABLE) == sha256(DATA).hexdigest()
    other = table(torch.tensor([4.0, 0.0, 1.0]), 2)
    other.mu[0, 0] += 1e-6
    assert digest(other) != digest(TABLE)
    assert digest(mixed()) != digest(Mixed(mixed().params, mixed().square, None, "cold", 3, 0.5, True))


def test_schema_lists_the_tensors_that_are_sent() -> None:
    assert schema(TABLE) == {
        "payload": "Table",
        "tensors": {
            "mu": ["float32", [2, 2]],
            "n": ["float32", [2]],
            "n#held": ["int32", [2]],
            "sigma": ["float32", [2, 3]],
        },
        "scalars": ["n#classes"],
    }


def test_decode_refuses_another_payload_class() -> None:
    with pytest.raises(WireError, match="are not a Flagged: the header names a Table"):
        decode(Flagged, DATA)
    assert issubclass(WireError, AtollError)


def test_decode_refuses_truncated_bytes() -> None:
    for length in range(len(DATA)):
        with pytest.raises(WireError):
            decode(Table, DATA[:length])
    with pytest.raises(WireError):
        decode(Table, DATA + b"\0")


def harmless(cls: type[Any], data: bytes) -> None:
    """It is a payload of that class, or a WireError; nothing else."""
    with suppress(WireError):
        assert type(decode(cls, data)) is cls


def test_flipped_header_bits_raise_no_other_error() -> None:
    for at in range(HEADER):
        for bit in range(8):
            flipped = bytearray(DATA)
            flipped[at] ^= 1 << bit
            harmless(Table, bytes(flipped))


@given(st.binary(max_size=200))
@example(b"")
@example(b"\xff" * 8 + b"{}")
@example((2).to_bytes(8, "little") + b"{}")
@settings(max_examples=200, deadline=None)
def test_random_bytes_raise_no_other_error_than_wire_error(data: bytes) -> None:
    with pytest.raises(WireError):
        decode(Table, data)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_damaged_bytes_raise_no_other_error(data: st.DataObject) -> None:
    damaged = bytearray(DATA)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(DATA) - 1))] = data.draw(st.integers(0, 255))
    harmless(Table, bytes(damaged))


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(JUNK, JUNK)
@example([], None)
@example({"payload": "Table", "scalars": []}, None)
@example({"payload": "Table", "scalars": "n#classes"}, None)
@example({"payload": "Table", "scalars": {"n#classes": 2**70}}, None)
@example({"payload": "Table", "scalars": {"n#classes": 10**11}}, None)
@example({"payload": "Table", "scalars": {"n#classes": -1}}, None)
@example({"payload": "Table", "scalars": {"n#classes": True}}, None)
@settings(max_examples=100, deadline=None)
def test_well_formed_container_with_a_strange_header(header: Any, classes: Any) -> None:
    tensors = {"n": torch.ones(1), "n#held": torch.zeros(1, dtype=torch.int32), "mu": torch.ones(1, 2)}
    harmless(Table, save(tensors, {"atoll": json.dumps(header)}))
    scalars = {"n#classes": classes}
    harmless(Table, save(tensors, {"atoll": json.dumps({"payload": "Table", "scalars": scalars})}))
    harmless(Mixed, save(tensors, {"atoll": json.dumps({"payload": "Mixed", "scalars": header})}))


@pytest.mark.parametrize("labels", [[5], [-1], [0, 0], [2, 0]])
def test_decode_refuses_malformed_labels(labels: list[int]) -> None:
    tensors = {"n": torch.ones(len(labels)), "n#held": torch.tensor(labels), "mu": torch.ones(len(labels), 2)}
    data = save(tensors, {"atoll": json.dumps({"payload": "Table", "scalars": {"n#classes": 3}})})
    with pytest.raises(WireError):
        decode(Table, data)


@given(st.sampled_from([torch.float64, torch.int64, torch.bool, torch.uint8]), st.lists(st.integers(0, 3), max_size=3))
@settings(max_examples=60, deadline=None)
def test_decode_refuses_malformed_tensors(dtype: torch.dtype, shape: list[int]) -> None:
    for name in ("n", "n#held", "mu", "sigma"):
        tensors = {"n": torch.ones(1), "n#held": torch.zeros(1, dtype=torch.int32), "mu": torch.ones(1, 2)}
        tensors[name] = torch.ones(shape, dtype=dtype)
        harmless(Table, save(tensors, {"atoll": json.dumps({"payload": "Table", "scalars": {"n#classes": 2}})}))


def container(tensors: dict[str, Any], **metadata: str) -> bytes:
    head = json.dumps(tensors | {"__metadata__": {"atoll": "{}"} | metadata}).encode()
    return len(head).to_bytes(8, "little") + head


def entry(dtype: str = "F32", shape: Any = (0,)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (DATA[: HEADER - 1], "cut short"),
        (container({}, other="x"), "alone"),
        (container({"a": entry(dtype="F8_E4M3")}), "unknown type"),
        (container({"a": entry(shape=[-1])}), "whole numbers from 0"),
        (container({"a": entry(shape=[True])}), "whole numbers from 0"),
        (container({"a": entry(shape=[0, 2**40])}), "would be larger"),
        (container({str(number): entry() for number in range(100)}), "lists 100 tensors"),
        (container({"a": entry()}) + bytes(10**6), "at most"),
        ((2**40).to_bytes(8, "little") + b"{}", "the header claims"),
    ],
)
def test_header_is_refused_before_the_bytes_are_given_to_another_parser(data: bytes, message: str) -> None:
    """Safetensors refuses most of them as well; this library's limits do not rely on that."""
    with pytest.raises(ValueError, match=message):
        _read_header(data, Limits(size=10**5, header=10**5, entries=50))
