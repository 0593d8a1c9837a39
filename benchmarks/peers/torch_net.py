"""The networks of the works in torch, with given first weights."""

from types import SimpleNamespace

import torch
from torch import nn


def network(work: SimpleNamespace) -> nn.Sequential:
    """Return the network of a work with its first weights."""
    torch.set_num_threads(1)
    if work.kind == "cnn":
        layers = [
            nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10),
        ]  # fmt: skip
    else:
        layers = [nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)]
    net = nn.Sequential(*layers)
    with torch.no_grad():
        for own, first in zip(net.parameters(), work.weights, strict=True):
            own.copy_(torch.from_numpy(first))
    # The first optimiser of a process loads torch's compiler, which is no part of a round.
    optimiser = torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.0)
    optimiser.step()
    return net
