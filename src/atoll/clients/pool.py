"""Hold the clients of a run on one machine: rows, models, metrics."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from ..core.client import Augment, Client
from ..core.method import AnyMethod, traits_of
from ..core.model import Model
from ..core.problems import Problem
from ..core.task import Task
from ..core.traits import Need
from ..typing import ClientId
from .metrics import Metric


class LabelledRows(NamedTuple):
    """Inputs ``x`` of shape ``[N, ...]`` and labels ``y`` of shape ``[N]``."""

    x: Tensor
    y: Tensor


class ClientRows:
    """The rows of all clients in one tensor, ordered by client, so that a client's rows are a view and not a copy.

    Args:
        x: inputs of all clients.
        y: labels of all clients.
        sizes: number of rows of each client, in the order of the rows.
    """

    def __init__(self, x: Tensor, y: Tensor, sizes: Sequence[int]):
        self.all = LabelledRows(x, y)
        self._first = torch.tensor([0, *sizes]).cumsum(0)
        self._starts: list[int] = self._first.tolist()
        self.counts = self._first.diff().float()  # rows of each client, as methods weigh by them

    def __getitem__(self, position: int) -> LabelledRows:
        start, end = self._starts[position : position + 2]
        return LabelledRows(self.all.x[start:end], self.all.y[start:end])

    def stack_padded(self, positions: Sequence[int]) -> LabelledRows:
        """Stack the rows of several clients, zero-padded to the largest of them.

        Args:
            positions: positions of the clients, in the order of the result.

        Returns:
            ``x`` of shape ``[len(positions), rows, ...]`` and ``y`` of shape ``[len(positions), rows]``.
        """
        starts = np.array([self._starts[at] for at in positions])
        sizes = np.array([self.size(at) for at in positions])
        offsets = np.arange(sizes.max())
        missing = offsets >= sizes[:, None]
        device, numbers = self.all.y.device, np.where(missing, 0, starts[:, None] + offsets)
        rows, padding = (torch.from_numpy(v).to(device) for v in (numbers.ravel(), np.flatnonzero(missing)))
        x, y = (v.index_select(0, rows).index_fill_(0, padding, 0).unflatten(0, missing.shape) for v in self.all)
        return LabelledRows(x, y)

    def stack_groups(self, groups: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Stack the inputs of several groups of clients, zero-padded to the largest group.

        Args:
            groups: positions of the clients of each group, in the order of the result.

        Returns:
            ``x`` of shape ``[len(groups), rows, ...]``, and where it holds rows: ``[len(groups), rows]``.
        """
        sizes = torch.tensor([sum(map(self.size, positions)) for positions in groups])
        is_row = torch.arange(int(sizes.max())) < sizes[:, None]
        numbers = torch.zeros(is_row.shape, dtype=torch.int64)
        numbers[is_row] = self._numbers([at for positions in groups for at in positions]).cpu()
        x = self.all.x.index_select(0, numbers.flatten().to(self.all.x.device))
        x = x.view(*is_row.shape, *x.shape[1:])
        x[~is_row] = 0
        return x, is_row.to(x.device)

    def gather(self, positions: Sequence[int], most: int) -> Iterator[Tensor]:
        """Yield the inputs of several clients, one client after the other, in parts of about ``most`` rows."""
        part, rows = list[int](), 0
        for position in positions:
            if rows and rows + self.size(position) > most:
                yield self.all.x.index_select(0, self._numbers(part))
                part, rows = [], 0
            part.append(position)
            rows += self.size(position)
        yield self.all.x.index_select(0, self._numbers(part))

    def labels(self, positions: Sequence[int]) -> Tensor:
        """Return the labels of several clients, one client after the other."""
        return self.all.y.index_select(0, self._numbers(positions))

    def _numbers(self, positions: Sequence[int]) -> Tensor:
        """Return the numbers of the rows of several clients."""
        at = torch.tensor(positions)
        starts, sizes = self._first[at], self._first[at + 1] - self._first[at]
        before = sizes.cumsum(0) - sizes  # rows of the clients before each one
        numbers = (starts - before).repeat_interleave(sizes) + torch.arange(int(sizes.sum()))
        return numbers.to(self.all.y.device)

    def size(self, position: int) -> int:
        """Return the number of rows of the client at ``position``."""
        return self._starts[position + 1] - self._starts[position]


class RowSplits(NamedTuple):
    """The rows of every client for training, validation and test."""

    train: ClientRows
    val: ClientRows
    test: ClientRows


@dataclass(frozen=True)
class ClientPool:
    """The clients of a run, with their data and architectures.

    Args:
        ids: names of the clients that are on this machine.
        models: the model of each client.
        problem: what the labels of the data set are.
        train: training rows, in the order of ``ids``.
        val: validation rows.
        test: test rows.
        proxy: the model that clients exchange in place of their own models, if the method has one.
        server_models: the server's model for each client, if the method has any.
        public: public rows, for methods that distil.
        augment: changes a batch of training rows at random.
        bound: largest norm of a row's features in statistics that leave a client.
        global_test: whether personal models are also tested on the test rows of all clients.
        metrics: the user's own metrics, by name.
        remote: whether rows and states stay at the clients' sites, so that the rows here only have their form.
        first_releases: noisy releases of each client before the first round, of the statistics of its table.
    """

    ids: tuple[ClientId, ...]
    models: Mapping[ClientId, Model]
    problem: Problem
    train: ClientRows
    val: ClientRows
    test: ClientRows
    proxy: Model | None = None
    server_models: Mapping[ClientId, Model] = field(default_factory=dict)
    public: Tensor | None = None
    augment: Augment | None = None
    bound: float | None = None
    global_test: bool = False
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    remote: bool = False
    first_releases: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "_position", {i: at for at, i in enumerate(self.ids)})
        object.__setattr__(self, "_templates", {})

    def position(self, i: ClientId) -> int:
        """Return the position of client ``i`` in ``ids``."""
        return self._position[i]  # type: ignore[attr-defined,no-any-return]

    def client(self, i: ClientId) -> Client:
        """Return the rows and models of client ``i`` that a method may read."""
        at, made = self.position(i), object.__new__(Client)
        x, y = self.train[at]
        vars(made).update(vars(self._template(self.models[i])), x=x, y=y, n=self.train.counts[at])
        return made

    def _template(self, model: Model) -> Client:
        """Return the client of an architecture without rows. Copying its entries is faster than making a client."""
        templates: dict[int, Client] = self._templates  # type: ignore[attr-defined]
        if id(model) not in templates:
            none = torch.zeros(0)
            templates[id(model)] = Client(
                x=none,
                y=none,
                n=none,
                model=model,
                problem=self.problem,
                proxy=self.proxy,
                public=self.public,
                augment=self.augment,
                bound=self.bound,
            )
        return templates[id(model)]

    def clients(self) -> dict[ClientId, Client]:
        """Return the rows and models of every client, by name."""
        return {i: self.client(i) for i in self.ids}

    def stack_clients(self, ids: Sequence[ClientId]) -> Client:
        """Stack clients of one architecture into one batched client; rows beyond ``n`` are padding.

        Equal architectures may differ in initial weights, but training never reads these, so the model of the first
        client serves all of them.
        """
        positions = [self.position(i) for i in ids]
        n = self.train.counts[positions]
        return replace(self.client(ids[0]), **self.train.stack_padded(positions)._asdict(), n=n)

    def task(self) -> Task:
        """Return the server's view of the run. Its ``model`` is that of the first client."""
        first = self.models[self.ids[0]]
        return Task(first, self.problem, self.ids, self.proxy, self.public, self.models, self.server_models)

    def architectures(self) -> list[str]:
        """Return the names of the different models, in order of appearance."""
        return list(dict.fromkeys(self.models[i].name for i in self.ids))


class NetworkBuilder(Protocol):
    """Builds the networks that a method has besides the clients' own models."""

    def build_proxy(self, needs: Collection[Need], assign: Mapping[ClientId, Model]) -> Model | None:
        """Build the model that clients exchange in place of their own models, if the method needs one."""
        ...

    def server_models(self, needs: Collection[Need], assign: Mapping[ClientId, Model]) -> dict[ClientId, Model]:
        """Build the server's model for each client, if the method needs them."""
        ...


def build_pool(
    method: AnyMethod,
    networks: NetworkBuilder,
    models: Mapping[ClientId, Model],
    rows: RowSplits,
    problem: Problem,
    *,
    ids: Sequence[ClientId] | None = None,
    public: Tensor | None = None,
    augment: Augment | None = None,
    device: str = "cpu",
    global_test: bool = False,
    remote: bool = False,
    first_releases: int = 0,
) -> ClientPool:
    """Build the clients of a run.

    Args:
        method: the method that will run; ``traits_of(method).needs`` decides which further networks are built.
        networks: builds the proxy model and the server's models.
        models: the architecture of every client of the federation.
        rows: prepared rows of the clients in ``ids``, in the same order.
        problem: what the labels of the data set are.
        ids: the clients that are on this machine. By default all that have a model; a site has only itself.
        public: prepared public rows, for methods that distil.
        augment: changes a batch of training rows at random.
        device: where rows and models are placed.
        global_test: whether personal models are also tested on the test rows of all clients.
        remote: whether rows and states stay at the clients' sites, so that ``rows`` has only their form.
        first_releases: noisy releases of each client before the first round.
    """
    here = tuple(models if ids is None else ids)
    pool = ClientPool(
        ids=here,
        models={i: models[i] for i in here},
        problem=problem,
        train=rows.train,
        val=rows.val,
        test=rows.test,
        proxy=networks.build_proxy(traits_of(method).needs, models),
        server_models=networks.server_models(traits_of(method).needs, models),
        public=None if public is None else public.to(device),
        augment=augment,
        global_test=global_test,
        remote=remote,
        first_releases=first_releases,
    )
    for model in (*pool.models.values(), *pool.server_models.values(), *([pool.proxy] if pool.proxy else [])):
        model.to(device)
    return pool


def replace_clients(pool: ClientPool, ids: Sequence[ClientId], rows: RowSplits, like: ClientId) -> ClientPool:
    """Return a pool of other clients, each with the models that client ``like`` of ``pool`` has.

    Args:
        pool: the clients of a run. The new pool has the same public rows, metrics and proxy model.
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


def replace_rows(client: Client, x: Tensor, y: Tensor) -> Client:
    """Return a copy of the client with other training rows."""
    return replace(client, x=x, y=y, n=_count(y))


def _count(y: Tensor) -> Tensor:
    """Return the number of rows as a tensor, because methods use the number as a weight in means."""
    return torch.tensor(float(len(y)))
