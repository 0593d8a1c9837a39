"""Columns of Arrow tables that are made without pandas."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from atoll.utils.columns import make_numbers, make_texts


@pytest.mark.parametrize(
    "values", [np.array([1.5, float("nan"), -0.0]), np.arange(5), np.arange(6)[::2], [1, 2, 3], [0.5, 2.0], np.empty(0)]
)
def test_numbers_equal_those_of_arrow(values: object) -> None:
    made, expected = make_numbers(values), pa.array(np.asarray(values))

    assert made.type == expected.type
    np.testing.assert_array_equal(made.to_numpy(), expected.to_numpy())
    assert made.null_count == 0


@pytest.mark.parametrize("values", [["a", "", "\u00e9\U0001f3dd", "north"], [], [""]])
def test_texts_equal_those_of_arrow(values: list[str]) -> None:
    assert make_texts(values).equals(pa.array(values, pa.string()))
    make_texts(values).validate(full=True)


def test_a_run_loads_neither_pandas_nor_other_methods() -> None:
    code = """
import sys, atoll
atoll.run("fedavg", rounds=1, clients=2)
print([name for name in ("pandas", "matplotlib", "scipy.stats", "atoll.methods.scd") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert done.stdout.strip() == "[]"
