"""Build a small variational autoencoder for inputs of any shape: its body encodes, its head decodes."""

import math

import torch
from torch import Tensor, nn

from ..core import CHUNK, Key, Model, Params, seed_of

MAX_LINEAR_SIDE = 16  # Tables, and images up to this side, get linear layers.
HIDDEN, LATENT = 128, 32  # Widths of linear layers; convolutions have LATENT // 2 and LATENT channels.


def build_autoencoder(shape: tuple[int, ...], k: Key) -> Model:
    """Build an autoencoder for inputs of ``shape``, with initial weights drawn from the key.

    Its features are the mean and the log-variance of the code, concatenated.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(k))
        net = _ConvNet(*shape) if len(shape) == 3 and min(shape[1:]) > MAX_LINEAR_SIDE else _LinearNet(shape)
    return Model(net, "autoencoder")


def reconstruct(model: Model, q: Params, x: Tensor) -> Tensor:
    """Return q(x) without noise: the decoded means of the codes."""
    return torch.cat([model.classify(q, model.features(q, rows).chunk(2, 1)[0]) for rows in x.split(CHUNK)])


class _LinearNet(nn.Module):
    """Encoder and decoder with one hidden layer each."""

    def __init__(self, shape: tuple[int, ...]):
        super().__init__()
        size = math.prod(shape)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(size, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2 * LATENT))
        self.head = nn.Sequential(
            nn.Linear(LATENT, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, size), nn.Unflatten(1, tuple(shape))
        )


class _ConvNet(nn.Module):
    """Convolutional encoder and decoder; a code has a quarter of the image's side.

    Images are padded to a multiple of 4 first and cropped at the end.
    """

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
            _Crop(height, width),
        )


class _Crop(nn.Module):
    def __init__(self, height: int, width: int):
        super().__init__()
        self.height, self.width = height, width

    def forward(self, x: Tensor) -> Tensor:
        return x[..., : self.height, : self.width]
