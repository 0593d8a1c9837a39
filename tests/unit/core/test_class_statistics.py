"""Class statistics: pooling, factorisation and sampling, by hand and against torch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from atoll.core.class_statistics import Pool, allocate, class_means, covariances, draw, factorise
from atoll.core.prng import key, normal


def one_class(rows: list[list[float]]) -> tuple[Tensor, Tensor, Tensor]:
    z = torch.tensor(rows)
    n, mu = class_means(z, torch.ones(len(rows), 1))
    return n, mu, covariances(z, torch.ones(len(rows), 1), n, mu)


def pooled(*samples: list[list[float]], exact: bool = True) -> Pool:
    pool = Pool(1, len(samples[0][0]), exact=exact)
    for rows in samples:
        pool.add(*one_class(rows))
    return pool


def test_pooling_in_one_dimension() -> None:
    """A = {0, 2}: n = 2, mean 1, variance 2. B = {4, 6, 8}: n = 3, mean 6, variance 4. Together: mean 20/5 = 4 and
    variance (16 + 4 + 0 + 4 + 16) / 4 = 10. The paper's weights give (2*2 + 3*4 + 2*9 + 3*4) / 4 = 46/4 = 11.5.
    """
    a, b = [[0.0], [2.0]], [[4.0], [6.0], [8.0]]
    assert [float(v) for v in one_class(a)] == [2, 1, 2]
    assert [float(v) for v in one_class(b)] == [3, 6, 4]
    pool = pooled(a, b)
    assert pool.n.item() == 5
    assert pool.mu.item() == pytest.approx(4)
    assert pool.sigma().item() == pytest.approx(10)
    assert pooled(a, b, exact=False).sigma().item() == pytest.approx(11.5)


@pytest.mark.parametrize("swap", [False, True])
def test_pooling_with_a_singleton(swap: bool) -> None:
    """A = {(1, 2)}: covariance 0. B = {(3, 2), (5, 4)}: [[2, 2], [2, 2]]. Together mean (3, 8/3), deviations
    (-2, -2/3), (0, -2/3), (2, 4/3): [[8, 4], [4, 24/9]] / 2 = [[4, 2], [2, 4/3]]. The paper's weights add
    Sigma_B / 2 = [[1, 1], [1, 1]].
    """
    samples = [[[1.0, 2.0]], [[3.0, 2.0], [5.0, 4.0]]]
    samples = samples[::-1] if swap else samples
    assert one_class([[1.0, 2.0]])[2].tolist() == [[[0.0, 0.0], [0.0, 0.0]]]
    exact, paper = pooled(*samples), pooled(*samples, exact=False)
    torch.testing.assert_close(exact.mu, torch.tensor([[3.0, 8 / 3]], dtype=torch.double))
    torch.testing.assert_close(exact.sigma()[0], torch.tensor([[4.0, 2.0], [2.0, 4 / 3]], dtype=torch.double))
    torch.testing.assert_close(paper.sigma()[0], torch.tensor([[5.0, 3.0], [3.0, 7 / 3]], dtype=torch.double))


def test_one_row_in_all_has_no_covariance() -> None:
    assert pooled([[1.0, 2.0]]).sigma().tolist() == [[[0.0, 0.0], [0.0, 0.0]]]


def test_pooling_survives_large_means() -> None:
    """Features around 3,000 with spread 1: a difference of squares in single precision would lose all digits."""
    z = 3000 + normal(key(0), 60, 5)
    pool = Pool(1, 5)
    for rows in z.split((7, 1, 30, 22)):
        pool.add(*one_class(rows.tolist()))
    truth = torch.cov(z.double().T)
    sigma = pool.sigma()[0]
    torch.testing.assert_close(sigma, truth, rtol=1e-3, atol=1e-3)
    assert torch.linalg.eigvalsh(sigma).min() > 0


def test_class_statistics_use_the_rows_of_each_class_only() -> None:
    """Rows of each class only, absent classes zero, exactly symmetric, equal to torch.cov; padding has no class."""
    z, y = normal(key(0), 40, 6).relu(), torch.arange(40) % 3
    member = torch.nn.functional.one_hot(y, 5).float()
    member[30:] = 0
    n, mu = class_means(z, member)
    sigma = covariances(z, member, n, mu)
    assert n.tolist() == [10, 10, 10, 0, 0]
    assert torch.equal(sigma, sigma.mT)
    for c in range(3):
        rows = z[:30][y[:30] == c]
        torch.testing.assert_close(mu[c], rows.mean(0))
        torch.testing.assert_close(sigma[c], torch.cov(rows.T))
    assert not mu[3:].any()
    assert not sigma[3:].any()


def test_allocation_by_largest_remainder_of_known_shares() -> None:
    """1000 at 3:1 is 750 and 250. 12 at 7:2:1 is 8.4, 2.4, 1.2: 8, 2, 1 and the one left to 0.4, the lower class."""
    assert allocate(torch.tensor([300.0, 100.0, 0.0]), 1000).tolist() == [750, 250, 0]
    assert allocate(torch.tensor([7.0, 2.0, 1.0]), 12).tolist() == [9, 2, 1]
    assert allocate(torch.tensor([1.0, 1.0, 1.0]), 2).tolist() == [1, 1, 0]
    assert allocate(torch.tensor([0.0, 0.0]), 5).tolist() == [0, 0]


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=20), st.integers(0, 5_000))
@settings(max_examples=50, deadline=None)
def test_allocation_is_complete_and_fair(n: list[int], total: int) -> None:
    share = allocate(torch.tensor(n).float(), total)
    if sum(n):
        assert int(share.sum()) == total
        quota = [total * v / sum(n) for v in n]
        assert all(abs(int(s) - q) < 1 for s, q in zip(share, quota, strict=True))


def test_singular_draws_stay_on_their_line() -> None:
    """N(0, [[2, 2], [2, 2]]): both coordinates are equal; 200,000 draws have that covariance to 2 %."""
    z, y = draw(torch.ones(1), torch.zeros(1, 2), torch.full((1, 2, 2), 2.0), 200_000, key(0))
    assert (z[:, 0] - z[:, 1]).abs().max() < 0.02
    torch.testing.assert_close(torch.cov(z.T), torch.full((2, 2), 2.0), rtol=0.02, atol=0)
    assert not y.any()


def test_draws_have_the_moments_asked_for() -> None:
    a = normal(key(1), 2, 4, 4)
    sigma, mu, n = a @ a.mT, torch.tensor([[0.0, 5.0, -5.0, 1.0], [9.0, 9.0, 9.0, 9.0]]), torch.tensor([3.0, 1.0])
    z, y = draw(n, mu, sigma, 80_000, key(2))
    assert y.bincount().tolist() == [60_000, 20_000]
    for c in range(2):
        rows, scale = z[y == c], sigma[c].diagonal().max().item()
        torch.testing.assert_close(rows.mean(0), mu[c], rtol=0, atol=0.03 * scale**0.5)
        torch.testing.assert_close(torch.cov(rows.T), sigma[c], rtol=0, atol=0.04 * scale)


def test_no_covariance_draws_the_mean() -> None:
    z, _ = draw(torch.ones(1), torch.tensor([[1.0, 2.0]]), torch.zeros(1, 2, 2), 5, key(0))
    assert z.tolist() == [[1.0, 2.0]] * 5


def test_draws_of_a_class_do_not_depend_on_other_classes() -> None:
    a = normal(key(1), 3, 6, 6)
    sigma, mu = a @ a.mT, torch.zeros(3, 6)
    alone, _ = draw(torch.tensor([0.0, 5.0, 0.0]), mu, sigma, 5, key(2))
    among, y = draw(torch.tensor([5.0, 5.0, 5.0]), mu, sigma, 15, key(2))
    torch.testing.assert_close(alone, among[y == 1])
    same, y = draw(torch.ones(2), mu[:2], sigma[:1].expand(2, 6, 6), 2, key(2))  # alike, but not the same noise
    assert not torch.equal(same[0], same[1])


@given(st.integers(1, 70), st.integers(1, 70), st.floats(-12, 6), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_factors_of_low_rank(width: int, rows: int, magnitude: float, seed: int) -> None:
    """A covariance of ``rows`` rows, rounded to single precision: rank columns or hardly more, and L L^T is it."""
    z = normal(key(seed), rows, width).relu() * 10**magnitude
    n, mu = class_means(z, torch.ones(rows, 1))
    sigma = covariances(z, torch.ones(rows, 1), n, mu)
    factor, features = factorise(sigma.double())
    assert factor.shape[2] == features.shape[1] <= min(width, rows)
    scale = sigma.diagonal(dim1=1, dim2=2).max()
    assert (factor @ factor.mT - sigma).abs().max() <= 2e-3 * scale


def test_factor_has_as_many_columns_as_the_rank() -> None:
    """40 rows in 500 dimensions span 39: so many columns, of 500."""
    z = (normal(key(0), 40, 500) @ normal(key(1), 500, 500)).relu()
    n, mu = class_means(z, torch.ones(40, 1))
    assert factorise(covariances(z, torch.ones(40, 1), n, mu).double())[0].shape == (1, 500, 39)


def test_classes_of_different_rank_at_once() -> None:
    a = normal(key(1), 4, 8).double()
    sigma = torch.stack([torch.outer(a[0], a[0]), torch.zeros(8, 8).double(), a.T @ a, torch.eye(8).double()])
    factor, features = factorise(sigma)
    torch.testing.assert_close(factor @ factor.mT, sigma, rtol=0, atol=1e-6)
    assert features.shape == (4, 8)


def test_full_rank_equals_cholesky() -> None:
    """With unit variances and weak correlation features are taken in order: the lower triangle of Cholesky."""
    a = normal(key(3), 40, 40).double() * 0.05
    sigma = (a @ a.T + torch.eye(40))[None]
    factor, features = factorise(sigma)
    assert features.tolist() == [list(range(40))]
    torch.testing.assert_close(factor, torch.linalg.cholesky(sigma))


def test_an_indefinite_matrix_gives_no_more_than_its_diagonal() -> None:
    """[[1, 100], [100, 1]] is no covariance; its draws vary by 1, not by 100."""
    factor, _ = factorise(torch.tensor([[[1.0, 100.0], [100.0, 1.0]]]).double())
    assert (factor @ factor.mT).diagonal(dim1=1, dim2=2).tolist() == [[1.0, 1.0]]
    noise = normal(key(0), 30, 30).double()
    factor, _ = factorise((noise + noise.T)[None])
    assert bool(torch.isfinite(factor).all())
    bound = (noise + noise.T).diagonal().clamp(min=0)
    assert bool(((factor @ factor.mT)[0].diagonal() <= bound + 1e-9).all())


def test_rounding_of_rows_changes_draws_by_rounding_only() -> None:
    """Other backends round differently: draws from 20 rows in 32 dimensions move by rounding, they do not jump."""
    z = normal(key(5), 20, 32).relu()

    def sample(z: Tensor) -> Tensor:
        n, mu = class_means(z, torch.ones(20, 1))
        return draw(n, mu, covariances(z, torch.ones(20, 1), n, mu), 100, key(6))[0]

    assert (sample(z) - sample(z * (1 + 1e-7 * normal(key(7), 20, 32)))).abs().max() < 1e-3
