"""Read schema files, which declare what Atoll would otherwise infer from a table.

label: num                       # the label column, or several; as ?label=
owner: hospital                  # as ?owner=
missing: ["?", "-9"]             # texts that mean an empty cell, besides the usual ones
classes: [absent, present]       # names of the classes in their order, or with the labels that each of them has:
                                 # {absent: [0], present: [1, 2, 3, 4]}
columns:
  cp: category                   # number, date, category or ignore
  thal: [3, 6, 7]                # a category with these values; sites need not agree on them any more
  age: {min: 0, max: 120}        # a number, or a date, between bounds, by which --dp adds noise to means; also for
                                 # numbers to predict
  chol: {missing: [0]}           # texts or numbers that mean an empty cell in this column; also beside min and max
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from datetime import date
from math import nan
from pathlib import Path
from typing import Any

import yaml

from ...errors import AtollError, unknown
from .columns import CATEGORY, DATE, LARGEST, NUMBER, Bounds
from .notations import is_number

IGNORE = "ignore"
_EPOCH = date(1970, 1, 1)
DECLARED = (NUMBER, DATE, CATEGORY, IGNORE)
ENTRIES = ("label", "owner", "missing", "classes", "columns")


@dataclass(frozen=True)
class Schema:
    """What a user declares about a table.

    Args:
        label: name of the label column, or of several, with commas between them.
        owner: name of the column with the owner of each row.
        missing: texts that mean an empty cell.
        classes: labels of each class, by its name, in the order of the classes.
        kinds: kinds of columns, by name.
        levels: values of categories, by the name of their column.
        bounds: bounds of numbers, or of dates as days since 1970, by the name of their column.
        own_missing: texts that mean an empty cell in one column, by its name.
    """

    label: str | None = None
    owner: str | None = None
    missing: tuple[str, ...] = ()
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    own_missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def missing_in(self, column: str) -> tuple[str, ...]:
        """Return the texts that mean an empty cell in a column."""
        return (*self.missing, *self.own_missing.get(column, ()))


class _Texts(yaml.BaseLoader):
    """Read values as the texts that a file has, so that ``no`` is a text; refuse an entry that is given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        names = [str(key.value) for key, _ in node.value]
        for at, name in enumerate(names):
            if name in names[:at]:
                raise yaml.MarkedYAMLError(
                    problem=f"{name!r} is given twice", problem_mark=node.value[at][0].start_mark
                )
        return super().construct_mapping(node, deep)


def read_schema(path: Path) -> Schema:
    """Read a schema file.

    Raises:
        AtollError: the file is missing or malformed.
    """
    try:
        values = _Texts(path.read_text(encoding="utf-8")).get_single_data()
    except yaml.MarkedYAMLError as reason:
        line = reason.problem_mark.line + 1 if reason.problem_mark else 1
        raise AtollError(f"Cannot read the schema {str(path)!r} line {line}: {reason.problem}.") from reason
    except (OSError, ValueError, yaml.YAMLError) as reason:
        raise AtollError(f"Cannot read the schema {str(path)!r}: {str(reason).splitlines()[0]}.") from reason
    if not isinstance(values, dict):
        raise AtollError(f"The schema {str(path)!r} has no entries. Write, for example, 'columns: {{age: number}}'.")
    for name in values:
        if name not in ENTRIES:
            raise unknown("entry", str(name), ENTRIES, f"of the schema {str(path)!r}")
    columns = values.get("columns") or {}
    if not isinstance(columns, dict):
        raise AtollError(f"{path}: 'columns' has an entry for each column, such as 'age: number', not {columns!r}.")
    own_missing = _take_missing(path, columns)
    kinds, levels, bounds = _columns(path, columns)
    return Schema(
        label=_words(path, "label", values.get("label")),
        owner=_words(path, "owner", values.get("owner")),
        missing=tuple(_list(path, "missing", values.get("missing") or [])),
        classes=_classes(path, values.get("classes") or {}),
        kinds=kinds,
        levels=levels,
        bounds=bounds,
        own_missing=own_missing,
    )


def level_text(value: object) -> str:
    """Return the text of a category: ``1.0`` and ``1`` are one category."""
    text = str(value).strip()
    try:
        number = float(text)
    except ValueError:
        return text
    return str(int(number)) if number.is_integer() and abs(number) < 2**53 else text


def _take_missing(path: Path, columns: dict[Any, Any]) -> dict[str, tuple[str, ...]]:
    """Take the entries ``missing`` out of the entries of columns; an entry with nothing else is left out."""
    found = {}
    for name, value in list(columns.items()):
        if isinstance(value, dict) and "missing" in value:
            found[str(name)] = tuple(_list(path, str(name), value.pop("missing")))
            if not value:
                del columns[name]
    return found


def _columns(
    path: Path, columns: Mapping[Any, Any]
) -> tuple[dict[str, str], dict[str, tuple[str, ...]], dict[str, Bounds]]:
    kinds: dict[str, str] = {}
    levels: dict[str, tuple[str, ...]] = {}
    bounds: dict[str, Bounds] = {}
    for name, value in columns.items():
        if isinstance(value, list):
            kinds[str(name)] = CATEGORY
            levels[str(name)] = tuple(_list(path, str(name), value))
        elif isinstance(value, dict):
            kinds[str(name)], bounds[str(name)] = _bounds(path, str(name), value)
        elif value in DECLARED:
            kinds[str(name)] = value
        else:
            raise unknown("kind", str(value), DECLARED, f"of column {str(name)!r} in the schema {str(path)!r}")
    return kinds, levels, bounds


def _bounds(path: Path, name: str, value: Mapping[Any, Any]) -> tuple[str, Bounds]:
    """Return the kind of a column and its bounds."""
    ends = [_end(value.get(name)) for name in ("min", "max")]
    kinds = {kind for kind, _ in ends}
    low, high = (number for _, number in ends)
    if set(value) != {"min", "max"} or len(kinds) > 1 or not -LARGEST <= low < high <= LARGEST:
        raise AtollError(
            f"{path}: column {name!r} has bounds such as {{min: 0, max: 120}}, or two dates, with min below max; not "
            f"{value!r}."
        )
    return kinds.pop(), (low, high)


def _end(text: object) -> tuple[str, float]:
    """Return the kind of a bound, and its number: for a date the days since 1970. NaN if it is neither."""
    try:
        return DATE, float((date.fromisoformat(str(text)) - _EPOCH).days)
    except ValueError:
        return NUMBER, float(str(text)) if is_number(str(text)) else nan


def _classes(path: Path, value: object) -> dict[str, tuple[str, ...]]:
    if isinstance(value, list):
        return {name: (name,) for name in _list(path, "classes", value)}
    if not isinstance(value, dict):
        raise AtollError(f"{path}: 'classes' is a list of names, or labels by name such as {{ill: [1, 2]}}.")
    classes = {str(name): tuple(_list(path, str(name), labels)) for name, labels in value.items()}
    listed = [label for labels in classes.values() for label in labels]
    twice = sorted({label for label in listed if listed.count(label) > 1})
    if twice:
        raise AtollError(f"{path}: two of the 'classes' have the label {twice[0]!r}. Give it to one of them.")
    return classes


def _list(path: Path, name: str, value: object) -> list[str]:
    if not isinstance(value, list) or (not value and name != "missing"):
        raise AtollError(f"{path}: {name!r} is a list of values, not {value!r}.")
    texts = [level_text(entry) for entry in value]
    if len(set(texts)) < len(texts):
        raise AtollError(f"{path}: {name!r} lists a value twice: {', '.join(texts)}.")
    return texts


def _words(path: Path, name: str, value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value or None
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return ",".join(value)
    raise AtollError(f"{path}: {name!r} is the name of a column, not {value!r}.")
