"""Sample the clients that take part in a round."""

from collections.abc import Sequence

from ..core.prng import key, permutation
from ..typing import ClientId


def sample_cohort(clients: Sequence[ClientId], rate: float, seed: int, t: int) -> list[ClientId]:
    """The clients of round ``t``, drawn without replacement, in their own order."""
    count = max(1, round(rate * len(clients)))
    if count == len(clients):
        return list(clients)
    chosen = permutation(key(seed, "sample", t), len(clients))[:count]
    return [clients[j] for j in sorted(chosen.tolist())]
