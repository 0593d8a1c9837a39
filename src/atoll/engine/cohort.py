"""Sample the clients of each round, and determine which of them answer and are evaluated."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..core.prng import key, permutation
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
    order = permutation(key(seed, "sample", t), len(clients)).tolist()
    free = [j for j in order if clients[j] not in busy]
    return [clients[j] for j in sorted(free[: count - len(busy)])]


def cohort_size(clients: int, rate: float) -> int:
    """Return the number of clients that work at a time."""
    return max(1, round(rate * clients))


@dataclass(frozen=True)
class Cohorts:
    """The cohorts of a run. All cohorts follow from the seed, so later rounds can be computed in advance.

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

    def sample(self, t: int, busy: Collection[ClientId] = ()) -> list[ClientId]:
        """Return the clients that are asked to take part in round ``t``, beside those that are ``busy``."""
        return sample_cohort(self.clients, self.rate, self.seed, t, busy)

    def answering(self, t: int) -> set[ClientId]:
        """Return the clients of round ``t`` that do not drop out."""
        return {i for i in self.sample(t) if not self.faults.absence(t, i)}

    def is_evaluated(self, t: int) -> bool:
        """Return True if round ``t`` ends with an evaluation."""
        return (t + 1) % self.eval_every == 0 or t + 1 == self.rounds

    def to_evaluate(self, t: int) -> set[ClientId]:
        """Return the clients whose model after round ``t`` is the one that the next evaluation reports."""
        found, later = self.answering(t), t
        # With a deadline any client may turn out to be late in a later round, so all models of this one are measured.
        while found and not self.is_evaluated(later) and self.deadline is None:
            later += 1
            found -= self.answering(later)
        return found
