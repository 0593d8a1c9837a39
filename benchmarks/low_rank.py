"""What DC-PFL loses and saves when clients send the R columns that explain most of each covariance.

A federation of ten clients on the digits (Dirichlet 0.5, an MLP with 64 features) trains for 20 rounds by DC-PFL. Then
every client's statistics of the last round are made whole and with R columns. ``low_rank.bytes_R`` is the size of all
uploads over that of the whole ones; ``low_rank.error_R`` how far the pooled covariances are from the whole ones, as the
root of the sum of squares over all classes, over that of the whole ones. ``low_rank.accuracy_R`` is the mean personal
accuracy of a run with ``cov_source=lowrank:R`` less that of a run with whole covariances, in points, on average over
seeds; ``low_rank.accuracy_sd_R`` is the standard deviation of that difference over seeds.
"""

from statistics import fmean, stdev

from atoll import run
from atoll.core.class_statistics import Pool, class_means, covariance_factors, covariances
from atoll.core.payloads import nbytes
from atoll.engine.result import Result
from atoll.methods.dcpfl import Gaussians

RANKS = (1, 2, 4, 8, 16)


def figures(quick: bool) -> dict[str, float]:
    ranks, seeds, rounds = (RANKS[:2], (0, 1), 2) if quick else (RANKS, tuple(range(10)), 20)
    whole = [_train("client", seed, rounds) for seed in seeds]
    found: dict[str, float] = {}
    for rank in ranks:
        low = [_train(f"lowrank:{rank}", seed, rounds) for seed in seeds]
        gains = [100 * (_accuracy(a) - _accuracy(b)) for a, b in zip(low, whole, strict=True)]
        found |= _beside_whole(whole[0], rank)
        found |= {f"low_rank.accuracy_{rank}": fmean(gains), f"low_rank.accuracy_sd_{rank}": stdev(gains)}
    return found


def _train(source: str, seed: int, rounds: int) -> Result:
    return run(
        "dcpfl", data="digits", models=["mlp"], clients=10, partition="dirichlet:0.5", rounds=rounds, seed=seed,
        eval_every=rounds, settings={"cov_source": source},
    )  # fmt: skip


def _accuracy(result: Result) -> float:
    return result.history[-1]["personal"]["post"]["accuracy"]


def _beside_whole(trained: Result, rank: int) -> dict[str, float]:
    """Compare the statistics of trained clients with ``rank`` columns and whole."""
    whole, low = _pool(trained), _pool(trained)
    sizes = [0, 0]
    for i, client in trained.pool.clients().items():
        z, member = client.features(trained.state(i).params), client.members()
        n, mu = class_means(z, member)
        sigma, factors = covariances(z, member, n, mu), covariance_factors(z, member, n, mu, rank)
        whole.add(n, mu, sigma)
        low.add(n, mu, factors=factors)
        sizes[0] += nbytes(Gaussians(n, mu, sigma, None))
        sizes[1] += nbytes(Gaussians(n, mu, None, factors))
    exact, kept = whole.sigma(), low.sigma()
    return {
        f"low_rank.bytes_{rank}": sizes[1] / sizes[0],
        f"low_rank.error_{rank}": float((kept - exact).norm() / exact.norm()),
    }


def _pool(trained: Result) -> Pool:
    task = trained.pool.task()
    return Pool(task.num_classes, task.feature_dim, covariances=True)
