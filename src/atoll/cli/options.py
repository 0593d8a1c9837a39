"""Make command-line options from the fields of a configuration, with the same names, help texts and defaults."""

from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import ClassVar, TypeVar, get_type_hints

import click

from ..config import Config, flag, from_dict, read_yaml
from ..utils.parsing import Json, parse_pair
from .signatures import GroupedHelp, write_sections

F = TypeVar("F", bound=Callable[..., object])
KINDS: dict[object, type] = {bool: bool, int: int, float: float, int | None: int, float | None: float}


class ConfigCommand(GroupedHelp):
    """Command whose help lists the options of a configuration by groups."""

    groups: ClassVar[dict[str, str]] = {f.name: f.metadata["group"] for f in fields(Config)}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_sections(self, ctx, formatter, self.groups, self.groups.values())


def config_options(*without: str) -> Callable[[F], F]:
    """Add one option for each field of :class:`Config` except ``without``; options that are not given stay None."""

    def add(command: F) -> F:
        hints = get_type_hints(Config)
        for f in reversed(fields(Config)):
            if f.name not in without:
                command = _option(f, hints[f.name])(command)
        return click.option(
            "--config", "config_file", type=click.Path(path_type=Path), help="YAML file with any of these options."
        )(command)

    return add


def _option(f: Field[object], kind: object) -> Callable[[F], F]:
    repeated = f.name in ("settings", "terms", "track", "metric")
    if kind is bool and not f.default:
        return click.option(flag(f.name), f.name, is_flag=True, default=None, help=_help(f))
    return click.option(
        flag(f.name),
        f.name,
        type=_type(f, kind),
        default=None,
        multiple=repeated,
        metavar="NAME=VALUE" if f.name == "settings" else None,
        help=_help(f),
    )


def _type(f: Field[object], kind: object) -> "click.Choice[str] | type":
    return click.Choice(f.metadata["choices"]) if "choices" in f.metadata else KINDS.get(kind, str)


def _help(f: Field[object]) -> str:
    about = f.metadata["about"]
    text = about[0].upper() + about[1:] + "."
    plain = f.default is not MISSING and f.default is not None and f.default is not False and f.default not in ((), "")
    return f"{text}  [default: {f.default}]" if plain else text


def given(options: Json, config_file: Path | None) -> Json:
    """Return the entries of the file, overridden by the options that were given."""
    values = read_yaml(config_file) if config_file else {}
    from_dict(values, str(config_file))  # Report an error in the file even if an option overrides the entry.
    if any(options.get(name) is not None for name in ("data", "data_dir", "task")):
        values.pop("data_digest", None)  # That of the file's own data.
    for name, value in options.items():
        if name == "settings":
            if value:
                values[name] = {**values.get(name, {}), **dict(parse_pair(flag(name), text) for text in value)}
        elif value is not None and value != ():
            values[name] = list(value) if isinstance(value, tuple) else value
    return values
