"""Work out which tensors an upload must have, from a dry run of the method."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from ...core.schema import Form, Leaf

if TYPE_CHECKING:
    pass

STAND_INS = (20, 30)  # rows of each: a dimension in which their uploads differ is one of rows


@dataclass(frozen=True)
class Expected:
    """What one message must be answered with."""

    form: Form
    open: tuple[str, ...]  # beginnings of names that are free, as their sizes depend on what was learnt
    spare: int  # bytes that these may take beyond those of the form

    def most_bytes(self, rows: int) -> int:
        return sum(leaf.nbytes(rows) for leaf in self.form.values()) + self.spare


def _switches(p: Any) -> Iterator[tuple[str, Any]]:
    """Scalars that a form may depend on: numbers that are not whole decide values only."""
    for f in fields(p):
        if isinstance(value := getattr(p, f.name), int | str):
            yield f.name, value


def _common(a: Leaf, b: Leaf) -> Leaf:
    return Leaf(a.dtype, tuple(m if m == n else None for m, n in zip(a.shape, b.shape, strict=True)))
