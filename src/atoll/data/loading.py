"""Load data sets by name.

======================================  ===============================================================================
``cifar10``, ``emnist:letters``, ...    a data set of the `catalogue`
``hospitals``, ``penguins``, ...        a data set with natural clients (see `atoll.data.natural_sets`)
``cifar100@0-9``, ``mnist@0,3,7``       only these classes, after any name, renumbered from 0 in the given order
``data.npz``                            x_train, y_train, x_test, y_test; or x, y; optional: owner, classes
``table.csv``, ``table.parquet``        a table or texts (see `atoll.data.readers.tables`)
a folder of .csv or .parquet files      one table for each owner, whose name is that of the file
``novel.txt``, a folder of .txt files   windows of plain text, for the next token; a file is an owner
``folder``                              images in a folder per class, or plain npz files, one per client
``pfllib:folder``                       PFLlib's client files
``hf:owner/name``                       a data set of the Hugging Face hub
======================================  ===============================================================================

Options may follow a file: ``table.csv?label=diagnosis&owner=hospital``. For tables, ``ignore=id,name`` leaves columns
out, and ``schema=heart.yaml`` declares kinds of columns (`atoll.data.tables.schema`). ``classes=benign,malignant`` (or
``classes=0-9``) fixes the order of the classes, which is otherwise the sorted order of the training labels. Paths are
looked up as written, then in the data folder. A data set of the catalogue is read from ``<name>.npz`` in the data
folder if the file exists (``:`` is written as ``_``; for imdb also ``imdb.parquet``), otherwise from its official
files, which are downloaded if missing.

``--task`` says what the labels are, if not classes: ``table.csv?label=fever,cough`` names several label columns, and
``novel.txt?tokens=bytes&length=64`` the tokens of a text and the length of a window.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..core.problems import Classes
from ..errors import AtollError, unknown
from ..utils.parsing import parse_pairs, refusal
from .arrays import RawDataset, assemble
from .catalogue import ALIASES, KNOWN, CatalogueEntry, DatasetInfo
from .dataset import Dataset
from .downloads import data_folder, fetch, find
from .natural_sets import NATURAL, natural_catalogue
from .readers import pickles
from .readers.binary import client_parts, npz_parts
from .readers.huggingface import hub_parts
from .readers.images import SIZE, folder_parts
from .readers.plain_text import TOKENS, WINDOW, window_parts
from .readers.table_join import TableRequest
from .readers.tables import SUFFIXES, table_files, table_parts
from .tables.schema import Schema, read_schema

WHERE = "The data set"
FORM = "NAME?OPTION=VALUE&OPTION=VALUE, such as table.csv?label=diagnosis&owner=hospital"
TABLE_OPTIONS = ("label", "owner", "ignore", "schema", "classes")
CLASSES = "NAME@CLASSES, such as cifar100@0-9 or mnist@0,3,7, with each class once"


@dataclass(frozen=True)
class _Request:
    """A value of ``--data``, split into its parts."""

    text: str  # as the user wrote it
    base: str
    options: Mapping[str, str]
    labels: tuple[int, ...] | None  # classes after '@'
    task: str | None = None  # what the labels are; None for what the data set says
    own_columns: bool = False  # whether the tables of a folder may have different columns

    def allow(self, *names: str) -> None:
        """Raise an AtollError if there are other options than these."""
        for name in self.options:
            if name not in names:
                if not names:
                    raise AtollError(f"Data set {self.base!r} takes no options: leave out '?{name}='.")
                raise unknown("option", name, names, f"of data set {self.base!r}")

    def size(self) -> int | None:
        """Return the option ``size``, in pixels."""
        value = self.options.get("size")
        if value is not None and not (value.isdecimal() and int(value) > 0):
            raise refusal(WHERE, self.text, f"size must be a number of pixels, not {value!r}", FORM)
        return None if value is None else int(value)

    def order(self) -> Sequence[str] | None:
        """Return the names of the option ``classes``, in the order of their labels."""
        value = self.options.get("classes")
        if value is None:
            return None
        span = re.fullmatch(r"(\d+)-(\d+)", value)
        names = [str(i) for i in range(int(span[1]), int(span[2]) + 1)] if span else value.split(",")
        if not names or "" in names or len(set(names)) < len(names):
            raise refusal(WHERE, self.text, f"{value!r} is no list of classes", "classes=a,b,c or classes=0-9")
        return names


def load(name: str, data_dir: str | Path | None = None, task: str | None = None, own_columns: bool = False) -> Dataset:
    """Load a data set.

    Args:
        name: a name of the catalogue, a path or a Hugging Face name, with options; see the top of this module.
        data_dir: the data folder; by default that of the variable ATOLL_DATA, or the user's cache folder.
        task: what the labels are, a value of ``--task``; by default classes, and the next token for plain text.
        own_columns: whether the tables of a folder may have different columns; cells of a missing column are empty.

    Raises:
        AtollError: the name is unknown, an option is wrong, or the files cannot be read.

    Example:
        >>> load("cifar100@0-9").num_classes
        10
    """
    request, folder = replace(_parse(name), task=task, own_columns=own_columns), data_folder(data_dir)
    known = KNOWN.get(ALIASES.get(request.base, request.base))
    if known:
        _check_labels(request, known.info.classes)  # before anything is downloaded
    if request.base in NATURAL:
        request.allow()
        data = assemble(request.text, NATURAL[request.base].load(), task=request.task)
    else:
        data = _load_known(known, request, folder) if known else _load_other(request, folder)
    if request.labels is not None and not data.num_classes:
        raise AtollError(f"Data set {name!r}: '@' selects classes, but labels are {data.problem.labels}. Leave it out.")
    _check_labels(request, max(data.num_classes, 1))
    return data if request.labels is None else _select_classes(data, request.labels)


def catalogue(data_dir: str | Path | None = None) -> list[DatasetInfo]:
    """List the data sets that can be loaded by name alone."""
    folder = data_folder(data_dir)
    known = [replace(known.info, found=_is_available(known, folder)) for known in KNOWN.values()]
    return known + natural_catalogue()


def base_name(name: str) -> str:
    """Return a name without variant, options and classes: ``emnist`` for ``emnist:letters@0-9``."""
    base = re.split("[@?]", name)[0]
    return base.partition(":")[0] if ALIASES.get(base, base) in KNOWN else base


def _parse(text: str) -> _Request:
    """Split a value of ``--data`` into name, options and classes; an existing path is a name as a whole."""
    if Path(text).exists():
        return _Request(text, text, {}, None)
    rest, at, subset = text.rpartition("@")
    if not at or "/" in subset or "." in subset:  # part of a path
        rest, subset = text, ""
    base, _, query = rest.partition("?")
    options = parse_pairs(WHERE, text, query, "&", FORM)
    for name, value in options.items():
        if not value:
            raise refusal(WHERE, text, f"{name} has no value", FORM)
    return _Request(text, base, options, _labels(text, subset) if rest != text else None)


def _labels(text: str, subset: str) -> tuple[int, ...]:
    """Read the classes after ``@``: numbers and spans of numbers, with commas between them."""
    labels: list[int] = []
    for item in subset.split(","):
        span = re.fullmatch(r"(\d+)(?:-(\d+))?", item)
        if not span or int(span[2] or span[1]) < int(span[1]):
            raise refusal(WHERE, text, f"{item!r} is no choice of classes", CLASSES)
        labels += range(int(span[1]), int(span[2] or span[1]) + 1)
    if len(set(labels)) < len(labels):
        raise refusal(WHERE, text, "a class is named twice after '@'", CLASSES)
    return tuple(labels)


def _check_labels(request: _Request, classes: int) -> None:
    highest = max(request.labels or [0])
    if highest >= classes:
        raise AtollError(f"Data set {request.text!r} has no class {highest}: its classes run from 0 to {classes - 1}.")


def _select_classes(data: Dataset, labels: tuple[int, ...]) -> Dataset:
    """Keep the rows of some classes, which are renumbered in the given order."""
    number = np.full(data.num_classes, -1)
    number[list(labels)] = np.arange(len(labels))
    y_train, y_test = number[data.y_train], number[data.y_test]
    train, test = y_train >= 0, y_test >= 0
    return replace(
        data,
        x_train=data.x_train[train],
        y_train=y_train[train],
        x_test=data.x_test[test],
        y_test=y_test[test],
        classes=tuple(data.classes[label] for label in labels),
        owner_train=None if data.owner_train is None else data.owner_train[train],
        owner_test=None if data.owner_test is None else data.owner_test[test],
    )


def _load_known(known: CatalogueEntry, request: _Request, folder: Path) -> Dataset:
    request.allow(*(["size"] if known.info.name == "inaturalist2017" else []))
    size = request.size()
    shape = (3, size, size) if size else known.info.shape
    local = _find_converted(known.info, folder)
    if local is None:
        parts = known.read([fetch(file, folder) for file in known.files], size or SIZE, request.labels)
    else:
        numbers = tuple(str(label) for label in range(known.info.classes))
        table = local.suffix == ".parquet"
        parts = table_parts(local, TableRequest(classes=numbers)) if table else npz_parts(local)
        parts = parts._replace(names_test_rows=False)  # as when the official files are read
    parts = parts if known.names is None else parts._replace(classes=known.names)
    data = assemble(request.text, parts, task=request.task)
    if data.shape != shape:
        where = local or folder / known.files[0].name
        raise AtollError(f"{where}: samples have shape {data.shape}, but those of {request.base} have {shape}.")
    return data


def _find_converted(info: DatasetInfo, folder: Path) -> Path | None:
    """Return the path of a converted copy in the data folder, or None."""
    stem = info.name.replace(":", "_")
    suffixes = [".npz", ".parquet"] if info.kind == "text" else [".npz"]
    return next((path for path in (folder / (stem + suffix) for suffix in suffixes) if path.exists()), None)


def _is_available(known: CatalogueEntry, folder: Path) -> bool:
    return _find_converted(known.info, folder) is not None or all(find(file, folder) for file in known.files)


def _load_other(request: _Request, folder: Path) -> Dataset:
    scheme, _, rest = request.base.partition(":")
    if scheme == "hf":
        request.allow("config", "label", "owner", "size", "classes")
        get = request.options.get
        parts = hub_parts(rest, get("config"), get("label"), get("owner"), request.size())
    elif scheme == "pfllib":
        request.allow("classes")
        clients = client_parts(_find_path(rest, request, folder), pickles.client_part)
        parts = clients._replace(channels_first=True)  # PFLlib stores images as PyTorch does
    else:
        parts = _read_path(_find_path(request.base, request, folder), request)
    return assemble(request.text, parts, request.order(), request.task)


def _find_path(name: str, request: _Request, folder: Path) -> Path:
    places = [Path(name).expanduser(), folder / name, folder / f"{name}.npz"]
    for place in places:
        if name and place.exists():
            return place
    if "/" in name or "." in name or request.base != name:
        raise AtollError(f"There is no file or folder {name!r}, neither here nor in the data folder {folder}.")
    raise unknown("data set", name, [*KNOWN, *ALIASES, *NATURAL])


def _read_path(path: Path, request: _Request) -> RawDataset:
    if path.is_dir():
        return _read_folder(path, request)
    if path.suffix == ".npz":
        request.allow("classes")
        return npz_parts(path)
    if path.suffix == ".txt":
        return _read_text([path], request)
    if path.suffix in SUFFIXES:
        return _read_table(path, request)
    raise AtollError(
        f"{path} has an unknown format. Give a .npz, .csv, .parquet or .txt file, or a folder: unpack archives, and "
        "save tables with commas between cells under a name that ends in .csv."
    )


def _read_table(path: Path, request: _Request) -> RawDataset:
    request.allow(*TABLE_OPTIONS)
    get = request.options.get
    beside = path if path.is_dir() else path.parent
    schema = next((place for place in (Path(get("schema", "")), beside / get("schema", "")) if place.is_file()), None)
    if "schema" in request.options and schema is None:
        raise AtollError(f"There is no schema file {get('schema')!r}, neither here nor in {beside}.")
    return table_parts(
        path,
        TableRequest(
            get("label"),
            get("owner"),
            tuple(name for name in get("ignore", "").split(",") if name),
            Schema() if schema is None else read_schema(schema),
            task=request.task or Classes.task,
            own_columns=request.own_columns,
            classes=tuple(request.order() or ()),
        ),
    )


def _read_text(paths: Sequence[Path], request: _Request) -> RawDataset:
    request.allow("tokens", "length")
    tokens, length = request.options.get("tokens", "chars"), request.options.get("length", str(WINDOW))
    if tokens not in TOKENS:
        raise unknown("tokens", tokens, TOKENS)
    if not (length.isdecimal() and int(length) > 0):
        raise refusal(WHERE, request.text, f"length must be a number of tokens, not {length!r}", FORM)
    return window_parts(paths, tokens, int(length))


def _read_folder(path: Path, request: _Request) -> RawDataset:
    if any(path.glob("*.npz")) or any(path.glob("train/*.npz")):
        request.allow("classes")
        return client_parts(path)
    if table_files(path):
        return _read_table(path, request)
    if any(path.glob("*.txt")):
        return _read_text(sorted(path.glob("*.txt")), request)
    if request.options.keys() & set(TABLE_OPTIONS) - {"classes"}:
        raise AtollError(
            f"{path} has no file that ends in .csv or .parquet. Save the table of each owner there as one."
        )
    request.allow("size", "classes")
    return folder_parts(path, request.size())
