"""Marks for a whole round: every client's personal model, and the server's model on everybody's rows."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .core import ClientId, Method, Predictor, Round
from .evaluate import DETAILS, Score, accuracy, measure, population, predict
from .fleet import Fleet
from .key import key
from .ledger import Ledger, Row
from .payload import Params
from .rounds import AnyMethod, Backend, Desks
from .store import Store
from .train import mean


class _Own(NamedTuple):
    params: Params
    n: Tensor


class Examiner:
    """Clients are examined while they take part; this collects their marks and fills the gaps."""

    def __init__(self, method: AnyMethod, fleet: Fleet, backend: Backend, seed: int, desks: Store):
        self._method, self._fleet, self._backend, self._seed = method, fleet, backend, seed
        self._task = fleet.task()
        self._office = Desks(method, self._task, seed, desks)

    def first_server(self) -> Any:
        """The server's state before the first round."""
        with torch.no_grad():
            return self._method.init_server(self._task, key(self._seed, "init", "server"))

    def personal(self, ledger: Ledger, server: Any, known: set[ClientId]) -> dict[str, Score]:
        """Personal models over all clients, after and before training; ``known`` clients have a state."""
        self._fill_gaps(ledger, server, known)
        # In one order of clients: that in which they were examined would show in the last digit of a mean.
        after, before = ({i: marks[i] for i in self._fleet.ids} for marks in (ledger.after, ledger.before))
        return {"post": population(after), "pre": population(before)}

    def _fill_gaps(self, ledger: Ledger, server: Any, known: set[ClientId]) -> None:
        """Clients that have not taken part yet are measured with the model they start from.

        Those whose upload was refused when their examination came up are measured as they are now.
        """
        new = [i for i in self._fleet.ids if i not in ledger.after]
        first = self.first_server() if new else None
        for i in new:
            download = self._office.download(server if i in known else first, i, Round(0))
            score = self._backend.assess(self._method, self._seed, i, download)
            ledger.after[i] = score
            ledger.before.setdefault(i, {name: v for name, v in score.items() if name not in DETAILS})

    def generic(
        self, server: Any, t: int, cohort: Sequence[ClientId]
    ) -> tuple[dict[str, Any] | None, dict[ClientId, Score]]:
        """The generic model, if there is one: on all test rows together, over clients, and for each client.

        It is the server's; where a method has none, the average of the personal models of the round's clients, if these
        are alike (SCD, Remark 4.1).
        """
        predictor, source = self._method.generic(server, self._task), "server"
        if predictor is None:
            predictor, source = self._average(server, t, cohort), "average"
        if predictor is None:
            return None, {}
        test, val = self._fleet.test, self._fleet.val
        logits = predict(predictor, test.all.x)
        together = measure(logits, test.all.y)
        together["val"] = accuracy(predict(predictor, val.all.x), val.all.y) if len(val.all.y) else float("nan")
        pieces = logits.split([test.size(at) for at in range(len(self._fleet.ids))])
        each = {
            i: {"n": float(len(piece)), "accuracy": accuracy(piece, test[at].y)}
            for at, (i, piece) in enumerate(zip(self._fleet.ids, pieces, strict=True))
        }
        return {"source": source, "global": together, "local": population(each)}, each

    def _average(self, server: Any, t: int, cohort: Sequence[ClientId]) -> Predictor | None:
        tells = type(self._method).own is not Method.own
        if not cohort or not tells or len(self._fleet.architectures()) > 1:
            return None
        with torch.no_grad():
            params = mean((self._own(server, t, i) for i in cohort), "params", weight="n")
        return lambda x: self._task.model(params, x)

    def _own(self, server: Any, t: int, i: ClientId) -> "_Own":
        client, state = self._fleet.client(i), self._backend.state(self._method, self._seed, i)
        download = self._office.download(server, i, Round(t + 1))
        return _Own(self._method.own(download, None, state, client), client.n)

    def rows(self, t: int, ledger: Ledger, generic: dict[ClientId, Score]) -> list[Row]:
        """One row for each client."""
        return [self._row(t, i, ledger, generic.get(i)) for i in self._fleet.ids]

    def _row(self, t: int, i: ClientId, ledger: Ledger, generic: Score | None) -> Row:
        after, at = ledger.after[i], self._fleet.position(i)
        return {
            "round": t,
            "client": i,
            "model": self._fleet.models[i].name,
            "n_train": self._fleet.train.size(at),
            "n_test": self._fleet.test.size(at),
            "accuracy": after["accuracy"],
            "val": after["val"],
            "pre_accuracy": ledger.before[i]["accuracy"],
            "generic_accuracy": generic["accuracy"] if generic else None,
            **{name: after[name] for name in DETAILS},
        }
