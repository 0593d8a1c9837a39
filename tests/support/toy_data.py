"""A data set of sixty rows."""

import numpy as np

from atoll import Dataset
from atoll.core.prng import key, normal


def toy_data(shift: float = 0.0) -> Dataset:
    x = normal(key("toy"), 60, 4).numpy() + np.float32(shift)
    y = np.arange(60) % 3
    return Dataset("toy", "table", x, y, x[:0], y[:0], ("a", "b", "c"))
