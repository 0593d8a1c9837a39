"""Payloads as trees of tensors: map, flatten, stack, unstack."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import torch
from torch import Tensor

from .payloads import SIZE, Params, nbytes

T = TypeVar("T")
S = TypeVar("S")


def flat(several: Sequence[Params], like: Params) -> Tensor:
    """All numbers of each, a row for each, in the order of ``like`` and without its counters."""
    names = [name for name, v in like.items() if v.is_floating_point()]
    columns = [as_rows(stacked([params[name] for params in several])) for name in names]
    return torch.cat([torch.zeros(len(several), 0), *columns], 1)


def as_rows(stack: Tensor) -> Tensor:
    """A stack of tensors with a row for each, also if they are scalars or empty."""
    return stack.reshape(len(stack), prod(stack.shape[1:]))


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """A row for each; one alone is not copied."""
    return torch.stack(tensors) if len(tensors) > 1 else tensors[0][None]  # type: ignore[arg-type]


def unflat(row: Tensor, like: Params) -> Params:
    """The way back."""
    numbers = {name: v for name, v in like.items() if v.is_floating_point()}
    pieces = row.split([v.numel() for v in numbers.values()]) if numbers else ()
    return {n: piece.reshape(v.shape).to(v.dtype) for piece, (n, v) in zip(pieces, numbers.items(), strict=True)}


def mapped(f: Callable[[Any], Any], tree: Any) -> Any:
    """``f`` of everything in payloads, dictionaries, tuples and lists; many times faster than torch's for any tree."""
    if isinstance(tree, dict):
        return {name: mapped(f, v) for name, v in tree.items()}
    if isinstance(tree, list):
        return [mapped(f, v) for v in tree]
    if isinstance(tree, tuple):
        parts = [mapped(f, v) for v in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    if hasattr(tree, "_kinds"):
        return type(tree)(*[mapped(f, getattr(tree, name)) for name in tree._kinds])
    return f(tree)


def plain(tree: T) -> T:
    """The same tensors, each in the order of memory it has after the wire: the order decides how sums round."""
    return mapped(lambda v: v.contiguous() if isinstance(v, Tensor) else v, tree)  # type: ignore[no-any-return]


def stack(trees: Sequence[T]) -> T:
    """Payloads (or dictionaries) of several clients as one, along a new first dimension.

    A tensor that is the very same in all is repeated without a copy.
    """
    first: Any = trees[0]
    if all(tree is first for tree in trees):
        return mapped(lambda v: v.expand(len(trees), *v.shape) if isinstance(v, Tensor) else v, first)  # type: ignore[no-any-return]
    if isinstance(first, Tensor):
        return torch.stack(trees)  # type: ignore[arg-type,return-value]
    if any(type(tree) is not type(first) for tree in trees):
        raise ValueError("only payloads of one form can be stacked")
    if isinstance(first, dict):
        names = list(first)
        if any(list(tree) != names for tree in trees if tree is not first):  # type: ignore[call-overload]
            raise ValueError("only payloads of one form can be stacked")
        return {name: stack([tree[name] for tree in trees]) for name in names}  # type: ignore[index,return-value]
    if hasattr(first, "_kinds"):
        return type(first)(**{name: stack([getattr(tree, name) for tree in trees]) for name in first._kinds})  # type: ignore[no-any-return]
    if any(value != first for value in trees):
        raise ValueError("only payloads of one form can be stacked")
    return first  # type: ignore[no-any-return]


def unstack(tree: T, n: int) -> list[T]:
    """The payloads of ``n`` clients, each in memory of its own."""
    whole: Any = tree
    if isinstance(whole, Tensor):
        return list(map(torch.clone, whole.unbind()))  # type: ignore[arg-type]
    if isinstance(whole, dict):
        names, columns = list(whole), [unstack(v, n) for v in whole.values()]
        return [dict(zip(names, own, strict=True)) for own in _across(columns, n)]  # type: ignore[misc]
    if hasattr(whole, "_kinds"):
        columns = [unstack(getattr(whole, name), n) for name in whole._kinds]
        return [type(whole)(*own) for own in _across(columns, n)]
    return [tree] * n


def _across(columns: list[list[Any]], n: int) -> Iterable[tuple[Any, ...]]:
    """The entries of each of ``n`` clients."""
    return zip(*columns, strict=True) if columns else ((),) * n


# ---------------------------------------------------------------------------------------------------------------------
# Rows: payloads that are still in the stack


ROW = "_row"  # entry of a payload's dictionary for its place in a stack


@dataclass(eq=False, slots=True)
class Row:
    """The place of a payload in a stack of payloads."""

    stack: Any
    at: int

    def field(self, name: str) -> Any:
        return mapped(lambda v: _entry(v, self.at), getattr(self.stack, name))


def lazy_rows(tree: T, n: int) -> list[T]:
    """Return the payloads of ``n`` clients as views of a stack. A field is made when it is first read."""
    stack: Any = tree
    known = {name: v for name in stack._kinds if not _has_tensors(v := getattr(stack, name))}
    if stack._dense:
        known[SIZE] = nbytes(mapped(lambda v: _entry(v, 0), stack))
    if not hasattr(type(stack), "__getattr__"):  # which is called for fields that a payload lacks: those of lazy rows
        type(stack).__getattr__ = _read_from_stack
    made = [object.__new__(type(tree)) for _ in range(n)]
    for at, row in enumerate(made):
        row.__dict__.update(known, **{ROW: Row(stack, at)})
    return made


def _read_from_stack(p: Any, name: str) -> Any:
    """Make a field of a lazy row, and keep it."""
    row = p.__dict__.get(ROW)
    if row is None or name not in p._kinds:
        raise AttributeError(f"{type(p).__name__!r} object has no attribute {name!r}")
    value = p.__dict__[name] = row.field(name)
    return value


def _has_tensors(field: Any) -> bool:
    return isinstance(field, Tensor) or (isinstance(field, dict) and bool(field))


def _entry(v: Any, at: int) -> Any:
    return v[at] if isinstance(v, Tensor) else v


def stack_fields(several: Sequence[Any], *fields: str) -> list[Any]:
    """Fields of several payloads, clients in front: as they lie there if the payloads are side by side in a stack."""
    whole, start = _side_by_side(several)
    if whole is not None:
        return [mapped(lambda v: v[start : start + len(several)], getattr(whole, field)) for field in fields]
    return [_together([getattr(p, field) for p in several]) for field in fields]


def _side_by_side(several: Sequence[Any]) -> tuple[Any, int]:
    """The stack that all of them are in, one behind the other, if there is one; and where the first of them is."""
    places: list[Any] = [getattr(p, "__dict__", {}).get(ROW) for p in several]
    if None in places:
        return None, 0
    stacks, start = {id(place.stack) for place in places}, places[0].at
    if len(stacks) > 1 or [place.at for place in places] != list(range(start, start + len(places))):
        return None, 0
    return places[0].stack, start


def _together(values: list[Any]) -> Any:
    if isinstance(values[0], dict):
        return {name: stacked([own[name] for own in values]) for name in values[0]}
    return stacked(values)


def map_consecutive(f: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
    """``f`` of each item; of one that is the very same as the one before it, what it was for that one."""
    last: Any = object()
    for item in items:
        if item is not last:
            last, made = item, f(item)
        yield made
