"""Small networks that a server trains for itself: what FedTGP and FedGen need for them."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from ..core import BUFFERS, Batch, Key, Model, Params, bits, fold, uniform


def linear(name: str, d_in: int, d_out: int, k: Key) -> Params:
    """A linear layer as torch initialises it, uniformly within 1 / sqrt(d_in), but drawn from a key."""
    bound = d_in**-0.5
    return {
        f"{name}.weight": bound * (2 * uniform(fold(k, 0), d_out, d_in) - 1),
        f"{name}.bias": bound * (2 * uniform(fold(k, 1), d_out) - 1),
    }


@dataclass(frozen=True)
class Generator:
    """Features for labels: noise and one-hot label, a hidden layer with batch normalisation and ReLU, a linear one."""

    classes: int
    width: int
    hidden: int
    noise: int

    def init(self, k: Key) -> Params:
        zeros, ones, none = torch.zeros(self.hidden), torch.ones(self.hidden), torch.zeros((), dtype=torch.long)
        statistics = {"running_mean": zeros, "running_var": ones, "num_batches_tracked": none}
        return (
            linear("body.0", self.noise + self.classes, self.hidden, fold(k, 0))
            | {"body.1.weight": ones.clone(), "body.1.bias": zeros.clone()}
            | linear("head", self.hidden, self.width, fold(k, 1))
            | {f"{BUFFERS}body.1.{name}": v for name, v in statistics.items()}
        )

    def batch(self, y: Tensor, k: Key) -> Batch:
        """Inputs for the labels."""
        label = (y[:, None] == torch.arange(self.classes)).float()
        return Batch(torch.cat([uniform(k, len(y), self.noise), label], 1), y, torch.ones(len(y)), k, {})

    def noises(self, b: Batch) -> Tensor:
        return b.x[:, : self.noise]

    def step(self, params: Params, b: Batch) -> Tensor:
        """Features in training mode: by the statistics of the batch."""
        return self._model().step(params, b).logits

    def __call__(self, params: Params, y: Tensor, k: Key) -> Tensor:
        """Features in evaluation mode."""
        return self._model()(params, self.batch(y, k).x)

    def _model(self) -> Model:
        return _form(self.noise + self.classes, self.hidden, self.width)


@cache
def _form(d_in: int, hidden: int, d_out: int) -> Model:
    """The layers without values, which are params; so nothing is drawn."""
    with torch.device("meta"):
        net = nn.Sequential()
        net.add_module("body", nn.Sequential(nn.Linear(d_in, hidden), nn.BatchNorm1d(hidden), nn.ReLU()))
        net.add_module("head", nn.Linear(hidden, d_out))
    return Model(net, "generator")


def drawn(able: Tensor, count: int, k: Key) -> Tensor:
    """Labels, each as likely as any other of those flagged in ``able``."""
    first = able.int().argsort(descending=True, stable=True)
    return first[bits(k, count) % able.sum()]
