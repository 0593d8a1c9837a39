"""Differential privacy of class statistics: sensitivity, noise and post-processing."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.small_runs import setup
from support.toy_models import client, identity_body
from torch import Tensor

from atoll.clients import method_calls
from atoll.core.class_statistics import class_means, covariances
from atoll.core.method import traits_of
from atoll.core.prng import key
from atoll.core.schema import declared_constraints
from atoll.core.task import Round
from atoll.engine.build import run_experiment
from atoll.errors import AtollError
from atoll.methods import _registry
from atoll.methods.dcpfl import Gaussians
from atoll.privacy.disclosure import DisclosureControl
from atoll.privacy.policy import Privacy
from atoll.privacy.statistics_mechanism import Moments, StatisticsMechanism, find_table_names, moments, positive
from atoll.utils.secure_random import secure, seeded


def silence(shape: tuple[int, ...]) -> Tensor:
    """No noise."""
    return torch.zeros(shape, dtype=torch.double)


def rows(n: int, d: int = 3, classes: int = 2, seed: int = 0, bound: float | None = None) -> Any:
    y = [i % classes for i in range(n)]
    c = client(seeded(seed, "rows")((n, d)) * 3, y, identity_body(d, classes), classes)
    return replace(c, bound=bound)


def gaussians(c: Any) -> Gaussians:
    z, member = c.features(c.model.init()), c.members()
    n, mu = class_means(z, member)
    return Gaussians(n, mu, covariances(z, member, n, mu), None)


def test_factors_of_covariances_get_no_noise_and_are_refused() -> None:
    up = Gaussians(torch.tensor([5.0]), torch.ones(1, 2), None, torch.ones(1, 2, 1))
    with pytest.raises(AtollError, match="cov_source=client"):
        find_table_names(up, declared_constraints(Gaussians))


def test_features_are_clipped_row_by_row() -> None:
    """(3, 4) of norm 5 becomes (0.6, 0.8) at bound 1, and (0.3, 0.4) stays; the mean is (0.45, 0.6)."""
    c = replace(client([[3.0, 4.0], [0.3, 0.4]], [0, 0], identity_body(2, 1), 1), bound=1.0)
    torch.testing.assert_close(c.features(c.model.init()), torch.tensor([[0.6, 0.8], [0.3, 0.4]]))
    torch.testing.assert_close(gaussians(c).mu, torch.tensor([[0.45, 0.6]]))


@pytest.mark.parametrize(
    "name", sorted(n for n, cls in _registry.methods().items() if traits_of(cls).bounded_statistics)
)
def test_methods_with_bounded_statistics_compute_them_from_clipped_features(name: str) -> None:
    """A mean of rows no longer than 0.1 is no longer than 0.1; without the bound the same means are."""
    plain = setup(name, rounds=1, eval_every=1)
    for bound in (0.1, None):
        pool = replace(plain.pool, bound=bound)
        c, task = pool.client(pool.ids[0]), pool.task()
        down = plain.method.broadcast(plain.method.init_server(task, key("s")), pool.ids[0], task, Round(0), key(0))
        with torch.no_grad():
            up, _ = plain.method.client_update(
                down, method_calls.init_client(plain.method, c, key("i")), c, Round(0), key("l")
            )
        longest = float((up.mu if name == "dcpfl" else up.means).norm(dim=1).max())
        assert longest <= 0.1 + 1e-6 if bound else longest > 0.1


def test_moments_equal_sums_over_rows() -> None:
    c = rows(9)
    up = gaussians(c)
    found = moments(up.n, up.mu, up.sigma)
    own = c.x[c.y == 1].double()
    torch.testing.assert_close(found.total[1], own.sum(0), atol=1e-5, rtol=1e-5)
    assert found.second is not None
    torch.testing.assert_close(found.second[1], own.T @ own, atol=1e-4, rtol=1e-5)


def test_a_row_moves_the_moments_by_no_more_than_the_sensitivity() -> None:
    """sqrt(1 + R^2 + R^4) for count, sum and second moment; reached by a row of norm R."""
    bound = 1.5
    mechanism = StatisticsMechanism(bound, 1.0, DisclosureControl())
    assert mechanism.sensitivity(True) == pytest.approx(math.sqrt(1 + 2.25 + 5.0625))
    assert mechanism.sensitivity(False) == pytest.approx(math.sqrt(3.25))
    largest = 0.0
    for seed in range(50):
        with_row, without = rows(8, seed=seed, bound=bound), rows(7, seed=seed, bound=bound)
        without = replace(without, x=with_row.x[:7])
        a, b = (moments(u.n, u.mu, u.sigma) for u in map(gaussians, (with_row, without)))
        assert a.second is not None
        assert b.second is not None
        parts = [(a.n - b.n), (a.total - b.total), (a.second - b.second)]
        largest = max(largest, math.sqrt(sum(float(p.square().sum()) for p in parts)))
    assert largest <= mechanism.sensitivity(True) + 1e-4
    assert largest > 0.95 * mechanism.sensitivity(True)


def test_release_without_noise_equals_the_exact_statistics() -> None:
    c = rows(60, bound=100.0)
    up = gaussians(c)
    out = StatisticsMechanism(100.0, 0.0, DisclosureControl()).release(c, up, declared_constraints(Gaussians), silence)
    assert torch.equal(out.n, up.n)
    torch.testing.assert_close(out.mu, up.mu, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(out.sigma, up.sigma, atol=1e-3, rtol=1e-3)


def test_noise_on_moments_has_equal_deviation_and_is_symmetric() -> None:
    """For 2,000 classes of width 5: deviation multiplier * sensitivity on counts, sums and second moments."""
    mechanism = StatisticsMechanism(1.0, 2.0, DisclosureControl())
    zero = Moments(torch.zeros(2000), torch.zeros(2000, 5), torch.zeros(2000, 5, 5))
    noisy = mechanism.noisy(zero, secure)
    expected = 2 * math.sqrt(3)
    assert noisy.second is not None
    assert torch.equal(noisy.second, noisy.second.mT)
    upper = noisy.second[:, *torch.triu_indices(5, 5)]
    for part in (noisy.total, upper):
        assert float(part.std()) == pytest.approx(expected, rel=0.03)
    assert float(noisy.n.std()) == pytest.approx(expected, rel=0.06)


def test_noisy_statistics_pass_the_checks_of_the_server() -> None:
    plain = setup("dcpfl", rounds=2, eval_every=1, dp="20", dp_clip=3.0, dp_seed=1)
    privacy = Privacy(plain.config, plain.method, plain.pool)
    c = plain.pool.client(plain.pool.ids[0])
    assert c.bound == 3.0
    result = run_experiment(plain)
    assert not [r for line in result.history for r in line["rejected"]]
    assert privacy.spare_rows > 0
    matrix = positive(seeded(0, "m")((6, 6)))
    assert float(torch.linalg.eigvalsh(matrix).min()) > -1e-9


def test_positive_returns_the_nearest_psd_matrix() -> None:
    """[[1, 2], [2, 1]] has eigenvalues 3 and -1 along (1, 1) and (1, -1): what is left is 3/2 everywhere."""
    torch.testing.assert_close(positive(torch.tensor([[1.0, 2.0], [2.0, 1.0]])), torch.full((2, 2), 1.5))


def test_classes_without_rows_are_dropped_by_noisy_counts_only() -> None:
    """With a count far below the noise a class does not leave, and what leaves is marked by the noisy count."""
    c = rows(3, bound=1.0)
    out = StatisticsMechanism(1.0, 50.0, DisclosureControl()).release(
        c, gaussians(c), declared_constraints(Gaussians), seeded(3)
    )
    held = out.n > 0
    assert bool((out.n[held] >= 2 * 50 * math.sqrt(3) - 1).all())
    assert not out.mu[~held].any()
    assert float(out.mu.norm(dim=1).max()) <= 1 + 1e-6
