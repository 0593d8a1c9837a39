"""What each method costs beyond its own forward and backward passes, beside FedAvg.

A round of the method and a round of FedAvg are timed in turn: ``overhead.<method>`` is (time / work) of the method over
(time / work) of FedAvg. Work is the number of floating-point operations of all matrix products and convolutions of the
round, on clients and server, as torch counts them. Four clients train small_cnn on synthetic images of 28x28 with
batches of 64, every optimiser for one epoch; the loop backend, one thread, no evaluation. Checks of uploads are part of
a round.
"""

from dataclasses import fields, replace
from statistics import median
from typing import Any

from atoll.core.method import traits_of
from atoll.core.optim.base import Optimiser
from atoll.core.traits import Need
from atoll.engine.setup import Setup
from atoll.methods import _registry

from .timing import seconds
from .works import W1S, Rounds, federation, operations

BATCH = 64

# What keeps long methods short; operations shrink with it.
SETTINGS: dict[str, dict[str, Any]] = {
    "fedala": {"most_passes": 2},
    "feddf": {"steps": 5},
    "fedfed": {"distil_rounds": 1},
    "fedmd": {"first_epochs": 1},
    "pfedme": {"steps": 2},
}

SETTLED = {"fedfed": 3}  # rounds until a method does what it does from then on; the others need one


QUICK = ("fedavg", "dcpfl", "ditto", "fedpd")  # enough to see that it runs


def figures(quick: bool) -> dict[str, float]:
    size = {"clients": 2, "rows": 16, "shape": (1, 16, 16)} if quick else {"clients": 4, "rows": 192, "shape": W1S}
    plain = Trial("fedavg", size)
    names = QUICK if quick else tuple(filter(_runs_on_small_cnn, _registry.methods()))
    return {f"overhead.{name}": _overhead(Trial(name, size), plain, 1 if quick else 5) for name in names}


def _runs_on_small_cnn(name: str) -> bool:
    """Return False for methods that need layers which the network of the comparison lacks."""
    return Need.BATCH_NORM not in traits_of(_registry.method(name)).needs


class Trial:
    """A method's federation once it has settled, and the operations of a round."""

    def __init__(self, name: str, size: dict[str, Any]):
        self.rounds = Rounds(_setup(name, size))
        for _ in range(SETTLED.get(name, 1)):
            self.rounds()
        self.flops = operations(self.rounds)


def _overhead(mine: Trial, plain: Trial, repeats: int) -> float:
    turns = [(seconds(mine.rounds), seconds(plain.rounds)) for _ in range(repeats)]
    own, other = median(a for a, _ in turns), median(b for _, b in turns)
    return (own / mine.flops) / (other / plain.flops)


def _setup(name: str, size: dict[str, Any]) -> Setup:
    options: dict[str, Any] = {"batch_size": BATCH, "settings": SETTINGS.get(name, {}), "server_model": "cnn_a"}
    if Need.PUBLIC_DATA in traits_of(_registry.method(name)).needs:
        options |= {"public": size["clients"] * size["rows"] // 4}
    made = federation(name, size["clients"], size["rows"], size["shape"], "small_cnn", **options)
    return replace(made, method=_one_epoch(made.method))


def _one_epoch(method: Any) -> Any:
    """With the same number of epochs and the same batches in all its optimisers."""
    optimisers = {f.name: getattr(method, f.name) for f in fields(method)}
    short = {n: replace(o, epochs=1, batch_size=BATCH) for n, o in optimisers.items() if isinstance(o, Optimiser)}
    return replace(method, **short)
