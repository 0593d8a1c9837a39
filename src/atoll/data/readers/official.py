"""Read the official files of the data sets in the catalogue.

All functions take the paths of the files, the size of images in pixels, and the labels that are wanted (None for all).
Most of them need only the paths.
"""

from collections.abc import Sequence
from pathlib import Path

from ..arrays import RawDataset
from .binary import cifar_parts, emnist_parts, idx_parts, imdb_parts
from .digits import digits_parts
from .images import inaturalist_parts


def read_digits(*_: object) -> RawDataset:
    return digits_parts()


def read_idx(paths: Sequence[Path], *_: object) -> RawDataset:
    return idx_parts(paths)


def read_emnist(variant: str, paths: Sequence[Path], *_: object) -> RawDataset:
    return emnist_parts(paths[0], variant, first_label=1 if variant == "letters" else 0)


def read_cifar10(paths: Sequence[Path], *_: object) -> RawDataset:
    train = [f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)]
    return cifar_parts(paths[0], train, "cifar-10-batches-bin/test_batch.bin", label_bytes=1)


def read_cifar100(paths: Sequence[Path], *_: object) -> RawDataset:
    return cifar_parts(paths[0], ["cifar-100-binary/train.bin"], "cifar-100-binary/test.bin", label_bytes=2)


def read_imdb(paths: Sequence[Path], *_: object) -> RawDataset:
    return imdb_parts(paths[0])


def read_inaturalist(paths: Sequence[Path], size: int, wanted: Sequence[int] | None) -> RawDataset:
    return inaturalist_parts(paths[0], paths[1], size, wanted)
