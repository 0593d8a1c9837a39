"""W3, where a step is more overhead than arithmetic: a round of clients batched by vmap, and of one after the other.

``vmap_speedup.W3`` is the loop backend's time over that of the vmap backend, for whole rounds of FedAvg with one local
epoch: downloads, training, checks of uploads, aggregation. ``vmap_speedup.W3_E5`` is the same with five epochs.
"""

from atoll.backends.inprocess import Loop, Vmap

from .timing import interleaved
from .works import Rounds, w3


def figures(quick: bool) -> dict[str, float]:
    return {
        "vmap_speedup.W3": _speedup(quick, epochs=1, repeats=15),
        "vmap_speedup.W3_E5": _speedup(quick, epochs=5, repeats=5),
    }


def _speedup(quick: bool, epochs: int, repeats: int) -> float:
    setup, repeats = (w3(epochs=epochs, clients=10, rows=150), 1) if quick else (w3(epochs=epochs), repeats)
    times = interleaved({"loop": Rounds(setup, Loop), "vmap": Rounds(setup, Vmap)}, repeats)
    return times["loop"] / times["vmap"]
