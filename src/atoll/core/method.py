"""Define the interface of a federated method."""

from collections.abc import Iterable
from typing import Any, ClassVar, Generic, TypeVar

from ..typing import ClientId
from .client import Client
from .payloads import Params
from .prng import Key
from .task import Reply, Round, Task, UpT
from .torch_private import register_pytree_node
from .traits import Traits

ServerT = TypeVar("ServerT")
StateT = TypeVar("StateT")
DownT = TypeVar("DownT")


# vmap then maps over a client's tensors and passes the other fields on unchanged.
register_pytree_node(
    Client,
    lambda c: ([c.x, c.y, c.n], (c.model, c.problem, c.proxy, c.public, c.augment, c.bound)),
    lambda leaves, static: Client(*leaves, *static),
)


class Method(Generic[ServerT, StateT, DownT, UpT]):
    """A federated method: hyper-parameters as fields, no other attributes, pure functions.

    Subclasses are frozen dataclasses and define five functions, in the order in which a round calls them. Their
    annotations say which payload classes may be sent and stored. Declarations are in ``traits``; optional functions
    are the protocols of ``atoll.core.hooks``.

    ``server`` is the server's state, ``down`` the download of a client, ``up`` its upload, ``state`` the state that it
    keeps between rounds, ``r`` the round and ``k`` a key for random numbers.
    """

    traits: ClassVar[Traits] = Traits()

    def init_server(self, task: Task, k: Key) -> ServerT:
        """Return the server's state before the first round."""
        raise NotImplementedError

    def broadcast(self, server: ServerT, to: ClientId, task: Task, r: Round, k: Key) -> DownT:
        """Return the download of client ``to``. All clients of an exchange share ``k``: fold it for each of them."""
        raise NotImplementedError

    def client_update(self, down: DownT, state: StateT, client: Client, r: Round, k: Key) -> tuple[UpT, StateT]:
        """Train on a client, and return its upload and its new state."""
        raise NotImplementedError

    def aggregate(self, server: ServerT, replies: Iterable[Reply[UpT]], task: Task, r: Round, k: Key) -> ServerT:
        """Return the server's new state.

        Args:
            server: the state before the round.
            replies: uploads of the clients, to be read once. They carry the aggregation policy of the round: pass them
                to ``mean`` as they are.
            task: the server's view of the federation.
            r: the round.
            k: key of the server for this round.
        """
        raise NotImplementedError

    def personal_params(self, down: DownT, up: UpT | None, state: StateT, client: Client) -> Params:
        """Return the params of the client's own model, before training (``up`` is None) or after it."""
        raise NotImplementedError


AnyMethod = Method[Any, Any, Any, Any]


def traits_of(method: AnyMethod | type[AnyMethod]) -> Traits:
    """Return the declarations that hold for a method. Promises hold only for the class that makes them."""
    cls = method if isinstance(method, type) else type(method)
    return cls.traits if "traits" in vars(cls) else cls.traits.without_promises()
