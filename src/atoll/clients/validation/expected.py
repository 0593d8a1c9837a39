"""Describe the tensors that an upload must have, as found by a dry run of the method."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from ...core.payloads import Payload
from ...core.schema import Form, Leaf

STAND_INS = (20, 30)  # numbers of rows; a dimension that differs between both uploads is one of rows


@dataclass(frozen=True)
class Expected:
    """The form of the answer to one message.

    Args:
        form: names, types and shapes of tensors.
        open: prefixes of names that are not fixed, because their sizes depend on what was learnt.
        spare: bytes that tensors with these prefixes may take beyond those of the form.
    """

    form: Form
    open: tuple[str, ...]
    spare: int

    def most_bytes(self, rows: int) -> int:
        """Return the largest size of an upload from a client with ``rows`` rows, in bytes."""
        return sum(leaf.nbytes(rows) for leaf in self.form.values()) + self.spare


def _switches(p: Payload) -> Iterator[tuple[str, Any]]:
    """Yield integers and strings of a message. The form of an answer may depend on these, but not on floats."""
    for f in fields(p):
        if isinstance(value := getattr(p, f.name), int | str):
            yield f.name, value


def _common(a: Leaf, b: Leaf) -> Leaf:
    return Leaf(a.dtype, tuple(m if m == n else None for m, n in zip(a.shape, b.shape, strict=True)))
