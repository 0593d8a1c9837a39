"""Call the functions of a method, and check that each returns what the method declares."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..core.client import Client
from ..core.method import contract
from ..core.prng import Key
from ..core.task import Reply, Round, Task
from ..errors import AtollError
from ..typing import ClientId

if TYPE_CHECKING:
    from ..core.method import AnyMethod

_DECLARED = {  # the annotation that declares the class of each role
    "download": "local() declares that it receives",
    "state": "local() declares that a client keeps",
    "server": "init_server() declares",
    "per_client": "init_per_client() declares",
}


def init_server(method: "AnyMethod", task: Task, k: Key) -> Any:
    """Make the server's first state."""
    return _checked(method.init_server(task, k), "server", method, "init_server")


def init_client(method: "AnyMethod", client: Client, k: Key) -> Any:
    """Make a client's first state."""
    return _checked(method.init_client(client, k), "state", method, "init_client")


def init_per_client(method: "AnyMethod", task: Task, of: ClientId, k: Key) -> Any:
    """Make the first state that the server keeps for client ``of``."""
    return _checked(method.init_per_client(task, of, k), "per_client", method, "init_per_client")


def download(method: "AnyMethod", server: Any, per_client: Any, to: ClientId, task: Task, r: Round) -> Any:
    """Make the message for a client, by ``broadcast_per_client`` if the server keeps a state for each client."""
    if method.keeps_per_client_state:
        return _checked(
            method.broadcast_per_client(server, per_client, to, task, r), "download", method, "broadcast_per_client"
        )
    return _checked(method.broadcast(server, to, task, r), "download", method, "broadcast")


def local(method: "AnyMethod", down: Any, state: Any, client: Client, k: Key) -> tuple[Any, Any]:
    """Run a client's training and return upload and state. The upload is validated by the server, not here."""
    return _pair(method.local(down, state, client, k), "state", method, "local", "the upload and the client's state")


def after_upload(method: "AnyMethod", down: Any, up: Any, state: Any, client: Client, k: Key) -> Any:
    """Run a client's training after the upload and return its next state."""
    assert method.after_upload is not None
    return _checked(method.after_upload(down, up, state, client, k), "state", method, "after_upload")


def adapt(method: "AnyMethod", server: Any, client: Client, k: Key) -> Any:
    """Make the state of a new client from the server's state."""
    assert method.adapt is not None
    return _checked(method.adapt(server, client, k), "state", method, "adapt")


def serve_client(
    method: "AnyMethod", server: Any, per_client: Any, reply: Reply[Any], task: Task, r: Round, k: Key
) -> Any:
    """Run the server's work for one client; return the input of ``aggregate`` and the state kept for the client."""
    returned = method.serve_client(server, per_client, reply, task, r, k)
    return _pair(
        returned,
        "per_client",
        method,
        "serve_client",
        "what aggregate() gets in place of the upload, and what the server keeps for the client",
    )


def aggregate(method: "AnyMethod", server: Any, replies: Iterable[Reply[Any]], task: Task, r: Round, k: Key) -> Any:
    """Aggregate the replies of a round into the server's next state."""
    return _checked(method.aggregate(server, replies, task, r, k), "server", method, "aggregate")


def _pair(returned: Any, role: str, method: "AnyMethod", function: str, wanted: str) -> tuple[Any, Any]:
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise AtollError(
            f"{type(method).__name__}.{function} returned {_describe(returned)}, but must return two values: {wanted}."
        )
    first, second = returned
    return first, _checked(second, role, method, function)


def _checked(value: Any, role: str, method: "AnyMethod", function: str) -> Any:
    """Return ``value`` if its class is exactly the one that the method's annotations declare for this role."""
    declared = getattr(contract(method), role)
    if type(value) is not declared:
        raise AtollError(
            f"{type(method).__name__}.{function} returned {_describe(value)}, but {_DECLARED[role]} a "
            f"{declared.__name__}."
        )
    return value


def _describe(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"{len(value)} values"
    return "None" if value is None else f"a {type(value).__name__}"
