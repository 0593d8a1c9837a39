"""Atoll: personalised and model-heterogeneous federated learning."""

__version__ = "0.1.0"  # before the imports: they read it

from .api import run
from .core import Client, Method, Model, Task
from .data.dataset import Dataset
from .errors import AtollError
from .result import Result

__all__ = ["AtollError", "Client", "Dataset", "Method", "Model", "Result", "Task", "__version__", "run"]
