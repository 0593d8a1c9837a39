"""Sample the clients of each round, and determine which of them answer and are evaluated."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ..core.prng import key
from ..core.prng import sample as sample_positions
from ..simulation.faults import Faults
from ..typing import ClientId


def sample_cohort(
    clients: Sequence[ClientId], rate: float, seed: int, t: int, busy: Collection[ClientId] = ()
) -> list[ClientId]:
    """Sample the clients of round ``t`` without replacement.

    Args:
        clients: all clients of the federation.
        rate: share of clients in a round; at least one client takes part.
        seed: seed of the run.
        t: round, counted from 0.
        busy: clients of the cohort that are still at work from earlier rounds; others take the places left.

    Returns:
        The sampled clients, in the order of ``clients``.
    """
    count = cohort_size(len(clients), rate)
    if count == len(clients):
        return [i for i in clients if i not in busy]
    # At most len(busy) of the first ``count`` clients are busy, so enough of them are free.
    order = sample_positions(key(seed, "sample", t), len(clients), count).tolist()
    free = [j for j in order if clients[j] not in busy]
    return [clients[j] for j in sorted(free[: count - len(busy)])]


def cohort_size(clients: int, rate: float) -> int:
    """Return the number of clients that work at a time."""
    return max(1, round(rate * clients))


@dataclass
class _Window:
    """Rounds from ``start`` to the next evaluation.

    Args:
        start: first round.
        cohorts: cohorts that were drawn and not used yet, by round.
        last: the last round of the window in which each client answers.
    """

    start: int
    cohorts: dict[int, list[ClientId]] = field(default_factory=dict)
    last: dict[ClientId, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Cohorts:
    """The cohorts of a run. All cohorts follow from the seed, so later rounds can be computed in advance.

    A cohort is drawn once, with those of all rounds up to the next evaluation.

    Args:
        clients: all clients of the federation.
        rate: share of clients in a round.
        seed: seed of the run.
        faults: simulated faults; a client that drops out does not answer.
        rounds: rounds of the run; the last one is always evaluated.
        eval_every: rounds between evaluations.
        deadline: simulated seconds that the server waits in a round; None waits for all clients.
    """

    clients: Sequence[ClientId]
    rate: float
    seed: int
    faults: Faults
    rounds: int
    eval_every: int = 1
    deadline: float | None = None

    _windows: dict[int, _Window] = field(init=False, default_factory=dict)  # the current one, by its last round

    def sample(self, t: int, busy: Collection[ClientId] = ()) -> list[ClientId]:
        """Return the clients that are asked to take part in round ``t``, beside those that are ``busy``."""
        window = self._windows.get(self._next_evaluation(t))
        drawn = window.cohorts.pop(t, None) if window and not busy else None
        return sample_cohort(self.clients, self.rate, self.seed, t, busy) if drawn is None else drawn

    def answering(self, t: int) -> set[ClientId]:
        """Return the clients of round ``t`` that do not drop out."""
        return {i for i in self.sample(t) if not self.faults.absence(t, i)}

    def is_evaluated(self, t: int) -> bool:
        """Return True if round ``t`` ends with an evaluation."""
        return (t + 1) % self.eval_every == 0 or t + 1 == self.rounds

    def to_evaluate(self, t: int) -> set[ClientId]:
        """Return the clients whose model after round ``t`` is the one that the next evaluation reports."""
        # With a deadline any client may turn out to be late in a later round, so all models of this one are measured.
        if self.deadline is not None:
            return self.answering(t)
        window = self._window(t)
        cohort = window.cohorts.get(t)
        sampled = sample_cohort(self.clients, self.rate, self.seed, t) if cohort is None else cohort
        return {i for i in sampled if window.last.get(i) == t}

    def _next_evaluation(self, t: int) -> int:
        """Return the first evaluated round from ``t`` on."""
        regular = t + self.eval_every - 1 - t % self.eval_every
        return min(regular, self.rounds - 1) if t < self.rounds else regular

    def _window(self, t: int) -> _Window:
        """Return the window of round ``t``, and draw its cohorts if it begins here."""
        end = self._next_evaluation(t)
        found = self._windows.get(end)
        if found is not None and found.start <= t:
            return found
        window = _Window(t)
        for later in range(t, end + 1):
            cohort = sample_cohort(self.clients, self.rate, self.seed, later)
            window.last |= dict.fromkeys((i for i in cohort if not self.faults.absence(later, i)), later)
            if len(cohort) < len(self.clients):  # a cohort of all clients is drawn at no cost
                window.cohorts[later] = cohort
        self._windows.clear()
        self._windows[end] = window
        return window
