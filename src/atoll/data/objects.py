"""Make data sets from objects of Python: arrays, tensors, data frames, data sets of other packages, one per client."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from ..core.problems import Classes
from ..errors import AtollError
from .arrays import RawDataset, RawSplit, assemble
from .dataset import Array, Dataset
from .readers.huggingface import has_media, split_parts
from .readers.table_join import TableRequest
from .readers.tables import read_table

FORMS = (
    "a name or a path; (X, y) or (X_train, y_train, X_test, y_test); a data frame; a data set of torch or Hugging "
    "Face; or {client: any of these}"
)
_PARTS = ("X", "y", "X_test", "y_test")
_SPLITS = ("train", "test")


def make_dataset(
    data: Any,
    name: str = "data",
    *,
    task: str | None = None,
    label: str | None = None,
    owner: str | None = None,
) -> Dataset:
    """Make a data set from objects.

    Args:
        data: ``(X, y)`` or ``(X_train, y_train, X_test, y_test)`` with arrays, tensors or lists; a data frame of pandas
            or polars or an Arrow table, whose columns are read like those of a CSV file; a map-style data set of torch
            with pairs of inputs and labels; a data set of Hugging Face; or a mapping from names of clients to any of
            these. A ``Dataset`` is returned as it is.
        name: name of the data set in tables.
        task: what the labels are: ``"classes"``, ``"multilabel"``, ``"regression"`` or ``"next-token"``.
        label: column of the label; default: ``label``, ``y`` or the last column.
        owner: column with the client that a row belongs to; default: ``owner``, if there is such a column.

    Raises:
        AtollError: the object has none of these forms, or its parts do not fit together.

    Example:
        >>> data = atoll.make_dataset({"north": (x1, y1), "south": (x2, y2)})
        >>> atoll.run("fedavg", data)
    """
    if isinstance(data, Dataset):
        return data
    request = TableRequest(label=label, owner=owner, task=task or Classes.task)
    if isinstance(data, Mapping) and not _is_hugging_face(data):  # A ``DatasetDict`` maps splits, not clients.
        return assemble(name, _join_clients(name, data, request), task=task)
    return assemble(name, _parts(name, data, request), task=task)


def _parts(name: str, data: Any, request: TableRequest) -> RawDataset:
    """Read an object that is not a mapping of clients."""
    table = _as_table(data)
    if table is not None:
        return read_table(Path(name), table, request)
    if _is_hugging_face(data):
        return _hugging_face_parts(name, data, request)
    if isinstance(data, tuple | list) and _is_row_of_numbers(data):
        raise AtollError(f"data is a {type(data).__name__} of numbers. Give {FORMS}.")
    if isinstance(data, tuple | list) and len(data) in (2, 4):
        parts = [_as_array(f"{name}, {part}", value) for part, value in zip(_PARTS, data, strict=False)]
        return RawDataset(RawSplit(*parts[:2]), RawSplit(*parts[2:]) if len(parts) == 4 else None)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, np.ndarray | str | bytes):
        return _torch_parts(name, data)
    raise AtollError(f"data is of type {type(data).__name__}. Give {FORMS}.")


def _is_row_of_numbers(data: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) for value in data)


def _as_array(where: str, value: Any) -> Array:
    """Convert an array, a tensor, a list or a column of a data frame."""
    try:
        array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    except ValueError as reason:
        raise AtollError(f"{where}: samples have different shapes ({reason}). Give samples of one shape.") from None
    return array.astype(str) if array.dtype == object and all(isinstance(v, str) for v in array.flat) else array


def _as_table(data: Any) -> pa.Table | None:
    """Return a data frame of pandas or polars, or an Arrow table, as an Arrow table; None for other objects."""
    if isinstance(data, pa.Table):
        return data
    package = type(data).__module__.partition(".")[0]
    if package == "polars" and hasattr(data, "to_arrow"):
        table: pa.Table = data.to_arrow()
        return table
    if package == "pandas" and hasattr(data, "columns"):
        try:
            return pa.Table.from_pandas(data.rename(columns=str), preserve_index=False)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as reason:
            raise AtollError(f"The data frame has a column of mixed types: {reason}. Convert it to one type.") from None
    return None


def _is_hugging_face(data: Any) -> bool:
    return type(data).__module__.partition(".")[0] == "datasets"


def _hugging_face_parts(name: str, data: Any, request: TableRequest) -> RawDataset:
    if isinstance(data, Mapping):
        if "train" not in data:
            raise AtollError(f"The data have no split 'train', only {', '.join(data)}.")
        splits = [data[split] for split in ("train", "test", "validation") if split in data][:2]
    else:
        splits = [data]
    if has_media(splits[0]):
        return split_parts(name, splits, request.label, request.owner)
    tables = [split.with_format("arrow")[:] for split in splits]
    if len(tables) == 1:
        return read_table(Path(name), tables[0], request)
    marked = [t.append_column("split", pa.array([part] * len(t))) for t, part in zip(tables, _SPLITS, strict=True)]
    return read_table(Path(name), pa.concat_tables(marked), request)


def _torch_parts(name: str, data: Any) -> RawDataset:
    """Read a map-style data set of torch: all tensors at once if it holds them, otherwise pair by pair."""
    held = getattr(data, "tensors", None)
    pairs = held if held is not None else list(zip(*(data[i] for i in range(len(data))), strict=True))
    if len(pairs) != 2:
        raise AtollError(f"{name}: a sample has {len(pairs)} parts. Give data sets of pairs: inputs and labels.")
    x, y = (part if isinstance(part, torch.Tensor) else _stack(part) for part in pairs)
    # A torch data set gives images as [channels, H, W].
    return RawDataset(RawSplit(_as_array(f"{name}, X", x), _as_array(f"{name}, y", y)), channels_first=x.ndim == 4)


def _stack(rows: Sequence[Any]) -> Any:
    if isinstance(rows[0], torch.Tensor):
        return torch.stack(list(rows))
    return torch.as_tensor(np.asarray([np.asarray(row) for row in rows]))


def _join_clients(name: str, clients: Mapping[str, Any], request: TableRequest) -> RawDataset:
    """Join the rows of several clients, and name the owner of each row."""
    if not clients:
        raise AtollError("The mapping of clients is empty. Give {client: (X, y)}.")
    tables = {str(client): _as_table(data) for client, data in clients.items()}
    if all(table is not None for table in tables.values()):
        return _join_tables(name, tables, request)
    parts = {str(client): _parts(f"{name}, {client}", data, request) for client, data in clients.items()}
    first = next(iter(parts.values()))
    train = _concatenate(name, {client: part.train for client, part in parts.items()})
    tests = {client: part.test for client, part in parts.items() if part.test is not None and len(part.test.y)}
    return first._replace(train=train, test=_concatenate(name, tests) if tests else None)


def _join_tables(name: str, tables: Mapping[str, pa.Table], request: TableRequest) -> RawDataset:
    owned = [table.append_column("owner", pa.array([client] * len(table))) for client, table in tables.items()]
    try:
        whole = pa.concat_tables(owned, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as reason:
        raise AtollError(f"The tables of the clients do not fit together: {reason}.") from None
    return read_table(Path(name), whole, replace(request, owner="owner"))


def _concatenate(name: str, splits: Mapping[str, RawSplit]) -> RawSplit:
    shapes = {client: split.x.shape[1:] for client, split in splits.items()}
    if len(set(shapes.values())) > 1:
        listed = "; ".join(f"{client}: {shape}" for client, shape in list(shapes.items())[:4])
        raise AtollError(f"{name}: samples of the clients have different shapes ({listed}). Give samples of one shape.")
    return RawSplit(
        np.concatenate([split.x for split in splits.values()]),
        np.concatenate([split.y for split in splits.values()]),
        np.concatenate([np.full(len(split.y), client) for client, split in splits.items()]),
    )
