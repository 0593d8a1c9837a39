"""Low-rank compression of a change of weights, by singular values.

A compressed change is ``{"dense.NAME": tensor}`` or, where factors take less room, ``{"left.NAME": [m, K],
"scale.NAME": [K], "right.NAME": [K, n]}``. Convolutions count as matrices [out, in * height * width].
"""

import torch
from torch import Tensor

from ..core.params import add, weights
from ..core.payloads import Params


def compress(change: Params, threshold: float) -> Params:
    """Compress a change of weights, tensor by tensor.

    Args:
        change: the change of each weight.
        threshold: share of the energy, the sum of squared singular values, that is kept.
    """
    small: Params = {}
    for name, v in change.items():
        factors = _factors(v, threshold) if v.ndim > 1 else {}
        small |= {f"{kind}.{name}": t for kind, t in factors.items()} or {f"dense.{name}": v}
    return small


def _factors(v: Tensor, threshold: float) -> Params:
    """Return the factors of a tensor as a matrix; none if they are not smaller or the tensor is not finite."""
    matrix = v.flatten(1)
    if not bool(torch.isfinite(matrix).all()):
        return {}
    left, scale, right = torch.linalg.svd(matrix, full_matrices=False)
    count = rank(scale, threshold)
    if count * (sum(matrix.shape) + 1) >= matrix.numel():
        return {}
    kept = {"left": left[:, :count], "scale": scale[:count], "right": right[:count]}
    # Contiguous, as after the wire: the memory layout of a matrix shows in the last bits of products.
    return {kind: t.clone(memory_format=torch.contiguous_format) for kind, t in kept.items()}


def rank(scale: Tensor, threshold: float) -> int:
    """Return the smallest number of singular values that hold the share ``threshold`` of the energy."""
    energy = scale.double().square().cumsum(0)
    return int((energy < threshold * energy[-1]).sum()) + 1


def decompress(change: Params, like: Params) -> Params:
    """Return the uncompressed change of each weight in ``like``, in its shape."""
    out = {}
    for name, v in weights(like).items():
        if f"dense.{name}" in change:
            out[name] = change[f"dense.{name}"]
        else:
            left, scale, right = (change[f"{kind}.{name}"] for kind in ("left", "scale", "right"))
            out[name] = ((left * scale) @ right).reshape(v.shape)
    return out


def apply_change(params: Params, change: Params, buffers: Params) -> Params:
    """Apply a compressed change to params; ``buffers`` are the new running statistics."""
    return add(weights(params), decompress(change, params)) | buffers
