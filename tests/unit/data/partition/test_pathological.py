"""Partitions with a few classes for each client."""

import numpy as np
import pytest
from support.partitions import count_rows, divide, make_pool

from atoll.data.partition.base import Pool
from atoll.data.partition.pathological import Pathological


@pytest.mark.parametrize("seed", range(5))
def test_each_client_has_two_classes_and_each_class_two_owners(seed):
    """2 x 10 / 10 = 2 owners per class; weights from 0.4 to 0.6 give two owners shares in [0.4, 0.6] that sum to 1."""
    rows = make_pool(*[1000] * 10)
    counts = count_rows(rows, divide("pathological:2", rows, 10, seed))
    assert ((counts > 0).sum(0) == 2).all()
    assert ((counts > 0).sum(1) == 2).all()
    held = counts[counts > 0]
    assert held.min() >= 399
    assert held.max() <= 600
    assert np.isin(counts.sum(0), [999, 1000]).all()  # two floors lose one row at most


def test_classes_of_a_client_are_distinct_for_fifty_seeds():
    for seed in range(50):
        picks = Pathological(8).pick_classes(10, 10, np.random.default_rng(seed))
        assert all(len(set(mine)) == 8 for mine in picks.tolist())
        assert (np.bincount(picks.ravel()) == 8).all()


@pytest.mark.promise("Data", "`pathological:K` gives each client K classes, and each class equally many owners.")
@pytest.mark.parametrize(("classes", "of"), [(4, 10), (6, 10), (30, 100), (70, 100), (90, 100)])
def test_classes_have_equally_many_owners_for_any_number_of_classes(classes, of):
    picks = Pathological(classes).pick_classes(10, of, np.random.default_rng(0))
    assert all(len(set(mine)) == classes for mine in picks.tolist())
    assert (np.bincount(picks.ravel()) == classes * 10 // of).all()


def test_code_variant_repeats_a_class_at_the_simulated_rate():
    """Half of the clients draw a class twice at 8 of 10 (50 to 54 %), none at 2 of 10, because 2 divides 10."""

    def repeated(classes: int) -> float:
        picks = [Pathological(classes, code=True).pick_classes(10, 10, np.random.default_rng(s)) for s in range(200)]
        return float(np.mean([len(set(mine)) < classes for mine in np.concatenate(picks).tolist()]))

    assert 0.45 < repeated(8) < 0.6
    assert repeated(2) == 0


def test_code_variant_gives_both_shares_of_a_repeated_class():
    """Every class has 8 owners' places, so all its rows are used except those that 8 roundings lose."""
    rows = make_pool(*[1000] * 10)
    counts = count_rows(rows, divide("pathological:8:code", rows, 10))
    assert (counts > 0).sum(1).min() < 8
    assert counts.sum(0).min() >= 1000 - 8


def test_single_owner_of_a_class_gets_all_its_rows():
    rows = make_pool(*[50] * 20)
    counts = count_rows(rows, divide("pathological:2", rows, 10))
    assert sorted(counts.max(0)) == [50] * 20
    assert (counts > 0).sum() == 20


def test_unused_rows_from_rounding_are_reported():
    rows = make_pool(*[1001] * 10)
    got = divide("pathological:2", rows, 10)
    left = 10010 - sum(len(r) for r in got.rows)
    assert left > 0
    assert got.notes == (f"{left} samples are left over from rounding and are not used.",)


def test_every_owner_of_a_small_class_gets_a_row():
    """20 owners of 20 rows: shares of 0.034 to 0.073 are 0 or 1 rows when rounded down, so rows are moved."""
    rows = make_pool(*[20] * 10)
    got = divide("pathological:2", rows, 100)
    assert ((count_rows(rows, got) > 0).sum(1) == 2).all()
    assert "so that every owner of a class holds some of it" in got.notes[0]


def test_classes_without_rows_have_no_owners():
    rows = Pool(np.repeat([0, 2, 3, 5], 100), tuple("abcdef"))
    counts = count_rows(rows, divide("pathological:2", rows, 4))
    assert ((counts > 0).sum(0) == [2, 0, 2, 2, 0, 2]).all()
