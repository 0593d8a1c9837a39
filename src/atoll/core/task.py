"""Define the server's view of a federation, the position in a run, and a client's reply."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from torch import Tensor

from ..typing import ClientId
from .model import Model

UpT = TypeVar("UpT")


@dataclass(frozen=True)
class Task:
    """The server's view of a federation: architectures and public data, never private data.

    Attributes:
        model: the architecture of the first client, which stands for all where clients share one.
        num_classes: number of classes.
        clients: ids of all clients.
        proxy: architecture that clients exchange in place of their own, if the method has one.
        public: public rows, if the method needs them.
        models: architecture of each client.
        server_models: the server's own architecture for each client, if the method needs one.
    """

    model: Model
    num_classes: int
    clients: tuple[ClientId, ...] = ()
    proxy: Model | None = None
    public: Tensor | None = None
    models: Mapping[ClientId, Model] = field(default_factory=dict)
    server_models: Mapping[ClientId, Model] = field(default_factory=dict)

    @property
    def feature_dim(self) -> int:
        """Number of features that enter the head of ``model``."""
        return self.model.feature_dim


class Round(NamedTuple):
    """A position in a run: the round ``t``, and the exchange within it for methods with several exchanges."""

    t: int
    phase: int = 0


class Reply(NamedTuple, Generic[UpT]):
    """The upload of one client."""

    sender: ClientId
    upload: UpT
