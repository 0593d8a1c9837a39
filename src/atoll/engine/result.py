"""Hold the result of a run in Python: scores, tables, figures and models."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from torch import nn

from ..backends.base import Backend
from ..clients import method_calls
from ..clients.measured_model import ModelSource, PersonalModel, model_from_source, rebuild_model
from ..clients.personal_module import to_module
from ..clients.pool import ClientPool
from ..clients.run_stores import RunStores
from ..clients.server_side import ClientServers, ServerSideStates
from ..core.client import Client
from ..core.model import Predictor
from ..core.problems import LOSS
from ..core.task import Round
from ..errors import unknown
from ..storage.metrics import RoundMetrics
from ..storage.run_reader import Run
from ..typing import ClientId
from ..utils.notebook import dataframe, html
from .generic_model import KeptServer, server_of_round

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .setup import Setup


@dataclass(frozen=True, repr=False)
class Result:
    """The result of a run.

    Example:
        >>> result = atoll.run("fedavg", data="digits", rounds=5)
        >>> result.to_dataframe()

    Args:
        setup: configuration, method, data and clients.
        summary: content of summary.json.
        history: one entry for each evaluated round.
        table: content of clients.parquet.
        server: the server's final state, or the ``ClientServers`` of a run without a server.
        stores: states of the clients, the server's states for them, and the personal models that were measured.
        backend: holds the states of the clients.
        notes: sentences on the run for the user.
        kept_server: the server's state after the round in which validation found its model best, if it was kept.
    """

    setup: "Setup"
    summary: dict[str, Any]
    history: Sequence[RoundMetrics]
    table: pa.Table
    server: Any
    stores: RunStores
    backend: Backend
    notes: Sequence[str]
    kept_server: KeptServer | None = None

    def __repr__(self) -> str:
        s, personal, generic = self.summary, self.summary["personal"], self.summary["generic"]
        score = self.setup.pool.problem.criterion.named
        mark = "~" if generic and generic["source"] == "average" else ""
        both = f", generic {mark}{score(generic['best_by_val'])}" if generic else ""
        return (
            f"<Result {s['label']} on {s['data']}: personal {score(personal['best_by_val'])}{both} by validation, "
            f"{s['rounds']} round{'s' * (s['rounds'] != 1)}, {s['clients']} client{'s' * (s['clients'] != 1)}>"
        )

    def _repr_html_(self) -> str:
        shown = ("round", "personal", "worst_decile", "generic", "up", "down")
        last = self.to_table().slice(len(self.history) - 1).to_pylist()
        return html(repr(self)[1:-1], shown, [[_short(row[name]) for name in shown] for row in last])

    def to_table(self) -> pa.Table:
        """Return a table with one row for each evaluated round."""
        return pa.Table.from_pylist([_line(line, self.setup.pool.problem.criterion.name) for line in self.history])

    def to_dataframe(self) -> Any:
        """Return a pandas data frame with one row for each evaluated round."""
        return dataframe(self.to_table())

    def plot(self, kind: str = "curves") -> "Figure":
        """Draw a figure of the run.

        Args:
            kind: score by round (``curves``), by client (``boxes``) or by bytes (``bytes``), losses by round
                (``losses``), or the clients' rows (``holdings``).
        """
        from ..report.figures import draw  # imported here because matplotlib is slow to import

        return draw(kind, [self.to_run()])

    def to_run(self) -> Run:
        """Convert the result to the form that reports read."""
        config = self.setup.config
        path = Path(config.out or config.label)
        holdings = self.setup.federation.holdings()
        return Run(path, self.summary, tuple(self.history), self.table, holdings, config.to_dict())

    @cached_property
    def clients(self) -> list[dict[str, Any]]:
        """Return one dict for each client and evaluated round."""
        return list(self.table.to_pylist())

    @property
    def pool(self) -> ClientPool:
        """Return the clients of the run."""
        return self.setup.pool

    def state(self, i: ClientId) -> Any:
        """Return the final state of client ``i``."""
        return self.backend.state(self.setup.method, self.setup.config.seed, i)

    def personal(self, i: ClientId | int, round: str | int = "best") -> nn.Module:
        """Return the personal model of client ``i`` whose score is in the tables: inputs to logits, or to numbers.

        A run with ``keep_models=False`` has no such models; the result is then the model after the last download,
        before local training.

        Args:
            i: the client, by its name or the number that is its name.
            round: ``best`` for the round that validation chose, ``last``, or the number of one of these rounds.

        Returns:
            A module in evaluation mode with its trained weights, for rows as models read them.

        Raises:
            AtollError: there is no such client, or the models of that round are not kept.

        Example:
            >>> model = result.personal(3)
            >>> torch.save(model.state_dict(), "client3.pt")
        """
        name = str(i)
        if name not in self.pool.ids:
            raise unknown("client", name, self.pool.ids)
        client, found = self.pool.client(name), self.stores.models.find(name, round)
        method = self.setup.method
        model = self._downloaded(name, client) if found is None else rebuild_model(method, *found, client)
        return to_module(method, model, self.pool.models[name], self.pool.problem)

    def _downloaded(self, i: ClientId, client: Client) -> PersonalModel:
        """Return the model that follows from the last download."""
        method, seed = self.setup.method, self.setup.config.seed
        server_side = ServerSideStates(method, self.pool.task(), seed, self.stores.server_side)
        download = server_side.download(self.server, i, Round(self.summary["rounds"]))
        return model_from_source(method, ModelSource(download, None, self.state(i), client))

    def generic(self, round: str | int = "best") -> Predictor | None:
        """Return the server's model whose score is in the tables, or None if the method has none.

        A run without a server has none either. A run with ``keep_models=False`` has that of the last round alone.

        Args:
            round: ``best`` for the round in which this model had the best validation score, ``last``, or the number of
                one of these rounds.

        Raises:
            AtollError: the server's model of that round is not kept.
        """
        if isinstance(self.server, ClientServers):
            return None
        criterion, last = self.pool.problem.criterion, int(self.summary["rounds"])
        server = server_of_round(round, last, self.server, self.kept_server, self.history, criterion)
        predictor = method_calls.generic_predictor(self.setup.method, server, self.pool.task())
        return predictor and self.pool.problem.predictor_in_unit(predictor)


def _line(line: RoundMetrics, score: str) -> dict[str, Any]:
    """Make the row of a round, with the score of that name."""
    post, generic = line["personal"]["post"], line["generic"]
    return {
        "round": line["round"],
        "personal": post[score],
        "worst_decile": post.get("worst_decile"),
        "val": post.get("val"),
        "generic": generic["global"][score] if generic else None,
        "training_loss": line["training"]["loss"] if "training" in line else None,
        "loss": post.get(LOSS),
        **{name: line["bytes"][name] for name in ("up", "down")},
        "seconds": line["seconds"],
    }


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}" if isinstance(value, float) else f"{value:,}"
