"""What the server knows of a federation, and the parts of a round."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from torch import Tensor

from ..typing import ClientId
from .model import Model

UpT = TypeVar("UpT")


@dataclass(frozen=True)
class Task:
    """What the server knows: architectures and public data, never private data."""

    model: Model
    num_classes: int
    clients: tuple[ClientId, ...] = ()
    proxy: Model | None = None
    public: Tensor | None = None
    models: Mapping[ClientId, Model] = field(default_factory=dict)  # who has which architecture
    server_models: Mapping[ClientId, Model] = field(
        default_factory=dict
    )  # the server's own model for each client, if needed

    @property
    def feature_dim(self) -> int:
        return self.model.feature_dim


class Round(NamedTuple):
    t: int
    phase: int = 0  # methods with several exchanges per round count them here


class Reply(NamedTuple, Generic[UpT]):
    sender: ClientId
    upload: UpT
