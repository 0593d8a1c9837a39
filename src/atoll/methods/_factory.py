"""Build methods from the names, variants, ``name=value`` settings and regularisers that a user wrote."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple, TypeVar, cast, get_type_hints

from ..core import DPSGD, SGD, Adam, Method, Optimiser, Regulariser, Regularisers
from ..core.hooks import HasOptimiser, TakesRegularisers
from ..core.method import traits_of
from ..errors import AtollError, unknown
from ..utils.parsing import parse_pairs
from . import _registry
from ._setting_values import convert

T = TypeVar("T")
OPTIMISERS: dict[str, type[Optimiser]] = {"sgd": SGD, "adam": Adam, "dpsgd": DPSGD}
LOCAL_OPTIMISERS = ("optim", "personal_optim", "head_optim", "proxy_optim", "finetune")


def make(
    name: str,
    settings: Mapping[str, Any] | None = None,
    terms: Sequence[str] = (),
    optimiser: Mapping[str, Any] | None = None,
) -> Method[Any, Any, Any, Any]:
    """Build a method with settings and regularisers.

    Args:
        name: a method or a path that ends in ``.py``, perhaps with a variant and settings behind a colon, such as
            ``"dcpfl:no-al"``, ``"fedprox:mu=0.1"`` or ``"scd:no-gm,reg_every=2"``.
        settings: hyper-parameters, nested ones with a dot: ``{"lam": 0.2, "optim.momentum": 0.5}``.
        terms: regularisers as on the command line: ``["dw:mu=0.1"]``.
        optimiser: the optimiser options that all methods share; they apply to all local training of a client, so also
            to personal models, heads, proxies and fine-tuning.

    Raises:
        AtollError: if a name is unknown or a value does not fit.

    Example:
        >>> make("ditto", {"lam": 0.5}).lam
        0.5
    """
    base, rest = split_variant(name)
    cls = _registry.method(base)
    built = cls()
    if optimiser:
        built = _with_optimiser(built, optimiser, base)
    variant, named = _read_variant(name, rest or "")
    given = dict(settings or {})
    for field in named.keys() & given.keys():  # The label would name a value that the run does not have.
        raise AtollError(f"{name!r} says what {field} is, and {field}={given[field]} is given as well. Give it once.")
    for field, value in {**_variant(built, base, variant), **named, **given}.items():
        built = _set(built, field, value, where=base)
    return _add_terms(built, terms, base) if terms else built


def with_settings(target: T, settings: Mapping[str, Any], where: str) -> T:
    """Return a copy of ``target``, a method or another dataclass, with some fields set.

    ``settings`` maps field names, nested ones with a dot, to values; ``where`` names the target in error messages.
    """
    for path, value in settings.items():
        target = _set(target, path, value, where)
    return target


def split_variant(name: str) -> tuple[str, str | None]:
    """Split ``"dcpfl:no-al"`` into the method and the text after the colon; None if there is none."""
    base, _, rest = name.partition(":")
    return base, rest or None


def _read_variant(name: str, rest: str) -> tuple[str, dict[str, str]]:
    """Read the text after the colon: a variant, or settings, or both, such as ``no-gm,reg_every=2``."""
    if name.endswith(":"):
        raise AtollError(f"Nothing follows the colon of {name!r}. Write METHOD:VARIANT or METHOD:SETTING=VALUE.")
    first, _, others = rest.partition(",")
    variant, listed = ("", rest) if "=" in first else (first, others)
    form = "METHOD:SETTING=VALUE,SETTING=VALUE, such as fedprox:mu=0.1, or METHOD:VARIANT,SETTING=VALUE"
    return variant, parse_pairs("The method", name, listed, ",", form)


def _variant(method: Any, base: str, variant: str) -> Mapping[str, Any]:
    """Return the settings of a variant; none without a variant."""
    known = traits_of(method).variants
    if not variant:
        return {}
    if variant in known:
        return known[variant]
    named = {s.name: s.default for s in settings_of(method)}
    if variant in named:
        raise AtollError(f"{base} has no variant {variant!r}, but a setting. Write its value: {base}:{variant}=VALUE.")
    if known:
        raise unknown("variant", variant, known, f"of {base}")
    raise AtollError(f"{base} has no variants. Settings are written with their values, as {base}:SETTING=VALUE.")


def _with_optimiser(method: Any, options: Mapping[str, Any], base: str) -> Any:
    if not isinstance(method, HasOptimiser):
        raise AtollError(f"{base} has no optimiser of local training to set. Leave out {', '.join(options)}.")
    # DP-SGD covers one training alone; methods that train more are refused later, with the reason.
    reached = ["optim"] if options.get("optimiser") == "dpsgd" else local_optimisers(method)
    for optimiser in reached:
        given = dict(options)
        if "optimiser" in given:
            method = _set(method, optimiser, given.pop("optimiser"), where=base)
        for name, value in given.items():
            method = _set(method, f"{optimiser}.{name}", value, where=base)
    return method


def local_optimisers(method: Any) -> list[str]:
    """Return the fields of a method that hold optimisers of a client's own training.

    Options of local training apply to all of them, so that personal models, heads and proxies train as the user asked.
    A field with ``own_rate`` in its metadata keeps its values: it solves an inner problem, or has a rate of its own.
    """
    return [f.name for f in fields(method) if f.name in LOCAL_OPTIMISERS and not f.metadata.get("own_rate")]


def _set(target: Any, path: str, value: Any, where: str) -> Any:
    """Return ``target`` with one field, perhaps of a nested dataclass, replaced."""
    name, _, rest = path.partition(".")
    hints = get_type_hints(type(target))
    known = {f.name for f in fields(target)}
    if name not in known:
        raise unknown_setting(where, name, [target])
    if rest:
        inner = getattr(target, name)
        if not is_dataclass(inner):
            raise AtollError(f"Setting {where}.{name} has no parts: write {name}=VALUE.")
        value = _set(inner, rest, value, where=f"{where}.{name}")
    elif hints[name] is Optimiser:
        value = _optimiser(value, getattr(target, name), f"{where}.{name}")
    else:
        value = convert(value, hints[name], f"{where}.{name}")
    return replace(target, **{name: value})


def unknown_setting(where: str, name: str, owners: Sequence[Any]) -> AtollError:
    """Return the error for a setting that none of ``owners`` has, with the nearest name or all that they have.

    Args:
        where: the owners, such as ``"fedavg"``.
        name: the setting that was given.
        owners: methods, regularisers or optimisers.
    """
    known = list(dict.fromkeys(s.name for owner in owners for s in settings_of(owner)))
    nested = [other for other in known if other.endswith(f".{name}")]
    if nested:
        return AtollError(f"Unknown setting {name!r} of {where}. Did you mean {' or '.join(map(repr, nested))}?")
    message = str(unknown("setting", name, known, f"of {where}"))
    terms = [term for term, cls in _registry.regularisers().items() if name in {s.name for s in settings_of(cls())}]
    if terms and any(isinstance(owner, TakesRegularisers) for owner in owners):
        message += f" Regularisers with a setting {name}: {', '.join(terms)}; write --with {terms[0]}:{name}=VALUE."
    return AtollError(message)


def _optimiser(value: Any, now: Optimiser, where: str) -> Optimiser:
    """Return the optimiser called ``value``; the current one, with its own defaults, if the class is the same."""
    if isinstance(value, Optimiser):
        return value
    if str(value) not in OPTIMISERS:
        raise unknown("optimiser", str(value), OPTIMISERS, f"for {where}")
    kind = OPTIMISERS[str(value)]
    return now if type(now) is kind else kind()


def _add_terms(method: Any, terms: Sequence[str], base: str) -> Any:
    if not isinstance(method, TakesRegularisers):
        able = sorted(name for name, cls in _registry.methods().items() if isinstance(cls(), TakesRegularisers))
        raise AtollError(f"{base} takes no regularisers. Methods that do: {', '.join(able)}.")
    added = [regulariser(text) for text in terms]
    kinds = [type(r) for r in (*method.terms(), *added)]
    if len(set(kinds)) < len(kinds):
        raise AtollError(f"{base} would have the same regulariser twice. Name each regulariser once.")
    return replace(cast(Any, method), regularisers=Regularisers([*method.regularisers, *added]))


def regulariser(text: str) -> Regulariser:
    """Make a regulariser from a value of ``--with``, such as ``"dw:mu=0.1,form=ata"``."""
    name, _, options = text.partition(":")
    form = "NAME:FIELD=VALUE,FIELD=VALUE, such as dw:mu=0.1"
    return with_settings(_registry.regulariser(name)(), parse_pairs("--with", text, options, ",", form), name)


def fill_from_option(value: T, options: str, flag: str) -> T:
    """Set fields of ``value`` from a value of the option ``flag``, such as ``"speed=1e9,spread=4"``."""
    form = "FIELD=VALUE,FIELD=VALUE, such as speed=1e9,spread=4"
    return with_settings(value, parse_pairs(flag, options, options, ",", form), flag)


def setting_value(method: Any, path: str) -> Any:
    """Return the value of the setting ``path`` of a method, converted: ``"0.50"`` is 0.5."""
    value = method
    for name in path.split("."):
        value = getattr(value, name)
    return type(value).__name__.lower() if isinstance(value, Optimiser) else value


class Setting(NamedTuple):
    """One hyper-parameter in a listing: name, default, meaning and source of the default."""

    name: str
    default: Any
    meaning: str
    source: str


def settings_of(value: Any, prefix: str = "", source: str = "") -> Iterator[Setting]:
    """Yield every hyper-parameter of a method, regulariser or optimiser, nested ones with a dot.

    ``source`` is named for values that differ from the defaults of their class.
    """
    for f in fields(value):
        current, about, own = getattr(value, f.name), f.metadata.get("about", ""), f.metadata.get("source", "")
        if isinstance(current, Optimiser):
            yield Setting(prefix + f.name, type(current).__name__.lower(), about, own)
            yield from settings_of(current, f"{prefix}{f.name}.", own)
        elif not isinstance(current, Regularisers):
            yield Setting(prefix + f.name, current, about, own if current == f.default else source)
