"""The interface of a federated method."""

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


# Registered so that vmap maps over a client's tensors and hands the rest on.
register_pytree_node(
    Client,
    lambda c: ([c.x, c.y, c.n], (c.model, c.num_classes, c.proxy, c.public, c.augment, c.bound)),
    lambda leaves, static: Client(*leaves, *static),
)


class Need:
    """What a method asks of a federation; checked before anything runs."""

    SAME_ARCHITECTURE = "same architecture"
    SAME_WIDTH = "same feature width"
    PUBLIC_DATA = "public data"
    PROXY = "proxy model"
    SHARED_MODEL = "shared model"
    SERVER_MODELS = "server models"


class Method(Generic[ServerT, StateT, DownT, UpT]):
    """A federated method: hyper-parameters as fields, no other attributes, pure functions.

    Subclasses are frozen dataclasses; the annotations of ``local`` are the wire contract.
    """

    phases: ClassVar[int] = 1
    family: ClassVar[str] = "weights"
    needs: ClassVar[frozenset[str]] = frozenset()
    vectorisable: ClassVar[bool] = True  # whether vmap can run ``local`` for many clients at once
    varying_bytes: ClassVar[bool] = False  # whether the size of a message depends on what was learnt
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # ablations: name -> fields that differ

    # What differential privacy has to know. Whether all that is uploaded are counts and moments, by class, of
    # ``client.features``; whether it is a function of weights that ``optim`` trained and of the number of rows (said
    # by each class for itself: a method built on another may send more).
    bounded_statistics: ClassVar[bool] = False
    private_training: ClassVar[bool] = False

    # What the server does with uploads. These declarations hold for the ``aggregate`` and the ``serve`` that they are
    # written beside (see ``declared``): a subclass that overrides one of these functions repeats what is still true.
    guards: ClassVar[tuple[str, ...]] = ()  # fields given to ``mean`` whose average --robust may replace by its rule
    as_sent: ClassVar[str | None] = None  # what the server uses of single uploads besides: told under --robust
    sums_uploads: ClassVar[bool] = False  # the server works from sums of uploads alone and reads no single upload
    not_a_sum: ClassVar[str | None] = None  # why not, for users who ask for --sums fixed

    def init_server(self, task: Task, k: Key) -> ServerT:
        raise NotImplementedError

    def init_client(self, client: Client, k: Key) -> StateT:
        return Nothing()  # type: ignore[return-value]

    def broadcast(self, server: ServerT, to: ClientId, task: Task, r: Round) -> DownT:
        raise NotImplementedError

    def local(self, down: DownT, state: StateT, client: Client, k: Key) -> tuple[UpT, StateT]:
        raise NotImplementedError

    def aggregate(self, server: ServerT, replies: Iterable[Reply[UpT]], task: Task, r: Round, k: Key) -> ServerT:
        """Combine replies, which are read once and carry the rules of the round: hand them to ``mean`` as they are."""
        raise NotImplementedError

    def own(self, down: DownT, up: UpT | None, state: StateT, client: Client) -> Params:
        """The params of the client's own model: before training (``up`` is None) or after it."""
        raise NotImplementedError

    def personal(self, down: DownT, up: UpT | None, state: StateT, client: Client) -> Predictor:
        """How the client predicts; overridden where that is not by its own model alone."""
        params = self.own(down, up, state, client)
        return lambda x: client.model(params, x)

    def generic(self, server: ServerT, task: Task) -> Predictor | None:
        """The server's model, if the method has one."""
        return None

    # A server that keeps a state of its own for every client (a model, say) sets this, and its downloads come from
    # ``answer`` instead of ``broadcast``. Only the desk in use is in memory.
    keeps_per_client_state: ClassVar[bool] = False

    def init_per_client(self, task: Task, of: ClientId, k: Key) -> Any:
        """What the server keeps for a client at first."""
        raise NotImplementedError

    def broadcast_per_client(self, server: ServerT, per_client: Any, to: ClientId, task: Task, r: Round) -> DownT:
        """What a client receives, given its desk."""
        raise NotImplementedError

    def serve_client(
        self, server: ServerT, per_client: Any, reply: Reply[UpT], task: Task, r: Round, k: Key
    ) -> tuple[Any, Any]:
        """The server's own work for one client: what ``aggregate`` gets in place of the upload, and the next desk."""
        raise NotImplementedError

    # With which settings the method uploads before its personal training; None: it has none that could wait.
    wait_free: ClassVar[Mapping[str, Any] | None] = None

    # Optional: (down, up, state, client, k) -> state, done while the upload is under way. ``k`` is that of ``local``.
    after_upload: ClassVar[Callable[..., Any] | None] = None

    # Optional: (server, client, k) -> state, the method's own rule for a client that comes after the run. Without it, a
    # newcomer does what any client does in a round.
    adapt: ClassVar[Callable[..., Any] | None] = None

    def why_closed(self) -> str | None:
        """Why a client that comes after the run can learn nothing from what the server has left, if so."""
        return None

    def bias_free(self) -> bool:
        """Whether the models' heads must have no bias."""
        return False

    def reduces_to(self) -> str | None:
        """A sentence if these hyper-parameters turn the method into a simpler one."""
        return None


def declared(cls: type[Method[Any, Any, Any, Any]], name: str) -> Any:
    """Return what a class declares about its server under ``name``, or the default of ``Method``.

    A declaration counts only if its class also provides ``aggregate`` and ``serve``, or inherits both. Otherwise a
    subclass has replaced the function that the declaration was written for, and may do something else with uploads.
    """
    source = _provider(cls, name)
    holds = all(issubclass(source, _provider(cls, function)) for function in ("aggregate", "serve_client"))
    return vars(source if holds else Method)[name]


def _provider(cls: type[Any], name: str) -> type[Any]:
    """Return the class from which ``cls`` has the attribute ``name``."""
    return next(base for base in cls.__mro__ if name in vars(base))


class Contract(NamedTuple):
    download: type[Any]
    upload: type[Any]
    state: type[Any]
    server: type[Any]
    per_client: type[Any] = Nothing


def contract(method: Method[Any, Any, Any, Any]) -> Contract:
    """Read the payload types off the annotations of ``local``, ``init_server`` and ``init_desk``."""
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
            "init_server(...) -> Server with payload classes: they say what may travel."
        )
    return Contract(*declared)


def check_functions(kind: type[Any], where: str) -> None:
    """Raise an AtollError that names the functions a method class has to define and does not."""
    sends = (
        ("init_per_client", "broadcast_per_client", "serve_client") if kind.keeps_per_client_state else ("broadcast",)
    )
    predicts = ("own",) if kind.personal is Method.personal else ()
    needed = ("init_server", *sends, "local", "aggregate", *predicts)
    missing = [name for name in needed if getattr(kind, name) is getattr(Method, name)]
    if missing:
        raise AtollError(f"{where} does not define {', '.join(missing)}. A method needs {', '.join(needed)}.")


AnyMethod = Method[Any, Any, Any, Any]
