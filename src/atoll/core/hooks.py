"""Define the optional functions of a method. A method has a hook if it defines the functions of the hook's class.

``isinstance(method, HasClientState)`` asks for a hook. No method inherits from these classes. Arguments have the names
of those in :class:`atoll.core.Method`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from inspect import signature
from typing import Any

from ..typing import ClientId
from .client import Client
from .exchange import Exchange
from .losses import Term
from .model import Predictor
from .optim.base import Optimiser
from .payloads import Payload
from .per_client import PerClient
from .prng import Key
from .regularisers import Regularisers
from .task import Reply, Round, Task


class Hook(ABC):  # noqa: B024
    """Base of the hooks. A class has a hook if it defines all functions and fields that the hook declares.

    Abstract base classes remember their answers by class, which structural protocols do not: hooks are asked for
    several times for each client.
    """

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        wanted = {name for hook in cls.__mro__ for name in _declared(hook)}
        return wanted <= {name for base in other.__mro__ for name in _declared(base)}


def _declared(cls: type) -> set[str]:
    """Return the public names that a class itself defines or annotates."""
    return {name for name in (*vars(cls), *vars(cls).get("__annotations__", {})) if not name.startswith("_")}


class HasClientState(Hook):
    """Clients keep a state between rounds. Without this hook the state is ``Nothing``."""

    @abstractmethod
    def init_client(self, client: Client, k: Key) -> Any:
        """Return a client's state before its first round."""


class TrainsAfterUpload(Hook):
    """Clients go on training while the upload is sent and aggregated."""

    @abstractmethod
    def after_upload(self, down: Any, up: Any, state: Any, client: Client, r: Round, k: Key) -> Any:
        """Return the client's next state. ``k`` is the key of ``client_update``: fold it for further random numbers.

        A function with one more parameter, ``budget: int | None = None``, can be bounded: with ``--until-download`` the
        budget is the number of batches that fit before the next download arrives, for ``optim.fit(..., steps=budget)``.
        """


class PredictsOtherwise(Hook):
    """A client predicts by more than its own model."""

    @abstractmethod
    def personal_predictor(self, down: Any, up: Any, state: Any, client: Client) -> Predictor:
        """Return the client's predictor, before training (``up`` is None) or after it."""


class HasGenericModel(Hook):
    """The server has a model that works for every client."""

    @abstractmethod
    def generic_predictor(self, server: Any, task: Task) -> Predictor | None:
        """Return the predictor of the server's model, None if these settings give none."""


class AdaptsNewClients(Hook):
    """The method has its own rule for clients that join after a run. Other methods train them as in a round."""

    @abstractmethod
    def adapt(self, server: Any, client: Client, k: Key) -> Any:
        """Return the state of a new client."""


class ClosedToNewClients(Hook):
    """A client that joins after a run cannot use the server's state, at least with some settings."""

    @abstractmethod
    def why_closed(self) -> str | None:
        """Return the reason as part of a sentence, None if these settings admit new clients."""


class KeepsStatePerClient(Hook):
    """The server keeps a state for every client, such as a model. Only the state in use is in memory."""

    @abstractmethod
    def init_per_client(self, task: Task, of: ClientId, k: Key) -> Any:
        """Return the server's first state for client ``of``."""


class ServesEachClient(KeepsStatePerClient):
    """The functions of a round with one exchange, for a server that keeps a state for every client.

    ``broadcast_per_client`` takes the place of ``broadcast``.
    """

    @abstractmethod
    def broadcast_per_client(self, server: Any, per_client: Any, to: ClientId, task: Task, r: Round, k: Key) -> Payload:
        """Return the download of client ``to``, given the server's state ``per_client`` for it."""

    @abstractmethod
    def serve_client(
        self, server: Any, per_client: Any, reply: Reply[Any], task: Task, r: Round, k: Key
    ) -> tuple[Any, Any]:
        """Process one reply, and return what ``aggregate`` gets in place of the upload, and the new ``per_client``."""


class ServesFromAll(KeepsStatePerClient):
    """The functions of a round for a server that makes each client's message from its states of all clients.

    ``broadcast_from_all`` takes the place of ``broadcast``.
    """

    @abstractmethod
    def broadcast_from_all(
        self, server: Any, states: PerClient[Any], to: ClientId, task: Task, r: Round, k: Key
    ) -> Payload:
        """Return the download of client ``to``, given the server's states of the clients served in earlier rounds."""

    @abstractmethod
    def serve_client(
        self, server: Any, per_client: Any, reply: Reply[Any], task: Task, r: Round, k: Key
    ) -> tuple[Any, Any]:
        """Process one reply, and return what ``aggregate`` gets in place of the upload, and the new ``per_client``."""


class HasExchanges(Hook):
    """A round consists of several exchanges, each with functions and payload classes of its own.

    The functions of the exchanges take the place of ``broadcast``, ``client_update`` and ``aggregate``.
    """

    @abstractmethod
    def exchanges(self) -> Sequence[Exchange]:
        """Return the exchanges of a round, in order."""


class ShapesHeads(Hook):
    """The method decides whether the last layers of models have a bias."""

    @abstractmethod
    def bias_free(self) -> bool:
        """Return True if the heads of models must have no bias."""


class Reduces(Hook):
    """Some settings reduce the method to a simpler one."""

    @abstractmethod
    def reduces_to(self) -> str | None:
        """Return a sentence if these settings do, otherwise None."""


class TakesRegularisers(Hook):
    """Users can add terms to the local loss by ``--with``."""

    regularisers: Regularisers

    @abstractmethod
    def terms(self) -> Regularisers:
        """Return the regularisers that apply: those of the user and those of the method itself."""

    @abstractmethod
    def bind_terms(self, down: Any, client: Client) -> Sequence[Term]:
        """Return the terms of a client's loss, made from what the server sent for them."""


class HasOptimiser(Hook):
    """Local training has an optimiser that users can set by ``--lr``, ``--epochs`` and their like."""

    optim: Optimiser


class HasPersonalOptimiser(Hook):
    """Training after the upload has an optimiser of its own."""

    personal_optim: Optimiser


class ChoosesCovariances(Hook):
    """The server uses covariances of features, and can compute them from class means if clients must not send any."""

    cov_source: str  # "means" if no client sends a covariance


class DropsSmallClasses(Hook):
    """Clients leave out classes with few rows, by their exact counts."""

    min_count: int


HOOKS = (
    HasClientState,
    TrainsAfterUpload,
    PredictsOtherwise,
    HasGenericModel,
    AdaptsNewClients,
    ClosedToNewClients,
    KeepsStatePerClient,
    ServesEachClient,
    ServesFromAll,
    HasExchanges,
    ShapesHeads,
    Reduces,
    TakesRegularisers,
)


def takes_budget(cls: type) -> bool:
    """Return True if the training of a method class after the upload can be bounded by a number of batches."""
    return issubclass(cls, TrainsAfterUpload) and "budget" in signature(cls.after_upload).parameters


def has_bias_free_heads(method: object) -> bool:
    """Return True if a method needs models whose heads have no bias."""
    return isinstance(method, ShapesHeads) and method.bias_free()
