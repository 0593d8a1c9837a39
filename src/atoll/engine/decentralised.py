"""Run rounds without a server: every client keeps a server state and aggregates the uploads of its neighbours."""

from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np

from ..clients import method_calls
from ..clients.evaluation import summarise_clients
from ..clients.pool import ClientPool
from ..clients.server_side import ClientServers
from ..clients.tasks import RoundLog
from ..core.hooks import HasGenericModel
from ..core.method import AnyMethod
from ..core.payloads import Payload
from ..simulation.topology import Neighbours
from ..storage.metrics import GenericScores
from .evaluator import Evaluator
from .resume import Progress
from .round_runner import RoundRunner


@dataclass(eq=False)
class DecentralisedRunner(RoundRunner):
    """Runs rounds in which clients send their uploads to their neighbours.

    A client of the cohort trains from the download that its own server state makes, and sends its upload along each of
    its edges. Every client, sampled or not, aggregates the uploads of its neighbours and its own into its server state.

    Args:
        neighbours: neighbours of each client.
    """

    neighbours: Neighbours = field(default_factory=dict)

    def first_server(self, server: Payload) -> ClientServers:
        """Return the states before the first round: that of a server, for each client."""
        return ClientServers(dict.fromkeys(self.cohorts.clients, server), self.neighbours)

    def run(self, progress: Progress) -> RoundLog:
        """Run the next round between neighbours, and put the new server states into ``progress``."""
        log = super().run(progress)
        sent = dict(log.up)
        log.up = {i: size * len(self.neighbours[i]) for i, size in sent.items()}
        log.down = {i: sum(sent.get(j, 0) for j in self.neighbours[i]) for i in self.cohorts.clients}
        return log


def evaluate_generic(
    evaluator: Evaluator, method: AnyMethod, pool: ClientPool, server: Any, log: RoundLog
) -> tuple[GenericScores | None, list[float] | None]:
    """Evaluate the generic model after a round; see :meth:`Evaluator.evaluate_generic`.

    Without a server, each client has a generic model of its own, that of its server state. Scores on all test rows are
    means over the clients' models; the score at a client is that of the client's model on its own test rows.
    """
    if not isinstance(server, ClientServers) or not isinstance(method, HasGenericModel):
        return evaluator.evaluate_generic(server, log.t, log.accepted)
    first = next(iter(server.states.values()))
    if pool.remote or method_calls.generic_predictor(method, first, pool.task()) is None:
        return None, None
    together, own_scores = [], []
    for at, state in enumerate(server.states.values()):
        scores, each = evaluator.evaluate_generic(state, log.t, log.accepted)
        assert scores is not None
        assert each is not None
        together.append(scores["global"])
        own_scores.append(each[at])
    sizes = np.array([float(pool.test.size(at)) for at in range(len(own_scores))])
    own = {"n": sizes, pool.problem.criterion.name: np.array(own_scores)}
    means = {name: fmean(score[name] for score in together) for name in together[0]}
    return {"source": "clients", "global": means, "local": summarise_clients(own, pool.problem)}, own_scores
