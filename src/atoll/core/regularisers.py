"""Define regularisers: loss terms that can be combined, with the messages that a term needs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from .client import Client
from .losses import Term
from .payloads import Params
from .replies import Reports
from .task import Task
from .traits import Need


class Regulariser:
    """A term of the training loss.

    Override ``bind``. Override the other four methods only if the term communicates.
    """

    needs: ClassVar[frozenset[Need]] = frozenset()  # requirements on the federation
    bias_free_head: bool = False  # True if the models must have a head without bias
    marks: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # arguments of ``about`` for the tensors of a report

    def start(self, task: Task) -> Params:
        """Return the server's state of the term before the first round."""
        return {}

    def send(self, kept: Params) -> Params:
        """Return the part of the server's state ``kept`` that clients receive."""
        return kept

    def bind(self, sent: Params, anchor: Params, client: Client) -> Term:
        """Return the term of the loss for one client.

        Args:
            sent: what the server sent for this term.
            anchor: the params that training starts from.
            client: the client that trains.
        """
        raise NotImplementedError

    def report(self, params: Params, client: Client) -> Params:
        """Return what a client adds to its upload after training ``params``."""
        return {}

    def merge(self, kept: Params, reports: Sequence[Params]) -> Params:
        """Return the server's state after a round.

        Take sums over ``reports`` by
        ``atoll.aggregation.fixed_point.total(parts, policy_of(reports).fixed)``, which follows ``--sums fixed``.

        Args:
            kept: the state before the round.
            reports: what clients reported.
        """
        return kept


class Regularisers(tuple[Regulariser, ...]):
    """Combine several regularisers into one. Class names prefix the names of their tensors."""

    @property
    def bias_free_head(self) -> bool:
        return any(r.bias_free_head for r in self)

    def start(self, task: Task) -> Params:
        return self._add_prefixes(r.start(task) for r in self)

    def send(self, kept: Params) -> Params:
        return self._add_prefixes(r.send(self._select(r, kept)) for r in self)

    def bind(self, sent: Params, anchor: Params, client: Client) -> list[Term]:
        return [r.bind(self._select(r, sent), anchor, client) for r in self]

    def report(self, params: Params, client: Client) -> Params:
        return self._add_prefixes(r.report(params, client) for r in self)

    def merge(self, kept: Params, reports: Sequence[Params]) -> Params:
        return self._add_prefixes(
            r.merge(self._select(r, kept), Reports((self._select(r, x) for x in reports), like=reports)) for r in self
        )

    def _select(self, r: Regulariser, p: Params) -> Params:
        prefix = type(r).__name__ + "."
        return {name[len(prefix) :]: v for name, v in p.items() if name.startswith(prefix)}

    def _add_prefixes(self, parts: Iterable[Params]) -> Params:
        return {f"{type(r).__name__}.{name}": v for r, p in zip(self, parts, strict=True) for name, v in p.items()}
