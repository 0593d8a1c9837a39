"""The types of options for editors follow the configuration."""

from dataclasses import fields
from typing import get_type_hints

from atoll.config import Config
from atoll.config.option_types import RunOptions

PARAMETERS = {"method", "data", "models", "metric", "out"}  # of the functions themselves


def test_typed_options_are_those_of_the_configuration() -> None:
    assert list(RunOptions.__annotations__) == [f.name for f in fields(Config) if f.name not in PARAMETERS]


def test_typed_options_accept_what_the_configuration_holds() -> None:
    typed, held = get_type_hints(RunOptions), get_type_hints(Config)
    lists = {tuple[str, ...], dict[str, object]}  # from Python, also other sequences and mappings

    assert {name: kind for name, kind in typed.items() if held[name] not in lists} == {
        name: held[name] for name in typed if held[name] not in lists
    }
