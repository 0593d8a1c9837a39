"""Build the small networks that the server trains: the feature generator of FedGen and linear layers of FedTGP."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from ..core import BUFFERS, Batch, Key, Model, Params, bits, fold, uniform


def init_linear(name: str, d_in: int, d_out: int, k: Key) -> Params:
    """Draw a linear layer from a key, uniformly within 1 / sqrt(d_in) as torch does."""
    bound = d_in**-0.5
    return {
        f"{name}.weight": bound * (2 * uniform(fold(k, 0), d_out, d_in) - 1),
        f"{name}.bias": bound * (2 * uniform(fold(k, 1), d_out) - 1),
    }


@dataclass(frozen=True)
class Generator:
    """Generator of features for labels.

    Its input is noise and a one-hot label; a hidden layer with batch normalisation and ReLU and a linear layer follow.
    """

    classes: int
    width: int
    hidden: int
    noise: int

    def init(self, k: Key) -> Params:
        zeros = torch.zeros(self.hidden)
        ones = torch.ones(self.hidden)
        none = torch.zeros((), dtype=torch.long)
        statistics = {"running_mean": zeros, "running_var": ones, "num_batches_tracked": none}
        return (
            init_linear("body.0", self.noise + self.classes, self.hidden, fold(k, 0))
            | {"body.1.weight": ones.clone(), "body.1.bias": zeros.clone()}
            | init_linear("head", self.hidden, self.width, fold(k, 1))
            | {f"{BUFFERS}body.1.{name}": v for name, v in statistics.items()}
        )

    def batch(self, y: Tensor, k: Key) -> Batch:
        """Return a batch of generator inputs for the labels ``y``."""
        label = (y[:, None] == torch.arange(self.classes)).float()
        return Batch(torch.cat([uniform(k, len(y), self.noise), label], 1), y, torch.ones(len(y)), k, {})

    def noise_of(self, b: Batch) -> Tensor:
        return b.x[:, : self.noise]

    def step(self, params: Params, b: Batch) -> Tensor:
        """Generate features in training mode, with the statistics of the batch."""
        return self._model().step(params, b).logits

    def __call__(self, params: Params, y: Tensor, k: Key) -> Tensor:
        """Generate features in evaluation mode, with running statistics."""
        return self._model()(params, self.batch(y, k).x)

    def _model(self) -> Model:
        return _meta_model(self.noise + self.classes, self.hidden, self.width)


@cache
def _meta_model(d_in: int, hidden: int, d_out: int) -> Model:
    """Return the layers on the meta device: values come from params, so nothing is drawn at random."""
    with torch.device("meta"):
        net = nn.Sequential()
        net.add_module("body", nn.Sequential(nn.Linear(d_in, hidden), nn.BatchNorm1d(hidden), nn.ReLU()))
        net.add_module("head", nn.Linear(hidden, d_out))
    return Model(net, "generator")


def draw_labels(able: Tensor, count: int, k: Key) -> Tensor:
    """Draw ``count`` labels uniformly from the classes flagged in ``able`` [C]."""
    first = able.int().argsort(descending=True, stable=True)
    return first[bits(k, count) % able.sum()]
