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
    per_row: dict[str, float]  # of one participation, by architecture
    server: float  # of one round

    def of(self, fleet: Fleet, cohort: list[ClientId]) -> float:
        """All clients of one round."""
        rows = ((fleet.models[i].name, fleet.train.size(fleet.position(i))) for i in cohort)
        return sum(self.per_row[name] * n for name, n in rows)


def count(method: AnyMethod, fleet: Fleet, seed: int, cohort: int) -> Flops:
    """Count one round with one client of each architecture."""
    totals: dict[ClientId | None, float] = defaultdict(float)

    @contextmanager
    def meter(who: ClientId | None) -> Iterator[None]:
        with FlopCounterMode(display=False) as counter:
            yield
        totals[who] += counter.get_total_flops()

    for _ in rehearse(method, fleet, seed, cohort=cohort, meter=meter):
        pass
    cast = actors(method, fleet)
    return Flops({fleet.models[i].name: totals[i] / len(c.y) for i, c in cast.items()}, totals[None])
