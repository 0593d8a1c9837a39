"""The federations that benchmarks share, and one way to play their rounds.

W1s is a small CNN (80,202 weights), W1 a wider one (582,026), W2 the CNN-1 of DC-PFL and FedGH (2,621,558), each on
synthetic images. W3 is an MLP 64-32-10 (2,410 weights) on digits: 100 clients with 14 rows or so, batches of 10.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from atoll.backends.loop import LoopBackend
from atoll.clients.state_store import MemoryStore
from atoll.clients.validation.validator import Validator
from atoll.config import Config
from atoll.core.contract import exchanges_of
from atoll.core.prng import key
from atoll.data.dataset import Dataset
from atoll.engine.cohort import sample_cohort
from atoll.engine.round import RoundPolicy, run_round
from atoll.engine.setup import Setup, build_setup
from atoll.simulation.operations import OperationCounter

CLASSES = 10
W1S, W1, W2 = (1, 28, 28), (1, 28, 28), (3, 32, 32)  # shapes of images


class Wide(nn.Module):
    """The network of W1: 5x5 convolutions 32 and 64 without padding, a layer of 512."""

    def __init__(self) -> None:
        super().__init__()
        stages = [nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)]
        self.body = nn.Sequential(*stages, nn.Flatten(), nn.Linear(1024, 512), nn.ReLU())
        self.head = nn.Linear(512, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


def images(shape: tuple[int, int, int], rows: int, classes: int = CLASSES) -> Dataset:
    """Noise with labels in equal numbers: what is learnt does not matter here."""
    rng = np.random.default_rng(0)
    x = rng.integers(256, size=(rows, *shape), dtype=np.uint8)
    y = rng.permutation(np.arange(rows) % classes)
    return Dataset("synthetic", "image", x, y, x[:0], y[:0], tuple(map(str, range(classes))))


def federation(method: str, clients: int, rows: int, shape: tuple[int, int, int], model: str, **options: Any) -> Setup:
    """Clients with so many training rows each (eight of ten are for training), who run one after the other."""
    nets = [Wide()] if model == "W1" else []
    common: dict[str, Any] = {
        "method": method, "clients": clients, "partition": "iid", "models": () if nets else (model,), "epochs": 1,
        "backend": "loop",
    }  # fmt: skip
    data = images(shape, clients * rows * 10 // 8 + options.get("public", 0))
    return build_setup(Config(**common | options), data, nets)


def w3(**options: Any) -> Setup:
    common: dict[str, Any] = {"clients": 100, "partition": "iid", "models": ("mlp:hidden=32",), "backend": "vmap"}
    return build_setup(Config(**common | {"epochs": 1, "batch_size": 10} | options))


class Rounds:
    """A federation whose rounds are played one by one: what a run does, without evaluation, clocks and files."""

    def __init__(self, setup: Setup, backend: type[LoopBackend] = LoopBackend, rate: float = 1.0):
        self.setup, self.task, self.rate, self.t = setup, setup.pool.task(), rate, 0
        seed = setup.config.seed
        self.backend, self.per_client_states = backend(setup.pool, MemoryStore()), MemoryStore()
        self.rules = RoundPolicy(Validator(setup.method, setup.pool, seed))
        with torch.no_grad():
            self.server = setup.method.init_server(self.task, key(seed, "init", "server"))

    def __call__(self) -> None:
        method, seed = self.setup.method, self.setup.config.seed
        self.server, log = run_round(
            method,
            self.task,
            self.backend,
            self.server,
            t=self.t,
            seed=seed,
            cohort=sample_cohort(self.task.clients, self.rate, seed, self.t),
            per_client_states=self.per_client_states,
            policy=self.rules,
        )
        assert len(log.accepted) == len(log.cohort) * len(exchanges_of(method)), log.rejected
        self.t += 1


def operations(rounds: Rounds) -> int:
    """Floating-point operations of the next round: matrix products and convolutions, of clients and server."""
    with OperationCounter() as counter:
        rounds()
    return counter.total
