"""Gradients of many clients' networks of linear layers, computed layer by layer and not by autograd.

A training step of a small network is short: recording it for autograd and walking through vmap takes several times as
long as its products. For a chain of linear layers with ReLU between them and cross-entropy, the gradient is two
products for each layer. The operations are those of autograd, so that results are the same to the bit.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..payloads import Params
from ..torch_private import has_hooks, log_softmax_slopes
from .functorch import current_clients, outside, unwrap, wrap

if TYPE_CHECKING:
    from ..batch import Batch


class ChainLayer(NamedTuple):
    """A linear layer.

    Args:
        weight: name of its weight.
        bias: name of its bias; None without one.
        cuts: whether a ReLU follows.
    """

    weight: str
    bias: str | None
    cuts: bool


def find_chain(net: nn.Module, linear: type[nn.Module], row: type[nn.Module]) -> tuple[ChainLayer, ...] | None:
    """Return the layers of a network whose body and head are linear layers in a row; None for all other networks.

    Args:
        net: a network with the children ``body`` and ``head``.
        linear: class of the linear layers.
        row: class of a body of layers in a row. Classes built on either may compute something else.
    """
    parts = dict(net.named_children())
    if set(parts) != {"body", "head"} or type(parts["body"]) is not row:
        return None
    layers = [(f"body.{name}.", layer) for name, layer in parts["body"].named_children()] + [("head.", parts["head"])]
    is_used_twice = len(list(parts["body"].modules())) <= len(getattr(parts["body"], "order", ()))
    if is_used_twice or has_hooks(parts["body"]) or any(has_hooks(layer) for _, layer in layers):
        return None
    chain: list[ChainLayer] = []
    for at, (name, layer) in enumerate(layers):
        if type(layer) is linear:
            bias = None if layer.bias is None else f"{name}bias"
            chain.append(ChainLayer(f"{name}weight", bias, cuts=False))
        elif type(layer) is nn.ReLU and chain:
            chain[-1] = chain[-1]._replace(cuts=True)
        elif type(layer) is not nn.Flatten or at or (layer.start_dim, layer.end_dim) != (1, -1):
            return None
    return tuple(chain)


def slope(chain: Sequence[ChainLayer], params: Params, batch: "Batch") -> tuple[Params, Tensor] | None:
    """Return each client's gradient of the mean cross-entropy over its real rows, and this loss.

    Returns:
        None where the stacked tensors of clients are not in reach, or the params are not those of the chain.
    """
    clients = current_clients()
    names = [name for layer in chain for name in (layer.weight, layer.bias) if name is not None]
    if clients is None or batch.full or batch.y.ndim != 1 or set(names) != params.keys():
        return None
    if batch.x[0].numel() != params[chain[0].weight].shape[-1]:  # a layer that runs over further dimensions
        return None
    with outside(), torch.no_grad():
        own = {name: unwrap(v, clients) for name, v in params.items()}
        x, y, w = (unwrap(v, clients) for v in (batch.x, batch.y, batch.w))
        inputs, logits = forward(chain, own, x.flatten(2))
        loss, slopes = _cross_entropy(logits, y, w)
        grads = backward(chain, own, inputs, slopes)
    return {name: wrap(grads[name]) for name in params}, wrap(loss)


def _cross_entropy(logits: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Return each client's mean loss over rows of weight ``w``, and its slopes in the logits.

    Autograd's own operations in autograd's own layout, classes first, so that the result has the same bits.
    """
    total, labels = w.sum(-1).clamp(min=1), y.flatten()[None, None]
    each = F.log_softmax(logits.flatten(0, -2).T[None], 1)
    loss = (-each.gather(1, labels).view(y.shape) * w).sum(-1) / total
    wanted = torch.zeros_like(each).scatter_(1, labels, -(w / total[:, None]).flatten()[None, None])
    return loss, log_softmax_slopes(wanted, each)[0].T.view(logits.shape)


def forward(chain: Sequence[ChainLayer], params: Params, x: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return the input of each layer, and the outputs of the last one."""
    inputs: list[Tensor] = []
    for layer in chain:
        inputs.append(x)
        weight = params[layer.weight].mT
        x = x.bmm(weight) if layer.bias is None else torch.baddbmm(params[layer.bias][:, None], x, weight)
        if layer.cuts:
            x = x.relu_()
    return inputs, x


def backward(chain: Sequence[ChainLayer], params: Params, inputs: Sequence[Tensor], slopes: Tensor) -> Params:
    """Return the gradients of all layers, from the slopes of the loss in the outputs of the last one."""
    grads: Params = {}
    for at in reversed(range(len(chain))):
        layer = chain[at]
        grads[layer.weight] = slopes.mT.bmm(inputs[at])
        if layer.bias is not None:
            grads[layer.bias] = slopes.sum(1)
        if at:
            slopes = slopes.bmm(params[layer.weight])
            if chain[at - 1].cuts:
                slopes = torch.ops.aten.threshold_backward(slopes, inputs[at], 0)
    return grads
