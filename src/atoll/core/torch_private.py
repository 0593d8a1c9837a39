"""Private names of torch outside its vmap: the reason for each, and the public way where torch lacks the name.

The internals of vmap have a file of their own, ``core/vmap/functorch.py``. No other file of Atoll uses a private name
of torch.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

# The only way to see every operation that torch runs; documented by torch in spite of its name.
from torch.utils._python_dispatch import TorchDispatchMode

# Payloads and clients are registered here because torch.func.vmap reads this registry and offers no other.
from torch.utils._pytree import register_pytree_node, tree_map_only

__all__ = [
    "COMPLEX_TRANSFORMS",
    "REAL_TRANSFORMS",
    "TorchDispatchMode",
    "add_each_",
    "fused_sgd",
    "has_hooks",
    "log_softmax_slopes",
    "norm_of_each",
    "operator_family",
    "register_pytree_node",
    "tensor_slots",
    "tree_map_only",
]

# Operators of Fourier transforms as a dispatch mode sees them: torch counts no operations of theirs, and has no public
# names for them.
COMPLEX_TRANSFORMS = (torch.ops.aten._fft_c2c,)
REAL_TRANSFORMS = (torch.ops.aten._fft_r2c, torch.ops.aten._fft_c2r)

Slot = tuple[dict[str, Any], str, Tensor]  # a dictionary of a module, the key of a tensor in it, and the tensor


def add_each_(tensors: Sequence[Tensor], others: Sequence[Tensor], alpha: float) -> None:
    """Add ``alpha`` times each of ``others`` to each of ``tensors``, in place.

    The private name takes one call for all tensors. The public way is a call for each.
    """
    together: Any = getattr(torch, "_foreach_add_", None)
    if together is not None:
        together(tensors, others, alpha=alpha)
        return
    for v, other in zip(tensors, others, strict=True):
        v.add_(other, alpha=alpha)


def norm_of_each(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the Euclidean norm of each tensor.

    The private name takes one call for all tensors. The public way is a call for each.
    """
    together: Any = getattr(torch, "_foreach_norm", None)
    if together is not None:
        return list(together(list(tensors)))
    return [torch.linalg.vector_norm(v) for v in tensors]


@cache
def fused_sgd() -> Callable[..., None] | None:
    """Return torch's kernel for one step of SGD, or None if this torch has none that takes the known arguments.

    The kernel reads and writes each weight once, where public operations pass over memory three times. Callers without
    the kernel take the step by public operations.
    """
    kernel: Any = getattr(torch, "_fused_sgd_", None)
    if kernel is None:
        return None
    weight, velocity = torch.ones(1), torch.empty(1)
    try:
        kernel(
            [weight], [torch.full((1,), 2.0)], [velocity],
            weight_decay=1.0, momentum=0.5, lr=1.0, dampening=0.0, nesterov=False, maximize=False, is_first_step=True,
        )  # fmt: skip
    except (TypeError, RuntimeError):
        return None
    # Gradient 2 and a decay of 1 make the velocity 3, so that the weight moves from 1 to -2.
    return kernel if (weight.item(), velocity.item()) == (-2.0, 3.0) else None


def log_softmax_slopes(slopes: Tensor, outputs: Tensor) -> Tensor:
    """Return the slopes of a loss in the inputs of ``log_softmax`` over dimension 1, from those in its outputs.

    The private name is the operation of autograd, whose bits other code relies on. The public way rounds otherwise.
    """
    backward: Any = getattr(torch, "_log_softmax_backward_data", None)
    if backward is not None:
        made: Tensor = backward(slopes, outputs, 1, outputs.dtype)
        return made
    return slopes - outputs.exp() * slopes.sum(1, keepdim=True)


def has_hooks(module: nn.Module) -> bool:
    """Return True if a module may call functions of a user around its own, or if this torch does not say."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, kind, True) for kind in kinds)


def tensor_slots(module: nn.Module) -> list[Slot] | None:
    """Return where ``module`` and its descendants keep their tensors, or None if this torch does not say.

    A tensor that several modules share has several slots. Writing to the slots replaces all tensors of a network in
    microseconds. The public ``torch.func.functional_call`` finds the places anew at every call.
    """
    if not (hasattr(module, "_parameters") and hasattr(module, "_buffers")):
        return None
    return [
        (kept, key, v)
        for each in module.modules()
        for kept in (each._parameters, each._buffers)
        for key, v in kept.items()
        if v is not None
    ]


def operator_family(operator: Any) -> Any:
    """Return the operator without its overload, which is how ``torch.utils.flop_counter`` names operators."""
    return operator._overloadpacket
