"""Atoll: personalised and model-heterogeneous federated learning."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .adaptation import adapt
    from .api import run
    from .core import Client, Method, Model, Task
    from .data.dataset import Dataset
    from .errors import AtollError
    from .result import Result

__version__ = "0.1.0"
__all__ = ["AtollError", "Client", "Dataset", "Method", "Model", "Result", "Task", "__version__", "adapt", "run"]

# Loaded when first asked for: most commands need little of it, and torch alone takes seconds.
_HOMES = {
    "AtollError": "errors",
    "Client": "core",
    "Dataset": "data.dataset",
    "Method": "core",
    "Model": "core",
    "Result": "result",
    "Task": "core",
    "adapt": "adaptation",
    "run": "api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
