"""The clients of a federation as one machine holds them: their rows, their models, their exams."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.client import Augment, Client
from ..core.model import Model
from ..core.task import Task
from ..typing import ClientId
from .metrics import Metric


class LabelledRows(NamedTuple):
    x: Tensor
    y: Tensor


class ClientRows:
    """The rows of every client in one tensor, each client's in one piece: a client is a slice, never a copy."""

    def __init__(self, x: Tensor, y: Tensor, sizes: Sequence[int]):
        self.all = LabelledRows(x, y)
        self._starts: list[int] = torch.tensor([0, *sizes]).cumsum(0).tolist()

    def __getitem__(self, position: int) -> LabelledRows:
        a, b = self._starts[position : position + 2]
        return LabelledRows(self.all.x[a:b], self.all.y[a:b])

    def padded(self, positions: Sequence[int]) -> LabelledRows:
        """The rows of some clients as one stack, with rows of zeros up to the largest client's."""
        starts, sizes = torch.tensor([[self._starts[at], self.size(at)] for at in positions]).T
        place = torch.arange(int(sizes.max()))
        missing = place >= sizes[:, None]
        rows = (starts[:, None] + place).masked_fill_(missing, 0)
        x, y = (v.index_select(0, rows.flatten()).view(*rows.shape, *v.shape[1:]) for v in self.all)
        x[missing], y[missing] = 0, 0
        return LabelledRows(x, y)

    def shares(self, hits: Tensor) -> list[float]:
        """For each client, the share of its rows that are True in ``hits``, a value for each row; NaN without rows."""
        starts = torch.tensor(self._starts)
        counts = torch.cat([starts[:1], hits.cumsum(0)]).double()[starts]  # whole numbers: exact
        return (counts.diff() / starts.diff()).tolist()

    def size(self, position: int) -> int:
        return self._starts[position + 1] - self._starts[position]


@dataclass(frozen=True)
class ClientPool:
    """Who takes part, with what data and which architecture."""

    ids: tuple[ClientId, ...]
    models: Mapping[ClientId, Model]
    num_classes: int
    train: ClientRows
    val: ClientRows
    test: ClientRows
    proxy: Model | None = None
    server_models: Mapping[ClientId, Model] = field(default_factory=dict)
    public: Tensor | None = None
    augment: Augment | None = None
    bound: float | None = None  # largest norm of a row's features in statistics that leave a client
    global_test: bool = False  # whether personal models are also tested on the test rows of all clients
    metrics: Mapping[str, Metric] = field(default_factory=dict)  # what else is measured, by name
    remote: bool = False  # whether rows and states are at the clients' own sites, and what is here only has their form

    def __post_init__(self) -> None:
        object.__setattr__(self, "_position", {i: at for at, i in enumerate(self.ids)})

    def position(self, i: ClientId) -> int:
        return self._position[i]  # type: ignore[attr-defined,no-any-return]

    def client(self, i: ClientId) -> Client:
        """What a method may read on client ``i``."""
        x, y = self.train[self.position(i)]
        n = torch.tensor(float(len(y)))
        return Client(x, y, n, self.models[i], self.num_classes, self.proxy, self.public, self.augment, self.bound)

    def together(self, ids: Sequence[ClientId]) -> Client:
        """Clients of one architecture as one; rows past ``n`` are padding.

        Equal architectures may differ in initial weights, which training never asks for: the first stands for all.
        """
        positions = [self.position(i) for i in ids]
        n = torch.tensor([float(self.train.size(at)) for at in positions])
        return replace(self.client(ids[0]), **self.train.padded(positions)._asdict(), n=n)

    def task(self) -> Task:
        """What the server knows; the model of the first client stands for all where they are alike."""
        first = self.models[self.ids[0]]
        return Task(first, self.num_classes, self.ids, self.proxy, self.public, self.models, self.server_models)

    def architectures(self) -> list[str]:
        """The names of the different models, in order of appearance."""
        return list(dict.fromkeys(self.models[i].name for i in self.ids))
