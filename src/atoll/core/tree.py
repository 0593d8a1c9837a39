"""Treat payloads as trees of tensors: map, flatten, stack and unstack them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import torch
from torch import Tensor

from .payloads import SIZE, Params, nbytes

T = TypeVar("T")
S = TypeVar("S")


def flatten_params(several: Sequence[Params], like: Params) -> Tensor:
    """Return all numbers of several models as a matrix with a row for each model.

    Columns are in the order of ``like``. Integer tensors (counters) are left out.
    """
    names = [name for name, v in like.items() if v.is_floating_point()]
    columns = [flatten_rows(stack_tensors([params[name] for params in several])) for name in names]
    return torch.cat([torch.zeros(len(several), 0), *columns], 1)


def flatten_rows(stack: Tensor) -> Tensor:
    """Reshape a stack of tensors [n, ...] to a matrix [n, numbers], also for scalars and empty tensors."""
    return stack.reshape(len(stack), prod(stack.shape[1:]))


def stack_tensors(tensors: Sequence[Tensor]) -> Tensor:
    """Stack tensors along a new first dimension. A single tensor is not copied."""
    return torch.stack(tensors) if len(tensors) > 1 else tensors[0][None]  # type: ignore[arg-type]


def unflatten_params(row: Tensor, like: Params) -> Params:
    """Rebuild a model, without its counters, from one row of :func:`flatten_params`."""
    numbers = {name: v for name, v in like.items() if v.is_floating_point()}
    pieces = row.split([v.numel() for v in numbers.values()]) if numbers else ()
    return {n: piece.reshape(v.shape).to(v.dtype) for piece, (n, v) in zip(pieces, numbers.items(), strict=True)}


def map_tree(f: Callable[[Any], Any], tree: Any) -> Any:
    """Apply ``f`` to every leaf of payloads, dictionaries, tuples and lists.

    Many times faster than torch's own ``tree_map``, which also handles classes that Atoll never sends.
    """
    if type(tree) is Tensor:  # most of what is walked through
        return f(tree)
    if isinstance(tree, dict):
        return {name: map_tree(f, v) for name, v in tree.items()}
    if isinstance(tree, list):
        return [map_tree(f, v) for v in tree]
    if isinstance(tree, tuple):
        parts = [map_tree(f, v) for v in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    if hasattr(tree, "_kinds"):
        return type(tree)(*[map_tree(f, getattr(tree, name)) for name in tree._kinds])
    return f(tree)


def to_contiguous(tree: T) -> T:
    """Return a tree with contiguous tensors, as decoding gives them: the memory layout decides how sums round.

    Tensors that are not dense stay as they are; an upload with one is rejected.
    """
    return map_tree(lambda v: v.contiguous() if isinstance(v, Tensor) and v.layout == torch.strided else v, tree)  # type: ignore[no-any-return]


def stack(trees: Sequence[T]) -> T:
    """Stack the payloads (or dictionaries) of several clients along a new first dimension.

    A payload that is the same object for all clients is expanded without a copy.

    Raises:
        ValueError: if classes, names or scalars differ.
    """
    first: Any = trees[0]
    if all(tree is first for tree in trees):
        return map_tree(lambda v: v.expand(len(trees), *v.shape) if isinstance(v, Tensor) else v, first)  # type: ignore[no-any-return]
    if isinstance(first, Tensor):
        return torch.stack(trees)  # type: ignore[arg-type,return-value]
    if any(type(tree) is not type(first) for tree in trees):
        raise ValueError("Only payloads with the same class, names and scalars can be stacked.")
    if isinstance(first, dict):
        names = list(first)
        if any(list(tree) != names for tree in trees if tree is not first):  # type: ignore[call-overload]
            raise ValueError("Only payloads with the same class, names and scalars can be stacked.")
        return {name: stack([tree[name] for tree in trees]) for name in names}  # type: ignore[index,return-value]
    if hasattr(first, "_kinds"):
        return type(first)(**{name: stack([getattr(tree, name) for tree in trees]) for name in first._kinds})  # type: ignore[no-any-return]
    if any(value != first for value in trees):
        raise ValueError("Only payloads with the same class, names and scalars can be stacked.")
    return first  # type: ignore[no-any-return]


def unstack(tree: T, n: int) -> list[T]:
    """Split a stack into the payloads of ``n`` clients, each a copy."""
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
    """Transpose columns, which may be none, to a tuple for each of ``n`` clients."""
    return zip(*columns, strict=True) if columns else ((),) * n


# ---------------------------------------------------------------------------------------------------------------------
# Lazy rows: payloads whose tensors are still in the stack


ROW = "_row"  # key in a payload's ``__dict__`` for its place in a stack


@dataclass(eq=False, slots=True)
class Row:
    """The place of a payload in a stack of payloads."""

    stack: Any
    at: int

    def field(self, name: str) -> Any:
        """Return a field of the payload as views of the stack."""
        return map_tree(lambda v: _entry(v, self.at), getattr(self.stack, name))


def lazy_rows(tree: T, n: int) -> list[T]:
    """Return the payloads of ``n`` clients as views of a stack. Each view is created when its field is first read."""
    stack: Any = tree
    known = {name: v for name in stack._kinds if not _has_tensors(v := getattr(stack, name))}
    if stack._dense:
        known[SIZE] = nbytes(map_tree(lambda v: _entry(v, 0), stack))
    if not hasattr(type(stack), "__getattr__"):  # called only for missing fields, as lazy rows have
        type(stack).__getattr__ = _read_from_stack
    made = [object.__new__(type(tree)) for _ in range(n)]
    for at, row in enumerate(made):
        row.__dict__.update(known, **{ROW: Row(stack, at)})
    return made


def _read_from_stack(p: Any, name: str) -> Any:
    """Create a field of a lazy row, and store it in the row."""
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
    """Stack fields of several payloads, clients in front.

    Payloads that are consecutive rows of one stack give a slice of that stack, without a copy.

    Args:
        several: payloads of one class.
        fields: names of fields that hold a tensor or Params.

    Returns:
        A stacked value for each field.
    """
    whole, start = _find_common_stack(several)
    if whole is not None:
        return [map_tree(lambda v: v[start : start + len(several)], getattr(whole, field)) for field in fields]
    return [_stack_values([getattr(p, field) for p in several]) for field in fields]


def _find_common_stack(several: Sequence[Any]) -> tuple[Any, int]:
    """Return the stack whose consecutive rows the payloads are, and the first position; (None, 0) otherwise."""
    places: list[Any] = [getattr(p, "__dict__", {}).get(ROW) for p in several]
    if None in places:
        return None, 0
    stacks = {id(place.stack) for place in places}
    start = places[0].at
    if len(stacks) > 1 or [place.at for place in places] != list(range(start, start + len(places))):
        return None, 0
    return places[0].stack, start


def _stack_values(values: list[Any]) -> Any:
    if isinstance(values[0], dict):
        return {name: stack_tensors([own[name] for own in values]) for name in values[0]}
    return stack_tensors(values)


def map_consecutive(f: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
    """Yield ``f(item)`` for each item. Consecutive items that are the same object share one call."""
    last: Any = object()
    for item in items:
        if item is not last:
            last, made = item, f(item)
        yield made
