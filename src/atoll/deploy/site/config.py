"""Read the configuration of a site from SITE_DIR/site.yaml: name, data, model, privacy.

    name: north                # name of the site in the federation
    data: rows.npz             # beside site.yaml or anywhere; everything that --data reads from disk
    model: cnn1                # architecture, with options as for --models; default: one that suits the data
    task: regression           # what the labels are, if they are no classes: regression or multilabel
    public: public.npz         # for methods that distil: the same file at all sites and at the server
    methods: [mine.py]         # methods of your own that the server may ask for
    allow: {rounds: 200}       # what a server may ask for: see rules.py
    privacy: {min_class_count: 10}  # what may leave: see privacy_rules.py; off: no limits of the site
             # dp: {epsilon: 4, delta: 1e-5, per: year} limits all runs together: see privacy/site_budget.py

An .npz file with x_train, y_train, x_test, y_test and perhaps x_val, y_val is used as it is divided. All other rows are
divided by the run's --split, as in a simulation: by default, a table that says which rows are for testing keeps them.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..._version import __version__
from ...config import Config, read_yaml
from ...core.problems import Classes, Labels, Numbers
from ...data import arrays as layout
from ...data.dataset import Array, Dataset
from ...data.federated_dataset import FederatedDataset
from ...data.loading import load
from ...data.readers.binary import npz
from ...data.split import OFFICIAL, check, resolve, split_site
from ...data.tables.columns import Column, column_from_json, read_bounds
from ...data.tables.statistics import OWN
from ...engine.model_factory import default_model
from ...errors import AtollError, unknown
from ...typing import ClientId
from ..fingerprints import rows_digest, words_digest
from ..table_agreement import columns_to_json, has_gaps, own_columns
from ..transport.protocol import VERSION
from .privacy_rules import SitePrivacyRules, read_rules
from .rules import SiteRules, read_site_rules

NAME = re.compile(r"[\w-]{1,64}", re.ASCII)
PARTS = ("train", "val", "test")
TASKS = (Classes.task, Labels.task, Numbers.task)  # between sites; windows of tokens would reveal their texts


@dataclass(frozen=True)
class SiteConfig:
    """The content of site.yaml and the rows that it names."""

    folder: Path
    name: ClientId
    data: str
    model: str = ""
    public: str = ""
    task: str = ""
    methods: tuple[str, ...] = ()
    privacy: SitePrivacyRules = SitePrivacyRules()
    allow: SiteRules = SiteRules()

    @property
    def state(self) -> Path:
        """Return the folder for everything that outlives the worker."""
        return self.folder / "state"

    @property
    def socket(self) -> Path:
        """Return the socket of the worker."""
        return self.state / "worker.sock"

    @cached_property
    def rows(self) -> "SiteData":
        """Return the site's own rows."""
        return read_rows(self._at(self.data), self.task or None)

    @cached_property
    def public_rows(self) -> "PublicRows | None":
        """Return the public rows, or None if site.yaml names none."""
        return read_public(self._at(self.public)) if self.public else None

    @cached_property
    def architecture(self) -> str:
        """Return the site's architecture."""
        return self.model or default_model(self.rows.data)

    def federation(self, config: Config) -> FederatedDataset:
        """Return a federated data set with the site as its only client."""
        return self.rows.divided(self.name, config)

    @property
    def method_names(self) -> set[str]:
        """Return the names of the site's own method files, without folders."""
        return {Path(path).name for path in self.methods}

    def method_file(self, name: str) -> Path | None:
        """Return the site's own copy of a method file."""
        own = [self.folder / path for path in self.methods]
        return next((path for path in own if path.name == Path(name).name), None)

    def card(self, config: Config) -> dict[str, object]:
        """Return the site's description for the server: forms and numbers of rows, never their content."""
        data, parts = self.rows.data, self.federation(config)
        return {
            "site": self.name,
            "version": __version__,
            "protocol": VERSION,
            "kind": data.kind,
            "shape": list(data.shape),
            "dtype": str(data.x_train.dtype),
            "task": data.problem.task,
            "classes": data.problem.outputs,
            "labels": words_digest(data.classes),
            "open_classes": data.open_classes,
            "model": self.architecture,
            "public": public_digest(self.public_rows),
            "columns": columns_to_json(data.columns),
            "gaps": config.dp is None and has_gaps(data),  # with noise, nothing depends on whether there are any
            "target_bounds": [None if bounds is None else list(bounds) for bounds in data.target_bounds],
            "has": own_columns(parts) if config.columns == OWN else [],
            "rows": [len(parts.part(part)[0]) for part in ("train", "val", "test")],
        }

    def _at(self, text: str) -> str:
        """Resolve a path relative to site.yaml and keep options that follow it."""
        beside = self.folder / text.partition("?")[0]
        return str(self.folder / text) if beside.exists() else text


def read_site(folder: Path) -> SiteConfig:
    """Read the site in a folder."""
    path = folder / "site.yaml"
    values = read_yaml(path)
    known = {f.name for f in fields(SiteConfig)} - {"folder"}
    for name in values:
        if name not in known:
            raise unknown("entry", str(name), known, f"in {str(path)!r}")
    for name in ("name", "data"):
        if not isinstance(values.get(name), str) or not values[name]:
            raise AtollError(f"{str(path)!r} needs an entry '{name}'.")
    if not NAME.fullmatch(values["name"]):
        raise AtollError(f"{str(path)!r}: a site's name has letters, digits, - and _ only, not {values['name']!r}.")
    methods = values.get("methods") or ()
    if not isinstance(methods, list | tuple) or not all(isinstance(m, str) and m.endswith(".py") for m in methods):
        raise AtollError(f"{str(path)!r}: 'methods' is a list of Python files.")
    texts = {name: str(values.get(name) or "") for name in ("model", "public", "task")}
    if texts["task"] and texts["task"] not in TASKS:
        raise unknown("task", texts["task"], TASKS, f"in {str(path)!r}")
    rules = read_rules(values.get("privacy"), repr(str(path)))
    allow = read_site_rules(values.get("allow"), repr(str(path)))
    return SiteConfig(
        folder, values["name"], values["data"], **texts, methods=tuple(methods), privacy=rules, allow=allow
    )


# -- rows -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SiteData:
    """A data set with the sizes of its training, validation and test rows, which follow each other."""

    data: Dataset
    given: tuple[int, int, int] | None

    def divided(self, name: ClientId, config: Config) -> FederatedDataset:
        """Split the rows as the owner did, or by the run's split."""
        if self.given is None:
            train, val, test = self._split(name, config)
        else:
            train, val, test = np.split(np.arange(sum(self.given)), np.cumsum(self.given)[:2])
        return FederatedDataset(self.data, (name,), (train,), (val,), (test,), np.arange(0), (), name)

    def _split(self, name: ClientId, config: Config) -> tuple[Array, Array, Array]:
        data = self.data
        split = resolve(config.split, data)
        check(split, data)
        y = np.concatenate([data.y_train, data.y_test])
        everything, tested = np.arange(len(y)), np.arange(len(data.y_train), len(y))
        rows = everything[: len(data.y_train)] if split == OFFICIAL else everything
        parts = split_site(name, rows, y[rows], data, split, config.seed)
        return parts.train[0], parts.val[0], tested if split == OFFICIAL else parts.test[0]


def read_rows(text: str, task: str | None = None) -> SiteData:
    """Read rows from a file or folder; keep the split of files that have training, validation and test rows.

    Args:
        text: the file or folder, with options.
        task: what the labels are, a value of ``--task``; None for what the file says, or else classes.
    """
    path = Path(text)
    arrays = npz(path) if path.suffix == ".npz" and path.exists() else {}
    if {f"{letter}_{part}" for letter in "xy" for part in PARTS} <= arrays.keys():
        return _divided(text, arrays, task)
    data = load(text, task=task)
    check_problem(data)
    tested = 0 if data.names_test_rows else len(data.y_test)
    return SiteData(data, (len(data.y_train), 0, tested) if tested else None)


def check_problem(data: Dataset) -> None:
    """Raise an AtollError if runs between sites cannot have such labels."""
    if data.problem.task not in TASKS:
        raise AtollError(
            f"The labels of {data.name!r} are {data.problem.labels}, and runs between sites have classes, several "
            "labels or numbers. Use a simulation: atoll run."
        )


class PublicRows(NamedTuple):
    """Public rows as they are stored, with their columns if they are raw rows of a table."""

    x: Array
    columns: tuple[Column, ...] = ()


def public_digest(rows: PublicRows | None) -> str | None:
    """Digest public rows as they are stored."""
    return None if rows is None else rows_digest(rows.x)


def _columns(arrays: Mapping[str, Array]) -> tuple[Column, ...]:
    """Return the columns that an exported file names."""
    if "columns" not in arrays:
        return ()
    try:
        return tuple(column_from_json(values) for values in json.loads(str(arrays["columns"])))
    except (ValueError, TypeError, KeyError) as reason:
        raise AtollError(f"The array 'columns' is damaged ({reason!r}). Export the file again.") from reason


def _divided(name: str, arrays: Mapping[str, Array], task: str | None) -> SiteData:
    sizes = [len(arrays[f"y_{part}"]) for part in PARTS]
    x, y = (np.concatenate([arrays[f"{letter}_train"], arrays[f"{letter}_val"]]) for letter in "xy")
    classes = tuple(str(c) for c in arrays["classes"]) if "classes" in arrays else None
    test = layout.RawSplit(arrays["x_test"], arrays["y_test"])
    first = "channels_first" in arrays
    bounds = json.loads(str(arrays["target_bounds"])) if "target_bounds" in arrays else ()
    parts = layout.RawDataset(
        layout.RawSplit(x, y),
        test,
        classes,
        channels_first=first,
        columns=_columns(arrays),
        target_bounds=tuple(read_bounds(each) for each in bounds),
    )
    stored = str(arrays["task"]) if "task" in arrays else None
    return SiteData(layout.assemble(name, parts, task=task or stored), (sizes[0], sizes[1], sizes[2]))


def read_public(text: str) -> PublicRows:
    """Read public rows: an array x, or the training rows of any data set."""
    path = Path(text)
    arrays = npz(path) if path.suffix == ".npz" and path.exists() else {}
    if "x" in arrays and "columns" in arrays:
        return PublicRows(arrays["x"], _columns(arrays))
    if "x" in arrays:
        return PublicRows(layout.rows(text, arrays["x"], channels_first="channels_first" in arrays)[1])
    data = load(text)
    return PublicRows(data.x_train, data.columns)


def write_rows(path: Path, federation: FederatedDataset, client: int) -> None:
    """Write one client's rows to a file that :func:`read_rows` reads."""
    data = federation.dataset
    arrays: dict[str, Array] = {"classes": np.array(data.classes), "task": np.array(data.problem.task)}
    for part in PARTS:
        rows = federation.part(part)[client]  # type: ignore[arg-type]
        arrays |= {f"x_{part}": federation.rows(rows), f"y_{part}": federation.labels(rows)}
    _write(path, arrays, data)


def write_public(path: Path, rows: Array, like: Dataset) -> None:
    """Write public rows, in the form of a data set, to a file that :func:`read_public` reads."""
    _write(path, {"x": rows}, like)


def _write(path: Path, arrays: dict[str, Array], like: Dataset) -> None:
    if like.kind == "image":
        arrays["channels_first"] = np.array(True)
    if like.columns:
        arrays["columns"] = np.array(json.dumps([asdict(column) for column in like.columns]))
    if like.target_bounds:
        arrays["target_bounds"] = np.array(json.dumps(like.target_bounds))
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
