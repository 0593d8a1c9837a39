"""What a run leaves behind, in Python."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from .core import ClientId, Predictor, Round
from .fleet import Fleet
from .rounds import Backend, Desks
from .store import Store

if TYPE_CHECKING:
    from .assemble import Setup


@dataclass(frozen=True, repr=False)
class Result:
    """Numbers, and the models that gave them."""

    setup: "Setup"
    summary: dict[str, Any]  # what summary.json holds
    history: Sequence[dict[str, Any]]  # one entry for each evaluated round
    table: pa.Table  # what clients.parquet holds
    server: Any  # the server's final state
    desks: Store  # what the server keeps of each client, if the method does
    backend: Backend
    notes: Sequence[str]

    def __repr__(self) -> str:
        s, personal, generic = self.summary, self.summary["personal"], self.summary["generic"]
        both = f", generic {generic['best_by_val']:.2%}" if generic else ""
        return (
            f"<Result {s['label']} on {s['data']}: personal {personal['best_by_val']:.2%}{both} "
            f"after {s['rounds']} rounds, {s['clients']} clients>"
        )

    @cached_property
    def clients(self) -> list[dict[str, Any]]:
        """One row for each client and evaluated round."""
        return list(self.table.to_pylist())

    @property
    def fleet(self) -> Fleet:
        return self.setup.fleet

    def state(self, i: ClientId) -> Any:
        """What client ``i`` keeps."""
        return self.backend.state(self.setup.method, self.setup.config.seed, i)

    def personal(self, i: ClientId) -> Predictor:
        """Client ``i``'s model once it has received the server's last message: inputs to logits."""
        method, seed = self.setup.method, self.setup.config.seed
        office = Desks(method, self.fleet.task(), seed, self.desks)
        download = office.download(self.server, i, Round(self.summary["rounds"]))
        return method.personal(download, None, self.state(i), self.fleet.client(i))

    def generic(self) -> Predictor | None:
        """The server's model, if the method has one."""
        return self.setup.method.generic(self.server, self.fleet.task())
