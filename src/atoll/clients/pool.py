"""The clients of a federation as one machine holds them: rows, models, metrics."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ..core.client import Augment, Client
from ..core.method import AnyMethod
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


class RowSplits(NamedTuple):
    """The rows of every client for training, validation and test."""

    train: ClientRows
    val: ClientRows
    test: ClientRows


@dataclass(frozen=True)
class ClientPool:
    """The clients of a run, with their data and architectures."""

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
        """Return what a method may read on client ``i``."""
        x, y = self.train[self.position(i)]
        return Client(
            x=x,
            y=y,
            n=_count(y),
            model=self.models[i],
            num_classes=self.num_classes,
            proxy=self.proxy,
            public=self.public,
            augment=self.augment,
            bound=self.bound,
        )

    def clients(self) -> dict[ClientId, Client]:
        """Return what a method may read on every client, by name."""
        return {i: self.client(i) for i in self.ids}

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


class NetworkBuilder(Protocol):
    """Builds the networks that a method has besides the clients' own models."""

    def travelling(self, needs: Collection[str], assign: Mapping[ClientId, Model]) -> Model | None:
        """Build the model that travels in place of the clients' own models, if the method needs one."""
        ...

    def server_models(self, needs: Collection[str], assign: Mapping[ClientId, Model]) -> dict[ClientId, Model]:
        """Build the server's model for each client, if the method needs them."""
        ...


def build_pool(
    method: AnyMethod,
    networks: NetworkBuilder,
    models: Mapping[ClientId, Model],
    rows: RowSplits,
    num_classes: int,
    *,
    ids: Sequence[ClientId] | None = None,
    public: Tensor | None = None,
    augment: Augment | None = None,
    device: str = "cpu",
    global_test: bool = False,
    remote: bool = False,
) -> ClientPool:
    """Build the clients of a run.

    Args:
        method: the method that will run; ``method.needs`` decides which further networks are built.
        networks: builds the travelling model and the server's models.
        models: the architecture of every client of the federation.
        rows: prepared rows of the clients in ``ids``, in the same order.
        num_classes: number of classes of the data set.
        ids: the clients that are on this machine. By default all that have a model; a site has only itself.
        public: prepared public rows, for methods that distil.
        augment: changes a batch of training rows at random.
        device: where rows and models are placed.
        global_test: whether personal models are also tested on the test rows of all clients.
        remote: whether rows and states stay at the clients' sites, so that ``rows`` has only their form.
    """
    here = tuple(models if ids is None else ids)
    pool = ClientPool(
        ids=here,
        models={i: models[i] for i in here},
        num_classes=num_classes,
        train=rows.train,
        val=rows.val,
        test=rows.test,
        proxy=networks.travelling(method.needs, models),
        server_models=networks.server_models(method.needs, models),
        public=None if public is None else public.to(device),
        augment=augment,
        global_test=global_test,
        remote=remote,
    )
    for model in (*pool.models.values(), *pool.server_models.values(), *([pool.proxy] if pool.proxy else [])):
        model.to(device)
    return pool


def replace_clients(pool: ClientPool, ids: Sequence[ClientId], rows: RowSplits, like: ClientId) -> ClientPool:
    """Return a pool of other clients, each with the models that client ``like`` of ``pool`` has.

    Args:
        pool: the clients of a run. Public rows, metrics and the travelling model are kept.
        ids: names of the new clients.
        rows: prepared rows of the new clients, in the order of ``ids``.
        like: a client of ``pool``.
    """
    server_models = dict.fromkeys(ids, pool.server_models[like]) if pool.server_models else {}
    return replace(
        pool,
        ids=tuple(ids),
        models=dict.fromkeys(ids, pool.models[like]),
        server_models=server_models,
        train=rows.train,
        val=rows.val,
        test=rows.test,
        global_test=False,
    )


def with_rows(client: Client, x: Tensor, y: Tensor) -> Client:
    """Return the client with other training rows, such as some of its own."""
    return replace(client, x=x, y=y, n=_count(y))


def _count(y: Tensor) -> Tensor:
    """Return the number of rows as a tensor: methods average with it as a weight."""
    return torch.tensor(float(len(y)))
