"""Read plain text files as windows of tokens, whose labels are the tokens that follow."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...core.problems import NextToken
from ...errors import AtollError
from ..arrays import RawDataset, RawSplit
from ..dataset import Array
from .binary import reading

TOKENS = ("chars", "bytes")
WINDOW = 64  # tokens of a window


def window_parts(paths: Sequence[Path], tokens: str, length: int) -> RawDataset:
    """Cut texts into windows without overlap. The names of several files are the owners of their windows.

    Args:
        paths: UTF-8 files.
        tokens: ``chars``, numbered in the order of their code points, or ``bytes``.
        length: tokens of a window.

    Returns:
        Rows of ``length`` token ids, and as labels the same windows one token later.
    """
    with reading(paths[0] if len(paths) == 1 else paths[0].parent):
        texts = [path.read_text(encoding="utf-8") for path in paths]
    if tokens == "bytes":
        names = tuple(str(i) for i in range(256))
        ids = [np.frombuffer(text.encode(), np.uint8).astype(np.int64) for text in texts]
    else:
        names = tuple(sorted(set("".join(texts))))
        number = {name: i for i, name in enumerate(names)}
        ids = [np.array([number[c] for c in text], dtype=np.int64) for text in texts]
    windows = [_windows(path, part, length) for path, part in zip(paths, ids, strict=True)]
    x, y = (np.concatenate([pair[i] for pair in windows]) for i in (0, 1))
    owner = np.repeat([path.stem for path in paths], [len(pair[0]) for pair in windows]) if len(paths) > 1 else None
    return RawDataset(RawSplit(x, y, owner), classes=names, task=NextToken.task)


def _windows(path: Path, ids: Array, length: int) -> tuple[Array, Array]:
    """Return windows [N, length], and the windows that begin one token later."""
    count = (len(ids) - 1) // length
    if count < 1:
        raise AtollError(f"{path} has {len(ids)} tokens, too few for a window of {length} and the token after it.")
    end = count * length
    return ids[:end].reshape(count, length), ids[1 : end + 1].reshape(count, length)
