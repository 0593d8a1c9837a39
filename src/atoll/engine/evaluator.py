"""Evaluate a round: every client's personal model, and the server's model on the rows of all clients."""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from ..aggregation.averaging import mean
from ..backends.base import Backend
from ..clients import method_calls
from ..clients.evaluation import measure, predict, summarise_clients
from ..clients.pool import ClientPool
from ..clients.server_side import ServerSideStates
from ..clients.state_store import Store
from ..core.method import AnyMethod
from ..core.model import Predictor
from ..core.payloads import Params, Payload
from ..core.prng import key
from ..core.replies import Replies
from ..core.task import Round
from ..storage.metrics import GenericScores, PersonalScores
from ..typing import ClientId
from ..utils.columns import make_numbers, make_texts
from .run_state import RunState

DOWNLOADS = 64  # different messages that are in memory while clients without scores are scored
TOGETHER = 2**10  # clients that are scored together if they get the same message


class _PersonalParams(NamedTuple):
    params: Params
    n: Tensor


class Evaluator:
    """Evaluates personal and generic models. Reuses scores measured during training and computes missing ones.

    Args:
        method: the method of the run.
        pool: the clients.
        backend: runs the clients.
        seed: seed of the run.
        per_client_states: the server's states for its clients.
        byzantine: clients that attack. If given, the honest clients are also summarised alone.
    """

    def __init__(
        self,
        method: AnyMethod,
        pool: ClientPool,
        backend: Backend,
        seed: int,
        per_client_states: Store,
        byzantine: Collection[ClientId] = (),
    ):
        self._method = method
        self._pool = pool
        self._backend = backend
        self._seed = seed
        self._byzantine = set(byzantine)
        self._task = pool.task()
        self._problem = pool.problem
        self._details = (*pool.problem.details, *pool.metrics)
        self._server_side = ServerSideStates(method, self._task, seed, per_client_states)
        # The latest server state, and the scores of its model.
        self._latest: tuple[Any, tuple[GenericScores, list[float]]] | None = None

    def first_server(self) -> Any:
        """Make the server's state before the first round."""
        with torch.no_grad():
            return method_calls.init_server(self._method, self._task, key(self._seed, "init", "server"))

    def evaluate_personal(self, run_state: RunState, server: Payload) -> PersonalScores:
        """Summarise the scores of all personal models, after and before training.

        Args:
            run_state: latest scores of clients. Missing scores are added.
            server: the server's state.
        """
        self._fill_gaps(run_state, server)
        # A fixed order of clients: another order would change the last digit of a mean.
        after, before = run_state.after.take(self._pool.ids), run_state.before.take(self._pool.ids)
        both: PersonalScores = {
            "post": summarise_clients(after, self._problem),
            "pre": summarise_clients(before, self._problem),
        }
        if not self._byzantine:
            return both
        is_honest = np.array([i not in self._byzantine for i in self._pool.ids])
        honest = {name: column[is_honest] for name, column in after.items()}
        return {**both, "honest": summarise_clients(honest, self._problem)}

    def _fill_gaps(self, run_state: RunState, server: Payload) -> None:
        """Score the clients without scores.

        A client that has not taken part yet is scored with its initial model. A client that took part
        before, whose upload was rejected in the round of its evaluation, is scored with its current model.
        """
        new = run_state.after.missing(self._pool.ids)
        if not new:
            return
        first = self.first_server()
        downloads: dict[ClientId, Payload] = {}
        distinct: set[int] = set()
        for i in new:
            current = server if i in run_state.participations else first
            downloads[i] = self._server_side.download(current, i, Round(0))
            distinct.add(id(downloads[i]))
            if len(distinct) == DOWNLOADS or len(downloads) == TOGETHER:
                self._assess(run_state, downloads)
                downloads, distinct = {}, set()
        if downloads:
            self._assess(run_state, downloads)

    def _assess(self, run_state: RunState, downloads: Mapping[ClientId, Payload]) -> None:
        """Score clients without training. The same score stands for the model before training, without details."""
        scores, ids = self._backend.assess(self._method, self._seed, downloads), list(downloads)
        run_state.after.put(ids, scores)
        new = np.array([i not in run_state.before for i in ids])
        if new.any():
            brief = {name: column[new] for name, column in scores.items() if name not in self._details}
            run_state.before.put([i for i, is_new in zip(ids, new, strict=True) if is_new], brief)

    def evaluate_generic(
        self, server: Payload, t: int, cohort: Sequence[ClientId]
    ) -> tuple[GenericScores | None, list[float] | None]:
        """Evaluate the generic model on all test rows together and on each client's test rows.

        The generic model is the server's. For a method without a server model, it is the average of the personal models
        of the round's clients if all have one architecture (SCD, Remark 4.1).

        Args:
            server: the server's state.
            t: round, counted from 0.
            cohort: the clients of the round.

        Returns:
            Scores, and the criterion on each client; None and None without a generic model, and for remote clients,
            which keep their test rows to themselves.
        """
        if self._pool.remote:
            return None, None
        predictor = method_calls.generic_predictor(self._method, server, self._task)
        if predictor is None:
            predictor = self._average(server, t, cohort)
            return (None, None) if predictor is None else self._score(predictor, "average")
        # A round without uploads leaves the server's state unchanged.
        if self._latest is None or self._latest[0] is not server:
            self._latest = server, self._score(predictor, "server")
        return self._latest[1]

    def _score(self, predictor: Predictor, source: str) -> tuple[GenericScores, list[float]]:
        test, val = self._pool.test, self._pool.val
        problem, outputs = self._problem, predict(predictor, test.all.x)
        together = measure(problem, outputs, test.all.y, self._pool.metrics)
        together["val"] = problem.score(predict(predictor, val.all.x), val.all.y) if len(val.all.y) else float("nan")
        sizes = [test.size(at) for at in range(len(self._pool.ids))]
        each = problem.score_each(outputs, test.all.y, sizes)
        local = {"n": np.array(sizes, dtype=np.float64), problem.criterion.name: np.array(each)}
        return {"source": source, "global": together, "local": summarise_clients(local, problem)}, each

    def _average(self, server: Payload, t: int, cohort: Sequence[ClientId]) -> Predictor | None:
        if not cohort or len(self._pool.architectures()) > 1:
            return None
        with torch.no_grad():
            params = mean(Replies(self._personal_params(server, t, i) for i in cohort), "params", weight="n")
        return lambda x: self._task.model(params, x)

    def _personal_params(self, server: Payload, t: int, i: ClientId) -> _PersonalParams:
        client = self._pool.client(i)
        state = self._backend.state(self._method, self._seed, i)
        download = self._server_side.download(server, i, Round(t + 1))
        return _PersonalParams(self._method.personal_params(download, None, state, client), client.n)

    def make_table(self, t: int, run_state: RunState, generic: list[float] | None) -> pa.Table:
        """Make the table of a round with one row for each client; ``generic`` are scores of the generic model."""
        after, before = run_state.after.take(self._pool.ids), run_state.before.take(self._pool.ids)
        name, clients = self._problem.criterion.name, len(self._pool.ids)
        return pa.table(
            {
                "round": make_numbers(np.full(clients, t)),
                **self._holdings,
                name: make_numbers(after[name]),
                "val": make_numbers(after["val"]),
                f"pre_{name}": make_numbers(before[name]),
                f"generic_{name}": pa.nulls(clients) if generic is None else make_numbers(generic),
                **{detail: make_numbers(after[detail]) for detail in self._details},
            }
        )

    @cached_property
    def _holdings(self) -> dict[str, pa.Array]:
        """Make the columns that are the same in all rounds; all tables share them."""
        ids, train, test = self._pool.ids, self._pool.train, self._pool.test
        return {
            "client": make_texts(ids),
            "model": make_texts([self._pool.models[i].name for i in ids]),
            "n_train": make_numbers([train.size(at) for at in range(len(ids))]),
            "n_test": make_numbers([test.size(at) for at in range(len(ids))]),
        }
