"""fluke: its FedAVG with loaders of its own kind, without evaluation."""

import logging
import sys
from importlib.metadata import version
from unittest.mock import MagicMock

for name in (
    "torchvision",
    "torchvision.datasets",
    "torchvision.transforms",
    "torchvision.models",
    "torchvision.utils",
):
    sys.modules[name] = MagicMock()  # imported and not used; its wheel does not load beside every torch

import numpy as np  # noqa: E402
import torch  # noqa: E402
from fluke import DDict, FlukeENV  # noqa: E402
from fluke.algorithms.fedavg import FedAVG  # noqa: E402
from fluke.data import FastDataLoader  # noqa: E402
from shared import load, measure, rows_of  # noqa: E402
from torch_net import network  # noqa: E402

logging.disable()
work = load()


class Splitter:
    """The clients' rows, as an algorithm asks for them."""

    def assign(self, clients: int, batch: int) -> tuple:
        loaders = [
            FastDataLoader(
                *map(torch.from_numpy, rows_of(work, i)),
                num_labels=10,
                batch_size=batch,
                shuffle=True,
                skip_singleton=False,
            )
            for i in range(clients)
        ]
        return (loaders, [None] * clients), None


environment = FlukeENV()
environment.set_eval_cfg(pre_fit=False, post_fit=False, server=False, locals=False, eval_every=10**6)
net = network(work)
settings = DDict(
    model=net,
    client=DDict(
        batch_size=work.batch,
        local_epochs=1,
        loss="CrossEntropyLoss",
        optimizer=DDict(name="SGD", lr=work.lr),
        scheduler=DDict(name="StepLR", step_size=1, gamma=1.0),
    ),
    server=DDict(weighted=True),
)
algorithm = FedAVG(work.clients, Splitter(), settings)


def rounds() -> list[np.ndarray]:
    algorithm.run(work.rounds, work.sampled / work.clients, finalize=False)
    return [v.detach().numpy() for v in algorithm.server.model.parameters()]


measure(rounds, version("fluke-fl"))
