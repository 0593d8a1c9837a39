"""The clients of a run: built in one place, cut to fewer rows, replaced by others."""

from collections.abc import Collection, Mapping

import pytest
import torch
from support.small_runs import setup

from atoll.clients.pool import ClientRows, RowSplits, build_pool, replace_clients, replace_rows
from atoll.core.model import Model
from atoll.core.problems import Classes
from atoll.typing import ClientId


class NoNetworks:
    """Builds nothing, and remembers for which clients it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[ClientId, ...]] = []

    def build_proxy(self, needs: Collection[str], assign: Mapping[ClientId, Model]) -> Model | None:
        self.asked.append(tuple(assign))
        return None

    def server_models(self, needs: Collection[str], assign: Mapping[ClientId, Model]) -> dict[ClientId, Model]:
        self.asked.append(tuple(assign))
        return {}


def rows(*sizes: int) -> RowSplits:
    total = sum(sizes)
    made = ClientRows(torch.zeros(total, 1, 8, 8), torch.zeros(total, dtype=torch.long), sizes)
    return RowSplits(made, made, made)


def test_pool_contains_all_clients_with_a_model() -> None:
    made = setup("fedavg")
    pool = build_pool(made.method, NoNetworks(), made.pool.models, rows(1, 2, 3, 4, 5), Classes(10))

    assert pool.ids == made.pool.ids
    assert [len(client.y) for client in pool.clients().values()] == [1, 2, 3, 4, 5]
    assert [float(client.n) for client in pool.clients().values()] == [1, 2, 3, 4, 5]


def test_networks_depend_on_all_architectures_even_if_pool_has_one_client() -> None:
    made, networks = setup("fedavg"), NoNetworks()
    pool = build_pool(made.method, networks, made.pool.models, rows(4), Classes(10), ids=("2",))

    assert pool.ids == ("2",)
    assert list(pool.models) == ["2"]
    assert networks.asked == [made.pool.ids, made.pool.ids]


@pytest.mark.parametrize("name", ["fedavg", "fedpd"])
def test_replaced_clients_have_models_of_reference_client(name: str) -> None:
    pool = setup(name).pool
    others = replace_clients(pool, ("new-a", "new-b"), rows(2, 3), like="1")

    assert others.ids == ("new-a", "new-b")
    assert all(model is pool.models["1"] for model in others.models.values())
    assert list(others.server_models) == (["new-a", "new-b"] if pool.server_models else [])
    assert others.public is pool.public
    assert len(others.client("new-b").y) == 3


def test_client_with_replaced_rows_counts_new_rows() -> None:
    client = setup("fedavg").pool.client("0")
    few = replace_rows(client, client.x[:2], client.y[:2])

    assert (len(few.x), len(few.y), float(few.n)) == (2, 2, 2.0)
    assert few.model is client.model
