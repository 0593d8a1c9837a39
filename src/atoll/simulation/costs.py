"""Measure the cost of a method in dry runs: floating-point operations or seconds.

The work of a client has three parts: one for each row that training visits, one for each batch (such as a pass over
public rows in every step), and one for each participation. Dry runs with three numbers of rows tell them apart. A
client's first, second and later participations are measured apart, because some methods train longer in the first ones.
Element-wise work is left out.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from math import ceil
from statistics import median
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch

from ..clients.dry_run import dry_run, first_rows, select_representatives
from ..clients.pool import ClientPool, replace_rows
from ..core.client import Client
from ..core.hooks import HasOptimiser, HasPersonalOptimiser
from ..core.method import AnyMethod
from ..core.optim.base import Optimiser
from ..core.payloads import nbytes
from ..core.task import Round
from ..errors import AtollError
from ..typing import ClientId
from .operations import OperationCounter

REPEATS = 5  # number of timed dry runs; their median removes the effect of other processes
FAVOUR = 1e4  # weight of rows over batches as explanation of work that both explain
TURNS = 3  # participations of a client that are measured apart: the first, the second, and all later ones


class Traffic(NamedTuple):
    """Bytes that a client sends and receives in one round."""

    up: int = 0
    down: int = 0


class BatchCosts(NamedTuple):
    """Costs of training for a number of batches."""

    start: float  # of the work before the first batch, such as the spectrum of a teacher
    batch: float  # of a full batch


class RowCosts(NamedTuple):
    """Cost of work on a client's rows: of a participation, of each batch of training, and of each row in them."""

    fixed: float = 0.0
    batch: float = 0.0
    row: float = 0.0

    def of(self, optim: Optimiser | None, rows: int) -> float:
        """Return the cost for a client with so many rows; ``optim`` trains on them, None for all rows in one batch."""
        batches, visited = training_size(optim, rows)
        return max(0.0, self.fixed + self.batch * batches + self.row * visited)


Turn = tuple[RowCosts, RowCosts]  # costs of one participation, before and after the upload


class Costs(NamedTuple):
    """Costs of a round.

    Args:
        turns: costs of a client's first, second and later participations, by architecture. The last one holds on.
        server: cost of the server in one round.
        traffic: bytes of one participation to and from the server, by architecture.
        bounded: cost of training after the upload by batches, by architecture, where this training is bounded.
        optims: optimisers before and after the upload; None for work in proportion to a client's rows.
        done: number of participations of each client so far, of clients with any.
    """

    turns: Mapping[str, Sequence[Turn]]
    server: float
    traffic: Mapping[str, Traffic] = MappingProxyType({})
    bounded: Mapping[str, BatchCosts] = MappingProxyType({})
    optims: tuple[Optimiser | None, Optimiser | None] = (None, None)
    done: Mapping[ClientId, int] = MappingProxyType({})

    def of(self, pool: ClientPool, i: ClientId, budget: int | None = None) -> tuple[float, float]:
        """Return the costs of client ``i`` in its next participation, before and after its upload.

        Args:
            pool: the clients.
            i: the client.
            budget: number of batches after the upload; None for the method's own number.
        """
        name = pool.models[i].name
        turns = self.turns[name]
        local, personal = turns[min(self.done.get(i, 0), len(turns) - 1)]
        rows = pool.train.size(pool.position(i))
        before = local.of(self.optims[0], rows)
        if budget is None:
            return before, personal.of(self.optims[1], rows)
        return before, self.bounded[name].start + budget * self.bounded[name].batch


def training_size(optim: Optimiser | None, rows: int) -> tuple[int, int]:
    """Return the batches of a client's training and the rows in them.

    Whole epochs count once, however many they are, because every epoch visits the same rows. For steps and parts of
    epochs all visits count, repeated ones too.
    """
    if optim is None:
        return 1, rows
    per_epoch = ceil(rows / optim.batch_size)
    if optim.steps is None and optim.epochs == int(optim.epochs):
        return per_epoch, rows
    epochs, batches = divmod(optim.count(per_epoch), per_epoch)
    return epochs * per_epoch + batches, epochs * rows + min(batches * optim.batch_size, rows)


def count_operations(method: AnyMethod, pool: ClientPool, seed: int, cohort: int) -> Costs:
    """Count the floating-point operations of a round.

    Counts three rounds of dry runs, because some methods do more or less work in the first ones.

    Args:
        method: the method.
        pool: the clients; one of each architecture is run.
        seed: seed of the run.
        cohort: number of clients in a round.
    """
    return _measure(method, pool, seed, cohort, timed=False)


def count_batches(method: AnyMethod, pool: ClientPool, seed: int) -> dict[str, BatchCosts]:
    """Count the operations of training after the upload by batches: those of two batches less those of one.

    Args:
        method: a method that takes a budget.
        pool: the clients; one of each architecture is run, with rows for one batch of the largest size.
        seed: seed of the run.

    Raises:
        AtollError: no operation of a batch is counted, so that its time is not known.
    """
    optims = [value for value in vars(method).values() if isinstance(value, Optimiser)]
    rows = max(optim.batch_size for optim in optims)
    clients = {i: first_rows(pool.client(i), rows) for i in select_representatives(method, pool)}
    spent: dict[tuple[ClientId | None, str, int], float] = defaultdict(float)

    @contextmanager
    def meter(r: Round, client: ClientId | None, work: str) -> Iterator[None]:
        with OperationCounter() as counter:
            yield
        spent[client, work, budget] += counter.total

    for budget in (1, 2):
        for _ in dry_run(method, pool, seed, clients=clients, meter=meter, budget=budget):
            pass
    one = {i: spent[i, "personal", 1] for i in clients}
    batch = {i: spent[i, "personal", 2] - one[i] for i in clients}
    for i in (i for i in clients if batch[i] <= 0):
        raise AtollError(
            f"--until-download needs the time of a batch, and no operation of {pool.models[i].name} is counted. "
            "Leave it out, or take another model."
        )
    return {pool.models[i].name: BatchCosts(one[i] - batch[i], batch[i]) for i in clients}


def measure_seconds(method: AnyMethod, pool: ClientPool, seed: int, cohort: int) -> Costs:
    """Measure the seconds of a round on this machine: medians over several dry runs, with the same arguments."""
    return _measure(method, pool, seed, cohort, timed=True)


def _measure(method: AnyMethod, pool: ClientPool, seed: int, cohort: int, timed: bool) -> Costs:
    """Measure dry runs in which clients have rows for one batch, one and a half, and two."""
    representatives = select_representatives(method, pool)
    size = method.optim.batch_size if isinstance(method, HasOptimiser) else 32
    sizes = [size, size + (size + 1) // 2, 2 * size]
    runs: list[_DryRun] = []
    for rows in sizes:
        turns = 1 if runs and runs[0].is_same_every_round else TURNS
        clients = {i: _with_rows(pool.client(i), rows) for i in representatives}
        runs.append(_repeat_dry_run(method, pool, seed, cohort, clients, turns, timed))
    optim = method.optim if isinstance(method, HasOptimiser) else None
    optims = optim, method.personal_optim if isinstance(method, HasPersonalOptimiser) else optim
    costs = {
        pool.models[i].name: [
            (
                _fit(optims[0], sizes, [run.of(t, i, "local") for run in runs]),
                _fit(optims[1], sizes, [run.of(t, i, "personal") for run in runs]),
            )
            for t in range(TURNS)
        ]
        for i in representatives
    }
    return Costs(costs, runs[-1].of(TURNS - 1, None, "server"), runs[-1].traffic[-1], optims=optims)


def _fit(optim: Optimiser | None, sizes: Sequence[int], spent: Sequence[float]) -> RowCosts:
    """Return the costs that explain what was spent on clients with so many rows.

    Where several do, because a part of an epoch is one batch for all ``sizes``, the work is that of the rows: in the
    shortest solution an unknown with a large unit has the smallest number.
    """
    units = np.array([1.0, 1.0, FAVOUR / sizes[0]])
    known = np.array([(1, *training_size(optim, size)) for size in sizes])
    fixed, batch, row = units * np.linalg.lstsq(known * units, np.array(spent), rcond=1e-12)[0]
    return RowCosts(float(fixed), float(batch), float(row))


Spent = Mapping[tuple[int, ClientId | None, str], float]  # by round, client (None for the server) and kind of work


class _DryRun(NamedTuple):
    """Costs of a dry run, and the bytes of each of its rounds by architecture."""

    spent: Spent
    traffic: Sequence[Mapping[str, Traffic]]

    @property
    def is_same_every_round(self) -> bool:
        """Whether all rounds cost the same, so that one of them tells what other numbers of rows cost."""
        same_work = all(cost == self.of(0, i, work) for (_, i, work), cost in self.spent.items())
        return same_work and all(traffic == self.traffic[0] for traffic in self.traffic)

    def of(self, t: int, i: ClientId | None, work: str) -> float:
        """Return the costs of round ``t``; those of the last round stand for later ones."""
        return self.spent.get((min(t, len(self.traffic) - 1), i, work), 0.0)


def _repeat_dry_run(
    method: AnyMethod,
    pool: ClientPool,
    seed: int,
    cohort: int,
    clients: Mapping[ClientId, Client],
    rounds: int,
    timed: bool,
) -> _DryRun:
    runs = [
        _measure_dry_run(method, pool, seed, cohort, clients, rounds, timed) for _ in range(REPEATS if timed else 1)
    ]
    spent = {key: median(run.spent[key] for run in runs) for key in runs[0].spent}
    return runs[0]._replace(spent=spent)


def _measure_dry_run(
    method: AnyMethod,
    pool: ClientPool,
    seed: int,
    cohort: int,
    clients: Mapping[ClientId, Client],
    rounds: int,
    timed: bool,
) -> _DryRun:
    spent: dict[tuple[int, ClientId | None, str], float] = defaultdict(float)

    @contextmanager
    def meter(r: Round, client: ClientId | None, work: str) -> Iterator[None]:
        started, counter = time.perf_counter(), OperationCounter()
        with nullcontext() if timed else counter:
            yield
        spent[r.t, client, work] += time.perf_counter() - started if timed else counter.total

    traffic = [defaultdict[str, Traffic](Traffic) for _ in range(rounds)]
    for exchange in dry_run(method, pool, seed, rounds, cohort, clients, meter):
        sent, name = traffic[exchange.round.t], pool.models[exchange.client].name
        up, down = sent[name]
        sent[name] = Traffic(up + nbytes(exchange.upload), down + nbytes(exchange.download))
    return _DryRun(dict(spent), [dict(sent) for sent in traffic])


def _with_rows(client: Client, count: int) -> Client:
    """Return a client with so many rows, taken evenly from all of its own and repeated if it has fewer."""
    chosen = torch.arange(count) * len(client.y) // count
    return replace_rows(client, client.x[chosen], client.y[chosen])
