"""Internals of torch's vmap: the only file that uses functorch's private names.

There is no public way to reach the stacked tensors of all clients behind a batched tensor, and reaching them makes
training several times as fast: an update is one fused operation, a gradient one backward pass. A torch that lacks a
private name, or gives wrong numbers in the self-test of :func:`is_usable`, runs batched clients
through the public ``torch.func`` instead: slower, with the same results up to rounding.
"""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..payloads import Params
from ..torch_private import tree_map_only
from ..tree import map_tree

_NAMES = (
    "CVmapInterpreterPtr",
    "TransformType",
    "_add_batch_dim",
    "_remove_batch_dim",
    "get_unwrapped",
    "is_batchedtensor",
    "maybe_current_level",
    "maybe_get_bdim",
    "peek_interpreter_stack",
)
try:
    from torch._C import _functorch
    from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
    from torch._functorch.vmap import vmap_increment_nesting

    enabled = all(hasattr(_functorch, name) for name in _NAMES)
except ImportError:
    enabled = False

T = TypeVar("T")

LEVEL = 1  # of the outermost transformation, the only one that is looked behind


@cache
def is_usable() -> bool:
    """Return True if functorch's internals give the right numbers; otherwise disable them and warn.

    Called before the first batched call of a process.
    """
    global enabled
    enabled = enabled and _passes_self_test()
    if not enabled:
        warnings.warn(
            f"Atoll does not know the internals of vmap in torch {torch.__version__}. Batched clients run through "
            "torch.func: results are the same up to rounding, and training is slower. Use --backend loop or processes "
            "if it is too slow.",
            stacklevel=2,
        )
    return enabled


def _passes_self_test() -> bool:
    """Compare one batched call that takes a gradient with the derivative of a cube.

    The numbers are known, because the first gradient by ``torch.func`` loads torch's compiler, which takes a second.
    """
    w = torch.tensor([[1.0, 2.0], [3.0, 4.0]])

    def loss(params: Params) -> tuple[Tensor, Tensor]:
        return params["w"].pow(3).sum(), params["w"].sum()

    def local(params: Params) -> tuple[Params, Tensor]:
        return gradient(loss, params)

    try:
        with torch.no_grad():
            grads, sums = batched_call(local, len(w), {"w": w})
    except Exception:  # whatever a new torch raises, the public way is still open
        return False
    return torch.allclose(grads["w"], 3 * w.square()) and torch.allclose(sums, w.sum(1))


def batched_call(f: Callable[..., T], clients: int, *trees: Any) -> T:
    """Call ``f`` once for many clients, like ``torch.func.vmap``.

    ``torch.func.vmap`` walks through any tree and takes longer for it. Here payloads are walked through by
    :func:`~atoll.core.tree.map_tree`, and other trees by torch.

    Args:
        f: function of the trees of one client.
        clients: number of clients.
        trees: payloads, dictionaries or registered trees, whose tensors have clients first.

    Returns:
        The result of ``f``, whose tensors have clients first.
    """
    with vmap_increment_nesting(clients, "error") as level:

        def enter(v: Any) -> Any:
            return _functorch._add_batch_dim(v, 0, level) if isinstance(v, Tensor) else tree_map_only(Tensor, enter, v)

        def leave(v: Any) -> Any:
            return _functorch._remove_batch_dim(v, level, clients, 0) if isinstance(v, Tensor) else v

        return map_tree(leave, f(*map_tree(enter, trees)))  # type: ignore[no-any-return]


def current_clients() -> int | None:
    """Return the number of clients of the running vmap, or None if their stacked tensors cannot be reached.

    That is outside of a vmap, inside another transformation within it, or if functorch's internals are not usable.
    """
    if not enabled or _functorch.maybe_current_level() != LEVEL:
        return None
    found = _functorch.peek_interpreter_stack()
    if found.key() != _functorch.TransformType.Vmap:
        return None
    return _functorch.CVmapInterpreterPtr(found).batchSize()


def outside() -> AbstractContextManager[Any]:
    """Suspend the running vmap, so that operations on stacked tensors run as they are."""
    return temporarily_pop_interpreter_stack()


def unwrap(v: Tensor, clients: int) -> Tensor:
    """Return the stacked tensor behind ``v``, clients first; a tensor that all clients share is repeated as a view."""
    if _functorch.is_batchedtensor(v):
        stacked, at = _functorch.get_unwrapped(v), _functorch.maybe_get_bdim(v)
        return stacked.movedim(at, 0) if at else stacked
    return v.expand(clients, *v.shape)


def wrap(v: Tensor) -> Tensor:
    """Return a stacked tensor, clients first, as the tensor of one client of the running vmap."""
    wrapped: Tensor = _functorch._add_batch_dim(v, 0, LEVEL)
    return wrapped


def gradient(loss: Callable[[Params], tuple[Tensor, Any]], params: Params) -> tuple[Params, Any]:
    """Return each client's gradient of its loss, and the second result of the loss."""
    clients = current_clients()
    if clients is None:
        return torch.func.grad(loss, has_aux=True)(params)  # type: ignore[no-any-return]
    with outside():
        leaves = {name: unwrap(v, clients).detach().requires_grad_() for name, v in params.items()}
    with torch.enable_grad():
        value, more = loss({name: wrap(v) for name, v in leaves.items()})
        with outside():
            total = unwrap(value, clients).sum()  # clients share no parameter, so the sum has the gradients of all
            grads = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True, allow_unused=True)
    return {name: wrap(g) for name, g in zip(leaves, grads, strict=True)}, more
