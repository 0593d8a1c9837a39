"""FedLab: serial trainer, synchronous server, standalone pipeline without evaluation. Its mean is unweighted."""

import logging
import sys
from unittest.mock import MagicMock

for name in ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.datasets.utils"):
    sys.modules[name] = MagicMock()  # imported and not used; its wheel does not load beside every torch

import numpy as np  # noqa: E402
import torch  # noqa: E402
from fedlab import __version__  # noqa: E402
from fedlab.contrib.algorithm import basic_client  # noqa: E402
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer  # noqa: E402
from fedlab.contrib.algorithm.basic_server import SyncServerHandler  # noqa: E402
from fedlab.core.standalone import StandalonePipeline  # noqa: E402
from shared import load, measure, rows_of  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from torch_net import network  # noqa: E402

logging.disable()
basic_client.tqdm = lambda each: each  # no progress bars
work = load()
sets = [TensorDataset(*map(torch.from_numpy, rows_of(work, i))) for i in range(work.clients)]


class Rows:
    """The clients' rows, as a trainer asks for them."""

    def get_dataloader(self, client: int, batch: int) -> DataLoader:
        return DataLoader(sets[client], batch, shuffle=True)


class Pipeline(StandalonePipeline):
    def evaluate(self) -> None:
        """Do nothing: no contender but Atoll evaluates."""


trainer = SGDSerialClientTrainer(network(work), work.clients, cuda=False)
trainer.setup_dataset(Rows())
trainer.setup_optim(1, work.batch, work.lr)
server = SyncServerHandler(network(work), work.rounds, work.sampled / work.clients, cuda=False)


def rounds() -> list[np.ndarray]:
    Pipeline(server, trainer).main()
    return [v.detach().numpy() for v in server._model.parameters()]


measure(rounds, __version__)
