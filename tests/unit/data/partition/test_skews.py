"""Skews of quantity, shards of sorted labels, and few classes in unequal shares."""

import numpy as np
from support.partitions import divide, make_pool

EVEN = make_pool(*[100] * 10)


def test_quantity_skew_changes_sizes_and_keeps_the_mix_of_classes():
    rows = make_pool(5000, 5000)

    got = divide("quantity:0.5", rows, 8)

    sizes = np.array([len(r) for r in got.rows])
    assert sorted(np.concatenate(got.rows)) == list(range(10_000))
    assert sizes.max() > 4 * sizes.min()
    assert all(abs(rows.labels[r].mean() - 0.5) < 0.1 for r in got.rows if len(r) > 500)


def test_quantity_skew_with_a_large_beta_gives_nearly_equal_sizes():
    sizes = [len(r) for r in divide("quantity:1000000", EVEN, 10).rows]

    assert max(sizes) - min(sizes) <= 3


def test_shards_give_each_client_pieces_of_sorted_labels():
    got = divide("shards:2", EVEN, 20)

    # 1,000 rows in 40 shards of 25, four shards of each class of 100 rows: no shard mixes classes.
    assert [len(r) for r in got.rows] == [50] * 20
    assert all(len(np.unique(EVEN.labels[r])) <= 2 for r in got.rows)
    assert all(set(np.bincount(EVEN.labels[r], minlength=10)) <= {0, 25, 50} for r in got.rows)


def test_few_classes_have_unequal_shares():
    got = divide("classes:3:0.3", EVEN, 20)

    counts = np.array([np.bincount(EVEN.labels[r], minlength=10) for r in got.rows])
    assert ((counts > 0).sum(1) == 3).all()
    assert counts.sum() == 1000
    assert counts.max() > 3 * 100 / 6  # six owners of a class: equal shares would be 17 rows
