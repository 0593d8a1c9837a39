"""Write the JSON Schema of configuration files, with which editors complete entries and mark errors."""

from dataclasses import Field, fields
from types import UnionType
from typing import get_args, get_type_hints

from ..config import Config, bounds_of
from ..utils.parsing import Json

KEYWORDS = {"least": "minimum", "above": "exclusiveMinimum", "most": "maximum"}
TYPES: dict[object, Json] = {
    bool: {"type": ["boolean"]},
    int: {"type": ["integer"]},
    float: {"type": ["number"]},
    str: {"type": ["string", "number"]},  # YAML reads 8 as a number even where text is meant.
    tuple[str, ...]: {"type": ["array", "string"], "items": {"type": "string", "minLength": 1}},
    dict[str, object]: {"type": ["object"]},
}


def schema() -> Json:
    """Return the JSON Schema (2020-12) of a configuration: types, choices, ranges, defaults and help texts.

    Example:
        >>> schema()["properties"]["rounds"]["minimum"]
        1
    """
    hints = get_type_hints(Config)
    defaults = Config().to_dict()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Atoll configuration",
        "description": "A configuration file for atoll run --config, or config.yaml of a run directory.",
        "type": "object",
        "additionalProperties": False,
        "properties": {f.name: _entry(f, hints[f.name], defaults[f.name]) for f in fields(Config)},
    }


def _entry(f: Field[object], hint: object, default: object) -> Json:
    """Describe one field; ``x-group`` is the section of the help text that lists its option."""
    return {
        "description": f.metadata["about"],
        "x-group": f.metadata["group"],
        **_values(f, hint),
        **{KEYWORDS[name]: bound for name, bound in bounds_of(f).items()},
        "default": default,
    }


def _values(f: Field[object], hint: object) -> Json:
    """Describe the values of a field: its choices, or its types."""
    optional = isinstance(hint, UnionType)
    if "choices" in f.metadata:
        return {"enum": [*f.metadata["choices"], *([None] if optional else [])]}
    found = TYPES[next(kind for kind in get_args(hint) if kind is not type(None)) if optional else hint]
    types = [*found["type"], *(["null"] if optional else [])]
    return {**found, "type": types if len(types) > 1 else types[0]}
