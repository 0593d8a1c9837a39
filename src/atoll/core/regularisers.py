"""Regularisers that compose: a loss term, and what it needs sent, if anything."""

from collections.abc import Iterable, Sequence

from .client import Client
from .losses import Term
from .payloads import Params
from .replies import Reports
from .task import Task


class Regulariser:
    """Override ``bind``; override the other four only if the term communicates."""

    bias_free_head: bool = False  # whether the models must have a head without bias

    def start(self, task: Task) -> Params:
        """What the server keeps before anybody has reported."""
        return {}

    def send(self, kept: Params) -> Params:
        """The part of it that clients receive."""
        return kept

    def bind(self, sent: Params, anchor: Params, client: Client) -> Term:
        """The term, given what the server sent and the params training starts from."""
        raise NotImplementedError

    def report(self, params: Params, client: Client) -> Params:
        """What a trained client adds to its upload."""
        return {}

    def merge(self, kept: Params, reports: Sequence[Params]) -> Params:
        """Return what the server keeps after a round.

        Sums over ``reports`` are taken in fixed point under ``--sums fixed``, by
        ``atoll.aggregation.fixed_point.total(parts, policy_of(reports).fixed)``.
        """
        return kept


class Regularisers(tuple[Regulariser, ...]):
    """Several regularisers as one; each one's tensors are filed under its class name."""

    @property
    def bias_free_head(self) -> bool:
        return any(r.bias_free_head for r in self)

    def start(self, task: Task) -> Params:
        return self._file(r.start(task) for r in self)

    def send(self, kept: Params) -> Params:
        return self._file(r.send(self._of(r, kept)) for r in self)

    def bind(self, sent: Params, anchor: Params, client: Client) -> list[Term]:
        return [r.bind(self._of(r, sent), anchor, client) for r in self]

    def report(self, params: Params, client: Client) -> Params:
        return self._file(r.report(params, client) for r in self)

    def merge(self, kept: Params, reports: Sequence[Params]) -> Params:
        return self._file(
            r.merge(self._of(r, kept), Reports((self._of(r, x) for x in reports), like=reports)) for r in self
        )

    def _of(self, r: Regulariser, p: Params) -> Params:
        prefix = type(r).__name__ + "."
        return {name[len(prefix) :]: v for name, v in p.items() if name.startswith(prefix)}

    def _file(self, parts: Iterable[Params]) -> Params:
        return {f"{type(r).__name__}.{name}": v for r, p in zip(self, parts, strict=True) for name, v in p.items()}
