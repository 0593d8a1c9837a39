"""Numbers of rows by client and class, and the draw of rows."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.data.partition.counts import cut, deal, draw_from_mix, fill_small_clients, portions, raise_to_minimum


def test_portions_round_down_and_leave_rows_unused():
    """Weights 0.4 and 0.6 of 4001 rows: 1600.4 and 2400.6, so one row is unused."""
    assert portions(np.array([0.4, 0.6]), 4001).tolist() == [1600, 2400]


def test_portions_ignore_floating_point_error():
    """0.29 * 100 is 28.999999999999996 in floating point, but 29 rows."""
    assert portions(np.array([0.29, 0.71]), 100).tolist() == [29, 71]


def test_raise_to_minimum_uses_unused_rows_before_rows_of_the_largest_owner():
    """Of 9 rows one is spare, of 8 none is, so that the owner of 5 gives one."""
    assert raise_to_minimum(np.array([0, 5, 3]), 1, 9).tolist() == [1, 5, 3]
    assert raise_to_minimum(np.array([0, 5, 3]), 1, 8).tolist() == [1, 4, 3]


def test_cut_rounds_cumulated_proportions_down():
    """0.25, 0.5, 0.25 of 10 rows: edges 2.5 and 7.5 round down to 2 and 7; of 4 rows: 1 and 3."""
    proportions = np.array([[0.25, 0.25], [0.5, 0.5], [0.25, 0.25]])
    assert cut(proportions, np.array([10, 4])).tolist() == [[2, 1], [5, 2], [3, 1]]


def test_cut_gives_remaining_rows_to_the_last_client():
    """Proportions that add up to a little less than 1 lose no row."""
    assert cut(np.array([[0.5], [0.4999]]), np.array([10])).tolist() == [[5], [5]]


def test_small_client_gets_rows_of_a_class_it_has():
    """Client 1 has one row of class 1 and gets a second one from client 0."""
    counts, moved = fill_small_clients(np.array([[5, 5], [0, 1]]), 2)
    assert counts.tolist() == [[5, 4], [0, 2]]
    assert moved == 1


def test_small_client_gets_rows_of_the_largest_client_if_no_other_has_its_class():
    """Client 0 is largest and holds class 0 only: one row to client 1, two to client 2."""
    counts, moved = fill_small_clients(np.array([[10, 0], [0, 1], [0, 0]]), 2)
    assert counts.tolist() == [[7, 0], [1, 1], [2, 0]]
    assert moved == 3


def test_no_row_is_taken_from_a_client_without_the_class():
    """Client 0 is large but has no class 1; client 1 has it but none to spare."""
    counts, _ = fill_small_clients(np.array([[9, 0], [0, 2], [0, 1]]), 2)
    assert counts.tolist() == [[8, 0], [0, 2], [1, 1]]


def test_draw_from_mix_replaces_an_exhausted_class():
    """3 of the 5 rows wanted of class 0 are there, the other 2 come from class 1; with a mix of nothing but class 0,
    from whatever is in stock.
    """
    rng = np.random.default_rng(0)
    assert draw_from_mix(np.array([1 - 1e-7, 1e-7, 0]), 5, np.array([3, 9, 9]), rng).tolist() == [3, 2, 0]
    assert draw_from_mix(np.array([1.0, 0, 0]), 5, np.array([3, 0, 9]), rng).tolist() == [3, 0, 2]


@settings(max_examples=50, deadline=None)
@given(totals=st.lists(st.integers(0, 20), min_size=1, max_size=5), clients=st.integers(1, 6), seed=st.integers(0, 99))
def test_deal_gives_the_requested_counts(totals, clients, seed):
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(totals)), totals))
    counts = np.stack([rng.multinomial(rng.integers(t + 1), np.full(clients, 1 / clients)) for t in totals], 1)
    assign = deal(labels, counts, rng)
    assert np.array_equal([np.bincount(labels[r], minlength=len(totals)) for r in assign], counts)
    assert len(np.unique(np.concatenate(assign))) == counts.sum()


def test_deal_draws_every_row_equally_often():
    """3 of 10 rows for client 1, 2000 times: each row 600 times with a standard deviation of 20."""
    rng = np.random.default_rng(0)
    labels = np.zeros(10, dtype=np.int64)
    times = np.bincount(np.concatenate([deal(labels, np.array([[2], [3]]), rng)[1] for _ in range(2000)]))
    assert np.abs(times - 600).max() < 120
