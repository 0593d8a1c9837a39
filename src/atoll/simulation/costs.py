"""Measure the cost of a method in a dry run: floating-point operations or seconds.

The cost per row is scaled to the rows that every client visits: its own, or those of its steps or parts of an epoch.
Work that does not grow with the rows counts once per batch of the dry run. Torch counts matrix products and
convolutions; element-wise work is left out.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import ceil
from statistics import median
from types import MappingProxyType
from typing import Any, NamedTuple

from torch.utils.flop_counter import flop_registry

from ..clients.dry_run import dry_run, first_rows, select_representatives
from ..clients.pool import ClientPool
from ..core.hooks import HasOptimiser, HasPersonalOptimiser
from ..core.method import AnyMethod
from ..core.optim.base import Optimiser
from ..core.payloads import nbytes
from ..core.task import Round
from ..core.torch_private import TorchDispatchMode, operator_family
from ..errors import AtollError
from ..typing import ClientId

REPEATS = 5  # number of timed dry runs; their median removes the effect of other processes


class OperationCounter(TorchDispatchMode):
    """Context manager that counts floating-point operations.

    Uses the formulas of torch's own counter, which would load the compiler first and take seconds.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # required by torch; nothing is compiled here
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(operator_family(func))
        if formula is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=out)
        return out


class Traffic(NamedTuple):
    """Bytes that a client sends and receives in one round."""

    up: int = 0
    down: int = 0


class BatchCosts(NamedTuple):
    """Costs of training for a number of batches."""

    start: float  # of the work before the first batch, such as the spectrum of a teacher
    batch: float  # of a full batch


class Costs(NamedTuple):
    """Costs of a round.

    Args:
        per_row: cost per row of one participation before and after the upload, by architecture.
        server: cost of the server in one round.
        traffic: bytes of one participation to and from the server, by architecture.
        bounded: cost of training after the upload by batches, by architecture, where this training is bounded.
        optims: optimisers before and after the upload; None for work in proportion to a client's rows.
    """

    per_row: dict[str, tuple[float, float]]
    server: float
    traffic: Mapping[str, Traffic] = MappingProxyType({})
    bounded: Mapping[str, BatchCosts] = MappingProxyType({})
    optims: tuple[Optimiser | None, Optimiser | None] = (None, None)

    def of(self, pool: ClientPool, i: ClientId, budget: int | None = None) -> tuple[float, float]:
        """Return the costs of client ``i`` in one round, before and after its upload.

        Args:
            pool: the clients.
            i: the client.
            budget: number of batches after the upload; None for the method's own number.
        """
        name = pool.models[i].name
        local, personal = self.per_row[name]
        rows = pool.train.size(pool.position(i))
        before = local * rows_visited(self.optims[0], rows)
        if budget is None:
            return before, personal * rows_visited(self.optims[1], rows)
        return before, self.bounded[name].start + budget * self.bounded[name].batch


def rows_visited(optim: Optimiser | None, rows: int) -> int:
    """Return the rows of a client that training visits: its own if that takes whole epochs, however many.

    For steps and parts of epochs all visits count, repeated ones too.
    """
    if optim is None or (optim.steps is None and optim.epochs == int(optim.epochs)):
        return rows
    per_epoch = ceil(rows / optim.batch_size)
    epochs, batches = divmod(optim.count(per_epoch), per_epoch)
    return epochs * rows + min(batches * optim.batch_size, rows)


def count_operations(method: AnyMethod, pool: ClientPool, seed: int, cohort: int) -> Costs:
    """Count the floating-point operations of a round.

    Counts the second round of a dry run, because some methods do less work in the first one.

    Args:
        method: the method.
        pool: the clients; one of each architecture is run.
        seed: seed of the run.
        cohort: number of clients in a round.
    """
    return _measure_dry_run(method, pool, seed, cohort, timed=False)


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
    runs = [_measure_dry_run(method, pool, seed, cohort, timed=True) for _ in range(REPEATS)]
    per_row = {
        name: (median(run.per_row[name][0] for run in runs), median(run.per_row[name][1] for run in runs))
        for name in runs[0].per_row
    }
    return Costs(per_row, median(run.server for run in runs), runs[0].traffic, optims=runs[0].optims)


def _measure_dry_run(method: AnyMethod, pool: ClientPool, seed: int, cohort: int, timed: bool) -> Costs:
    spent: dict[tuple[ClientId | None, str], float] = defaultdict(float)

    @contextmanager
    def meter(r: Round, client: ClientId | None, work: str) -> Iterator[None]:
        if r.t == 0:
            yield
        elif timed:
            started = time.perf_counter()
            yield
            spent[client, work] += time.perf_counter() - started
        else:
            with OperationCounter() as counter:
                yield
            spent[client, work] += counter.total

    traffic: dict[str, Traffic] = defaultdict(Traffic)
    for exchange in dry_run(method, pool, seed, rounds=2, cohort=cohort, meter=meter):
        if exchange.round.t > 0:
            name = pool.models[exchange.client].name
            up, down = traffic[name]
            traffic[name] = Traffic(up + nbytes(exchange.upload), down + nbytes(exchange.download))
    optims = (
        method.optim if isinstance(method, HasOptimiser) else None,
        method.personal_optim if isinstance(method, HasPersonalOptimiser) else None,
    )
    per_row = {
        pool.models[i].name: (
            spent[i, "local"] / rows_visited(optims[0], len(client.y)),
            spent[i, "personal"] / rows_visited(optims[1], len(client.y)),
        )
        for i, client in select_representatives(method, pool).items()
    }
    return Costs(per_row, spent[None, "server"], dict(traffic), optims=optims)
