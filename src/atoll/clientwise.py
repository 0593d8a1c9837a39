"""Tensors that vmap has batched over clients, seen from outside: one with an entry for each client.

Inside vmap, ``torch.func.grad`` would send every operation of the forward and the backward pass through two layers of
transformations, which for small models cost more than the arithmetic. Here only the forward pass goes through vmap; the
backward pass is autograd's own, on the tensors behind.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C import _functorch as layers  # there is no public way to look behind a batched tensor
from torch._functorch.pyfunctorch import (
    VmapInterpreter,
    retrieve_current_functorch_interpreter,
    temporarily_pop_interpreter_stack,
)

from .payload import Params, mapped

T = TypeVar("T")


def copies(params: Params) -> Params:
    """Copies to write into, one for each client, laid out as their gradients will be."""
    vmap = _current()
    if vmap is None:
        return {name: v.clone() for name, v in params.items()}
    with temporarily_pop_interpreter_stack():
        behind = {name: _as_gradients(_behind(v, vmap)) for name, v in params.items()}
    return {name: _batched(v, vmap) for name, v in behind.items()}


def _as_gradients(v: Tensor) -> Tensor:
    """A copy in which matrices lie transposed: so do the gradients of linear layers, and steps mix both."""
    if v.ndim != 3:
        return v.clone(memory_format=torch.contiguous_format)
    if v.stride(0) == 0:  # the same for all
        return v[0].mT.contiguous().expand(len(v), *v.mT.shape[1:]).clone(memory_format=torch.contiguous_format).mT
    return v.mT.clone(memory_format=torch.contiguous_format).mT


def gradient(loss: Callable[[Params], tuple[Tensor, Any]], params: Params) -> tuple[Params, Any]:
    """Each client's gradient of its loss, and what else the loss returned."""
    vmap = _current()
    if vmap is None:
        return torch.func.grad(loss, has_aux=True)(params)  # type: ignore[no-any-return]
    with temporarily_pop_interpreter_stack():
        leaves = {name: _behind(v, vmap).detach().requires_grad_() for name, v in params.items()}
    with torch.enable_grad():
        value, more = loss({name: _batched(v, vmap) for name, v in leaves.items()})
        with temporarily_pop_interpreter_stack():
            total = _behind(value, vmap).sum()  # clients share no parameter, so the sum has the gradients of all
            grads = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True, allow_unused=True)
    return {name: _batched(g, vmap) for name, g in zip(leaves, grads, strict=True)}, more


def whole(f: Callable[..., T], *several: Any) -> T:
    """What ``f`` makes of tensors, or of lists of them, without a vmap around what it does.

    It gets the tensors behind, with clients first; where there is no vmap, the tensors as they are. So it must do the
    same whatever dimensions come first, and its results must have these first, too. It may write into what it gets.
    """
    vmap = _current()
    if vmap is None:
        return f(*several)
    with temporarily_pop_interpreter_stack():
        made = f(*mapped(lambda v: _behind(v, vmap), several))
    return mapped(lambda v: _batched(v, vmap), made)  # type: ignore[no-any-return]


def take(v: Tensor, rows: Tensor) -> Tensor:
    """Some of each client's rows."""
    return whole(_taken, v, rows)


def _taken(v: Tensor, rows: Tensor) -> Tensor:
    if rows.ndim == 1:
        return v.index_select(0, rows)
    starts = torch.arange(0, v.shape[0] * v.shape[1], v.shape[1], device=rows.device)
    chosen = v.flatten(0, 1).index_select(0, (rows + starts[:, None]).flatten())
    return chosen.view(*rows.shape, *v.shape[2:])


def norms(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """The norm of each tensor, a number for each client."""
    vmap = _current()
    if vmap is None:
        return [torch.linalg.vector_norm(v) for v in tensors]
    with temporarily_pop_interpreter_stack():
        return [_batched(_norms(_behind(v, vmap)), vmap) for v in tensors]


def _norms(v: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(v, dim=tuple(range(1, v.ndim))) if v.ndim > 1 else v.abs()
    return norm


def all_within(tensors: Sequence[Tensor], most: float) -> bool:
    """Whether the norm of nobody's tensors can be above ``most``, as that of all clients together is not."""
    vmap = _current()
    if vmap is None:
        return False
    with temporarily_pop_interpreter_stack():
        each = torch._foreach_norm([_behind(v, vmap) for v in tensors])
        return bool(torch.linalg.vector_norm(torch.stack(list(each))) <= most)


def everybody(flag: Tensor) -> bool:
    """Whether a flag is set for all clients: what only saves work may depend on it, but never a result."""
    vmap = _current()
    if vmap is None:
        return False
    with temporarily_pop_interpreter_stack():
        return bool(_behind(flag, vmap).all())


def _current() -> VmapInterpreter | None:
    """The vmap that runs, unless there is none or another transformation inside it."""
    found = retrieve_current_functorch_interpreter() if layers.maybe_current_level() == 1 else None
    return found if isinstance(found, VmapInterpreter) else None


def _behind(v: Tensor, vmap: VmapInterpreter) -> Tensor:
    """The whole tensor, clients first; one that is the same for all clients is repeated without a copy."""
    if layers.is_batchedtensor(v):
        return layers.get_unwrapped(v).movedim(layers.maybe_get_bdim(v), 0)
    return v.expand(vmap.batch_size(), *v.shape)


def _batched(v: Tensor, vmap: VmapInterpreter) -> Tensor:
    batched: Tensor = layers._add_batch_dim(v, 0, vmap.level())
    return batched
