"""Write the JSON Schema of configuration files, with which editors complete entries and mark errors."""

from dataclasses import MISSING, fields
from types import UnionType
from typing import Any, get_args, get_type_hints

from ..config import Config, bounds_of

KEYWORDS = {"least": "minimum", "above": "exclusiveMinimum", "most": "maximum"}
TYPES: dict[Any, dict[str, Any]] = {
    bool: {"type": ["boolean"]},
    int: {"type": ["integer"]},
    float: {"type": ["number"]},
    str: {"type": ["string", "number"]},  # YAML reads 8 as a number even where text is meant.
    tuple[str, ...]: {"type": ["array", "string"], "items": {"type": "string", "minLength": 1}},
    dict[str, Any]: {"type": ["object"]},
}


def schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a configuration: types, choices, ranges, defaults and help texts.

    Example:
        >>> schema()["properties"]["rounds"]["minimum"]
        1
    """
    hints = get_type_hints(Config)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Atoll configuration",
        "description": "A configuration file for atoll run --config, or config.yaml of a run directory.",
        "type": "object",
        "additionalProperties": False,
        "properties": {f.name: _entry(f, hints[f.name]) for f in fields(Config)},
    }


def _entry(f: Any, hint: Any) -> dict[str, Any]:
    """Describe one field; ``x-group`` is the section of the help text that lists its option."""
    default = f.default if f.default is not MISSING else f.default_factory()
    return {
        "description": f.metadata["about"],
        "x-group": f.metadata["group"],
        **_values(f, hint),
        **{KEYWORDS[name]: bound for name, bound in bounds_of(f).items()},
        "default": list(default) if isinstance(default, tuple) else default,
    }


def _values(f: Any, hint: Any) -> dict[str, Any]:
    """Describe the values of a field: its choices, or its types."""
    optional = isinstance(hint, UnionType)
    if "choices" in f.metadata:
        return {"enum": [*f.metadata["choices"], *([None] if optional else [])]}
    found = TYPES[next(kind for kind in get_args(hint) if kind is not type(None)) if optional else hint]
    types = [*found["type"], *(["null"] if optional else [])]
    return {**found, "type": types if len(types) > 1 else types[0]}
