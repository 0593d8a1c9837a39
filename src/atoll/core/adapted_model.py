"""Train low-rank adapters of a network in place of its weights. Hu et al., ICLR 2022. https://arxiv.org/abs/2106.09685

W = W_0 + (alpha / rank) B A    for every weight matrix of the body, with B = 0 at first        eq. (3)

W_0 is the network's initial value, which never changes and is never sent. The head is trained as a whole, since it
belongs to the classes of the task. Biases, normalisation weights and embeddings of the body stay as they are; running
statistics of batches are part of the params, as in every model.
"""

from math import prod, sqrt
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..errors import AtollError
from ..utils.parsing import Spec, number, whole
from .batch import Batch, Step
from .model import Model
from .params import BUFFERS, part
from .payloads import Params
from .prng import Key, fold, normal

LORA = Spec(
    "lora:RANK or lora:RANK:ALPHA, such as lora:4 or lora:4:8; ALPHA is RANK by default",
    whole("RANK", least=1),
    number("ALPHA", above=0, optional=True),
)
DOWN, UP = ".lora_a", ".lora_b"  # suffixes of A [rank, inputs] and B [outputs, rank]


class LowRank(NamedTuple):
    """The size of low-rank adapters, and the factor ``alpha / rank`` of their product."""

    rank: int
    scale: float


def parse_adapter(text: str) -> LowRank:
    """Parse a value of ``--adapter``, such as ``lora:4``."""
    name = text.partition(":")[0]
    if name != "lora":
        raise AtollError(f"--adapter cannot be {text!r}: there is no adapter {name!r}. Write {LORA.form}.")
    rank, *alpha = LORA.parse("--adapter", text, skip=1)
    return LowRank(rank, (alpha[0] if alpha else rank) / rank)


class AdaptedModel(Model):
    """A model whose params are low-rank adapters of the body, and the head.

    Methods use these params as they use the weights of a whole model.

    Args:
        net: the network, whose values stay as they are.
        name: name of the architecture, without the adapter.
        adapter: a value of ``--adapter``.
        k: key of the random values of A.
        vectorisable: whether vmap can run the network for many clients at once.

    Raises:
        AtollError: if the body has no weight matrix.

    Example:
        >>> model = AdaptedModel(net, "mlp", "lora:4", key(0))
    """

    def __init__(self, net: nn.Module, name: str, adapter: str, k: Key, vectorisable: bool = True):
        super().__init__(net, name, vectorisable, adapter)
        self._rank, self._scale = parse_adapter(adapter)
        self._matrices = _matrices(self.net)
        if not self._matrices:
            raise AtollError(f"--adapter {adapter}: the body of {name} has no weight matrix to adapt. Leave it out.")
        self._first = self._draw(k)

    def _draw(self, k: Key) -> Params:
        """Return the first adapters: A with variance 1 / inputs, B = 0, so that training starts from the network."""
        found: Params = {}
        for at, name in enumerate(self._matrices):
            shape = self.net.get_parameter(name).shape
            outputs, inputs = shape[0], prod(shape[1:])
            rank = min(self._rank, outputs, inputs)  # A higher rank could express no more.
            found[name + DOWN] = normal(fold(k, at), rank, inputs) / sqrt(inputs)
            found[name + UP] = torch.zeros(outputs, rank)
        return found

    def init(self, k: Key | None = None) -> Params:
        """Return the first adapters, the head, and the buffers of the network; ``k`` draws other adapters and heads."""
        whole = super().init(k)
        adapters = self._first if k is None else self._draw(k)
        buffers = {name: v for name, v in whole.items() if name.startswith(BUFFERS)}
        return {name: v.clone() for name, v in adapters.items()} | part(whole, "head") | buffers

    def to(self, device: str) -> None:
        super().to(device)
        self._first = {name: v.to(device) for name, v in self._first.items()}

    def network_params(self, params: Params) -> Params:
        """Return the tensors of the network that differ from its initial values: adapted matrices, head, buffers."""
        own = {name: v for name, v in params.items() if not name.endswith((DOWN, UP))}
        return own | {name: self._adapted(name, params) for name in self._matrices if name + DOWN in params}

    def _adapted(self, name: str, params: Params) -> Tensor:
        base = self.net.get_parameter(name)
        change: Tensor = params[name + UP] @ params[name + DOWN]
        return base + self._scale * change.reshape(base.shape)

    def features(self, params: Params, x: Tensor) -> Tensor:
        return super().features(self.network_params(params), x)

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        return super().__call__(self.network_params(params), x)

    def step(self, params: Params, batch: Batch) -> Step:
        return super().step(self.network_params(params), batch)._replace(params=params)


def _matrices(net: nn.Module) -> list[str]:
    """Return the names of the body's weight matrices and kernels; embeddings are tables and stay as they are."""
    tables = {id(m.weight) for m in net.modules() if isinstance(m, nn.Embedding)}
    return [
        name
        for name, v in net.named_parameters()
        if v.ndim > 1 and not name.startswith("head.") and id(v) not in tables
    ]
