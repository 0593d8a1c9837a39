"""Define the interface of a federated method, and read the payload classes off its annotations."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from inspect import signature
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, get_args, get_type_hints

from ..errors import AtollError
from ..typing import ClientId
from .client import Client
from .model import Predictor
from .payloads import Nothing, Params
from .prng import Key
from .task import Reply, Round, Task, UpT
from .torch_private import register_pytree_node

ServerT = TypeVar("ServerT")
StateT = TypeVar("StateT")
DownT = TypeVar("DownT")


# vmap then maps over a client's tensors and passes the other fields on unchanged.
register_pytree_node(
    Client,
    lambda c: ([c.x, c.y, c.n], (c.model, c.num_classes, c.proxy, c.public, c.augment, c.bound)),
    lambda leaves, static: Client(*leaves, *static),
)


class Need:
    """Requirements that a method can have of a federation. Each is checked before a run starts."""

    SAME_ARCHITECTURE = "same architecture"
    SAME_WIDTH = "same feature width"
    PUBLIC_DATA = "public data"
    PROXY = "proxy model"
    SHARED_MODEL = "shared model"
    SERVER_MODELS = "server models"


class Method(Generic[ServerT, StateT, DownT, UpT]):
    """A federated method: hyper-parameters as fields, no other attributes, pure functions.

    Subclasses are frozen dataclasses. The annotations of ``local`` and ``init_server`` say which payload classes may be
    sent and stored. ``server`` is the server's state, ``down`` the download of a client, ``up`` its upload, ``state``
    the state that it keeps between rounds, ``r`` the round and ``k`` a key for random numbers.
    """

    phases: ClassVar[int] = 1
    family: ClassVar[str] = "weights"
    needs: ClassVar[frozenset[str]] = frozenset()
    vectorisable: ClassVar[bool] = True  # True if vmap can run ``local`` for many clients at once
    varying_bytes: ClassVar[bool] = False  # True if the size of a message depends on trained values
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # ablations: name -> fields that differ

    # Declarations for differential privacy. ``bounded_statistics``: uploads consist of counts and moments, by class, of
    # ``client.features``. ``private_training``: uploads are a function of weights that ``optim`` trained and of the
    # number of rows. Each class declares both for itself, because a method built on another may send more.
    bounded_statistics: ClassVar[bool] = False
    private_training: ClassVar[bool] = False

    # Declarations about the server's use of uploads. They hold for the ``aggregate`` and ``serve_client`` of the same
    # class (see ``declared``): a subclass that overrides one of these functions repeats what is still true.
    guards: ClassVar[tuple[str, ...]] = ()  # fields given to ``mean`` whose average --robust may replace by its rule
    as_sent: ClassVar[str | None] = None  # what the server uses of single uploads, for the note under --robust
    sums_uploads: ClassVar[bool] = False  # True if the server uses sums of uploads and no single upload
    not_a_sum: ClassVar[str | None] = None  # the reason if not, for the error message of --sums fixed

    def init_server(self, task: Task, k: Key) -> ServerT:
        """Return the server's state before the first round."""
        raise NotImplementedError

    def init_client(self, client: Client, k: Key) -> StateT:
        """Return a client's state before its first round."""
        return Nothing()  # type: ignore[return-value]

    def broadcast(self, server: ServerT, to: ClientId, task: Task, r: Round) -> DownT:
        """Return the download of client ``to``."""
        raise NotImplementedError

    def local(self, down: DownT, state: StateT, client: Client, k: Key) -> tuple[UpT, StateT]:
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

    def own(self, down: DownT, up: UpT | None, state: StateT, client: Client) -> Params:
        """Return the params of the client's own model, before training (``up`` is None) or after it."""
        raise NotImplementedError

    def personal(self, down: DownT, up: UpT | None, state: StateT, client: Client) -> Predictor:
        """Return the client's predictor. Override this if a client predicts by more than its own model."""
        params = self.own(down, up, state, client)
        return lambda x: client.model(params, x)

    def generic(self, server: ServerT, task: Task) -> Predictor | None:
        """Return the predictor of the server's model, None if the method has no global model."""
        return None

    # True if the server keeps a state for every client, such as a model. Downloads then come from
    # ``broadcast_per_client`` instead of ``broadcast``, and only the state in use is in memory.
    keeps_per_client_state: ClassVar[bool] = False

    def init_per_client(self, task: Task, of: ClientId, k: Key) -> Any:
        """Return the server's first state for client ``of``."""
        raise NotImplementedError

    def broadcast_per_client(self, server: ServerT, per_client: Any, to: ClientId, task: Task, r: Round) -> DownT:
        """Return the download of client ``to``, given the server's state ``per_client`` for it."""
        raise NotImplementedError

    def serve_client(
        self, server: ServerT, per_client: Any, reply: Reply[UpT], task: Task, r: Round, k: Key
    ) -> tuple[Any, Any]:
        """Process one reply, and return what ``aggregate`` gets in place of the upload, and the new ``per_client``."""
        raise NotImplementedError

    # Settings with which the method uploads before its personal training; None if no training can follow the upload.
    wait_free: ClassVar[Mapping[str, Any] | None] = None

    # Optional: (down, up, state, client, k) -> state, run while the upload is sent. ``k`` is the key of ``local``.
    after_upload: ClassVar[Callable[..., Any] | None] = None

    # Optional: (server, client, k) -> state, the method's own rule for a client that joins after the run. Without this
    # function, a new client trains as any client does in a round.
    adapt: ClassVar[Callable[..., Any] | None] = None

    def why_closed(self) -> str | None:
        """Return the reason if a client that joins after the run cannot use the server's state, otherwise None."""
        return None

    def bias_free(self) -> bool:
        """Return True if the heads of models must have no bias."""
        return False

    def reduces_to(self) -> str | None:
        """Return a sentence if these hyper-parameters reduce the method to a simpler one, otherwise None."""
        return None


def declared(cls: type[Method[Any, Any, Any, Any]], name: str) -> Any:
    """Return a declaration about the server of a method class, or the default of ``Method``.

    A declaration counts only if its class also provides ``aggregate`` and ``serve_client``, or inherits both.
    Otherwise a subclass has replaced the function that the declaration describes, and may use uploads differently.

    Args:
        cls: the method class.
        name: the class attribute, such as ``guards``.
    """
    source = _provider(cls, name)
    holds = all(issubclass(source, _provider(cls, function)) for function in ("aggregate", "serve_client"))
    return vars(source if holds else Method)[name]


def _provider(cls: type[Any], name: str) -> type[Any]:
    """Return the class from which ``cls`` has the attribute ``name``."""
    return next(base for base in cls.__mro__ if name in vars(base))


class Contract(NamedTuple):
    """The payload classes of a method."""

    download: type[Any]
    upload: type[Any]
    state: type[Any]
    server: type[Any]
    per_client: type[Any] = Nothing


def contract(method: Method[Any, Any, Any, Any]) -> Contract:
    """Return the payload classes of a method, from the annotations of its functions.

    Raises:
        TypeError: if ``local``, ``init_server`` or ``init_per_client`` lacks an annotation.
    """
    return _contract(type(method))  # type: ignore[arg-type]  # a class is hashable, whatever its own objects are


@cache
def _contract(kind: type[Any]) -> Contract:
    hints = get_type_hints(kind.local)
    roles = [hints.get(name) for name in signature(kind.local).parameters]  # by position: self, download, state, ...
    server = get_type_hints(kind.init_server).get("return")
    per_client = get_type_hints(kind.init_per_client).get("return") if kind.keeps_per_client_state else Nothing
    declared = [*roles[1:2], *get_args(hints.get("return")), server, per_client]
    if len(declared) != 5 or not all(isinstance(cls, type) for cls in declared):
        raise TypeError(
            f"{kind.__name__}: annotate local(down: Down, state: State, ...) -> tuple[Up, State] and "
            "init_server(...) -> Server with payload classes: only these are sent and stored."
        )
    return Contract(*declared)


def check_functions(kind: type[Any], where: str) -> None:
    """Check that a method class defines all functions that it needs.

    Args:
        kind: the method class.
        where: name of the class or file, for the message.

    Raises:
        AtollError: with the names of the missing functions.
    """
    sends = (
        ("init_per_client", "broadcast_per_client", "serve_client") if kind.keeps_per_client_state else ("broadcast",)
    )
    predicts = ("own",) if kind.personal is Method.personal else ()
    needed = ("init_server", *sends, "local", "aggregate", *predicts)
    missing = [name for name in needed if getattr(kind, name) is getattr(Method, name)]
    if missing:
        raise AtollError(f"{where} does not define {', '.join(missing)}. A method needs {', '.join(needed)}.")


AnyMethod = Method[Any, Any, Any, Any]
