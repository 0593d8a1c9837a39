"""The JSON Schema of configuration files says what the code accepts."""

import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
from support.paths import ROOT

from atoll.config import Config
from atoll.errors import AtollError
from atoll.experiments.config_schema import schema

Atoll = Callable[..., Any]
ENTRIES = schema()["properties"]
KINDS: dict[str, tuple[type, ...]] = {
    "boolean": (bool,), "integer": (int,), "number": (int, float), "string": (str,), "array": (list,),
    "object": (dict,), "null": (type(None),),
}  # fmt: skip


def allows(entry: dict[str, Any], value: Any) -> bool:
    """Judge a value by the keywords that the schema uses."""
    if "enum" in entry:
        return value in entry["enum"]
    types = [entry["type"]] if isinstance(entry["type"], str) else entry["type"]
    if not any(isinstance(value, KINDS[t]) and (t == "boolean" or not isinstance(value, bool)) for t in types):
        return False
    if isinstance(value, list):
        return all(isinstance(v, str) and v for v in value)
    if isinstance(value, str) or value is None or "boolean" in types or "object" in types:
        return True
    low, above, high = (entry.get(name) for name in ("minimum", "exclusiveMinimum", "maximum"))
    return (low is None or value >= low) and (above is None or value > above) and (high is None or value <= high)


def test_schema_in_the_docs_is_up_to_date() -> None:
    assert json.loads((ROOT / "docs" / "config.schema.json").read_text()) == schema()


def test_schema_command_prints_the_schema(atoll: Atoll) -> None:
    assert json.loads(atoll("schema").stdout) == schema()


def test_every_entry_has_a_group_and_a_help_text_and_allows_its_default() -> None:
    assert list(ENTRIES) == [f.name for f in fields(Config)]
    for name, entry in ENTRIES.items():
        assert entry["description"], name
        assert entry["x-group"], name
        assert allows(entry, entry["default"]), name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rounds", 1), ("rounds", 0), ("rounds", None), ("rounds", [1]), ("rate", 1.0), ("rate", 0), ("rate", 1.5),
        ("lr", 0.1), ("lr", 0), ("lr", None), ("clients", None), ("clients", 0), ("proxy", 8), ("proxy", "8-16"),
        ("proxy", True), ("data", None), ("out", None), ("out", ["a"]), ("backend", "loop"), ("backend", "lop"),
        ("optimiser", None), ("optimiser", "adam"), ("optimiser", "adm"), ("cov_source", "none"),
        ("models", ["mlp"]), ("models", "mlp"), ("models", [3]), ("models", [""]), ("settings", {"lam": 1}),
        ("settings", None), ("settings", ["lam=1"]), ("global_test", True), ("strikes", 0), ("strikes", -1),
        ("target", 0.9), ("target", 90), ("dp_seed", 0), ("terms", ["dw"]), ("terms", {"a": 1}),
    ],
)  # fmt: skip
def test_schema_and_code_agree_on_a_value(name: str, value: Any) -> None:
    try:
        Config(**{name: value})
    except AtollError:
        accepted = False
    else:
        accepted = True
    assert allows(ENTRIES[name], value) == accepted


@pytest.mark.parametrize("command", ["run", "compare", "sweep", "audit", "attack"])
def test_help_lists_options_by_group(command: str, atoll: Atoll) -> None:
    shown = atoll(command, "--help").output
    assert "\nData and clients:\n" in shown
    assert "\nPrivacy:\n" in shown
    assert shown.index("\nOptions:\n") < shown.index("\nData and clients:\n")
