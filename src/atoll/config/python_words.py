"""Write errors of the Python interface with its arguments in place of command-line options."""

import re
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import ParamSpec, TypeVar

from ..errors import AtollError
from .run_config import Config, flag

P = ParamSpec("P")
R = TypeVar("R")

_SWITCHES = {"--resume": "resume", "--force": "force"}
_OTHERS = {"--seeds": "seeds", "--grid": "grid", "--shots": "shots", "--repeats": "repeats", "--scale": "scale"}
# A command in backticks stays as it is. A value is a number, a word in capitals, or one with a colon, such as iid:0.5.
_WORDS = re.compile(r"`[^`]*`|(?P<option>--[a-z]+(?:-[a-z]+)*)(?: (?P<value>\d[\d.e-]*\b|[A-Z]+\b|[a-z]+:[\w.=]*\w))?")


def in_python(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function that users call, so that its errors name arguments."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except AtollError as reason:
            reason.args = (to_python(str(reason)),)
            raise

    return call


def to_python(message: str) -> str:
    """Replace command-line options in a message by arguments: ``--width 32`` by ``width=32``, ``--out`` by ``out``."""
    names = {flag(f.name): f.name for f in fields(Config)} | _OTHERS
    choices = {flag(f.name): f.metadata.get("choices") or () for f in fields(Config)}

    def argument(found: re.Match[str]) -> str:
        option, value = found["option"], found["value"]
        if option in _SWITCHES:
            return f"{_SWITCHES[option]}=True"
        name = names.get(option or "")
        if name is None:
            return found[0]
        if value is None:
            return name
        return f"{name}={value}" if value[0].isdigit() or value.isupper() else f"{name}={value!r}"

    for option, known in choices.items():  # A word that is one of the choices is a value as well.
        for choice in known:
            message = re.sub(rf"{option} {re.escape(str(choice))}\b", f"{names[option]}={str(choice)!r}", message)
    return _WORDS.sub(argument, message)
