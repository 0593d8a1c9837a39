"""Convert texts to token ids.

A word is a run of letters and digits in lower case, which may hold apostrophes inside. Ids are positions in the list of
all words of a data set; which words get an id of their own in a run follows from its training rows
(`atoll.data.tables.preparation`).
"""

import re
from collections.abc import Sequence
from itertools import islice

import numpy as np

from ..dataset import Array
from ..tables.columns import FIRST_WORD, PADDING, TEXT, Column

LENGTH = 200

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")


def encode(*parts: Sequence[str]) -> tuple[list[Array], Column]:
    """Return token ids [N, LENGTH] of each part, and the column with all words, in alphabetical order.

    Shorter texts are padded at the end, longer ones are cut.
    """
    cut = [[_words(text) for text in part] for part in parts]
    words = sorted({word for part in cut for text in part for word in text})
    index = {word: i for i, word in enumerate(words, start=FIRST_WORD)}
    return [_ids(part, index) for part in cut], Column("text", TEXT, tuple(words))


def _words(text: str) -> list[str]:
    return [word.group() for word in islice(_WORD.finditer(text.lower()), LENGTH)]


def _ids(texts: Sequence[Sequence[str]], index: dict[str, int]) -> Array:
    x = np.full((len(texts), LENGTH), PADDING, dtype=np.int64)
    for row, text in zip(x, texts, strict=True):
        row[: len(text)] = [index[word] for word in text]
    return x
