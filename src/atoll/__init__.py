"""Atoll: personalised and model-heterogeneous federated learning."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .api import run
    from .core.client import Client
    from .core.method import Method
    from .core.model import Model
    from .core.task import Task
    from .data.dataset import Dataset
    from .data.objects import make_dataset
    from .engine.result import Result
    from .errors import AtollError
    from .experiments.comparison import Comparison, open_compare, run_compare
    from .experiments.reproduction import PaperResult, run_paper
    from .experiments.sweep import Sweep, run_sweep
    from .inference.adaptation import adapt
    from .inference.models import open_run
__all__ = [
    "AtollError", "Client", "Comparison", "Dataset", "Method", "Model", "PaperResult", "Result", "Sweep", "Task",
    "__version__", "adapt", "make_dataset", "open_compare", "open_run", "run", "run_compare", "run_paper", "run_sweep",
]  # fmt: skip

# Loaded when first asked for: most commands need little of it, and torch alone takes seconds.
_HOMES = {
    "AtollError": "errors",
    "Client": "core",
    "Comparison": "experiments.comparison",
    "Dataset": "data.dataset",
    "Method": "core",
    "Model": "core",
    "PaperResult": "experiments.reproduction",
    "Result": "engine.result",
    "Sweep": "experiments.sweep",
    "Task": "core",
    "adapt": "inference.adaptation",
    "make_dataset": "data.objects",
    "open_compare": "experiments.comparison",
    "open_run": "inference.models",
    "run_compare": "experiments.comparison",
    "run_paper": "experiments.reproduction",
    "run_sweep": "experiments.sweep",
    "run": "api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    if not isinstance(found, type):
        from .config.python_words import in_python

        found = in_python(found)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
