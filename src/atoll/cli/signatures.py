"""Check a command line, explain it and complete it without importing what the command needs.

Options and help texts of all commands are in ``signatures.json``, made from the commands themselves. A command is
imported, with torch, when its options and the names of methods and data sets have been checked.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import cache, partial
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from ..methods._names import ALL, check_name, method_names
from ..utils.parsing import Json
from .data_names import check_data_name

FILE = Path(__file__).with_name("signatures.json")
COMPLETED = ("data", "models")  # options whose values are completed by stored names
RECIPES = "recipes"  # stored names that complete an argument PAPER/ITEM
FOLDERS = ("resume", "out")  # options of type text whose values are completed by folders
OWN = "Options"  # the section of options that are no entries of a configuration
Load = Callable[[], click.Command]
TYPES: dict[str, Callable[..., Any]] = {
    "Bool": lambda: click.BOOL,
    "Choice": lambda choices: click.Choice(choices),
    "Float": lambda: click.FLOAT,
    "FloatRange": click.FloatRange,
    "Int": lambda: click.INT,
    "IntRange": click.IntRange,
    "Path": click.Path,
    "String": lambda: click.STRING,
}
TYPE_FIELDS = {
    "Choice": ("choices",),
    "FloatRange": ("min", "max", "min_open", "max_open"),
    "IntRange": ("min", "max", "min_open", "max_open"),
    "Path": ("exists", "file_okay", "dir_okay", "writable", "readable", "allow_dash"),
}
FIELDS = ("help", "required", "nargs", "multiple", "metavar", "is_flag", "hidden", "show_default")


LONGEST = 500  # letters of the first sentence on a command
HELP_ALL = "--help-all"
_all_options: ContextVar[bool] = ContextVar("all_options", default=False)
# Options of a run that `--help` lists; `--help-all` lists the others too.
COMMON = frozenset(
    {
        "data", "data_dir", "clients", "partition", "rows", "models", "rounds", "rate", "seed", "lr", "epochs",
        "batch_size", "optimiser", "settings", "terms", "drop", "robust", "dp", "backend", "workers", "out",
        "eval_every",
    }
)  # fmt: skip


class GroupedHelp(click.Command):
    """Command with so many options that ``--help`` lists the common ones, and ``--help-all`` all of them."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Read ``--help-all`` as ``--help`` that lists everything."""
        if HELP_ALL not in args:
            return super().make_context(info_name, args, parent, **extra)
        shown = _all_options.set(True)
        try:
            return super().make_context(info_name, ["--help"], parent, **extra)
        finally:
            _all_options.reset(shown)


class LightCommand(GroupedHelp):
    """A command that knows its options only, and is replaced by the real one when these are right.

    Args:
        name: name of the command.
        signature: its options and help text, from ``describe``.
        load: imports the real command.
    """

    def __init__(self, name: str, signature: Json, load: Load):
        super().__init__(name, params=[_parameter(p) for p in signature["params"]], help=signature["help"])
        self._groups = {p["name"]: p["group"] for p in signature["params"] if "group" in p}
        self._titles = signature.get("titles", [])
        self._load = load

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Check the arguments, then return the context of the real command."""
        light = super().make_context(info_name, list(args), parent, **extra)
        if light.resilient_parsing:  # for completion
            return light
        for parameter in self.params:
            if _names_methods(parameter):
                given = light.params[str(parameter.name)]
                for text in given if isinstance(given, tuple) else filter(None, [given]):
                    check_name(text)
        if isinstance(data := light.params.get("data"), str):
            check_data_name(data, light.params.get("data_dir"), _stored()["names"]["data"])
        real = self._load()
        real.context_settings.setdefault("help_option_names", self.context_settings.get("help_option_names"))
        return real.make_context(info_name, args, parent, **extra)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self._groups:
            write_sections(self, ctx, formatter, self._groups, self._titles)
        else:
            super().format_options(ctx, formatter)


class WholeSentences(click.Group):
    """Group whose help has the whole first sentence of each command, which Click would cut."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            names = self.list_commands(ctx)
            formatter.write_dl([(name, self.commands[name].get_short_help_str(LONGEST)) for name in names])


class LightGroup(WholeSentences):
    """A group whose commands are light. Without a command, the real group is called."""

    def __init__(self, name: str, signature: Json, load: Load):
        def call(**values: object) -> None:
            ctx = click.get_current_context()
            if ctx.invoked_subcommand is None:
                ctx.invoke(load().callback, **values)  # type: ignore[arg-type]

        params = [_parameter(p) for p in signature["params"]]
        commands = {
            sub: _light(sub, entry, partial(_of_group, load, sub)) for sub, entry in signature["commands"].items()
        }
        super().__init__(
            name, commands, params=params, help=signature["help"], callback=call, invoke_without_command=True
        )


def _of_group(load: Load, name: str) -> click.Command:
    group = load()
    assert isinstance(group, click.Group)
    return group.commands[name]


def light_command(path: str, load: Load) -> click.Command:
    """Return the light form of a command.

    Args:
        path: its name, such as ``run`` or ``deploy run``.
        load: imports the real command.
    """
    return _light(path.rpartition(" ")[2], _signatures()[path], load)


def _light(name: str, signature: Json, load: Load) -> click.Command:
    return (LightGroup if "commands" in signature else LightCommand)(name, signature, load)


@cache
def _stored() -> Json:
    stored: Json = json.loads(FILE.read_text(encoding="utf-8"))
    return stored


@cache
def _signatures() -> Json:
    """Read the signatures of all commands. Commands have many options in common, which the file has once."""
    stored = _stored()
    return {path: _with_params(signature, stored["params"]) for path, signature in stored["commands"].items()}


def _with_params(signature: Json, params: list[Json]) -> Json:
    whole = {**signature, "params": [params[at] for at in signature["params"]]}
    if "commands" in signature:
        whole["commands"] = {name: _with_params(sub, params) for name, sub in signature["commands"].items()}
    return whole


def write_sections(
    command: click.Command,
    ctx: click.Context,
    formatter: click.HelpFormatter,
    groups: Mapping[str, str],
    titles: Iterable[str],
) -> None:
    """Write the options of a command by groups, those without a group first; common ones alone for ``--help``.

    Args:
        command: the command.
        ctx: its context.
        formatter: receives the text.
        groups: the group of each option.
        titles: all groups, in order.
    """
    sections: dict[str, list[tuple[str, str]]] = {OWN: [], **{title: [] for title in titles}}
    left_out = 0
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if isinstance(parameter, click.Argument):  # the usage line has it
            continue
        if record and parameter.name in groups and not _all_options.get() and parameter.name not in COMMON:
            left_out += 1
        elif record:
            sections[groups.get(str(parameter.name), OWN)].append(record)
    if left_out:
        sections[OWN].append((HELP_ALL, f"Show {left_out} more options: of data, models, faults, privacy, evaluation."))
    for title, records in sections.items():
        if records:
            with formatter.section(title):
                formatter.write_dl(records)


# ---------------------------------------------------------------------------------------------------------------------
# Parameters as JSON and back


def describe_all(commands: Mapping[str, click.Command], names: Mapping[str, Sequence[str]]) -> Json:
    """Return the content of ``signatures.json``.

    Args:
        commands: the commands by their paths.
        names: names of data sets, models and recipes, which completion offers.
    """
    params: list[Json] = []

    def numbered(signature: Json) -> Json:
        params.extend(p for p in signature["params"] if p not in params)
        found = {**signature, "params": [params.index(p) for p in signature["params"]]}
        if "commands" in signature:
            found["commands"] = {name: numbered(sub) for name, sub in signature["commands"].items()}
        return found

    described = {path: numbered(describe(command)) for path, command in commands.items()}
    stored = {kind: list(names[kind]) for kind in (*COMPLETED, RECIPES)}
    return {"commands": described, "params": params, "names": stored}


def describe(command: click.Command) -> Json:
    """Return the options and the help text of a command as JSON."""
    groups: Mapping[str, str] = getattr(command, "groups", {})
    found: Json = {"help": command.help, "params": [_describe(p, groups) for p in command.params]}
    if groups:
        found["titles"] = list(dict.fromkeys(groups.values()))
    if isinstance(command, click.Group):
        found["commands"] = {name: describe(sub) for name, sub in command.commands.items()}
    return found


def _describe(p: click.Parameter, groups: Mapping[str, str]) -> Json:
    info: Json = dict(p.to_info_dict())
    kind: Json = dict(p.type.to_info_dict())
    fields = {name: getattr(p, name, None) for name in FIELDS}
    decls = [*p.opts, *p.secondary_opts]
    found = {
        "name": p.name,
        "kind": p.param_type_name,
        "decls": ["/".join(decls) if p.secondary_opts else decl for decl in (decls[:1] if p.secondary_opts else decls)],
        "type": [kind["param_type"], {name: kind[name] for name in TYPE_FIELDS.get(kind["param_type"], ())}],
        **{name: value for name, value in fields.items() if value is not None and value is not False},
    }
    if info["default"] is not None and info["default"] is not False:
        found["default"] = info["default"]
    if info.get("flag_value") == "":  # an option that may stand alone
        found |= {"flag_value": "", "is_flag": False}
    return found | ({"group": groups[p.name]} if p.name in groups else {})


def _parameter(p: Json) -> click.Parameter:
    kind, fields = p["type"]
    options: Json = {name: p[name] for name in FIELDS if name in p} | {"type": TYPES[kind](**fields)}
    if p["kind"] == "argument":
        plain = {name: options[name] for name in ("required", "nargs", "metavar", "type") if name in options}
        required = {"required": p.get("required", False)}
        complete: Json = {"shell_complete": _complete_method} if _is_method(p["name"], p.get("metavar")) else {}
        if p.get("metavar") == "PAPER/ITEM":
            complete = {"shell_complete": partial(_complete_name, RECIPES)}
        return click.Argument([p["name"]], **plain | required | complete)
    if options.get("is_flag"):
        del options["type"]
    further: Json = {name: p[name] for name in ("default", "flag_value") if name in p}
    if p["name"] in COMPLETED:
        further["shell_complete"] = partial(_complete_name, p["name"])
    elif p["name"] in FOLDERS and kind == "String":
        further["shell_complete"] = _complete_folder
    return click.Option([*p["decls"], p["name"]], **options | further)


def _complete_name(kind: str, ctx: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete a data set or a model by the stored names; of a list with commas, the last entry."""
    before, comma, last = typed.rpartition(",")
    return [CompletionItem(before + comma + name) for name in _stored()["names"][kind] if name.startswith(last)]


def _complete_folder(ctx: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    return [CompletionItem(typed, type="dir")]


def _is_method(name: str, metavar: str | None) -> bool:
    return "METHOD" in metavar if metavar else name == "method"


def _names_methods(p: click.Parameter) -> bool:
    return isinstance(p, click.Argument) and _is_method(str(p.name), p.metavar)


def _complete_method(ctx: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in (*method_names(), ALL) if name.startswith(typed)]
