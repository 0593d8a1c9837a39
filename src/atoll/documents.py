"""JSON and YAML that anybody may have written: plain values come out, or a ValueError."""

import json
from typing import Any

import yaml

LONGEST = 2**24  # characters; a longer configuration is none


def from_json(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def from_yaml(text: str) -> Any:
    """Plain values only: no tags, and no aliases, as a few lines of them can stand for more than fits in memory."""
    if len(text) > LONGEST:
        raise ValueError(f"it has {len(text)} characters")
    try:
        return _Plain(text).get_single_data()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (yaml.YAMLError, ArithmeticError, TypeError, AttributeError) as reason:  # a date may have a month 13
        raise ValueError(str(reason)) from reason


class _Plain(yaml.SafeLoader):
    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it uses an alias (*): write the value again")
        return super().compose_node(parent, index)
