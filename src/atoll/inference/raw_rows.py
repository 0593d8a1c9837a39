"""Read raw rows for prediction from files, and refuse rows of another form, type or scale than those trained on."""

from pathlib import Path

import numpy as np
from PIL import Image

from ..data.dataset import Array, Dataset
from ..data.readers.images import SUFFIXES as IMAGES
from ..data.readers.images import Layout, Source, pixels
from ..data.readers.tables import SUFFIXES as TABLES
from ..data.readers.tables import read_rows
from ..data.tables.preparation import Preparation
from ..errors import AtollError

FAR = 3.0  # deviations from the mean, in two columns of every row: another unit
ABSURD = 20.0  # deviations from the mean, in any cell
DARK = 0.5  # share of the smallest maximum of a training image


def read_raw_rows(path: Path, data: Dataset, preparation: Preparation | None) -> Array:
    """Read the raw rows of a file: an image, a NumPy file, or a table with named columns.

    Args:
        path: the file.
        data: the data set of the run.
        preparation: the preparation of the client that predicts, for tables and texts.

    Raises:
        AtollError: the file is missing or cannot be read, or its rows have another form.
    """
    if not path.is_file():
        raise AtollError(f"There is no file {str(path)!r}.")
    if path.suffix.lower() in IMAGES:
        if data.kind != "image":
            raise AtollError(f"{str(path)!r} is an image, but the models of this run read {data.kind} samples.")
        channels, height, width = data.shape
        return pixels(Source(str(path), lambda: Image.open(path)), Layout(width, height, channels))[None]
    if path.suffix in TABLES:
        if preparation is None:
            read = "images" if data.kind == "image" else f"{data.kind} samples from .npy files"
            raise AtollError(f"{str(path)!r} is a table, but the models of this run read {read}.")
        return read_rows(path, preparation.raw_columns, preparation.lacking)
    try:
        rows: Array = np.load(path, allow_pickle=False)
    except (ValueError, OSError) as reason:
        raise AtollError(
            f"Cannot read {str(path)!r} as an image, a table (.csv, .parquet) or a NumPy file: {reason}"
        ) from reason
    return rows[None] if rows.shape == tuple(data.shape) else rows


def describe_conversion(path: Path, data: Dataset) -> str | None:
    """Return a sentence if an image has another size or other channels than the data set, and so is converted."""
    if path.suffix.lower() not in IMAGES:
        return None
    channels, height, width = data.shape
    with Image.open(path) as image:
        given, colours = image.size, len(image.getbands())
    if (*given, colours) == (width, height, channels):
        return None
    before = f"{given[0]} x {given[1]} pixels with {colours} channel{'s' * (colours != 1)}"
    return (
        f"{path} has {before}; it was converted to {width} x {height} with {channels}, as the data set of the run has."
    )


def check_raw_rows(rows: Array, data: Dataset, preparation: Preparation | None) -> None:
    """Raise an AtollError if raw rows have another form, type or scale than the rows that models were trained on."""
    trained = data.x_train
    if tuple(rows.shape[1:]) != tuple(data.shape):
        raise AtollError(f"The samples have shape {tuple(rows.shape[1:])}, but {data.name!r} has {tuple(data.shape)}.")
    whole = np.issubdtype(trained.dtype, np.integer)
    if whole and not np.issubdtype(rows.dtype, np.integer):
        remedy = "pixels from 0 to 255 as uint8" if data.kind == "image" else "token ids as integers"
        raise AtollError(
            f"The samples are {rows.dtype}, but the models were trained on {trained.dtype} samples of {data.name!r}. "
            f"Give {remedy}."
        )
    if not whole and not np.issubdtype(rows.dtype, np.number):
        raise AtollError(f"The samples are {rows.dtype}, but the models read numbers.")
    if data.kind == "image" and len(rows):
        _check_brightness(rows, trained, data.name)
    if preparation is not None and not preparation.is_text:
        _check_columns(rows, preparation, data.name)


def _check_brightness(rows: Array, trained: Array, name: str) -> None:
    """Refuse images whose values all lie far below those of every training image, or above their range."""
    low, high = float(trained.reshape(len(trained), -1).max(1).min()), float(trained.max())
    largest = float(rows.max())
    limit = 255.0 if trained.dtype == np.uint8 else 2 * max(high, 1.0)
    if largest < DARK * low or largest > limit or (trained.dtype == np.uint8 and rows.min() < 0):
        raise AtollError(
            f"The values of the images reach {largest:g}, and in every training image of {name!r} they reach {low:g} "
            f"to {high:g}. Scale the images as the data set of the run has them."
        )


def _check_columns(rows: Array, preparation: Preparation, name: str) -> None:
    """Refuse tables with absurd cells, or in which several columns of every row lie far from the training rows."""
    apart = {
        column.name: np.abs(rows[:, at] - column.mean) / column.deviation
        for at, column in enumerate(preparation.columns)
        if column.column.is_number and column.is_scaled and column.own
    }
    for at, column in enumerate(preparation.columns):
        distance = apart.get(column.name, np.zeros(0))
        if len(distance) and np.nanmax(distance, initial=0) > ABSURD:
            row = int(np.nanargmax(distance))
            raise AtollError(
                f"Row {row}: column {column.name!r} holds {rows[row, at]:g}, {distance[row]:.0f} deviations from the "
                f"mean {column.mean:.4g} of the training samples of {name!r}. Check the unit and the cell."
            )
    far = [column for column, distance in apart.items() if len(distance) and np.nanmin(distance, initial=np.inf) > FAR]
    far = [column for column in far if np.isfinite(apart[column]).any()]
    if len(far) > 1:
        raise AtollError(
            f"In every row, the columns {', '.join(far)} lie more than {FAR:g} deviations from the mean of the "
            f"training samples of {name!r}. Give raw rows in the units of that file: models standardise them "
            "themselves."
        )
