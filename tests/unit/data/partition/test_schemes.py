"""Properties of all partition schemes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.partitions import divide, make_pool

from atoll.errors import AtollError

EVEN = make_pool(*[100] * 10)


@pytest.mark.parametrize(
    ("spec", "rows", "clients", "message"),
    [
        ("pathological:3", EVEN, 5, r"3 x 5 = 15 places .* 10 classes. Use 10 clients or pathological:2 or pathologi"),
        ("pathological:3", EVEN, 15, r"Use 10 clients or 20 clients or pathological:2 or pathological:4\."),
        ("pathological:11", EVEN, 10, r"11 classes per client, but the data have 10. Use at most pathological:10"),
        ("pathological:2", make_pool(100, 3), 4, r"class 'class 1' has 3 samples, but its 4 owners need 4"),
        (
            "iid",
            EVEN,
            501,
            r"1000 samples cannot give each of 501 clients the 2 samples it needs. Use at most 500 clients",
        ),
        ("dirichlet:0.5:capped", EVEN, 101, r"the 10 samples it needs. Use at most 100 clients"),
        ("shards:200", EVEN, 10, r"2000 shards, but only 1000 samples. Use fewer clients or fewer shards"),
        ("classes:11:1", EVEN, 10, r"11 classes per client, but the data have 10. Use at most classes:10:1"),
        ("classes:2:1", make_pool(100, 3), 4, r"class 'class 1' has 3 samples, but 4 owners"),
        (
            "classes:1:1",
            make_pool(1, 1),
            1,
            r"the drawn classes hold 1 of the 2 samples that the clients need together",
        ),
        ("iid", EVEN, None, r"needs the number of clients"),
        ("iid", EVEN, 0, r"0 clients cannot share samples"),
        ("natural", EVEN, 3, r"names no owners of its samples. Choose another partition"),
        (
            "natural",
            make_pool(2, 2, owners=np.array(list("aabb"))),
            3,
            r"2 owners have at least 2 samples. Use from 1 to 2",
        ),
        ("natural", make_pool(2, 2, owners=np.array(list("abcd"))), None, r"none of the 4 owners has 2 samples"),
    ],
)
def test_impossible_partition_is_refused_with_an_alternative(spec, rows, clients, message):
    with pytest.raises(AtollError, match=message):
        divide(spec, rows, clients)


SCHEMES = [
    "iid",
    "pathological:1",
    "pathological:2",
    "pathological:3:code",
    "dirichlet:0.01",
    "dirichlet:0.5",
    "dirichlet:100",
    "dirichlet:0.01:capped",
    "dirichlet:0.5:capped",
    "dirichlet:0.1:masked=0.2",
    "dirichlet:10:masked=0.7",
    "dirichlet:0.05:client",
    "dirichlet:5:client",
    "quantity:0.01",
    "quantity:5",
    "shards:1",
    "shards:3",
    "classes:1:0.1",
    "classes:2:10",
    "natural",
]


@pytest.mark.promise(
    "Data", "Partitions give every sample to one client at most, and every client at least two samples, or are refused."
)
@settings(max_examples=200, deadline=None)
@given(
    spec=st.sampled_from(SCHEMES),
    totals=st.lists(st.integers(0, 60), min_size=1, max_size=6).filter(lambda t: sum(t) > 0),
    clients=st.integers(1, 30),
    seed=st.integers(0, 1000),
)
def test_rows_are_disjoint_and_sufficient_unless_refused(spec, totals, clients, seed):
    owners = np.random.default_rng(seed).integers(0, 12, sum(totals)).astype(str)
    rows = make_pool(*totals, owners=owners)
    try:
        got = divide(spec, rows, clients, seed)
    except AtollError:
        plenty = sum(totals) >= 10 * clients and not spec.startswith(("pathological", "classes", "natural"))
        assert not plenty
        return
    assert len(got.clients) == len(set(got.clients)) == len(got.rows) == clients
    every = np.concatenate(got.rows)
    assert len(np.unique(every)) == len(every)
    assert every.min() >= 0
    assert every.max() < len(rows.labels)
    assert min(len(r) for r in got.rows) >= (10 if "capped" in spec else 2)
    assert all((np.diff(r) > 0).all() for r in got.rows)
    assert len(every) == len(rows.labels) or got.notes  # a note reports unused rows
    again = divide(spec, rows, clients, seed)
    assert all(np.array_equal(a, b) for a, b in zip(got.rows, again.rows, strict=True))
