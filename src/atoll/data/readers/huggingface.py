"""Read data sets of the Hugging Face hub with the optional package ``datasets``."""

from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import chain
from typing import Any

import numpy as np
from PIL import Image

from ...errors import AtollError, unknown
from ..arrays import RawDataset, RawSplit
from ..dataset import Array
from ..tables.columns import Column
from . import text
from .images import Source, layout, stack

LABELS = ("label", "labels", "fine_label", "y")


def hub_parts(
    name: str,
    config: str | None = None,
    label: str | None = None,
    owner: str | None = None,
    size: int | None = None,
) -> RawDataset:
    """Read the splits ``train`` and ``test`` (else ``validation``) of a data set with an image or a text column."""
    return split_parts(f"hf:{name}", _splits(name, config), label, owner, size)


def has_media(split: Any) -> bool:
    """Return True if a split of the package ``datasets`` has a column of images, or one of texts besides its label."""
    kinds = [type(kind).__name__ for kind in split.features.values()]
    return "Image" in kinds or "text" in split.features


def split_parts(
    name: str, splits: Sequence[Any], label: str | None = None, owner: str | None = None, size: int | None = None
) -> RawDataset:
    """Read a training split, and perhaps a test split, of the package ``datasets``.

    The label is the column asked for, otherwise the first of `LABELS`, otherwise the first column of named classes.
    """
    features = splits[0].features
    label = _chosen(name, features, label) or _label(name, features)
    owner = _chosen(name, features, owner)
    pictures = next((column for column in features if type(features[column]).__name__ == "Image"), None)
    words = _words(features, label)
    columns: tuple[Column, ...] = ()
    if pictures is not None:
        x = _pictures(name, splits, pictures, size)
    elif words is not None:
        x, column = text.encode(*(list(split[words]) for split in splits))
        columns = (column,)
    else:
        raise AtollError(f"{name!r} has neither an image nor a text column; it has {', '.join(features)}.")
    owners = [np.array(list(split[owner])) if owner else None for split in splits]
    labels = [np.array(list(split[label])) for split in splits]
    names = getattr(features[label], "names", None)
    parts = [RawSplit(*part) for part in zip(x, labels, owners, strict=True)]
    test = parts[1] if len(parts) > 1 else None
    return RawDataset(parts[0], test, classes=tuple(names) if names else None, channels_first=True, columns=columns)


def _splits(name: str, config: str | None) -> list[Any]:
    try:
        datasets = import_module("datasets")
    except ImportError as error:
        raise AtollError(f"'hf:{name}' needs the package datasets: pip install datasets") from error
    try:
        found = datasets.load_dataset(name, config)
    except (OSError, ValueError) as error:
        raise AtollError(f"Cannot load 'hf:{name}': {error}. Check the name, '?config=' and the network.") from error
    if "train" not in found:
        raise AtollError(f"'hf:{name}' has no split 'train', only {', '.join(found)}.")
    return [found[split] for split in ("train", "test", "validation") if split in found][:2]


def _chosen(name: str, features: Mapping[str, object], column: str | None) -> str | None:
    if column is not None and column not in features:
        raise unknown("column", column, features, f"of {name!r}")
    return column


def _label(name: str, features: Mapping[str, object]) -> str:
    named = [column for column in features if hasattr(features[column], "names")]
    found = [column for column in (*LABELS, *named) if column in features]
    if not found:
        raise AtollError(f"{name!r} has no label column. Choose one with '?label=': {', '.join(features)}.")
    return str(found[0])


def _words(features: Mapping[str, object], label: str) -> str | None:
    kinds = {column: getattr(features[column], "dtype", "") for column in features if column != label}
    strings = [column for column, kind in kinds.items() if kind in ("string", "large_string")]
    return "text" if "text" in strings else next(iter(strings), None)


def _pictures(name: str, splits: Sequence[Any], column: str, size: int | None) -> list[Array]:
    sources = [
        [Source(f"{name}, row {i}", partial(_picture, split, i, column)) for i in range(len(split))] for split in splits
    ]
    to = layout(chain.from_iterable(sources), size)
    return [stack(rows, to) for rows in sources]


def _picture(split: Any, row: int, column: str) -> Image.Image:
    picture: Image.Image = split[row][column]
    return picture
