"""Partitions by Dirichlet draws."""

import numpy as np
import pytest
from support.partitions import count_rows, divide, make_pool

from atoll.data.partition.dirichlet import Capped, Dirichlet, Masked


def test_dirichlet_shares_have_the_second_moment_of_beta():
    """E[p^2] = (beta + 1) / (N (N beta + 1)) = 1.5 / 60 = 0.025 for N = 10 and beta = 0.5 (equal parts: 0.01)."""
    rows = make_pool(*[200] * 300)
    counts = count_rows(rows, Dirichlet(0.5).divide(rows, 10, np.random.default_rng(0)))
    assert counts.sum() == 60_000
    assert np.mean((counts / 200) ** 2) == pytest.approx(0.025, rel=0.1)


def test_note_reports_repeated_draws():
    """With 8 clients and 60 rows a first draw that leaves a client with fewer than 2 rows is common."""
    rows = make_pool(30, 30)
    notes = [divide("dirichlet:0.5", rows, 8, seed).notes for seed in range(20)]
    assert any(n and n[0].startswith("Drawn ") and "until every client had 2 samples" in n[0] for n in notes)
    assert () in notes


def test_dirichlet_corrects_the_best_draw_if_all_leave_small_clients():
    """At beta = 0.01 a class falls almost whole on one client: 5 classes cannot reach 40 clients."""
    rows = make_pool(*[100] * 5)
    got = divide("dirichlet:0.01", rows, 40)
    assert min(len(r) for r in got.rows) >= 2
    assert sum(len(r) for r in got.rows) == 500
    assert "In 100 draws some client always had fewer than 2 samples" in got.notes[0]


@pytest.mark.parametrize("seed", range(5))
def test_capped_skips_clients_with_their_equal_share(seed):
    """A client takes rows of a class only while it holds less than 2000 / 10 = 200 rows of the classes before."""
    rows = make_pool(*[200] * 10)
    got = Capped(0.5).divide(rows, 10, np.random.default_rng(seed))
    counts = count_rows(rows, got)
    assert counts.sum() == 2000
    assert counts.sum(1).min() >= 10
    before = np.cumsum(counts, 1) - counts
    assert (before[counts > 0] < 200).all()


def test_capped_corrects_the_best_draw_up_to_ten_rows():
    rows = make_pool(*[100] * 2)
    got = divide("dirichlet:0.001:capped", rows, 20)
    assert [len(r) for r in got.rows] == [10] * 20
    assert "fewer than 10 samples" in got.notes[0]


def test_mask_has_its_probability_and_no_empty_row_or_column():
    takes = Masked(1.0, 0.7).draw_mask(100, 100, np.random.default_rng(0))
    assert takes.mean() == pytest.approx(0.7, abs=0.02)  # standard deviation 0.0046
    thin = Masked(1.0, 0.01).draw_mask(30, 10, np.random.default_rng(0))
    assert thin.any(0).all()
    assert thin.any(1).all()
    assert Masked(1.0, 1.0).draw_mask(20, 10, np.random.default_rng(0)).all()


def test_masked_clients_lack_classes_at_the_rate_of_the_mask():
    """With beta = 100 every client that takes part gets rows, so only the cells outside the mask (30 %) are empty."""
    rows = make_pool(*[2000] * 10)
    counts = count_rows(rows, divide("dirichlet:100:masked=0.7", rows, 20))
    assert counts.sum() == 20_000
    assert np.mean(counts == 0) == pytest.approx(0.3, abs=0.1)
    assert count_rows(rows, divide("dirichlet:100:masked=1", rows, 20)).min() > 0


def test_by_client_gives_equally_large_clients():
    rows = make_pool(300, 200, 100, 7)
    got = divide("dirichlet:0.5:client", rows, 10)
    assert sorted(len(r) for r in got.rows) == [60] * 3 + [61] * 7
    assert (count_rows(rows, got).sum(0) == [300, 200, 100, 7]).all()


def test_by_client_follows_class_frequencies_if_beta_is_large():
    """Dir(1e5 * (0.6, 0.4)) is (0.6, 0.4) to within 0.002; 100 draws from it stray by 5 rows (one deviation)."""
    rows = make_pool(600, 400)
    counts = count_rows(rows, divide("dirichlet:100000:client", rows, 10))
    assert np.abs(counts[:, 0] - 60).max() < 20


def test_by_client_concentrates_on_few_classes_as_beta_falls():
    """Without an end to the stock, sum_c q_c^2 would be (beta / 10 + 1) / (beta + 1) on average: 0.92 for 0.1, 0.55 for
    1, 0.11 for 100. Clients that want the same class must share it, so that the first two are lower, but still apart.
    """
    rows = make_pool(*[100] * 10)

    def concentration(beta: float) -> float:
        counts = [count_rows(rows, divide(f"dirichlet:{beta}:client", rows, 10, seed)) for seed in range(10)]
        return float(np.mean([(c / 100) ** 2 for c in counts]) * 10)

    small, middle, large = concentration(0.1), concentration(1), concentration(100)
    assert small > middle > 1.5 * large
    assert large == pytest.approx(0.11 + 0.009, abs=0.02)  # 0.09 / 10 more from drawing 100 rows by chance
