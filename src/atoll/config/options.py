"""Declare options of a run: groups, choices, bounds, and the conversion of values."""

from collections.abc import Callable, Mapping
from dataclasses import Field, field
from operator import ge, gt, le
from typing import Any, NamedTuple

from ..errors import AtollError, unknown
from ..methods._setting_values import convert

LENGTH = frozenset({"rounds", "patience", "until"})  # options that decide when a run ends
# Options that decide where, how fast and how long a run happens do not change the results of its rounds.
NEUTRAL = LENGTH | {
    "target",
    "target_of",
    "data_digest",
    "data_dir",
    "out",
    "store",
    "cache",
    "checkpoint_every",
    "keep_models",
    "workers",
    "track",
}


COMMAS = frozenset({"models", "adapter"})  # lists that may be one text with commas

# Groups of options in help texts and editors.
DATA = "Data and clients"
MODELS = "Models"
METHOD = "Method and local training"
ROUNDS = "Rounds"
ROBUSTNESS = "Server-side protection"
FAULTS = "Simulated devices, faults and attacks"
PRIVACY = "Privacy"
EVALUATION = "Evaluation"
EXECUTION = "Execution and files"


class Bound(NamedTuple):
    """A kind of limit on a number: its words in messages, and the comparison that must hold."""

    words: str
    holds: Callable[[float, float], bool]


BOUNDS = {"least": Bound("at least", ge), "above": Bound("above", gt), "most": Bound("at most", le)}


def option(default: object, about: str, **more: object) -> Any:
    """Declare a field of the configuration.

    Args:
        default: the value if none is given.
        about: the help text.
        more: ``group``, and if they apply ``choices``, bounds (``least``, ``above``, ``most``), ``check``, a function
            that raises AtollError for a malformed text, and ``flag``, the name of the command-line option if the field
            has another name.
    """
    metadata = {"about": about, **more}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def bounds_of(f: Field[object]) -> dict[str, float]:
    """Return the bounds of a field by their names in ``BOUNDS``."""
    return {name: f.metadata[name] for name in BOUNDS if name in f.metadata}


def read_value(value: Any, f: Field[Any], kind: Any, where: str) -> object:
    """Convert the value of an option to its type.

    Args:
        value: a value from the command line, a YAML file or a Python call.
        f: the field of the configuration.
        kind: type of the field.
        where: name of the option, for messages.

    Raises:
        AtollError: if the value has the wrong type, or is not among the choices.
    """
    choices = f.metadata.get("choices", ())
    if value in choices:  # The word "none" may be a choice, and must not be read as None.
        return value
    made = _convert(value, kind, where, commas=f.name in COMMAS)
    if choices and made is not None and made not in choices:
        raise unknown(where, str(made), choices)
    return made


def _convert(value: object, kind: Any, where: str, commas: bool) -> object:
    if kind == tuple[str, ...]:
        return _words(value, where, commas)
    if kind == dict[str, object]:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise AtollError(f"{where} must be name=value pairs, not {value!r}.")
        return dict(value)
    return convert(value, kind, where)


def _words(value: object, where: str, commas: bool) -> tuple[str, ...]:
    words = value.split(",") if isinstance(value, str) and commas else [value] if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not all(isinstance(w, str) and w for w in words):
        raise AtollError(f"{where} must be a list of names, not {value!r}.")
    return tuple(words)


def check_value(value: Any, f: Field[Any], where: str) -> None:
    """Raise an AtollError if a value is malformed or out of bounds; None, for an option that is off, is neither."""
    if value is None:
        return
    if "check" in f.metadata:
        f.metadata["check"](value)
    bounds = bounds_of(f)
    if not all(BOUNDS[name].holds(value, bound) for name, bound in bounds.items()):
        limits = " and ".join(f"{BOUNDS[name].words} {bound}" for name, bound in bounds.items())
        # Shares are often given in percent by mistake, so the message repeats the meaning of the option.
        meaning = f": {f.metadata['about']}" if "most" in bounds else ""
        raise AtollError(f"{where} must be {limits}, not {value}{meaning}.")
