"""What a method costs: operations that torch counts."""

import pytest
import torch
from support.toy_data import toy_data
from torch import nn

from atoll.config import Config
from atoll.engine.setup import build_setup
from atoll.errors import AtollError
from atoll.simulation import costs
from atoll.simulation.costs import BatchCosts, OperationCounter, count_batches


def test_operations_of_a_product_and_of_its_gradient() -> None:
    """[2, 3] times [3, 4]: 2 * 2 * 3 * 4 = 48 forwards, and as many for the gradient of one factor."""
    a, b = torch.ones(2, 3), torch.ones(3, 4, requires_grad=True)
    with OperationCounter() as counter:
        (a @ b).sum().backward()
    assert counter.total == 96


class Linear(nn.Module):
    """A single linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Flatten()
        self.head = nn.Linear(4, 3)


def test_operations_of_batches_follow_from_the_rows_of_a_batch() -> None:
    """A layer from 4 to 3 takes 2 * 4 * 3 operations for a row forwards, and as many for the gradient of its weights.

    The clients have fewer rows than Ditto's batches of 32, so that a batch has all of them. Ditto computes nothing
    before the first batch.
    """
    made = build_setup(Config("ditto", clients=2), toy_data(), [Linear()])
    rows = len(made.pool.client("0").y)

    [found] = count_batches(made.method, made.pool, 0).values()

    assert rows < 32
    assert found == BatchCosts(0.0, rows * 2 * 24)


def test_batches_without_counted_operations_have_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made = build_setup(Config("ditto", clients=2), toy_data(), [Linear()])
    monkeypatch.setattr(costs, "flop_registry", {})

    with pytest.raises(AtollError, match="needs the time of a batch, and no operation of"):
        count_batches(made.method, made.pool, 0)
