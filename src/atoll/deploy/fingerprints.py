"""Digests of method, models and public rows, which server and sites compare before a run."""

import inspect
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from hashlib import sha256
from typing import Any, cast, get_type_hints

import numpy as np

from ..core.contract import contract
from ..core.hooks import TakesRegularisers
from ..core.method import AnyMethod
from ..core.model import Model
from ..core.optim.base import Optimiser
from ..core.payloads import Payload
from ..data.dataset import Array
from ..errors import AtollError
from ..methods._factory import settings_of


def method_digest(method: AnyMethod) -> str:
    """Digest all that a method sends and does: payloads, settings, and the code of the method and its parts.

    Raises:
        AtollError: if the source of a class cannot be read, so that codes cannot be compared.
    """
    terms = method.terms() if isinstance(method, TakesRegularisers) else ()
    values = (getattr(method, f.name) for f in fields(cast(Any, method)))
    parts = (method, *terms, *(value for value in values if isinstance(value, Optimiser)))
    types = contract(method)
    return _digest(
        {
            "name": type(method).__name__,
            "settings": [(s.name, repr(s.default)) for s in settings_of(method)],
            "terms": [(type(term).__name__, [(s.name, repr(s.default)) for s in settings_of(term)]) for term in terms],
            "messages": [[_form(kind) for kind in messages] for messages in types.exchanges],
            "states": [_form(kind) for kind in (types.state, types.server, types.per_client)],
            "code": [_code(cls) for part in parts for cls in type(part).__mro__ if not _is_foreign(cls)],
        }
    )


def models_digest(models: Iterable[Model | None]) -> str:
    """Digest the names, types and shapes of the parameters of models, in order."""
    forms = [{} if model is None else model.init() for model in models]
    return _digest([[(name, str(v.dtype), list(v.shape)) for name, v in form.items()] for form in forms])


def rows_digest(rows: Array | None) -> str | None:
    """Digest public rows as they are stored."""
    if rows is None:
        return None
    head = f"{rows.dtype.str} {rows.shape}\n".encode()
    return sha256(head + np.ascontiguousarray(rows).tobytes()).hexdigest()


def words_digest(words: Iterable[str]) -> str:
    """Digest a list of words, such as the names of classes."""
    return _digest(list(words))


def _form(kind: type[Payload]) -> list[object]:
    hints = get_type_hints(kind)
    return [kind.__name__, *((f.name, str(hints[f.name]), str(sorted(f.metadata.items()))) for f in fields(kind))]


def _is_foreign(cls: type) -> bool:
    """Return True for classes of Python itself and of torch, which no method brings along."""
    package = cls.__module__.partition(".")[0]
    return package == "torch" or package in sys.stdlib_module_names


def _code(cls: type) -> str:
    """Digest the source of the module that a class comes from, since a class may call any function of its module."""
    try:
        source = inspect.getsource(sys.modules[cls.__module__])
    except (KeyError, OSError, TypeError) as reason:
        raise AtollError(
            f"The source of {cls.__module__}.{cls.__qualname__} cannot be read ({reason!r}), so server and sites "
            "cannot compare their code. Put the class into a Python file, or install its package with source files."
        ) from reason
    return sha256(source.encode()).hexdigest()


def _digest(value: Mapping[str, object] | Sequence[object]) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
