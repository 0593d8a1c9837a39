"""Partitions by the owners that the data name."""

import numpy as np
from support.partitions import divide, make_pool


def test_natural_clients_are_owners_sorted_by_name():
    rows = make_pool(4, 4, owners=np.array(["b", "a", "b", "a", "b", "a", "lone", "b"]))
    got = divide("natural", rows, None)
    assert got.clients == ("a", "b")
    assert [r.tolist() for r in got.rows] == [[1, 3, 5], [0, 2, 4, 7]]
    assert got.notes == ("1 owners with fewer than 2 samples were dropped.",)


def test_natural_keeps_the_largest_owners_if_fewer_clients_are_wanted():
    rows = make_pool(5, 4, owners=np.array(["10", "2", "2", "3", "3", "10", "10", "3", "3"]))
    got = divide("natural", rows, 2)
    assert got.clients == ("3", "10")  # numbers in the order of their value
    assert [len(r) for r in got.rows] == [4, 3]
    assert "1 smaller owners were left out" in got.notes[0]
