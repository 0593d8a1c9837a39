"""Can this method run on this federation? Asked before anything runs."""

from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from . import registry, robust, securesum, train
from .clock import Devices
from .core import Need, check_functions
from .errors import AtollError
from .fleet import Fleet
from .key import key
from .payload import equal
from .poison import ALIE, lie, pieces
from .rehearsal import rehearse
from .rounds import AnyMethod
from .termcheck import check_terms
from .validation import promises

GUARDED = (train.mean, robust.table_mean)  # where --robust comes in


def check(
    method: AnyMethod, fleet: Fleet, name: str, backend: str, rule: str | None = None, sums: str = "float"
) -> None:
    """Raise one sentence that names the remedy if the method cannot run."""
    check_functions(type(method), type(method).__name__)
    architectures = fleet.architectures()
    widths = {m: fleet.models[i].feature_dim for i in fleet.ids if (m := fleet.models[i].name)}
    if Need.SAME_ARCHITECTURE in method.needs and len(architectures) > 1:
        raise AtollError(
            f"{name} shares whole models, so all clients need one architecture, but --models gives "
            f"{', '.join(architectures)}. Give one model, or take a method for unlike models: {_hospitable()}."
        )
    if Need.SAME_WIDTH in method.needs and len(set(widths.values())) > 1:
        listed = ", ".join(f"{m} {d}" for m, d in widths.items())
        raise AtollError(
            f"{name} shares heads or compares features, so all models need one feature width, but they have {listed}. "
            f"Add --width {min(widths.values())}, or choose models that agree."
        )
    if Need.PUBLIC_DATA in method.needs and fleet.public is None:
        raise AtollError(f"{name} distils on public data, and there is none. Add --public {100 * fleet.num_classes}.")
    if rule is not None and not averages(type(method)):
        able = ", ".join(known for known, cls in registry.methods().items() if averages(cls))
        raise AtollError(
            f"--robust {rule} is for servers that average models or prototypes, and that of {name} does something "
            f"else. Leave it out, or take one of: {able}."
        )
    if rule is not None and sums == "fixed":
        raise AtollError(
            f"--robust {rule} and --sums fixed exclude each other: a robust rule compares single uploads, and a sum is "
            "there so that nobody has to see them. Leave out one of them."
        )
    if sums == "fixed" and not adds_up(type(method)):
        able = ", ".join(known for known, cls in registry.methods().items() if adds_up(cls))
        why = method.not_a_sum or "it does something else"
        raise AtollError(
            f"--sums fixed is for servers that work from sums of what clients send, and that of {name} cannot: {why}. "
            f"Leave it out, or take one of: {able}."
        )
    check_terms(method, fleet)
    if rule is not None and robust.parse(rule).clips:
        with train.no_training():  # refused here if the server has nothing to measure from
            list(rehearse(method, fleet, 0, guard=robust.Guard(rule, lambda note: None)))
    if backend == "vmap" and not method.vectorisable:
        raise AtollError(f"--backend vmap cannot batch {name}. Use --backend processes or loop.")
    unlike = sorted({fleet.models[i].name for i in fleet.ids if not fleet.models[i].vectorisable})
    if backend == "vmap" and unlike:
        raise AtollError(f"--backend vmap cannot batch {', '.join(unlike)}. Use --backend loop.")


def check_clock(devices: Devices, deadline: float | None) -> None:
    if deadline is not None and devices.compute == "measured":
        raise AtollError(
            "--deadline goes by counted operations: who is late by measured seconds would change from run to run. "
            "Leave out compute=measured in --clock."
        )


def affects(kind: str, method: AnyMethod, fleet: Fleet) -> bool:
    """Whether a lie is one, tried on what a method uploads first."""
    marks, classes, k = promises(method), fleet.num_classes, key("trial")
    for exchange in rehearse(method, fleet, 0):
        down, up = exchange.download, exchange.upload
        if kind == ALIE and any(pieces(up, down, classes, marks, k)):
            return True
        if not equal(up, lie(kind, up, down, classes, marks, k)):
            return True
    return False


def _hospitable() -> str:
    """Methods that run on unlike models."""
    free = [name for name, cls in registry.methods().items() if Need.SAME_ARCHITECTURE not in cls.needs]
    return ", ".join(free)


def averages(cls: registry.MethodType) -> bool:
    """Whether ``aggregate`` comes to one of the means that --robust changes."""
    return any(mean in _reached(cls) for mean in GUARDED)


def adds_up(cls: registry.MethodType) -> bool:
    """Whether ``aggregate`` comes to the sums that --sums changes, and needs nothing but sums."""
    return cls.not_a_sum is None and securesum.Sum in _reached(cls)


def _reached(cls: registry.MethodType) -> list[FunctionType | type[Any]]:
    """All functions and classes that ``aggregate`` comes to, as its code and the functions it calls tell."""
    seen: list[FunctionType | type[Any]] = []
    ahead: list[Any] = [cls.aggregate]
    while ahead:
        found = ahead.pop()
        if isinstance(found, FunctionType | type) and found not in seen:
            seen.append(found)
            if isinstance(found, FunctionType):
                for name in _names(found.__code__):
                    ahead += [found.__globals__.get(name), *(vars(base).get(name) for base in cls.__mro__)]
    return seen


def _names(code: CodeType) -> Iterator[str]:
    """What a function calls and reads by name, functions inside it included."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)
