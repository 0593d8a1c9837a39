"""A small variational autoencoder for rows of any shape: its body encodes, its head decodes."""

import math

import torch
from torch import Tensor, nn

from ..core import CHUNK, Key, Model, Params, seed_of

SMALL = 16  # up to this side, and for tables, layers are linear
HIDDEN, LATENT = 128, 32  # of linear layers; of convolutions 16 and 32 channels


def autoencoder(shape: tuple[int, ...], k: Key) -> Model:
    """Features are mean and logarithmic variance of the code, side by side; initial weights follow from the key."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(k))
        net = _Convolutions(*shape) if len(shape) == 3 and min(shape[1:]) > SMALL else _Layers(shape)
    return Model(net, "autoencoder")


def rebuilt(model: Model, q: Params, x: Tensor) -> Tensor:
    """q(x) without noise: what the means of the codes decode to."""
    return torch.cat([model.classify(q, model.features(q, rows).chunk(2, 1)[0]) for rows in x.split(CHUNK)])


class _Layers(nn.Module):
    """One hidden layer each way."""

    def __init__(self, shape: tuple[int, ...]):
        super().__init__()
        size = math.prod(shape)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(size, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2 * LATENT))
        self.head = nn.Sequential(
            nn.Linear(LATENT, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, size), nn.Unflatten(1, tuple(shape))
        )


class _Convolutions(nn.Module):
    """Codes have a quarter of the image's side, which is padded to suit and cut again."""

    def __init__(self, channels: int, height: int, width: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.ZeroPad2d((0, -width % 4, 0, -height % 4)),
            nn.Conv2d(channels, LATENT // 2, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(LATENT // 2, LATENT, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(LATENT, 2 * LATENT, 1),
        )
        self.head = nn.Sequential(
            nn.ConvTranspose2d(LATENT, LATENT // 2, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(LATENT // 2, channels, 4, 2, 1),
            _Cut(height, width),
        )


class _Cut(nn.Module):
    def __init__(self, height: int, width: int):
        super().__init__()
        self.height, self.width = height, width

    def forward(self, x: Tensor) -> Tensor:
        return x[..., : self.height, : self.width]
