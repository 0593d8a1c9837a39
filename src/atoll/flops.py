"""Floating-point operations of a method, counted by torch on a rehearsal.

The count per row is scaled to every client's rows; work that does not grow with the rows counts once per batch of the
rehearsal. Torch counts matrix products and convolutions; element-wise work is left out.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torch.utils.flop_counter import FlopCounterMode

from .core import ClientId
from .fleet import Fleet
from .rehearsal import actors, rehearse
from .run import AnyMethod


class Flops(NamedTuple):
    per_row: dict[str, tuple[float, float]]  # of one participation, by architecture: before the upload, after it
    server: float  # of one round

    def of(self, fleet: Fleet, i: ClientId) -> tuple[float, float]:
        """One client in one round, before its upload and after."""
        local, personal = self.per_row[fleet.models[i].name]
        rows = fleet.train.size(fleet.position(i))
        return local * rows, personal * rows


def count(method: AnyMethod, fleet: Fleet, seed: int, cohort: int) -> Flops:
    """Count one round with one client of each architecture."""
    totals: dict[tuple[ClientId | None, str], float] = defaultdict(float)

    @contextmanager
    def meter(who: ClientId | None, what: str) -> Iterator[None]:
        with FlopCounterMode(display=False) as counter:
            yield
        totals[who, what] += counter.get_total_flops()

    for _ in rehearse(method, fleet, seed, cohort=cohort, meter=meter):
        pass
    per_row = {
        fleet.models[i].name: (totals[i, "local"] / len(actor.y), totals[i, "personal"] / len(actor.y))
        for i, actor in actors(method, fleet).items()
    }
    return Flops(per_row, totals[None, "server"])
