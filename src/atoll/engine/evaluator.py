"""Marks for a whole round: every client's personal model, and the server's model on everybody's rows."""

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa
import torch
from torch import Tensor

from ..aggregation.averaging import mean
from ..backends.base import Backend
from ..clients import method_calls
from ..clients.evaluation import DETAILS, accuracy, measure, predict, summarise_clients
from ..clients.pool import ClientPool
from ..clients.server_side import ServerSideStates
from ..clients.state_store import Store
from ..core.method import AnyMethod, Method
from ..core.model import Predictor
from ..core.payloads import Params
from ..core.prng import key
from ..core.replies import Replies
from ..core.task import Round
from ..storage.metrics import GenericScores, PersonalScores
from ..typing import ClientId
from .run_state import RunState


class _Own(NamedTuple):
    params: Params
    n: Tensor


class Evaluator:
    """Clients are examined while they take part; this collects their marks and fills the gaps."""

    def __init__(
        self,
        method: AnyMethod,
        pool: ClientPool,
        backend: Backend,
        seed: int,
        per_client_states: Store,
        byzantine: Collection[ClientId] = (),
    ):
        """Without ``liars``, honest clients are not told apart."""
        self._method, self._pool, self._backend, self._seed, self._byzantine = (
            method,
            pool,
            backend,
            seed,
            set(byzantine),
        )
        self._task, self._thorough = pool.task(), (*DETAILS, *pool.metrics)
        self._server_side = ServerSideStates(method, self._task, seed, per_client_states)
        self._latest: tuple[Any, tuple[GenericScores, list[float]]] | None = None  # a server, and marks of its model

    def first_server(self) -> Any:
        """The server's state before the first round."""
        with torch.no_grad():
            return method_calls.init_server(self._method, self._task, key(self._seed, "init", "server"))

    def personal(self, run_state: RunState, server: Any, known: set[ClientId]) -> PersonalScores:
        """Personal models over all clients, after and before training; ``known`` clients have a state."""
        self._fill_gaps(run_state, server, known)
        # In one order of clients: that in which they were examined would show in the last digit of a mean.
        after, before = ({i: marks[i] for i in self._pool.ids} for marks in (run_state.after, run_state.before))
        both: PersonalScores = {"post": summarise_clients(after), "pre": summarise_clients(before)}
        if not self._byzantine:
            return both
        honest = {i: score for i, score in after.items() if i not in self._byzantine}
        return {**both, "honest": summarise_clients(honest)}

    def _fill_gaps(self, run_state: RunState, server: Any, known: set[ClientId]) -> None:
        """Clients that have not taken part yet are measured with the model they start from.

        Those whose upload was refused when their examination came up are measured as they are now.
        """
        new = [i for i in self._pool.ids if i not in run_state.after]
        first = self.first_server() if new else None
        for i in new:
            download = self._server_side.download(server if i in known else first, i, Round(0))
            score = self._backend.assess(self._method, self._seed, i, download)
            run_state.after[i] = score
            run_state.before.setdefault(i, {name: v for name, v in score.items() if name not in self._thorough})

    def generic(
        self, server: Any, t: int, cohort: Sequence[ClientId]
    ) -> tuple[GenericScores | None, list[float] | None]:
        """The generic model, if there is one: on all test rows together, over clients; and its accuracy on each.

        It is the server's; where a method has none, the average of the personal models of the round's clients, if these
        are alike (SCD, Remark 4.1). Where rows stay at the clients' sites there are none to test it on.
        """
        if self._pool.remote:
            return None, None
        predictor = self._method.generic(server, self._task)
        if predictor is None:
            predictor = self._average(server, t, cohort)
            return (None, None) if predictor is None else self._tested(predictor, "average")
        if self._latest is None or self._latest[0] is not server:  # after a round without uploads it is what it was
            self._latest = server, self._tested(predictor, "server")
        return self._latest[1]

    def _tested(self, predictor: Predictor, source: str) -> tuple[GenericScores, list[float]]:
        test, val = self._pool.test, self._pool.val
        logits = predict(predictor, test.all.x)
        together = measure(logits, test.all.y, self._pool.metrics)
        together["val"] = accuracy(predict(predictor, val.all.x), val.all.y) if len(val.all.y) else float("nan")
        # All at once: with many clients, one call for each would take longer than the round.
        each = test.hit_rates(logits.argmax(1) == test.all.y)
        local = {i: {"n": float(test.size(at)), "accuracy": each[at]} for at, i in enumerate(self._pool.ids)}
        return {"source": source, "global": together, "local": summarise_clients(local)}, each

    def _average(self, server: Any, t: int, cohort: Sequence[ClientId]) -> Predictor | None:
        tells = type(self._method).own is not Method.own
        if not cohort or not tells or len(self._pool.architectures()) > 1:
            return None
        with torch.no_grad():
            params = mean(Replies(self._own(server, t, i) for i in cohort), "params", weight="n")
        return lambda x: self._task.model(params, x)

    def _own(self, server: Any, t: int, i: ClientId) -> "_Own":
        client, state = self._pool.client(i), self._backend.state(self._method, self._seed, i)
        download = self._server_side.download(server, i, Round(t + 1))
        return _Own(self._method.own(download, None, state, client), client.n)

    def rows(self, t: int, run_state: RunState, generic: list[float] | None) -> pa.Table:
        """One row for each client."""
        after, before = ([marks[i] for i in self._pool.ids] for marks in (run_state.after, run_state.before))
        rounds, nothing = [t] * len(after), [None] * len(after)
        return pa.table(
            {
                "round": rounds,
                **self._holdings,
                "accuracy": [score["accuracy"] for score in after],
                "val": [score["val"] for score in after],
                "pre_accuracy": [score["accuracy"] for score in before],
                "generic_accuracy": nothing if generic is None else generic,
                **{name: [score[name] for score in after] for name in self._thorough},
            }
        )

    @cached_property
    def _holdings(self) -> dict[str, pa.Array]:
        """The columns that are the same in all rounds, made once and shared by their tables."""
        ids, train, test = self._pool.ids, self._pool.train, self._pool.test
        columns = {
            "client": list(ids),
            "model": [self._pool.models[i].name for i in ids],
            "n_train": [train.size(at) for at in range(len(ids))],
            "n_test": [test.size(at) for at in range(len(ids))],
        }
        return {name: pa.array(values) for name, values in columns.items()}
