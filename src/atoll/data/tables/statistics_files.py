"""Write statistics of tables as plain values, and keep noisy ones with a run, which cannot be measured again."""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...core.payloads import field_types
from ...typing import ClientId
from ...utils.files import read_ordinary, to_json
from ..federated_dataset import FederatedDataset
from .labels import find_names_fault
from .noisy_statistics import Noise
from .statistics import ColumnStatistics, TableOptions

NAME = "statistics.json"  # in the directory of a run under --dp
LARGEST = 2**28  # bytes, far more than any valid file has


def statistics_to_json(statistics: ColumnStatistics) -> dict[str, Any]:
    """Return statistics as plain values."""
    values = {name: getattr(statistics, name) for name in field_types(ColumnStatistics)}
    return {name: value.tolist() if isinstance(value, Tensor) else value for name, value in values.items()}


def statistics_from_json(values: Mapping[str, Any]) -> ColumnStatistics:
    """Return statistics from plain values.

    Raises:
        ValueError, KeyError, TypeError: the values are malformed.
    """
    if (values["target_total"] is None) != (values["target_squares"] is None):
        raise ValueError("sums of targets without their squares")
    return ColumnStatistics(
        rows=int(values["rows"]),
        known=_counts(values["known"]),
        total=_tensor(values["total"]),
        squares=_tensor(values["squares"]),
        vocabulary=str(values["vocabulary"]),
        class_names=_names(values["class_names"]),
        target_rows=int(values["target_rows"]),
        target_total=_tensor(values["target_total"]),
        target_squares=_tensor(values["target_squares"]),
    )


def key_of(federation: FederatedDataset, options: TableOptions, noise: Noise) -> str:
    """Return a digest of the rows and rules behind noisy statistics."""
    return sha256(to_json([federation.name, list(options), list(noise)]).encode()).hexdigest()


def stored(key: str, sent: Mapping[ClientId, ColumnStatistics]) -> dict[str, Any]:
    """Return the content of the file of noisy statistics."""
    return {"key": key, "sent": {i: statistics_to_json(own) for i, own in sent.items()}}


def read_stored(folder: Path, key: str) -> dict[ClientId, ColumnStatistics] | None:
    """Return the noisy statistics that a run keeps; None if it keeps none, or others than those of ``key``."""
    try:
        found = json.loads(read_ordinary(folder / NAME, LARGEST))
        return {i: statistics_from_json(v) for i, v in found["sent"].items()} if found["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _names(text: object) -> str:
    if fault := find_names_fault(str(text), asked=True):
        raise ValueError(fault)
    return str(text)


def _counts(values: list[float] | None) -> Tensor | None:
    """Return numbers of cells: whole, or with noise."""
    made = _tensor(values)
    return made if made is None or not all(type(value) is int for value in values or ()) else made.long()


def _tensor(values: list[float] | None) -> Tensor | None:
    return None if values is None else torch.tensor(values, dtype=torch.float64)
