"""Run code for many clients at once.

The rest of the package is written for one client. Where batched clients need code of their own (a training loop that
masks clients without rows, a product for each client), the plain function hands over to the function of the same name
here if :func:`is_batched`.
"""

from .batches import ClientBatches
from .context import functional_gradients, is_batched
from .operations import batched_call, linear, on_stacked
from .training import clip_by_norm, run, sgd_step, slope

__all__ = [
    "ClientBatches",
    "batched_call",
    "clip_by_norm",
    "functional_gradients",
    "is_batched",
    "linear",
    "on_stacked",
    "run",
    "sgd_step",
    "slope",
]
