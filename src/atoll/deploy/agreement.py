"""Short digests of what server and sites must have in common, so that a difference shows before anything runs."""

import inspect
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields
from hashlib import sha256
from typing import Any, get_type_hints

import numpy as np

from ..core import Model, contract
from ..data.dataset import Array
from ..rounds import AnyMethod
from ..settings import settings_of


def method_digest(method: AnyMethod) -> str:
    """Of all that a method sends and does: its payloads, its settings, the code of its classes."""
    terms = method.terms() if hasattr(method, "terms") else ()
    return _digest(
        {
            "name": type(method).__name__,
            "settings": [(s.name, repr(s.default)) for s in settings_of(method)],
            "terms": [(type(term).__name__, [(s.name, repr(s.default)) for s in settings_of(term)]) for term in terms],
            "payloads": {role: _form(kind) for role, kind in contract(method)._asdict().items()},
            "phases": method.phases,
            "code": [_code(cls) for cls in (*type(method).__mro__, *(type(term) for term in terms))],
        }
    )


def models_digest(models: Iterable[Model | None]) -> str:
    """Of the form of models: names, types and shapes of their parameters, in their order."""
    forms = [{} if model is None else model.init() for model in models]
    return _digest([[(name, str(v.dtype), list(v.shape)) for name, v in form.items()] for form in forms])


def rows_digest(rows: Array | None) -> str | None:
    """Of public rows as their file holds them."""
    if rows is None:
        return None
    head = f"{rows.dtype.str} {rows.shape}\n".encode()
    return sha256(head + np.ascontiguousarray(rows).tobytes()).hexdigest()


def words_digest(words: Iterable[str]) -> str:
    return _digest(list(words))


def _form(kind: type[Any]) -> list[Any]:
    hints = get_type_hints(kind)
    return [kind.__name__, *((f.name, str(hints[f.name]), str(sorted(f.metadata.items()))) for f in fields(kind))]


def _code(cls: type[Any]) -> str:
    """The source of the module that a class comes from; nothing for those that are not ours."""
    module = sys.modules[cls.__module__]
    ours = cls.__module__.startswith("atoll")
    return sha256(inspect.getsource(module).encode()).hexdigest() if ours else ""


def _digest(value: Mapping[str, Any] | list[Any]) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
