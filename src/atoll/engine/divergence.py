"""Advise on the learning rate of a run that diverged."""

from collections.abc import Mapping
from typing import Any

from ..config import from_dict
from ..core.method import AnyMethod
from ..core.optim.base import Optimiser
from ..methods._factory import local_optimisers
from .setup import build_method


def advise_on_rate(config: Mapping[str, Any]) -> str:
    """Return a sentence that names the rate with the longest steps of a run, and how to make it smaller.

    Args:
        config: the configuration of the run, as config.yaml holds it.
    """
    return describe_longest_steps(build_method(from_dict(dict(config), "config.yaml")))


def describe_longest_steps(method: AnyMethod) -> str:
    """Return a sentence that names the optimiser with the longest steps: its rate, over 1 - momentum if it has one."""
    found = {name: value for name, value in vars(method).items() if isinstance(value, Optimiser)}
    if not found:
        return "Look for a learning rate that is too large."
    name = max(found, key=lambda name: _step(found[name]))
    rate = found[name].lr
    if name in local_optimisers(method):
        return f"Try a smaller --lr than {rate:g}."
    return f"Its longest steps have the rate {name}.lr = {rate:g}, which --lr does not set: try {_smaller(name, rate)}."


def _step(optim: Optimiser) -> float:
    momentum: float = getattr(optim, "momentum", 0.0)
    return optim.lr / (1 - momentum) if momentum < 1 else float("inf")


def _smaller(name: str, rate: float) -> str:
    return f"--set {name}.lr={rate / 10:g}"
