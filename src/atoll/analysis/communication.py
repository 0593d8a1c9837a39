"""Count the bytes that a method sends per client and round, on a small reference federation."""

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from ..clients.dry_run import dry_run
from ..clients.pool import ClientPool, ClientRows, RowSplits, build_pool
from ..config import Config
from ..core.hooks import has_bias_free_heads
from ..core.method import AnyMethod, traits_of
from ..core.optim.base import no_training
from ..core.payloads import nbytes
from ..core.problems import Classes
from ..core.traits import Need
from ..data.dataset import Dataset
from ..engine.compatibility import check
from ..engine.model_factory import ModelFactory
from ..methods._factory import make
from ..utils.runtime import one_thread

OWNERS = 2  # clients that hold each class
ROWS = 2  # rows of each class that a client holds


class Traffic(NamedTuple):
    """Bytes of one client in the second round; the first may send less."""

    down: int
    up: int


@dataclass(frozen=True)
class ReferenceFederation:
    """The properties of a federation that determine the size of messages."""

    models: tuple[str, ...] = ("cnn1",)  # assigned in turn; the first client's bytes are counted
    shape: tuple[int, int, int] = (3, 32, 32)
    classes: int = 10
    held: int = 2  # classes of each client
    public: int = 1000

    def traffic(self, name: str) -> Traffic:
        """Count the bytes of the method called ``name`` in a dry run, trained only if sizes depend on training.

        Raises:
            AtollError: if the models lack something that the method needs.
        """
        method = make(name)
        pool = self._pool(method)
        check(method, pool, name, "loop")
        with one_thread(), nullcontext() if traits_of(method).varying_bytes else no_training():
            exchanges = list(dry_run(method, pool, 0, rounds=2, clients=pool.clients()))
        seen = [e for e in exchanges if e.round.t == 1 and e.client == pool.ids[0]]
        return Traffic(sum(nbytes(e.download) for e in seen), sum(nbytes(e.upload) for e in seen))

    def _pool(self, method: AnyMethod) -> ClientPool:
        ids = tuple(str(i) for i in range(OWNERS * math.ceil(self.classes / self.held)))
        y = torch.arange(len(ids) * self.held).view(len(ids), self.held).repeat(1, ROWS).flatten() % self.classes
        x = torch.rand(len(y), *self.shape, generator=torch.Generator().manual_seed(0))
        shares = ClientRows(x, y, [self.held * ROWS] * len(ids))
        networks = ModelFactory(Config(models=self.models, server_model="mlp_a"), self._data(), self.shape, code=None)
        models = networks.assign(ids, not has_bias_free_heads(method))
        public = torch.rand(self.public, *self.shape, generator=torch.Generator().manual_seed(1))
        return build_pool(
            method,
            networks,
            models,
            RowSplits(shares, shares, shares),
            Classes(self.classes),
            public=public if Need.PUBLIC_DATA in traits_of(method).needs else None,
        )

    def _data(self) -> Dataset:
        """Make an empty data set; networks read only its kind and its classes."""
        rows, labels = np.zeros((1, *self.shape), np.uint8), np.zeros(1, np.int64)
        return Dataset("nominal", "image", rows, labels, rows, labels, tuple(map(str, range(self.classes))))
