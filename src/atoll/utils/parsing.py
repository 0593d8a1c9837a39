"""Read texts that users write: JSON and YAML as plain values, and the small languages of option values.

An option value is a :class:`Spec`, fields joined by colons (``krum:2:5``, ``0.3:before``), or a list of NAME=VALUE
pairs (``speed=1e9,spread=4``), or a name with a list of pairs behind it (``mlp:hidden=32&bias=false``). One function,
:func:`refusal`, words every error: which option, which text, what is wrong with it, and how to write it.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

import yaml

from ..errors import AtollError

Json = dict[str, Any]  # an object of a JSON or YAML file, whose values the reader has to check
LONGEST = 2**24  # characters of a configuration file


def from_json(text: str | bytes) -> Any:
    """Parse JSON; raise ValueError for other text."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def from_yaml(text: str) -> Any:
    """Parse YAML without tags and aliases; raise ValueError for other text.

    A few lines of aliases can stand for more than fits in memory.
    """
    if len(text) > LONGEST:
        raise ValueError(f"it has {len(text)} characters")
    try:
        return _Plain(text).get_single_data()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (yaml.YAMLError, ArithmeticError, TypeError, AttributeError) as reason:  # a date may have a month 13
        raise ValueError(str(reason)) from reason


class _Plain(yaml.SafeLoader):
    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it uses an alias (*): write the value again")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse an entry that is given twice, of which the first one would be ignored."""
        names = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        if twice := [name for name, times in names.items() if times > 1]:
            raise yaml.YAMLError(f"{twice[0]!r} is given twice")
        return super().construct_mapping(node, deep)


# ---------------------------------------------------------------------------------------------------------------------
# Fields joined by colons


def refusal(where: str, text: str, reason: str, form: str) -> AtollError:
    """Make the error for an option value: ``where`` names the option, ``form`` is how to write a right value."""
    return AtollError(f"{where} cannot be {text!r}: {reason}. Write {form}.")


@dataclass(frozen=True)
class Field:
    """One field of a :class:`Spec`.

    Attributes:
        name: as written in forms and messages, in capitals.
        wanted: the texts that are right, such as "a number above 0".
        read: turns the text into a value; raises ValueError if that cannot be.
        optional: whether the field may be empty or left out.
    """

    name: str
    wanted: str
    read: Callable[[str], Any]
    optional: bool = False


def number(
    name: str,
    *,
    least: float = -inf,
    above: float = -inf,
    most: float = inf,
    below: float = inf,
    optional: bool = False,
) -> Field:
    """Declare a finite number within bounds; ``above`` and ``below`` exclude their ends."""

    def read(text: str) -> float:
        value = float(text)
        if not (isfinite(value) and least <= value <= most and above < value < below):
            raise ValueError(text)
        return value

    bounds = [("at least", least), ("above", above), ("at most", most), ("below", below)]
    limits = " and ".join(f"{word} {bound:g}" for word, bound in bounds if isfinite(bound))
    if isfinite(least) and isfinite(most):
        limits = f"from {least:g} to {most:g}"
    return Field(name, f"a number {limits}".strip(), read, optional)


def whole(name: str, *, least: int = 0, most: int | None = None, optional: bool = False) -> Field:
    """Declare a whole number of at least ``least``."""

    def read(text: str) -> int:
        value = int(text)
        if value < least or (most is not None and value > most):
            raise ValueError(text)
        return value

    upper = "" if most is None else f" and at most {most}"
    return Field(name, f"a whole number of at least {least}{upper}", read, optional)


def word(name: str, choices: Sequence[str], *, optional: bool = False) -> Field:
    """Declare one of a few words."""

    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(text)
        return text

    return Field(name, " or ".join(choices), read, optional)


def anything(name: str, *, optional: bool = False) -> Field:
    """Declare a text of any kind; as the last field of a spec, colons included."""
    return Field(name, "a text", str, optional)


def several(field: Field, separator: str) -> Field:
    """Declare one or more values of the kind of ``field``, joined by ``separator``."""

    def read(text: str) -> tuple[Any, ...]:
        parts = text.split(separator)
        if "" in parts:
            raise ValueError(text)
        return tuple(map(field.read, parts))

    return Field(field.name, f"{field.wanted}, or several joined by {separator!r}", read, field.optional)


@dataclass(frozen=True)
class Spec:
    """The grammar of an option value: fields joined by colons, the optional ones last.

    The last field takes all that is left of the text, so that a path may contain colons.

    Example:
        >>> lag = Spec("SHARE:FACTOR, such as 0.2:4", number("SHARE", least=0, most=1), number("FACTOR", least=1))
        >>> lag.parse("--slow", "0.2:4")
        [0.2, 4.0]
    """

    form: str
    fields: tuple[Field, ...]

    def __init__(self, form: str, *fields: Field):
        object.__setattr__(self, "form", form)
        object.__setattr__(self, "fields", fields)

    def parse(self, where: str, text: str, skip: int = 0) -> list[Any]:
        """Return the values of the fields that are given.

        Args:
            where: the option, for messages.
            text: the whole value.
            skip: leading words that are no fields, such as the name of a rule.

        Raises:
            AtollError: if a field is missing or wrong, or if there is text after the last one.
        """
        words = text.split(":", skip + max(0, len(self.fields) - 1))[skip:]
        if any(words) and not self.fields:
            raise refusal(where, text, "nothing may follow the name", self.form)
        return [self._value(where, text, field, words[at : at + 1]) for at, field in enumerate(self._given(words))]

    def _given(self, words: Sequence[str]) -> Sequence[Field]:
        """Leave out optional fields at the end that are missing or empty."""
        given = [*words, *[""] * len(self.fields)]
        last = max((at for at, field in enumerate(self.fields) if given[at] or not field.optional), default=-1)
        return self.fields[: last + 1]

    def _value(self, where: str, text: str, field: Field, words: Sequence[str]) -> Any:
        if not any(words):
            raise refusal(where, text, f"{field.name} is missing", self.form)
        try:
            return field.read(words[0])
        except ValueError:
            raise refusal(where, text, f"{field.name} must be {field.wanted}", self.form) from None


# ---------------------------------------------------------------------------------------------------------------------
# NAME=VALUE pairs

PAIR = "NAME=VALUE, such as lam=0.1"


def parse_pair(where: str, text: str, form: str = PAIR) -> tuple[str, str]:
    """Split ``"lam=0.1"`` into ("lam", "0.1"); the value may be empty, the name not."""
    [pair] = _pairs(where, text, [text], form)
    return pair


def parse_pairs(where: str, text: str, listed: str, separator: str, form: str) -> dict[str, str]:
    """Read ``listed``, pairs joined by ``separator``, by name; ``text`` is the whole option value, for messages."""
    pairs = _pairs(where, text, [part for part in listed.split(separator) if part], form)
    found = dict(pairs)
    for name in found:
        if [other for other, _ in pairs].count(name) > 1:
            raise refusal(where, text, f"{name} is given twice", form)
    return found


def parse_options(where: str, text: str, listed: str, form: str) -> Json:
    """Read ``native28=true&hidden=128-64`` by name, with numbers, truth values and lists of whole numbers."""
    return {name: _plain(value) for name, value in parse_pairs(where, text, listed, "&", form).items()}


def _pairs(where: str, text: str, parts: Sequence[str], form: str) -> list[tuple[str, str]]:
    found = []
    for part in parts:
        name, sign, value = part.partition("=")
        if not sign or not name:
            raise refusal(where, text, f"{part!r} has no name and '=' before its value", form)
        found.append((name, value))
    return found


def _plain(value: str) -> object:
    if re.fullmatch(r"\d+(-\d+)+", value):
        return tuple(int(part) for part in value.split("-"))
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
