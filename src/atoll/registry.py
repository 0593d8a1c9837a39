"""Which methods and regularisers there are: read from the files, no list is kept."""

import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from . import methods as package
from .core import Method
from .errors import AtollError, unknown
from .terms import Regulariser

MethodType = type[Method[Any, Any, Any, Any]]


@cache
def methods() -> dict[str, MethodType]:
    """Every method of the package, by the name of its file."""
    return {name: _method_of(module, name) for name, module in _modules()}


@cache
def regularisers() -> dict[str, type[Regulariser]]:
    """Every regulariser of the package, by the lower-case name of its class."""
    return {cls.__name__.lower(): cls for _, module in _modules() for cls in _defined(module, Regulariser)}


def method(name: str) -> MethodType:
    """The method called ``name``, or the one in the file ``name`` if it ends in ``.py``."""
    if name.endswith(".py"):
        return _from_file(Path(name))
    if name not in methods():
        raise unknown("method", name, methods())
    return methods()[name]


class Card(NamedTuple):
    """What the first lines of a method's file say."""

    title: str
    citation: str
    url: str
    year: int | None
    algorithm: str


def card(cls: MethodType) -> Card:
    """Read citation and algorithm off the docstring of the method's module."""
    head, _, rest = inspect.cleandoc(sys.modules[cls.__module__].__doc__ or cls.__name__).partition("\n\n")
    head = " ".join(head.split())
    title, _, citation = head.partition(". ")
    url = re.search(r"https?://\S+", citation)
    year = re.search(r"\b(19|20)\d\d\b", citation)
    words = citation[: url.start()].strip() if url else citation
    return Card(title.rstrip("."), words.rstrip(". "), url[0] if url else "", int(year[0]) if year else None, rest)


def _modules() -> Iterator[tuple[str, ModuleType]]:
    for info in pkgutil.iter_modules(package.__path__):
        if not info.name.startswith("_"):
            yield info.name, importlib.import_module(f"{package.__name__}.{info.name}")


def _defined(module: ModuleType, base: type) -> list[type[Any]]:
    own = (cls for cls in vars(module).values() if inspect.isclass(cls) and cls.__module__ == module.__name__)
    return [cls for cls in own if issubclass(cls, base)]


def _method_of(module: ModuleType, name: str) -> MethodType:
    """The method class that bears the file's name: ``fedavg_ft.py`` defines ``FedAvgFT``."""
    found = [cls for cls in _defined(module, Method) if cls.__name__.lower() == name.replace("_", "")]
    if len(found) != 1:
        raise TypeError(f"{module.__name__} must define one method called like its file.")
    return found[0]


def _from_file(path: Path) -> MethodType:
    if not path.is_file():
        raise AtollError(f"There is no method file {str(path)!r}. Check the path.")
    source = path.resolve()
    name = f"atoll_user_{source.stem}_{sha256(str(source).encode()).hexdigest()[:8]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, source)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as reason:
            del sys.modules[name]
            raise AtollError(f"Method file {str(path)!r} cannot be imported: {reason!r}") from reason
    found = _defined(sys.modules[name], Method)
    if len(found) != 1:
        raise AtollError(f"Method file {str(path)!r} must define exactly one Method class; it has {len(found)}.")
    return found[0]
