"""PFLlib's client files, which hold pickles, read without running what a pickle may ask for."""

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import AtollError
from .formats import reading
from .parts import Part


def _latin1(data: str, encoding: str) -> bytes:
    """How old pickles spell bytes."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes in the encoding {encoding}")
    return data.encode("latin1")


# Array reconstruction under the module names of NumPy 1 and 2; asked from arrays, as the functions are private.
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin1,
}
for _core in ("numpy.core", "numpy._core"):
    _ALLOWED[f"{_core}.multiarray", "_reconstruct"] = np.zeros(1).__reduce__()[0]
    _ALLOWED[f"{_core}.multiarray", "scalar"] = np.float64(0).__reduce__()[0]
    _ALLOWED[f"{_core}.numeric", "_frombuffer"] = np.zeros(1).__reduce_ex__(5)[0]


class _ArraysOnly(pickle.Unpickler):
    """Builds NumPy arrays and plain containers; any other name a pickle asks for is refused before it is imported."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _ALLOWED[module, name]


def client_part(path: Path) -> Part:
    """One client's rows: an npz file whose array ``data`` is a pickled dictionary of x and y."""
    with reading(path), zipfile.ZipFile(path) as archive:
        if "data.npy" not in archive.namelist():
            raise AtollError(f"{path} has no array 'data'. PFLlib's files have one; else leave out 'pfllib:'.")
        content = archive.read("data.npy")
    data = _unpickled(path, content)
    if not isinstance(data, dict) or not {"x", "y"} <= data.keys():
        raise AtollError(f"{path}: 'data' should be a dictionary with x and y.")
    return Part(_array(path, data["x"]), _array(path, data["y"]))


def _unpickled(path: Path, content: bytes) -> Any:
    file = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(file)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = header(file)
        if shape != () or not dtype.hasobject:
            raise AtollError(f"{path}: 'data' is an array of {dtype} and shape {shape}, not one pickled dictionary.")
        return _ArraysOnly(file).load().item()
    except AtollError:
        raise
    except Exception as error:  # a hostile pickle can make the unpickler raise anything
        raise AtollError(
            f"{path} is refused: {error}. Only NumPy arrays and plain containers are read from pickles; "
            "save x and y as plain arrays with numpy.savez."
        ) from error


def _array(path: Path, value: Any) -> np.ndarray[Any, Any]:
    with reading(path):
        array = np.asarray(value)
    if array.dtype.hasobject:
        raise AtollError(f"{path}: rows of unequal shape or of Python objects. Save arrays of numbers.")
    return array
