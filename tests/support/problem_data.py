"""Small data sets of every problem."""

from functools import cache

import numpy as np

from atoll.core.problems import Classes, Labels, NextToken, Numbers
from atoll.data.dataset import Dataset

CYCLE = (0, 1, 2, 3, 4, 3, 2, 1)  # a text whose next token is easy to learn, if the last two are known


@cache
def images(task: str, rows: int = 120) -> Dataset:
    """Images of 4 by 4 pixels whose labels are noisy linear functions of the pixels."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(rows, 1, 4, 4)).astype(np.float32)
    raw = (x.reshape(rows, -1) @ rng.normal(size=(16, 3)) / 4 + 0.1 * rng.normal(size=(rows, 3))).astype(np.float32)
    y, problem = {
        Classes.task: (raw.argmax(1), Classes(3)),
        Labels.task: ((raw > 0.3).astype(np.float32), Labels(3)),
        Numbers.task: (raw, Numbers(3)),
    }[task]
    return Dataset(task, "image", x, y, x[:0], y[:0], ("a", "b", "c"), problem=problem)


@cache
def text(rows: int = 60, length: int = 8) -> Dataset:
    """Windows of a text that repeats itself."""
    ids = np.array(CYCLE * (rows * length // len(CYCLE) + 1), dtype=np.int64)[: rows * length + 1]
    x, y = ids[:-1].reshape(rows, length), ids[1:].reshape(rows, length)
    return Dataset("text", "text", x, y, x[:0], y[:0], tuple("abcde"), problem=NextToken(5, length))
