"""Small networks of linear layers for rows of shape [2, 3] and three classes."""

import torch
from torch import nn

from atoll.core.model import Model
from atoll.models.registry import Net


def network(*hidden: int, bias: bool = True) -> Model:
    """Return a network with hidden layers of these widths, each before a ReLU."""
    torch.manual_seed(1)
    layers, width = list[nn.Module]([nn.Flatten()]), 6
    for wide in hidden:
        layers += [nn.Linear(width, wide, bias=bias), nn.ReLU()]
        width = wide
    return Model(Net(nn.Sequential(*layers), nn.Linear(width, 3, bias=bias)))
