"""Measure the cost of a method in a dry run: floating-point operations or seconds.

The cost per row is scaled to every client's rows; work that does not grow with the rows counts once per batch of the
dry run. Torch counts matrix products and convolutions; element-wise work is left out.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from types import MappingProxyType
from typing import Any, NamedTuple

from torch.utils.flop_counter import flop_registry

from ..clients.dry_run import dry_run, select_representatives
from ..clients.pool import ClientPool
from ..core.method import AnyMethod
from ..core.payloads import nbytes
from ..core.task import Round
from ..core.torch_private import TorchDispatchMode, operator_family
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


class Costs(NamedTuple):
    """Costs of a round.

    Args:
        per_row: cost per row of one participation before and after the upload, by architecture.
        server: cost of the server in one round.
        traffic: bytes of one participation to and from the server, by architecture.
    """

    per_row: dict[str, tuple[float, float]]
    server: float
    traffic: Mapping[str, Traffic] = MappingProxyType({})

    def of(self, pool: ClientPool, i: ClientId) -> tuple[float, float]:
        """Return the costs of client ``i`` in one round, before and after its upload."""
        local, personal = self.per_row[pool.models[i].name]
        rows = pool.train.size(pool.position(i))
        return local * rows, personal * rows


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


def measure_seconds(method: AnyMethod, pool: ClientPool, seed: int, cohort: int) -> Costs:
    """Measure the seconds of a round on this machine: medians over several dry runs, with the same arguments."""
    runs = [_measure_dry_run(method, pool, seed, cohort, timed=True) for _ in range(REPEATS)]
    per_row = {
        name: (median(run.per_row[name][0] for run in runs), median(run.per_row[name][1] for run in runs))
        for name in runs[0].per_row
    }
    return Costs(per_row, median(run.server for run in runs), runs[0].traffic)


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
    per_row = {
        pool.models[i].name: (spent[i, "local"] / len(client.y), spent[i, "personal"] / len(client.y))
        for i, client in select_representatives(method, pool).items()
    }
    return Costs(per_row, spent[None, "server"], dict(traffic))
