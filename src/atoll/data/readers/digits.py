"""Read scikit-learn's handwritten digits."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ..arrays import RawDataset, RawSplit
from ..dataset import Array


def digits_parts() -> RawDataset:
    """Load scikit-learn's digits, scaled from 0..16 to 0..255. Every fifth row of each class is a test row."""
    # Importing sklearn takes longer than a first round, so the file is found and read without the import.
    package = find_spec("sklearn")
    assert package is not None
    assert package.submodule_search_locations is not None
    table = np.loadtxt(Path(package.submodule_search_locations[0]) / "datasets/data/digits.csv.gz", delimiter=",")
    x, y = np.round(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8), table[:, -1].astype(int)
    test = every_fifth(y)
    return RawDataset(RawSplit(x[~test], y[~test]), RawSplit(x[test], y[test]))


def every_fifth(y: Array) -> Array:
    """Return a mask of the fifth, tenth, ... row of each class."""
    mask = np.zeros(len(y), dtype=bool)
    for label in np.unique(y):
        mask[np.flatnonzero(y == label)[4::5]] = True
    return mask
