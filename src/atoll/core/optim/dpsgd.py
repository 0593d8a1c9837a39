"""DP-SGD. Abadi et al., CCS 2016. https://arxiv.org/abs/1607.00133

step:  g_i = gradient of the loss of row i alone;   g = (sum_i g_i min(1, clip / ||g_i||) + N(0, (noise clip)^2)) / |B|

A row is in one batch of each epoch, so an epoch is one release for it, however many steps it has: later steps see the
row only through weights that are noisy already. What is claimed follows from that alone. The usual gain from drawing
batches at random is not claimed, because the order of the rows follows from a seed that the server knows. Neighbours
are data sets in one of which a row counts for nothing; how many rows there are is not hidden.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from ...errors import AtollError
from ...utils.secure_random import Normal, secure, seeded
from ..batch import Batch
from ..client import Client
from ..hyperparams import setting
from ..losses import Loss
from ..params import weights
from ..payloads import Params
from ..prng import Key, bits
from ..vmap import is_batched
from .base import Slope
from .sgd import SGD


@dataclass(frozen=True)
class DPSGD(SGD):
    """SGD on gradients clipped sample by sample, with noise. Its noise is set by --dp, its clip by --dp-clip."""

    clip: float = setting(1.0, "largest norm of a sample's gradient", "Abadi et al. 2016 search it; chosen here")
    noise: float = setting(0.0, "noise in units of clip; set by --dp", "follows from the budget")
    seed: int = setting(-1, "of the noise, for tests: then nothing is private; -1: the secure source", "chosen here")

    @property
    def plain_rates(self) -> None:
        return None

    def client_batches(self, client: Client, k: Key, steps: int | None = None) -> Iterator[Batch]:
        if steps is not None or self.steps is not None:
            raise AtollError("dpsgd accounts for passes over the data, not for steps. Set --epochs in place of steps.")
        return super().client_batches(client, k)

    def _slope(self, loss: Loss, params: Params, batch: Batch) -> Slope:
        if is_batched():
            raise AtollError("dpsgd needs samples one by one, which clients in one batch are not. Use --backend loop.")
        each, losses = row_gradients(loss, params, batch)
        normal = self._source(batch.k)
        scales = row_scales(each, self.clip)
        total = {name: v.double().nan_to_num(0, 0, 0).mT @ scales for name, v in _flat(each).items()}
        deviation = self.noise * self.clip
        grads = {
            name: ((total[name] + deviation * normal((total[name].numel(),))) / len(batch.x)).to(v).reshape(v.shape[1:])
            for name, v in each.items()
        }
        return Slope(grads, {}, (losses * batch.w).sum() / batch.w.sum().clamp(min=1))

    def _clipped(self, grads: Params) -> Params:
        """Rows were clipped; the noisy sum is used as it is."""
        return grads

    def _source(self, k: Key) -> Normal:
        return secure if self.seed < 0 else seeded(self.seed, "dpsgd", str(int(k)))


def row_gradients(loss: Loss, params: Params, batch: Batch) -> tuple[Params, Tensor]:
    """The gradient of each row's own loss, along a new first dimension, and the losses; padding rows have none."""
    moving = weights(params)
    if len(moving) < len(params):
        raise AtollError("dpsgd cannot train models with running statistics (BatchNorm): they mix samples.")

    def own(w: Params, x: Tensor, y: Tensor, weight: Tensor, k: Key) -> Tensor:
        return loss(w, Batch(x[None], y[None], weight[None], k, {}, batch.extra))

    keys = bits(batch.k, len(batch.x))
    found: Params
    found, losses = vmap(grad_and_value(own), (None, 0, 0, 0, 0))(moving, batch.x, batch.y, batch.w, keys)
    return {name: v * batch.w.reshape(-1, *[1] * (v.ndim - 1)) for name, v in found.items()}, losses


def row_scales(each: Params, most: float) -> Tensor:
    """What brings each row's gradient to norm ``most`` or less; 0 for one that is not finite."""
    norms = sum((v.double().square().sum(1) for v in _flat(each).values()), start=torch.zeros(())).sqrt()
    return torch.where(norms.isfinite(), most / norms.clamp(min=most), 0.0)


def _flat(each: Params) -> Params:
    return {name: v.reshape(len(v), -1) for name, v in each.items()}
