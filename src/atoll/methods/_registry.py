"""Find methods and regularisers by name.

The files of this package are the list. Other packages add classes by entry points of the groups ``atoll.methods`` and
``atoll.regularisers``.
"""

import importlib
import inspect
import pkgutil
import re
import sys
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from .. import methods as package
from ..core import Method, Regulariser, check_functions, contract
from ..errors import AtollError, unknown
from ..utils.plugins import load_plugins
from ..utils.user_code import imported

MethodType = type[Method[Any, Any, Any, Any]]


@cache
def methods() -> dict[str, MethodType]:
    """Return every method class by name: those of this package, named like their files, and those of other packages."""
    return _added("atoll.methods", Method) | {name: _own_method(name) for name in _names()}


@cache
def regularisers() -> dict[str, type[Regulariser]]:
    """Return every regulariser class by name: its class name in lower case, or the name of its entry point."""
    return _added("atoll.regularisers", Regulariser) | {
        cls.__name__.lower(): cls for name in _names() for cls in _defined(_module(name), Regulariser)
    }


def method(name: str) -> MethodType:
    """Return the method class called ``name``, or the one in the file ``name`` if it ends in ``.py``.

    Raises:
        AtollError: if there is no such method, or the file does not define exactly one.
    """
    if name.endswith(".py"):
        return _from_file(Path(name))
    if name in _names():  # The other methods are not loaded, which takes longer than a short run.
        return _own_method(name)
    if name not in methods():
        raise unknown("method", name, methods())
    return methods()[name]


def regulariser(name: str) -> type[Regulariser]:
    """Return the regulariser class called ``name``, or the one in the file ``name`` if it ends in ``.py``.

    Raises:
        AtollError: if there is no such regulariser, or the file does not define exactly one.
    """
    if name.endswith(".py"):
        found = _defined(imported(Path(name), "Regulariser file"), Regulariser)
        if len(found) != 1:
            raise AtollError(f"Regulariser file {name!r} must define exactly one Regulariser; it has {len(found)}.")
        return found[0]
    if name not in regularisers():
        raise unknown("regulariser", name, regularisers())
    return regularisers()[name]


class MethodInfo(NamedTuple):
    """Title, citation and algorithm from the docstring of a method's file."""

    title: str
    citation: str
    url: str
    year: int | None
    algorithm: str


def method_info(cls: MethodType) -> MethodInfo:
    """Read citation and algorithm from the docstring of the method's module."""
    head, _, rest = inspect.cleandoc(sys.modules[cls.__module__].__doc__ or cls.__name__).partition("\n\n")
    head = " ".join(head.split())
    title, _, citation = head.partition(". ")
    url = re.search(r"https?://\S+", citation)
    year = re.search(r"\b(19|20)\d\d\b", citation)
    words = citation[: url.start()].strip() if url else citation
    return MethodInfo(
        title.rstrip("."), words.rstrip(". "), url[0] if url else "", int(year[0]) if year else None, rest
    )


@cache
def _names() -> tuple[str, ...]:
    """Return the names of the files of methods."""
    return tuple(info.name for info in pkgutil.iter_modules(package.__path__) if not info.name.startswith("_"))


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{package.__name__}.{name}")


def _added(group: str, base: type) -> dict[str, Any]:
    """Load the classes that other packages register in ``group``."""

    def check(name: str, cls: Any) -> None:
        if base not in getattr(cls, "__mro__", ()):
            raise TypeError(f"it is not a {base.__name__}")
        if base is Method:
            _check_form(cls, f"{name}: {cls.__name__}")

    return load_plugins(group, check)


def _defined(module: ModuleType, base: type) -> list[type[Any]]:
    own = (cls for cls in vars(module).values() if inspect.isclass(cls) and cls.__module__ == module.__name__)
    return [cls for cls in own if issubclass(cls, base)]


def _own_method(name: str) -> MethodType:
    return _method_of(_module(name), name)


def _method_of(module: ModuleType, name: str) -> MethodType:
    """Return the method class that is named like the file: ``fedavg_ft.py`` defines ``FedAvgFT``."""
    found = [cls for cls in _defined(module, Method) if cls.__name__.lower() == name.replace("_", "")]
    if len(found) != 1:
        raise TypeError(f"{module.__name__} must define one method that is named like the file.")
    return found[0]


def _from_file(path: Path) -> MethodType:
    found = _defined(imported(path, "Method file"), Method)
    if len(found) != 1:
        raise AtollError(f"Method file {str(path)!r} must define exactly one Method class; it has {len(found)}.")
    _check_form(found[0], f"Method file {str(path)!r}: {found[0].__name__}")
    return found[0]


def _check_form(cls: MethodType, where: str) -> None:
    """Raise an AtollError unless the class is a dataclass with defaults, hooks and annotations as a method needs."""
    check_functions(cls, where)
    declared: Any = cls
    for f in fields(declared):
        if f.default is MISSING and f.default_factory is MISSING:
            raise AtollError(f"{where}.{f.name} has no default. Give it one: a method must run without settings.")
    try:
        contract(cls())
    except (KeyError, NameError, TypeError, ValueError) as reason:
        raise AtollError(f"{where} does not say what it sends and stores: {reason}") from reason
