"""Read files of arrays: idx, CIFAR binary, npz, folders with one file per client, and the IMDB archive."""

import gzip
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path

import numpy as np
from PIL import Image

from ...errors import AtollError
from ..arrays import RawDataset, RawSplit
from ..dataset import Array
from . import text

CIFAR_PIXELS = 3 * 32 * 32
# What broken files may raise. zipfile raises RuntimeError for encrypted entries and NotImplementedError (a kind of
# RuntimeError) for unknown compression; Pillow has its own error for images of absurd size.
_BROKEN = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    RuntimeError,
    MemoryError,
    OverflowError,
    zlib.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    Image.DecompressionBombError,
)
MOST_TIMES = 1100  # largest ratio of an array to its compressed bytes; deflate reaches 1032


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Turn errors of a broken file inside the context into one AtollError that names the file.

    A path that is a pipe or another special file is refused, because opening it could wait for ever.
    """
    if isinstance(path, Path) and path.exists() and not (path.is_file() or path.is_dir()):
        raise AtollError(f"{path} is not a regular file but a pipe, a socket or a device. Give a file.")
    try:
        yield
    except _BROKEN as error:
        raise AtollError(
            f"Cannot read {path}: {str(error).rstrip('.')}. The file is damaged or of another format: replace it."
        ) from error


def idx(path: Path, data: bytes) -> Array:
    """Parse the idx format of MNIST: two zeros, the type (8), the rank, big-endian sizes, values."""
    start = 4 + 4 * data[3] if len(data) > 3 else 4
    if data[:3] != b"\0\0\x08" or len(data) < start:
        raise AtollError(f"{path} is not an idx file of bytes: replace it.")
    shape = tuple(int(size) for size in np.frombuffer(data[4:start], ">i4"))
    if len(data) - start != np.prod(shape):
        raise AtollError(f"{path} should hold {np.prod(shape)} values but holds {len(data) - start}: replace it.")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape).copy()


def idx_parts(paths: Sequence[Path]) -> RawDataset:
    """Read four gzipped idx files: training images and labels, test images and labels."""
    arrays = []
    for path in paths:
        with reading(path), gzip.open(path) as file:
            arrays.append(idx(path, file.read()))
    return RawDataset(RawSplit(*arrays[:2]), RawSplit(*arrays[2:]))


def emnist_parts(path: Path, variant: str, first_label: int) -> RawDataset:
    """Read one variant of EMNIST from its zip of gzipped idx files; its images are stored transposed."""
    with reading(path), zipfile.ZipFile(path) as archive:

        def member(part: str, content: str) -> Array:
            name = f"gzip/emnist-{variant}-{part}-{content}-ubyte.gz"
            return idx(path / name, gzip.decompress(archive.read(name)))

        def read(part: str) -> RawSplit:
            images = member(part, "images-idx3").transpose(0, 2, 1)
            return RawSplit(np.ascontiguousarray(images), member(part, "labels-idx1").astype(np.int64) - first_label)

        return RawDataset(read("train"), read("test"))


def cifar_parts(path: Path, train: Sequence[str], test: str, label_bytes: int) -> RawDataset:
    """Read CIFAR's binary archive: records of ``label_bytes`` labels, the last one the class, and 3,072 pixels."""
    found: dict[str, bytes] = {}
    with reading(path), tarfile.open(path, "r|gz") as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file and member.name in (*train, test):
                found[member.name] = file.read()

    def records(name: str) -> Array:
        data, length = found.get(name, b""), label_bytes + CIFAR_PIXELS
        if not data or len(data) % length:
            raise AtollError(f"{path}: {name} is missing or cut short. Use the binary version of the archive.")
        return np.frombuffer(data, np.uint8).reshape(-1, length)

    def part(names: Sequence[str]) -> RawSplit:
        table = np.concatenate([records(name) for name in names])
        return RawSplit(table[:, label_bytes:].reshape(-1, 3, 32, 32).copy(), table[:, label_bytes - 1])

    return RawDataset(part(train), part([test]), channels_first=True)


def imdb_parts(path: Path) -> RawDataset:
    """Read the archive of IMDB reviews, one text file each, in the order of their names."""
    texts: dict[str, dict[str, tuple[str, int]]] = {"train": {}, "test": {}}
    with reading(path), tarfile.open(path, "r|gz") as archive:
        for member in archive:
            match member.name.removeprefix("./").split("/"):
                case ["aclImdb", ("train" | "test") as part, ("neg" | "pos") as mood, name] if name.endswith(".txt"):
                    file = archive.extractfile(member)
                    if file:
                        texts[part][f"{mood}/{name}"] = file.read().decode(), int(mood == "pos")
    train, test = ([texts[part][name] for name in sorted(texts[part])] for part in ("train", "test"))
    if not train or not test:
        raise AtollError(f"{path} holds no reviews under aclImdb/train and aclImdb/test: replace it.")
    (x_train, x_test), column = text.encode([review for review, _ in train], [review for review, _ in test])
    return RawDataset(
        RawSplit(x_train, np.array([y for _, y in train])),
        RawSplit(x_test, np.array([y for _, y in test])),
        columns=(column,),
    )


def npz_parts(path: Path) -> RawDataset:
    """Read an npz file with plain arrays.

    The arrays are called x_train, y_train, x_test, y_test, or x and y. Optional are owner (or owner_train and
    owner_test) and classes, the names of the labels, which are then indices.
    """
    arrays = npz(path)
    classes = tuple(str(name) for name in arrays["classes"]) if "classes" in arrays else None
    if {"x_train", "y_train", "x_test", "y_test"} <= arrays.keys():
        train, test = (
            RawSplit(arrays[f"x_{part}"], arrays[f"y_{part}"], arrays.get(f"owner_{part}"))
            for part in ("train", "test")
        )
        return RawDataset(train, test, classes)
    return RawDataset(_xy(path, arrays), None, classes)


def npz(path: Path) -> dict[str, Array]:
    """Read all arrays of an npz file; refuse pickled objects."""
    with reading(path):
        try:
            with np.load(path, allow_pickle=False) as file:
                _check_sizes(path)
                return {name: file[name] for name in file.files}
        except (ValueError, AttributeError, TypeError) as error:
            raise AtollError(
                f"{path} is not a plain npz file ({error}). Save arrays of numbers or text with numpy.savez."
            ) from error


def _check_sizes(path: Path) -> None:
    """Refuse arrays that claim other sizes than the file can hold, before memory is taken for them."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            with archive.open(member) as file:
                version = np.lib.format.read_magic(file)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, _, dtype = read(file)
                start = file.tell()
            claimed = prod(shape) * dtype.itemsize
            if claimed > member.file_size or member.file_size > MOST_TIMES * path.stat().st_size:
                raise ValueError(f"{member.filename} claims {claimed:,} bytes, more than the file can hold")
            if start + claimed != member.file_size and not dtype.hasobject:
                raise ValueError(f"{member.filename} claims {claimed:,} bytes and holds {member.file_size - start:,}")


def client_part(path: Path) -> RawSplit:
    """Read one client's file with plain arrays x and y."""
    return _xy(path, npz(path))


def client_parts(folder: Path, read: Callable[[Path], RawSplit] = client_part) -> RawDataset:
    """Read a folder with one npz file per client, or its folders ``train`` and ``test``; file names are the owners."""
    if not (folder / "train").is_dir():
        return RawDataset(_joined(folder, read))
    test = folder / "test"
    return RawDataset(_joined(folder / "train", read), _joined(test, read) if test.is_dir() else None)


def _joined(folder: Path, read: Callable[[Path], RawSplit]) -> RawSplit:
    paths = sorted(folder.glob("*.npz"), key=_natural)
    if not paths:
        raise AtollError(f"{folder} holds no .npz files: put one file per client there, such as 0.npz.")
    clients = [(path, read(path)) for path in paths]
    clients = [(path, part) for path, part in clients if len(part.y)] or clients[:1]
    shape = clients[0][1].x.shape[1:]
    for path, part in clients:
        if part.x.shape[1:] != shape or len(part.x) != len(part.y):
            raise AtollError(
                f"{path}: x has shape {part.x.shape} for {len(part.y)} labels, but samples of {clients[0][0].name} "
                f"have shape {shape}. Give all clients samples of one shape and one label each."
            )
    owner = np.repeat([path.stem for path, _ in clients], [len(part.y) for _, part in clients])
    return RawSplit(
        np.concatenate([part.x for _, part in clients]), np.concatenate([part.y for _, part in clients]), owner
    )


def _natural(path: Path) -> tuple[int, str]:
    """Sort numbered files by number, then the others by name."""
    return (int(path.stem), "") if path.stem.isdecimal() else (2**63, path.stem)


def _xy(path: Path, arrays: dict[str, Array]) -> RawSplit:
    if not {"x", "y"} <= arrays.keys():
        raise AtollError(
            f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}, but needs x_train, y_train, x_test and y_test, "
            "or x and y."
        )
    return RawSplit(arrays["x"], arrays["y"], arrays.get("owner"))
