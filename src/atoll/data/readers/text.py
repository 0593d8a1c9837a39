"""Convert texts to token ids.

A word is a run of letters and digits in lower case, which may hold apostrophes inside.
"""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice

import numpy as np

from ..dataset import Array

VOCABULARY = 10_000  # ids in all, so that an embedding of 10,000 rows fits
LENGTH = 200
PADDING, UNKNOWN = 0, 1

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")


def encode(train: Sequence[str], test: Sequence[str]) -> tuple[Array, Array]:
    """Return token ids [N, LENGTH] of both parts.

    The vocabulary is the most frequent training words. Shorter texts are padded at the end, longer ones are cut.
    """
    index = vocabulary(train)
    return _ids(train, index), _ids(test, index)


def vocabulary(texts: Sequence[str]) -> dict[str, int]:
    """Number the most frequent words; equally frequent ones in alphabetical order."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(_WORD.findall(text.lower()))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: i for i, word in enumerate(ranked[: VOCABULARY - 2], start=2)}


def _ids(texts: Sequence[str], index: dict[str, int]) -> Array:
    x = np.full((len(texts), LENGTH), PADDING, dtype=np.int64)
    for row, text in zip(x, texts, strict=True):
        ids = [index.get(word.group(), UNKNOWN) for word in islice(_WORD.finditer(text.lower()), LENGTH)]
        row[: len(ids)] = ids
    return x
