"""Bring your own networks: any ``nn.Module`` whose last layer is linear, a different one for each client if you like.

python examples/own_model.py
"""

from torch import nn

import atoll
from atoll.models import split


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32), nn.ReLU())
        self.fc = nn.Linear(32, 10)

    def forward(self, x):
        return self.fc(self.trunk(x))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
        nn.Linear(8 * 8 * 8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10),
    )  # fmt: skip


# Name the last linear layer; what comes before it becomes the body, whose output are the features.
networks = [split(Wide(), head="fc"), split(convolutional(), head="7")]

result = atoll.run("fedproto", data="digits", models=networks, clients=6, partition="pathological:5", rounds=5)
print(result)
for row in result.clients[-6:]:
    print(f"client {row['client']} with {row['model']:12} {row['accuracy']:.1%}")
