"""What a method costs, found out on a rehearsal: floating-point operations counted by torch, or seconds.

The cost per row is scaled to every client's rows; work that does not grow with the rows counts once per batch of the
rehearsal. Torch counts matrix products and convolutions; element-wise work is left out.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, NamedTuple

from torch.utils.flop_counter import flop_registry

from ..clients.dry_run import dry_run, select_representatives
from ..clients.pool import ClientPool
from ..core.method import AnyMethod
from ..core.task import Round
from ..core.torch_private import TorchDispatchMode, operator_family
from ..typing import ClientId

REPEATS = 5  # of a timed rehearsal: the median forgets what else the machine did


class Operations(TorchDispatchMode):
    """Counts floating-point operations while it is entered.

    By the formulas of torch's own counter, which loads the compiler before it counts; that takes seconds.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # asked for by torch: no, as nothing is compiled here
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(operator_family(func))
        if formula is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=out)
        return out


class Costs(NamedTuple):
    per_row: dict[str, tuple[float, float]]  # of one participation, by architecture: before the upload, after it
    server: float  # of one round

    def of(self, pool: ClientPool, i: ClientId) -> tuple[float, float]:
        """One client in one round, before its upload and after."""
        local, personal = self.per_row[pool.models[i].name]
        rows = pool.train.size(pool.position(i))
        return local * rows, personal * rows


def operations(method: AnyMethod, pool: ClientPool, seed: int, cohort: int) -> Costs:
    """Counted in the second round with one client of each architecture: some methods begin with less."""
    return _dry_run_form(method, pool, seed, cohort, timed=False)


def seconds(method: AnyMethod, pool: ClientPool, seed: int, cohort: int) -> Costs:
    """Of the same round on this machine: medians over a few rehearsals."""
    runs = [_dry_run_form(method, pool, seed, cohort, timed=True) for _ in range(REPEATS)]
    per_row = {
        name: (median(run.per_row[name][0] for run in runs), median(run.per_row[name][1] for run in runs))
        for name in runs[0].per_row
    }
    return Costs(per_row, median(run.server for run in runs))


def _dry_run_form(method: AnyMethod, pool: ClientPool, seed: int, cohort: int, timed: bool) -> Costs:
    spent: dict[tuple[ClientId | None, str], float] = defaultdict(float)

    @contextmanager
    def meter(r: Round, who: ClientId | None, what: str) -> Iterator[None]:
        if r.t == 0:
            yield
        elif timed:
            started = time.perf_counter()
            yield
            spent[who, what] += time.perf_counter() - started
        else:
            with Operations() as counter:
                yield
            spent[who, what] += counter.total

    for _ in dry_run(method, pool, seed, rounds=2, cohort=cohort, meter=meter):
        pass
    per_row = {
        pool.models[i].name: (spent[i, "local"] / len(actor.y), spent[i, "personal"] / len(actor.y))
        for i, actor in select_representatives(method, pool).items()
    }
    return Costs(per_row, spent[None, "server"])
