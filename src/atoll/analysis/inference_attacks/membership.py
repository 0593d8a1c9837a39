"""Infer whether a row was among the training rows of a client."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...clients.pool import ClientPool
from ...core.prng import key, permutation
from ...core.schema import constraints_of
from ...engine.setup import Setup
from .base import AttackResult, ClassStatistics, ObservedUpload, mean_result, read_statistics
from .reconstruction import MOST_ROWS

CANDIDATES = 200  # rows of other clients that are tried against a class

# Statistics, class, features of candidates, and features of known non-members to scores of the candidates, [rows].
Score = Callable[[ClassStatistics, int, Tensor, Tensor], Tensor | None]


def attack_membership(observed: Sequence[ObservedUpload], setup: Setup, score: Score, by: str) -> list[AttackResult]:
    """Distinguish members of a class from rows of other clients of the same class.

    Args:
        observed: the uploads.
        setup: configuration, method and clients.
        score: scores candidates, higher for likely members.
        by: statistics that the score uses, "covariance" or "means".

    Returns:
        Mean AUC over clients and classes, apart for classes with at most and with more rows than features.
    """
    d = setup.pool.task().feature_dim
    few: list[float] = []
    many: list[float] = []
    for seen in observed:
        sent = read_statistics(seen.upload, setup)
        for c in (seen.counts > MOST_ROWS).nonzero().flatten().tolist():
            if sent.mean is None or (by == "covariance" and sent.sigma is None and not _sends_covariance(setup)):
                continue
            members, others, known = _candidates(seen, c, setup.pool)
            inside, outside = (score(sent, c, z, known) for z in (members, others))
            value = 0.5 if inside is None or outside is None else auc(inside, outside)
            (few if len(members) <= d else many).append(value)
    measure = "AUC of telling members from other samples of the same class (0.5: not at all)"
    return [
        mean_result(f"membership by {by}, n <= {d}", measure, few),
        mean_result(f"membership by {by}, n > {d}", measure, many),
    ]


def _sends_covariance(setup: Setup) -> bool:
    return any(marks.covariance for marks in constraints_of(setup.method).values())


def _candidates(seen: ObservedUpload, c: int, pool: ClientPool) -> tuple[Tensor, Tensor, Tensor]:
    """Return features of class ``c``: of members, of non-members, and of non-members that the attacker knows."""
    others = [pool.client(i) for i in pool.ids if i != seen.task.client]
    x = torch.cat([o.x[o.y == c] for o in others] + [seen.client.x[:0]])
    x = x[permutation(key("strangers", seen.task.client, c), len(x))][:CANDIDATES]
    z = seen.client.model.features(seen.params, torch.cat([seen.client.x[seen.client.y == c], x])).double()
    n = int(seen.counts[c])
    return z[:n], z[n::2], z[n + 1 :: 2]


def score_by_covariance(sent: ClassStatistics, c: int, z: Tensor, known: Tensor) -> Tensor | None:
    """Score by the negative squared Mahalanobis distance.

    Components outside the span of the members count by far the most: members have none.
    """
    if sent.sigma is None or sent.mean is None or not sent.has(c):
        return None
    values, vectors = torch.linalg.eigh(sent.sigma[c].double())
    if float(values[-1]) <= 0:
        return None
    spanned = values > 1e-5 * values[-1]
    along = (z - sent.mean[c].double()) @ vectors
    outside = along[:, ~spanned].square().sum(1) / values[-1]
    inside: Tensor = (along[:, spanned].square() / values[spanned]).sum(1)
    far: Tensor = 1e6 * outside.where(outside > 1e-4, 0.0)
    return -inside - far


def score_by_mean(sent: ClassStatistics, c: int, z: Tensor, known: Tensor) -> Tensor | None:
    """Score by how much nearer a row is to the client's mean than to the mean of known non-members.

    Distances are in units of the variance of known non-members.
    """
    if sent.mean is None or not sent.has(c) or len(known) < 2:
        return None
    mean, usual, spread = sent.mean[c].double(), known.mean(0), known.var(0) + 1e-6 * known.var(0).max() + 1e-12
    return (((z - usual).square() - (z - mean).square()) / spread).sum(1)


def auc(inside: Tensor, outside: Tensor) -> float:
    """Return how often a member scores higher than a non-member; ties count half."""
    if not len(inside) or not len(outside):
        return 0.5
    gap = inside[:, None] - outside
    return float((gap > 0).double().mean() + (gap == 0).double().mean() / 2)
