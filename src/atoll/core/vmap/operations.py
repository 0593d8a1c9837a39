"""Operations on the tensors of many clients at once."""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ...utils.signals import deferred
from ..payloads import Params
from ..tree import map_tree
from . import functorch
from .functorch import current_clients, outside, unwrap, wrap
from .stacked_steps import are_all_within, norm_rows

T = TypeVar("T")

# A zero for each client, in a call by torch.func alone: the public way to turn a tensor that all clients share into one
# tensor for each. A context variable because user code lies between the call and the copies.
_zero: ContextVar[Tensor | None] = ContextVar("zero", default=None)


def batched_call(f: Callable[..., T], clients: int, *trees: Any) -> T:
    """Call ``f`` once for many clients; tensors of ``trees`` and of the result have clients first.

    A request to stop takes effect between two training steps, because torch cannot be interrupted on its way into or
    out of a vmap.
    """
    with deferred():
        if functorch.is_usable():
            return functorch.batched_call(f, clients, *trees)
        return _public_call(f, clients, *trees)


def _public_call(f: Callable[..., T], clients: int, *trees: Any) -> T:
    def lend_zero(zero: Tensor, trees: Any) -> T:
        token = _zero.set(zero)
        try:
            return f(*trees)
        finally:
            _zero.reset(token)

    return torch.func.vmap(lend_zero)(torch.zeros(clients), trees)


def on_stacked(f: Callable[..., T], *several: Any) -> T:
    """Call ``f`` on the stacked tensors behind a vmap, and wrap its results again.

    Args:
        f: a function that treats leading dimensions alike, whether there are none or clients come first. The function
            may write into its arguments.
        several: tensors, or lists of tensors. Without stacked tensors in reach, ``f`` gets these as they are.

    Returns:
        The result of ``f`` as tensors of one client.
    """
    clients = current_clients()
    if clients is None:
        return f(*several)
    with outside():
        made = f(*map_tree(lambda v: unwrap(v, clients), several))
    return map_tree(wrap, made)  # type: ignore[no-any-return]


def copies(params: Params) -> Params:
    """Return a copy of params for each client, to write into."""
    zero = _zero.get()
    if zero is not None:
        return {name: v + zero.to(v) for name, v in params.items()}
    return on_stacked(_copies, params)


def _copies(params: Params) -> Params:
    return {name: v.clone(memory_format=torch.contiguous_format) for name, v in params.items()}


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Apply each client's linear layer to the client's rows."""
    clients = current_clients()
    if clients is None or x.ndim < 2:
        return F.linear(x, weight, bias)
    with outside():
        rows, own = unwrap(x, clients), (unwrap(weight, clients), None if bias is None else unwrap(bias, clients))
        made = _Linear.apply(rows.flatten(1, -2) if rows.ndim > 3 else rows, *own)  # type: ignore[no-untyped-call]
        return wrap(made.view(*rows.shape[:-1], -1) if rows.ndim > 3 else made)


class _Linear(torch.autograd.Function):
    """A product for each client, whose gradients lie in memory as the weights do, so that updates need no copies.

    Clients with the same weights get products of their own as well: a client's result must not depend on the number of
    other clients.
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
    """Select rows of each client, by their numbers, from each of several tensors."""
    if current_clients() is None:
        return [v.index_select(0, rows) for v in several]
    return on_stacked(_take_stacked, several, rows)


def _take_stacked(several: list[Tensor], rows: Tensor) -> list[Tensor]:
    each = several[0].shape[1]
    chosen = (rows + torch.arange(0, len(rows) * each, each, device=rows.device)[:, None]).flatten()
    return [v.flatten(0, 1).index_select(0, chosen).view(*rows.shape, *v.shape[2:]) for v in several]


def norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the norm of each tensor, a number for each client."""
    clients = current_clients()
    if clients is None:
        return [torch.linalg.vector_norm(v) for v in tensors]
    with outside():
        return [wrap(norm_rows(unwrap(v, clients))) for v in tensors]


def all_within(tensors: Sequence[Tensor], most: float) -> bool:
    """Return True if no client's tensors can have a norm above ``most``, since that of all clients together has not."""
    clients = current_clients()
    if clients is None:
        return False
    with outside():
        return are_all_within([unwrap(v, clients) for v in tensors], most)


def all_clients_have_rows(w: Tensor) -> bool:
    """Return True if every client has a real row in a batch with these row weights.

    Work may be saved by this answer, but no result may depend on it: where it is not known, the answer is False.
    """
    clients = current_clients()
    if clients is None:
        return False
    with outside():
        return bool(unwrap(w, clients)[:, 0].all())  # padding comes last
