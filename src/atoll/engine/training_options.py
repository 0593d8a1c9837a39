"""Fill in the options of local training that a run uses but the user did not give."""

from dataclasses import replace
from typing import Any

from ..config import Config
from ..core.method import AnyMethod
from ..core.optim.base import Optimiser
from ..methods._factory import local_optimisers

TRAINING_OPTIONS = {  # options of runs, and the fields of optimisers that they set
    "optimiser": "optimiser",
    "lr": "lr",
    "lr_schedule": "schedule",
    "epochs": "epochs",
    "steps": "steps",
    "batch_size": "batch_size",
}


def resolve_training(config: Config, method: AnyMethod) -> Config:
    """Fill in the options of local training that were not given, where all local training of the method agrees."""
    optimisers = [getattr(method, name) for name in local_optimisers(method)]
    found: dict[str, Any] = {}
    for option, field in TRAINING_OPTIONS.items():
        values = [_training_value(optimiser, field) for optimiser in optimisers]
        # Zero is a setting of a method, not a value of an option: nothing is trained at that rate or length.
        if getattr(config, option) is None and values and values[0] and all(v == values[0] for v in values):
            found[option] = values[0]
    if found.get("steps") is not None or config.steps is not None:
        found.pop("epochs", None)
    return replace(config, **found)


def _training_value(optimiser: Optimiser, field: str) -> Any:
    if field == "optimiser":
        return type(optimiser).__name__.lower()
    value = getattr(optimiser, field, None)
    return value if isinstance(value, int | float | str | None) else str(value)
