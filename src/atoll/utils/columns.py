"""Make columns of Arrow tables without ``pa.array``, which loads pandas where it is installed: half a second."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa


def make_numbers(values: "np.ndarray[Any, Any] | Sequence[float]") -> pa.Array:
    """Make a column of numbers; NaN stays NaN."""
    numbers = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [None, pa.py_buffer(numbers)])


def make_texts(values: Sequence[str]) -> pa.Array:
    """Make a column of texts."""
    coded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, coded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(coded), pa.py_buffer(ends), pa.py_buffer(b"".join(coded)))
