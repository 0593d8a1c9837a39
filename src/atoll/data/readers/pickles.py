"""Read the pickled client files of PFLlib and FL-bench without running code that a pickle may contain."""

import io
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import AtollError
from ..arrays import RawSplit
from ..dataset import Array
from .binary import reading


def _latin1(data: str, encoding: str) -> bytes:
    """Decode bytes as old pickles spell them."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes in the encoding {encoding}")
    return data.encode("latin1")


class _Type:
    """A NumPy type in a pickle: a name, then a byte order. NumPy itself would accept more from a pickle."""

    def __init__(self, name: str, *_: object):
        self.name, self.order = name, "|"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1]

    @property
    def objects(self) -> bool:
        return self.name in ("O", "O8")

    def numbers(self) -> np.dtype[np.generic]:
        if not re.fullmatch("[biuf][1248]", str(self.name)) or self.order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError(f"it holds values of type {self.name!r}, not numbers")
        return np.dtype(self.order + self.name)


class _Array:
    """A NumPy array in a pickle whose content is not read yet."""

    def __init__(self, *_: object):
        self.value: Any = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, fortran, content = state
        if kind.objects:
            self.value = np.empty(len(content), dtype=object)
            self.value[:] = [_plain(item) for item in content]
            self.value = self.value.reshape(shape)
        else:
            self.value = _from_buffer(content, kind, shape, "F" if fortran else "C").value


def _from_buffer(content: Any, kind: _Type, shape: Any, order: str) -> _Array:
    made = _Array()
    data = content.encode("latin1") if isinstance(content, str) else bytes(content)
    made.value = np.frombuffer(data, kind.numbers()).reshape(shape, order="F" if order == "F" else "C")
    return made


def _scalar(kind: _Type, content: Any) -> Any:
    return _from_buffer(content, kind, (), "C").value[()]


def _plain(value: Any) -> Any:
    """Replace placeholders by the arrays that they stand for."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain(item) for item in value)
    return value.value if isinstance(value, _Array) else value


# All names that a pickle may load, under the modules of NumPy 1 and 2. Each is replaced by a class or function of this
# module, because NumPy's own trust their arguments: a type with false fields can make NumPy read foreign memory.
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _latin1,
}
for _core in ("numpy.core", "numpy._core"):
    _ALLOWED[f"{_core}.multiarray", "_reconstruct"] = _Array
    _ALLOWED[f"{_core}.multiarray", "scalar"] = _scalar
    _ALLOWED[f"{_core}.numeric", "_frombuffer"] = _from_buffer


class _ArraysOnly(pickle.Unpickler):
    """An unpickler of arrays of numbers and plain containers; it refuses any other name before importing it."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _ALLOWED[module, name]


PARTS = ("train", "val", "test")


def client_part(path: Path) -> RawSplit:
    """Read one client's rows: an npz file whose array ``data`` is a pickled dictionary of x and y."""
    with reading(path), zipfile.ZipFile(path) as archive:
        if "data.npy" not in archive.namelist():
            raise AtollError(f"{path} has no array 'data'. PFLlib's files have one; else leave out 'pfllib:'.")
        content = archive.read("data.npy")
    data = read_pickled_dict(path, content)
    if not isinstance(data, dict) or not {"x", "y"} <= data.keys():
        raise AtollError(f"{path}: 'data' should be a dictionary with x and y.")
    return RawSplit(_array(path, data["x"]), _array(path, data["y"]))


def read_partition_pickle(path: Path) -> list[dict[str, list[int]]]:
    """Read FL-bench's partition.pkl: the training, validation and test rows of every client, as row numbers."""
    try:
        stored = _plain(_ArraysOnly(io.BytesIO(path.read_bytes())).load())
        clients = [{part: np.asarray(own[part]).tolist() for part in PARTS} for own in stored["data_indices"]]
    except OSError:
        raise
    except Exception as error:  # a hostile pickle can make the unpickler raise anything
        raise AtollError(
            f"{path} is no partition.pkl of FL-bench ({type(error).__name__}: {error}): it should hold 'data_indices', "
            "for each client with train, val and test. Nothing but arrays and plain containers is read from pickles."
        ) from error
    return clients


def read_pickled_dict(path: Path, content: bytes) -> Any:
    """Return the dictionary in an npy file that holds one pickled object.

    Args:
        path: the file, for messages.
        content: its bytes.

    Raises:
        AtollError: the pickle holds more than arrays and plain containers.
    """
    file = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(file)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = header(file)
        if shape != () or not dtype.hasobject:
            raise AtollError(f"{path}: 'data' is an array of {dtype} and shape {shape}, not one pickled dictionary.")
        return _plain(_ArraysOnly(file).load()).item()
    except AtollError:
        raise
    except Exception as error:  # a hostile pickle can make the unpickler raise anything
        raise AtollError(
            f"{path} is refused: {error}. Only NumPy arrays and plain containers are read from pickles; "
            "save x and y as plain arrays with numpy.savez."
        ) from error


def _array(path: Path, value: object) -> Array:
    with reading(path):
        array = np.asarray(value)
    if array.dtype.hasobject:
        raise AtollError(f"{path}: samples of unequal shape or of Python objects. Save arrays of numbers.")
    return array
