"""Run code for many clients at once, and see the stacked tensors behind a vmap."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _functorch as layers  # there is no public way to look behind a batched tensor
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
from torch._functorch.vmap import vmap_increment_nesting
from torch.utils._pytree import tree_map_only

from .payload import Params
from .tree import mapped

_mapping: ContextVar[bool] = ContextVar("mapping", default=False)


@contextmanager
def functional_gradients() -> Iterator[None]:
    """Take gradients through ``torch.func``, which vmap can batch."""
    token = _mapping.set(True)
    try:
        yield
    finally:
        _mapping.reset(token)


def is_batched() -> bool:
    """Whether this runs for many clients at once, so that nothing may depend on a client's values but the values."""
    return _mapping.get()


T = TypeVar("T")

LEVEL = 1  # of the outermost transformation, the only one that is looked behind


def batched_call(f: Callable[..., T], clients: int, *trees: Any) -> T:
    """What ``f`` makes of payloads and the like, for many clients in one call.

    Their tensors have clients in front, and so have those of the result. It is ``torch.func.vmap``, which walks through
    any tree and takes longer for it; here only what is no payload goes that way.
    """
    with vmap_increment_nesting(clients, "error") as level:

        def enter(v: Any) -> Any:
            return layers._add_batch_dim(v, 0, level) if isinstance(v, Tensor) else tree_map_only(Tensor, enter, v)

        def leave(v: Any) -> Any:
            return layers._remove_batch_dim(v, level, clients, 0) if isinstance(v, Tensor) else v

        return mapped(leave, f(*mapped(enter, trees)))  # type: ignore[no-any-return]


def copies(params: Params) -> Params:
    """Copies to write into, one for each client."""
    return on_stacked(_copies, params)


def _copies(params: Params) -> Params:
    return {name: v.clone(memory_format=torch.contiguous_format) for name, v in params.items()}


def gradient(loss: Callable[[Params], tuple[Tensor, Any]], params: Params) -> tuple[Params, Any]:
    """Each client's gradient of its loss, and what else the loss returned."""
    clients = _current()
    if clients is None:
        return torch.func.grad(loss, has_aux=True)(params)  # type: ignore[no-any-return]
    with temporarily_pop_interpreter_stack():
        leaves = {name: _behind(v, clients).detach().requires_grad_() for name, v in params.items()}
    with torch.enable_grad():
        value, more = loss({name: _batched(v) for name, v in leaves.items()})
        with temporarily_pop_interpreter_stack():
            total = _behind(value, clients).sum()  # clients share no parameter, so the sum has the gradients of all
            grads = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True, allow_unused=True)
    return {name: _batched(g) for name, g in zip(leaves, grads, strict=True)}, more


def on_stacked(f: Callable[..., T], *several: Any) -> T:
    """What ``f`` makes of tensors, or of lists of them, without a vmap around what it does.

    It gets the tensors behind, with clients first; where there is no vmap, the tensors as they are. So it must do the
    same whatever dimensions come first, and its results must have these first, too. It may write into what it gets.
    """
    clients = _current()
    if clients is None:
        return f(*several)
    with temporarily_pop_interpreter_stack():
        made = f(*mapped(lambda v: _behind(v, clients), several))
    return mapped(_batched, made)  # type: ignore[no-any-return]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """What a linear layer makes of each client's rows."""
    clients = _current()
    if clients is None or x.ndim < 2:
        return F.linear(x, weight, bias)
    with temporarily_pop_interpreter_stack():
        rows, own = _behind(x, clients), (_behind(weight, clients), None if bias is None else _behind(bias, clients))
        made = _Linear.apply(rows.flatten(1, -2) if rows.ndim > 3 else rows, *own)  # type: ignore[no-untyped-call]
        return _batched(made.view(*rows.shape[:-1], -1) if rows.ndim > 3 else made)


class _Linear(torch.autograd.Function):
    """Gradients lie in memory as the weights do, so that updates need no copies.

    A product for each client, even if all have the same weights: nobody's may depend on how many others there are.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x.bmm(weight.mT) if bias is None else torch.baddbmm(bias[:, None], x, weight.mT)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), (rows, products, sums) = ctx.saved_tensors, ctx.needs_input_grad
        return g.bmm(weight) if rows else None, g.mT.bmm(x) if products else None, g.sum(1) if sums else None


def take(several: list[Tensor], rows: Tensor) -> list[Tensor]:
    """Some of each client's rows, from each of several tensors."""
    return on_stacked(_taken, several, rows)


def _taken(several: list[Tensor], rows: Tensor) -> list[Tensor]:
    if rows.ndim == 1:
        return [_selected(v, rows) for v in several]
    each = several[0].shape[1]
    chosen = (rows + torch.arange(0, len(rows) * each, each, device=rows.device)[:, None]).flatten()
    return [v.flatten(0, 1).index_select(0, chosen).view(*rows.shape, *v.shape[2:]) for v in several]


def _selected(v: Tensor, rows: Tensor) -> Tensor:
    """They lie in memory as all of them do."""
    if v.ndim == 4 and v.is_contiguous(memory_format=torch.channels_last):
        return v.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)
    return v.index_select(0, rows)


def norms(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """The norm of each tensor, a number for each client."""
    clients = _current()
    if clients is None:
        return [torch.linalg.vector_norm(v) for v in tensors]
    with temporarily_pop_interpreter_stack():
        return [_batched(_norms(_behind(v, clients))) for v in tensors]


def _norms(v: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(v, dim=tuple(range(1, v.ndim))) if v.ndim > 1 else v.abs()
    return norm


def all_within(tensors: Sequence[Tensor], most: float) -> bool:
    """Whether the norm of nobody's tensors can be above ``most``, as that of all clients together is not."""
    clients = _current()
    if clients is None:
        return False
    with temporarily_pop_interpreter_stack():
        each = torch._foreach_norm([_behind(v, clients) for v in tensors])
        return bool(torch.linalg.vector_norm(torch.stack(list(each))) <= most)


def all_clients_have_rows(w: Tensor) -> bool:
    """Whether every client has a real row in a batch: what only saves work may depend on it, but never a result."""
    clients = _current()
    if clients is None:
        return False
    with temporarily_pop_interpreter_stack():
        return bool(_behind(w, clients)[:, 0].all())  # padding comes last


def _current() -> int | None:
    """How many clients the vmap that runs has; None if there is none, or another transformation inside it."""
    if layers.maybe_current_level() != LEVEL:
        return None
    found = layers.peek_interpreter_stack()
    return layers.CVmapInterpreterPtr(found).batchSize() if found.key() == layers.TransformType.Vmap else None


def _behind(v: Tensor, clients: int) -> Tensor:
    """The whole tensor, clients first; one that is the same for all clients is repeated without a copy."""
    if layers.is_batchedtensor(v):
        whole, at = layers.get_unwrapped(v), layers.maybe_get_bdim(v)
        return whole.movedim(at, 0) if at else whole
    return v.expand(clients, *v.shape)


def _batched(v: Tensor) -> Tensor:
    batched: Tensor = layers._add_batch_dim(v, 0, LEVEL)
    return batched
