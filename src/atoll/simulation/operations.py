"""Count floating-point operations: matrix products and convolutions by torch's formulas, and Fourier transforms."""

from math import log2, prod
from typing import Any

from torch import Tensor
from torch.utils.flop_counter import flop_registry

from ..core.torch_private import COMPLEX_TRANSFORMS, REAL_TRANSFORMS, TorchDispatchMode, operator_family

# Operations of a fast transform of n points over n log2 n: 5 for complex numbers, half of that for real ones.
TRANSFORMS = dict.fromkeys(COMPLEX_TRANSFORMS, 5.0) | dict.fromkeys(REAL_TRANSFORMS, 2.5)


class OperationCounter(TorchDispatchMode):
    """Context manager that counts floating-point operations.

    Uses the formulas of torch's own counter, which would load the compiler first and take seconds.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0.0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # required by torch; nothing is compiled here
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        family = operator_family(func)
        formula = flop_registry.get(family)
        if formula is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=out)
        elif family in TRANSFORMS:
            self.total += TRANSFORMS[family] * transform_size(args[0], out, args[1])
        return out


def transform_size(before: Tensor, after: Tensor, dims: list[int]) -> float:
    """Return N log2 n of a Fourier transform, for N numbers in transforms of n points each.

    Args:
        before: the input.
        after: the result. Of real numbers only half the spectrum is stored, so the larger of both tensors counts.
        dims: the dimensions that are transformed.
    """
    whole = max(before, after, key=Tensor.numel)
    return whole.numel() * log2(max(1, prod(whole.shape[d] for d in dims)))
