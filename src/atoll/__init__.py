"""Atoll: personalised and model-heterogeneous federated learning."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .adaptation import adapt
    from .api import run
    from .comparison import Comparison, Sweep, open_compare, run_compare, run_sweep
    from .core import Client, Method, Model, Task
    from .data.dataset import Dataset
    from .errors import AtollError
    from .result import Result

__version__ = "0.1.0"
__all__ = [
    "AtollError", "Client", "Comparison", "Dataset", "Method", "Model", "Result", "Sweep", "Task", "__version__",
    "adapt", "open_compare", "run", "run_compare", "run_sweep",
]  # fmt: skip

# Loaded when first asked for: most commands need little of it, and torch alone takes seconds.
_HOMES = {
    "AtollError": "errors",
    "Client": "core",
    "Comparison": "comparison",
    "Dataset": "data.dataset",
    "Method": "core",
    "Model": "core",
    "Result": "result",
    "Sweep": "comparison",
    "Task": "core",
    "adapt": "adaptation",
    "open_compare": "comparison",
    "run_compare": "comparison",
    "run_sweep": "comparison",
    "run": "api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
