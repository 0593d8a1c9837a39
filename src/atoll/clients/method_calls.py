"""Call the functions of a method, and check that each returns what the method declares."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

from ..core.client import Client
from ..core.contract import contract, exchanges_of
from ..core.hooks import (
    AdaptsNewClients,
    HasClientState,
    HasGenericModel,
    KeepsStatePerClient,
    PredictsOtherwise,
    TakesRegularisers,
    TrainsAfterUpload,
)
from ..core.method import AnyMethod
from ..core.model import Predictor
from ..core.optim.base import Optimiser
from ..core.optim.schedules import CONSTANT
from ..core.payloads import Nothing, Payload
from ..core.per_client import PerClient
from ..core.prng import Key
from ..core.task import Reply, Round, Task
from ..errors import AtollError
from ..typing import ClientId

_DECLARED = {  # the annotation that declares the class of each role
    "download": "{update}() declares that it receives",
    "state": "{update}() declares that a client keeps",
    "server": "init_server() declares",
    "per_client": "init_per_client() declares",
}


def at_round(method: AnyMethod, r: Round) -> AnyMethod:
    """Return the method with the learning rates of a round, for optimisers that have a schedule."""
    optims = {name: value for name, value in vars(method).items() if isinstance(value, Optimiser)}
    changed = {name: optim.at(r.t) for name, optim in optims.items() if optim.schedule != CONSTANT}
    return replace(cast(Any, method), **changed) if changed else method


def init_server(method: AnyMethod, task: Task, k: Key) -> Payload:
    """Make the server's first state."""
    return _checked(method.init_server(task, k), "server", method, "init_server")


def init_client(method: AnyMethod, client: Client, k: Key) -> Payload:
    """Make a client's first state, ``Nothing`` for methods whose clients keep none."""
    if not isinstance(method, HasClientState):
        return Nothing()
    return _checked(method.init_client(client, k), "state", method, "init_client")


def init_per_client(method: AnyMethod, task: Task, of: ClientId, k: Key) -> Payload:
    """Make the first state that the server keeps for client ``of``."""
    assert isinstance(method, KeepsStatePerClient)
    return _checked(method.init_per_client(task, of, k), "per_client", method, "init_per_client")


def download(
    method: AnyMethod,
    server: Payload,
    per_client: Payload | PerClient[Payload] | None,
    to: ClientId,
    task: Task,
    r: Round,
    k: Key,
) -> Payload:
    """Make the message for a client, given the state that the server keeps for it, or for all clients, if any."""
    broadcast = exchanges_of(method)[r.exchange].broadcast
    states = (server,) if per_client is None else (server, per_client)
    return _checked(broadcast(*states, to, task, r, k), "download", method, broadcast.__name__, r.exchange)


def client_update(
    method: AnyMethod, r: Round, down: Payload, state: Payload, client: Client, k: Key
) -> tuple[Payload, Payload]:
    """Run a client's training and return upload and state. The upload is validated by the server, not here."""
    update = exchanges_of(at_round(method, r))[r.exchange].client_update
    returned = update(down, state, _with_terms(method, down, client), r, k)
    return _pair(returned, "state", method, update.__name__, "the upload and the client's state", r.exchange)


def _with_terms(method: AnyMethod, down: Payload, client: Client) -> Client:
    """Bind the regularisers of a run to the client, so that ``client.objective`` includes them."""
    if not isinstance(method, TakesRegularisers) or not method.terms():
        return client
    return replace(client, terms=lambda: method.bind_terms(down, client))


def after_upload(
    method: AnyMethod,
    r: Round,
    down: Payload,
    up: Payload,
    state: Payload,
    client: Client,
    k: Key,
    budget: int | None = None,
) -> Payload:
    """Run a client's training after the upload, of ``budget`` batches if given, and return its next state."""
    method = at_round(method, r)
    assert isinstance(method, TrainsAfterUpload)
    bound = {} if budget is None else {"budget": budget}
    after = method.after_upload(down, up, state, client, r, k, **bound)
    return _checked(after, "state", method, "after_upload", r.exchange)


def adapt(method: AnyMethod, server: Payload, client: Client, k: Key) -> Payload:
    """Make the state of a new client from the server's state."""
    assert isinstance(method, AdaptsNewClients)
    return _checked(method.adapt(server, client, k), "state", method, "adapt")


def personal_predictor(
    method: AnyMethod, down: Payload, up: Payload | None, state: Payload, client: Client
) -> Predictor:
    """Return a client's predictor: the method's own, otherwise the client's model with its personal params."""
    if isinstance(method, PredictsOtherwise):
        return method.personal_predictor(down, up, state, client)
    return client.predictor(method.personal_params(down, up, state, client))


def generic_predictor(method: AnyMethod, server: Payload, task: Task) -> Predictor | None:
    """Return the predictor of the server's model, None for methods without one."""
    return method.generic_predictor(server, task) if isinstance(method, HasGenericModel) else None


def serve_client(
    method: AnyMethod, server: Payload, per_client: Payload, reply: Reply[Payload], task: Task, r: Round, k: Key
) -> tuple[Payload, Payload]:
    """Run the server's work for one client; return the input of ``aggregate`` and the state kept for the client."""
    serve = exchanges_of(at_round(method, r))[r.exchange].serve_client
    if serve is None:
        return reply.upload, per_client
    wanted = "what aggregate() gets in place of the upload, and what the server keeps for the client"
    return _pair(serve(server, per_client, reply, task, r, k), "per_client", method, serve.__name__, wanted)


def aggregate(
    method: AnyMethod, server: Payload, replies: Iterable[Reply[Payload]], task: Task, r: Round, k: Key
) -> Payload:
    """Aggregate the replies of an exchange into the server's next state."""
    combine = exchanges_of(at_round(method, r))[r.exchange].aggregate
    return _checked(combine(server, replies, task, r, k), "server", method, combine.__name__)


def _pair(
    returned: object, role: str, method: AnyMethod, function: str, wanted: str, exchange: int = 0
) -> tuple[Payload, Payload]:
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise AtollError(
            f"{type(method).__name__}.{function} returned {_describe(returned)}, but must return two values: {wanted}."
        )
    first, second = returned
    return first, _checked(second, role, method, function, exchange)


def _checked(value: Payload, role: str, method: AnyMethod, function: str, exchange: int = 0) -> Payload:
    """Return ``value`` if its class is exactly the one that the method's annotations declare for this role."""
    types = contract(method)
    declared = types.exchanges[exchange].download if role == "download" else getattr(types, role)
    if type(value) is not declared:
        update = exchanges_of(method)[exchange].client_update.__name__
        raise AtollError(
            f"{type(method).__name__}.{function} returned {_describe(value)}, but "
            f"{_DECLARED[role].format(update=update)} a {declared.__name__}."
        )
    return value


def _describe(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"{len(value)} values"
    return "None" if value is None else f"a {type(value).__name__}"
