"""Shares of the default split."""

import pytest

from atoll.data.federate import federate
from atoll.data.loading import load


@pytest.mark.promise(
    "Data",
    "`client_811` gives clients about 8 : 1 : 1 of their samples; small clients test more, because every class with "
    "three samples is tested.",
)
@pytest.mark.parametrize(("clients", "shares"), [(10, (79, 10, 11)), (50, (77, 10, 13)), (100, (77, 9, 14))])
def test_shares_of_the_default_split_over_small_clients(clients: int, shares: tuple[int, int, int]) -> None:
    made = federate(load("digits"), clients, "dirichlet:0.5", "client_811", seed=0)
    sizes = [sum(map(len, part)) for part in (made.train, made.val, made.test)]
    assert tuple(round(100 * size / sum(sizes)) for size in sizes) == shares
    for part in (made.train, made.test):
        assert all(len(rows) for rows in part)
