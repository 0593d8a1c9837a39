"""Define the server's view of a federation, the position in a run, and a client's reply."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor

from ..errors import AtollError
from ..typing import ClientId
from .model import Model
from .problems import Problem, classes_of

UpT = TypeVar("UpT")


@dataclass(frozen=True)
class Task:
    """The server's view of a federation: architectures and public data, never private data.

    Attributes:
        model: the architecture of the first client, which stands for all where clients share one.
        problem: what the labels are.
        clients: ids of all clients.
        proxy: architecture that clients exchange in place of their own, if the method has one.
        public: public rows, if the method needs them.
        models: architecture of each client.
        server_models: the server's own architecture for each client, if the method needs one.
    """

    model: Model
    problem: Problem
    clients: tuple[ClientId, ...] = ()
    proxy: Model | None = None
    public: Tensor | None = None
    models: Mapping[ClientId, Model] = field(default_factory=dict)
    server_models: Mapping[ClientId, Model] = field(default_factory=dict)

    def index(self, client: ClientId) -> int:
        """Return the position of a client in ``clients``.

        Raises:
            AtollError: for a client that was not in the run, such as one that joined later.
        """
        try:
            return self.clients.index(client)
        except ValueError:
            raise AtollError(
                f"Client {client!r} has no row in the server's tables: it was not in the run of "
                f"{len(self.clients)} clients. Give new clients a rule of their own, or say why_closed()."
            ) from None

    @property
    def num_classes(self) -> int:
        """Number of classes, for methods with ``Need.CLASSES``."""
        return classes_of(self.problem)

    @property
    def feature_dim(self) -> int:
        """Number of features that enter the head of ``model``."""
        return self.model.feature_dim


class Round(NamedTuple):
    """A position in a run: the round ``t``, and the exchange within it for methods with several exchanges."""

    t: int
    exchange: int = 0


@dataclass(frozen=True, slots=True)
class Reply(Generic[UpT]):
    """The upload of one client. Iteration gives sender and upload.

    Args:
        sender: the client.
        upload: its message.
        staleness: aggregations since the server made the download that this upload answers; 0 in synchronous rounds.
    """

    sender: ClientId
    upload: UpT
    staleness: int = 0

    def __iter__(self) -> Iterator[Any]:
        yield self.sender
        yield self.upload
