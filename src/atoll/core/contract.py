"""Read the payload classes of a method off its annotations, and check the form of a method class."""

from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from inspect import Parameter, signature
from typing import Any, NamedTuple, get_args, get_type_hints

from ..errors import AtollError
from .exchange import Exchange
from .hooks import HOOKS, HasClientState, HasExchanges, KeepsStatePerClient, ServesEachClient, ServesFromAll
from .method import AnyMethod, Method
from .payloads import Nothing, Payload

_REQUIRED = {  # the required functions, with their parameters
    "init_server": ("task", "k"),
    "broadcast": ("server", "to", "task", "r", "k"),
    "client_update": ("down", "state", "client", "r", "k"),
    "aggregate": ("server", "replies", "task", "r", "k"),
    "personal_params": ("down", "up", "state", "client"),
}


class Messages(NamedTuple):
    """The payload classes of one exchange."""

    download: type[Payload]
    upload: type[Payload]


class Contract(NamedTuple):
    """The payload classes of a method."""

    exchanges: tuple[Messages, ...]
    state: type[Payload]
    server: type[Payload]
    per_client: type[Payload] = Nothing


def exchanges_of(method: AnyMethod) -> Sequence[Exchange]:
    """Return the exchanges of a round: those that the method lists, otherwise one of its own three functions."""
    hook: Any = _exchange_hook(type(method))  # type: ignore[arg-type]  # a class is hashable, whatever its objects are
    own: Any = method
    if hook is HasExchanges:
        return own.exchanges()  # type: ignore[no-any-return]
    if hook is ServesFromAll:
        return (Exchange(own.broadcast_from_all, own.client_update, own.aggregate, own.serve_client),)
    if hook is ServesEachClient:
        return (Exchange(own.broadcast_per_client, own.client_update, own.aggregate, own.serve_client),)
    return (Exchange(own.broadcast, own.client_update, own.aggregate),)


@cache
def _exchange_hook(kind: type[AnyMethod]) -> type | None:
    """Return the hook that decides the exchanges of a method class. This is asked several times for each client."""
    return next((hook for hook in (HasExchanges, ServesFromAll, ServesEachClient) if issubclass(kind, hook)), None)


def contract(method: AnyMethod) -> Contract:
    """Return the payload classes of a method, from the annotations of its functions.

    Raises:
        TypeError: with a sentence that names the function, if an annotation is missing or no payload class.
    """
    kind: Any = type(method)
    if _exchange_hook(kind) is not HasExchanges:
        return _contract(kind, (kind.client_update,))  # asked several times for each client, so no exchange is made
    return _contract(kind, tuple(_function(exchange.client_update) for exchange in exchanges_of(method)))


@cache
def _contract(kind: type[AnyMethod], updates: tuple[Callable[..., Any], ...]) -> Contract:
    where = kind.__name__
    read = [_messages(where, update) for update in updates]
    states = {state for _, state in read}
    if issubclass(kind, HasClientState):
        states.add(_returned(where, kind.init_client))
    elif states != {Nothing}:
        raise TypeError(
            f"{where} declares a state of class {_names(states)} and has no init_client(client, k) to make the first."
        )
    if len(states) > 1:
        raise TypeError(f"{where} declares several classes of client states: {_names(states)}. Use one.")
    server = _returned(where, kind.init_server)
    per_client = _returned(where, kind.init_per_client) if issubclass(kind, KeepsStatePerClient) else Nothing
    return Contract(tuple(messages for messages, _ in read), states.pop(), server, per_client)


def _messages(where: str, update: Callable[..., Any]) -> tuple[Messages, type[Payload]]:
    """Return download, upload and state of a client's function, by the positions of its annotations."""
    hints = get_type_hints(update)
    parameters = [hints.get(name) for name in signature(update).parameters]
    down, state = parameters[1:3]
    returned = get_args(hints.get("return"))
    form = f"{where}.{update.__name__}(down: Down, state: State, ...) -> tuple[Up, State]"
    if len(returned) != 2:
        raise TypeError(f"Annotate {form}: it returns two values, the upload and the client's state.")
    for role, kind in {"download": down, "state": state, "upload": returned[0], "new state": returned[1]}.items():
        if not _is_payload(kind):
            raise TypeError(f"Annotate {form} with payload classes: the {role} is {kind}, which cannot be sent.")
    if state is not returned[1]:
        raise TypeError(f"{where}.{update.__name__} receives a {_names([state])} and returns a {_names(returned[1:])}.")
    return Messages(down, returned[0]), state  # type: ignore[arg-type]


def _returned(where: str, function: Callable[..., Any]) -> type[Payload]:
    kind: Any = get_type_hints(function).get("return")
    if not _is_payload(kind):
        raise TypeError(f"Annotate what {where}.{function.__name__} returns with a payload class, not with {kind}.")
    return kind  # type: ignore[no-any-return]


def _is_payload(kind: object) -> bool:
    return isinstance(kind, type) and "_kinds" in vars(kind)


def _names(kinds: Any) -> str:
    return ", ".join(sorted(kind.__name__ for kind in kinds))


def _function(bound: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of a bound method, which is the same object for equal methods."""
    return getattr(bound, "__func__", bound)


def check_functions(kind: type[AnyMethod], where: str) -> None:
    """Check that a method class is a frozen dataclass and defines all functions that it needs, with their parameters.

    Args:
        kind: the method class.
        where: name of the class or file, for the message.

    Raises:
        AtollError: with the names of the missing, misspelt or malformed functions.
    """
    form: Any = getattr(kind, "__dataclass_params__", None)
    if form is None:
        raise AtollError(f"{where} must be a dataclass: write @dataclass(frozen=True) above it.")
    if not form.frozen:
        raise AtollError(
            f"{where} must be frozen: write @dataclass(frozen=True) above it. What a method notes in itself is lost in "
            "worker processes, at sites and after a resume; clients and the server keep their states instead."
        )
    needed = _needed(kind)
    missing = [name for name in needed if _provider(kind, name) in (None, Method)]
    defined = [name for name in _defined(kind) if not name.startswith("_")]
    if missing:
        likely = [f"{name} (is it {close[0]}?)" if (close := _like(name, defined)) else name for name in missing]
        raise AtollError(f"{where} does not define {', '.join(likely)}. A method needs {', '.join(needed)}.")
    known = _parameters()
    for name in defined:
        if name not in known and (close := get_close_matches(name, known, 1, 0.85)):
            raise AtollError(f"{where} defines {name}, which is never called. Is it {close[0]}? Else rename it.")
    for name in known:
        if (provider := _provider(kind, name)) not in (None, Method):
            parameters = list(signature(vars(provider)[name]).parameters.values())[1:]
            given = [p.name for p in parameters]
            required = [p.name for p in parameters if p.default is Parameter.empty]
            if not len(required) <= len(known[name]) <= len(given):
                raise AtollError(
                    f"{where}.{name} takes ({', '.join(given)}), but is called with ({', '.join(known[name])})."
                )


def _needed(kind: type[AnyMethod]) -> tuple[str, ...]:
    if issubclass(kind, HasExchanges):
        return "init_server", "exchanges", "personal_params"
    sends = "broadcast_from_all" if _provider(kind, "broadcast_from_all") else "broadcast_per_client"
    served = ("init_per_client", sends, "serve_client")
    own = served if any(_provider(kind, name) for name in served) else ("broadcast",)
    return "init_server", *own, "client_update", "aggregate", "personal_params"


def _parameters() -> dict[str, tuple[str, ...]]:
    """Return the parameters of every function that Atoll calls, by name of the function."""
    hooks = {
        name: tuple(signature(function).parameters)[1:]
        for hook in HOOKS
        for name, function in vars(hook).items()
        if callable(function) and not name.startswith("_")
    }
    return _REQUIRED | hooks


def _defined(kind: type[AnyMethod]) -> Iterator[str]:
    for base in kind.__mro__:
        if base not in Method.__mro__:
            yield from (name for name, value in vars(base).items() if callable(value))


def _like(name: str, names: Sequence[str]) -> list[str]:
    return get_close_matches(name, [other for other in names if other not in _parameters()], 1, 0.6)


def _provider(cls: type[Any], name: str) -> type[Any] | None:
    """Return the class from which ``cls`` has the attribute ``name``, None if it has none.

    A class that sets the attribute to the function of ``Method`` has it from there.
    """
    found = next((base for base in cls.__mro__ if name in vars(base)), None)
    return Method if found and vars(found)[name] is vars(Method).get(name) else found
