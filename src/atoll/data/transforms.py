"""Turn raw rows into tensors once after loading, and augment batches of images during training.

========== ============================================================================================================
plain      images are normalised by the mean and standard deviation of the data set
none       images are scaled to [0, 1] only
liping_aug the published pFedES and FedGH code: normalise, flip, erase (p = 1/2, 4 to 20 % of the area, side ratio 1/2
           to 2), crop after padding by 4; its means for CIFAR-10 are ImageNet's, those for MNIST one of CIFAR-100's
feddw      the published FedDW code: MNIST images are transposed; CIFAR images are cropped after padding by 4 and
           flipped, those of CIFAR-100 also turned by up to 15 degrees
========== ============================================================================================================

Data sets without known statistics use mean 1/2 and deviation 1/2. Greyscale images are never flipped.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ..core.prng import Key, bits, fold, uniform
from ..errors import AtollError, unknown
from .dataset import Array
from .loading import base_name

ERASE_AREA = (0.04, 0.2)  # share of the image
ERASE_RATIO = (0.5, 2.0)  # height to width

_Statistics = tuple[tuple[float, ...], tuple[float, ...]]  # mean, standard deviation per channel
_CIFAR10: _Statistics = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
_CIFAR100: _Statistics = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
_IMAGENET: _Statistics = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_MNIST: _Statistics = ((0.1307,), (0.3081,))
_KNOWN: dict[str, _Statistics] = {
    "digits": ((0.3053,), (0.3760,)),
    "mnist": _MNIST,
    "fashion_mnist": ((0.2860,), (0.3530,)),
    "emnist": ((0.1736,), (0.3317,)),
    "cifar10": _CIFAR10,
    "cifar100": _CIFAR100,
    "inaturalist2017": _IMAGENET,
}
_LIPING = _KNOWN | {"cifar10": _IMAGENET, "mnist": ((0.5071,), (0.2673,))}
_FEDDW = _KNOWN | {"fashion_mnist": _MNIST, "emnist": _MNIST}


@dataclass(frozen=True)
class Transform:
    """Normalisation of rows (:meth:`prepare`) and random changes of training batches (:meth:`augment`)."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    border: int = 0  # black pixels added on each side when rows are prepared
    transpose: bool = False
    flip: bool = False  # left to right, every second image on average
    erase: bool = False  # a rectangle set to 0, in every second image on average
    crop: int = 0  # largest shift in pixels, in each direction
    turn: float = 0.0  # largest rotation in degrees, in each direction
    black: bool = False  # fill pixels from outside the image with black, otherwise with 0, the mean colour

    @property
    def augments(self) -> bool:
        """Return True if training batches are changed at random."""
        return bool(self.flip or self.erase or self.crop or self.turn)

    @property
    def augmentation(self) -> Callable[[Tensor, Key], Tensor] | None:
        """The function that changes training batches at random, or None if the transform has none."""
        return self.augment if self.augments else None

    def prepare(self, x: Array) -> Tensor:
        """Convert raw rows to a tensor.

        Images of type uint8 are normalised and token ids become int64; floats are taken as already scaled.
        """
        if np.issubdtype(x.dtype, np.floating):
            return torch.from_numpy(x.astype(np.float32))
        if x.ndim == 2:
            return torch.from_numpy(x.astype(np.int64))
        # Convolutions are fastest with channels last in memory, and one conversion costs less than one for each batch.
        images = torch.from_numpy(x.transpose(0, 2, 3, 1).astype(np.float32, order="C")).permute(0, 3, 1, 2).div_(255)
        if self.transpose:
            images = images.mT.contiguous()
        if self.border:
            images = pad(images, [self.border] * 4)
        return images.sub_(_channels(self.mean, images)).div_(_channels(self.std, images))

    def augment(self, x: Tensor, k: Key) -> Tensor:
        """Change prepared images [B, C, H, W] at random.

        What happens to image i depends on ``k`` and i alone, not on B; works under vmap with a batch of keys.
        """
        if self.flip:
            x = torch.where(_each(uniform(fold(k, 0), len(x)) < 0.5), x.flip(-1), x)
        if self.erase:
            x = torch.where(_rectangle(x, fold(k, 1)), 0.0, x)
        if self.crop:
            x = self._shifted(x, fold(k, 2))
        if self.turn:
            x = self._turned(x, fold(k, 3))
        return x

    def _shifted(self, x: Tensor, k: Key) -> Tensor:
        span = 2 * self.crop + 1
        down, right = (bits(fold(k, i), len(x), 1, 1) % span - self.crop for i in (0, 1))
        row, column = _grid(x)
        return self._take(x, row + down, column + right)

    def _turned(self, x: Tensor, k: Key) -> Tensor:
        """Rotate images about their centre; each pixel takes the value of the nearest one."""
        angle = (2 * uniform(k, len(x), 1, 1) - 1) * math.radians(self.turn)
        row, column = _grid(x)
        middle_row, middle_column = (x.shape[-2] - 1) / 2, (x.shape[-1] - 1) / 2
        up, across = row - middle_row, column - middle_column
        source_row = across * angle.sin() + up * angle.cos() + middle_row
        source_column = across * angle.cos() - up * angle.sin() + middle_column
        return self._take(x, source_row.round().long(), source_column.round().long())

    def _take(self, x: Tensor, row: Tensor, column: Tensor) -> Tensor:
        """Return the pixels at given rows and columns, [B, H, W] each; outside the image, the fill colour."""
        height, width = x.shape[-2:]
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        place = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
        taken = x.flatten(2).gather(2, place.flatten(1)[:, None].expand(-1, x.shape[1], -1)).reshape(x.shape)
        return torch.where(inside[:, None], taken, self._outside(x))

    def _outside(self, x: Tensor) -> Tensor:
        if not self.black:
            return x.new_zeros(())
        return -_channels(self.mean, x) / _channels(self.std, x)


def preset(name: str, dataset_name: str, shape: Sequence[int]) -> Transform:
    """Return the transform called ``name``, with the statistics of a data set and for rows of ``shape``."""
    presets = {"plain": _plain, "none": _none, "liping_aug": _liping_aug, "feddw": _feddw}
    if name not in presets:
        raise unknown("transform", name, presets)
    if len(shape) != 3:
        return Transform()  # tables and texts are used as they are
    transform = presets[name](base_name(dataset_name), tuple(shape))
    if len(transform.mean) not in (1, shape[0]):
        raise AtollError(
            f"Data set {dataset_name!r} has {len(transform.mean)} channels in its official form, but its images have "
            f"{shape[0]}. Use the transform 'none', or load it under another name."
        )
    return transform


def _plain(dataset: str, shape: tuple[int, ...]) -> Transform:
    return Transform(*_statistics(_KNOWN, dataset))


def _none(dataset: str, shape: tuple[int, ...]) -> Transform:
    return Transform()


def _liping_aug(dataset: str, shape: tuple[int, ...]) -> Transform:
    """Add a black border of 2 to images of 28 by 28 pixels: the networks of these papers expect 32 by 32."""
    border = 2 if shape[1:] == (28, 28) else 0
    colour = shape[0] > 1
    return Transform(*_statistics(_LIPING, dataset), border=border, flip=colour, erase=True, crop=_reach(shape, border))


def _feddw(dataset: str, shape: tuple[int, ...]) -> Transform:
    mean, std = _statistics(_FEDDW, dataset)
    if shape[0] == 1:
        return Transform(mean, std, transpose=dataset in ("mnist", "fashion_mnist"))
    return Transform(mean, std, flip=True, crop=_reach(shape), turn=15.0 if dataset == "cifar100" else 0.0, black=True)


def _statistics(known: dict[str, _Statistics], dataset: str) -> _Statistics:
    return known.get(dataset, ((0.5,), (0.5,)))


def _reach(shape: tuple[int, ...], border: int = 0) -> int:
    """Return the largest shift: 4 pixels for a side of 32, in proportion for other sides."""
    return max(1, (min(shape[1:]) + 2 * border) // 8)


def _channels(values: tuple[float, ...], like: Tensor) -> Tensor:
    return torch.tensor(values, device=like.device)[:, None, None]


def _each(mask: Tensor) -> Tensor:
    return mask[:, None, None, None]


def _grid(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return row and column of every pixel, [H, W] each."""
    height, width = x.shape[-2:]
    row, column = torch.arange(height, device=x.device), torch.arange(width, device=x.device)
    return row[:, None].expand(height, width), column[None].expand(height, width)


def _rectangle(x: Tensor, k: Key) -> Tensor:
    """Draw the mask [B, 1, H, W] of the rectangle to erase; in every second image on average it is empty."""
    height, width = x.shape[-2:]
    count = len(x)
    low, high = ERASE_AREA
    area = height * width * (low + (high - low) * uniform(fold(k, 0), count))
    narrow, wide = (math.log(ratio) for ratio in ERASE_RATIO)
    ratio = (narrow + (wide - narrow) * uniform(fold(k, 1), count)).exp()
    tall = (area * ratio).sqrt().round().long().clamp(1, height)
    broad = (area / ratio).sqrt().round().long().clamp(1, width)
    top = bits(fold(k, 2), count) % (height - tall + 1)
    left = bits(fold(k, 3), count) % (width - broad + 1)
    row, column = _grid(x)
    rows = (row >= top[:, None, None]) & (row < (top + tall)[:, None, None])
    columns = (column >= left[:, None, None]) & (column < (left + broad)[:, None, None])
    chosen = uniform(fold(k, 4), count) < 0.5
    return (rows & columns & chosen[:, None, None])[:, None]
