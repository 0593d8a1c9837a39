"""W3, where a step is more overhead than arithmetic: a round of clients batched by vmap, and of one after the other.

``vmap_speedup.W3`` is the loop backend's time over that of the vmap backend, for whole rounds of FedAvg with one local
epoch: downloads, training, checks of uploads, aggregation. ``W3_E5`` is the same with five epochs. ``W3_training``
leaves out what both backends have in common: it is local training alone, from the messages to the uploads.

Ten batched rounds stand beside one of the loop, so that both take about as long and meet the same moments of the
machine; and as in a run, a round comes after another one of its kind.
"""

from atoll.backends.loop import LoopBackend
from atoll.backends.vmap import VmapBackend
from atoll.clients.tasks import ClientTask
from atoll.core.prng import key
from atoll.core.task import Round

from .timing import Work, interleaved
from .works import Rounds, w3

BATCHED = 10  # rounds beside one of the loop


def figures(quick: bool) -> dict[str, float]:
    few = {"clients": 10, "rows": 150} if quick else {}
    one, five, repeats = w3(**few), w3(epochs=5, **few), 1 if quick else 30
    return {
        "vmap_speedup.W3": _speedup(Rounds(one, LoopBackend), Rounds(one, VmapBackend), repeats),
        "vmap_speedup.W3_E5": _speedup(Rounds(five, LoopBackend), Rounds(five, VmapBackend), repeats),
        "vmap_speedup.W3_training": _speedup(
            _training(Rounds(one, LoopBackend)), _training(Rounds(one, VmapBackend)), repeats
        ),
    }


def _speedup(loop: Work, vmap: Work, repeats: int) -> float:
    times = interleaved({"loop": loop, "vmap": lambda: [vmap() for _ in range(BATCHED)]}, repeats)
    return BATCHED * times["loop"] / times["vmap"]


def _training(rounds: Rounds) -> Work:
    method, r = rounds.setup.method, Round(0)
    jobs = [ClientTask(i, r, method.broadcast(rounds.server, i, rounds.task, r, key(0))) for i in rounds.task.clients]

    def train() -> None:
        for _ in rounds.backend.train(method, rounds.setup.config.seed, jobs):
            pass
        for _ in rounds.backend.results():
            pass

    return train
