"""JSON and YAML that anybody may have written: plain values come out, or a ValueError."""

import json
import re
from typing import Any

import yaml

from ..errors import AtollError

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


def parse_options(text: str) -> dict[str, Any]:
    """``native28=true&hidden=128-64`` as names and plain values."""
    return dict(_option(part) for part in text.split("&") if part)


def _option(text: str) -> tuple[str, Any]:
    name, value = parse_pair(text)
    if re.fullmatch(r"\d+(-\d+)+", value):
        return name, tuple(int(number) for number in value.split("-"))
    if value.lower() in ("true", "false"):
        return name, value.lower() == "true"
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value


def parse_pair(text: str) -> tuple[str, str]:
    """``"lam=0.1"`` as ("lam", "0.1")."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise AtollError(f"Cannot read the setting {text!r}: write name=value.")
    return name, value
