"""What a method costs: operations that torch counts."""

from dataclasses import replace

import pytest
import torch
from support import small_runs
from support.toy_data import toy_data
from torch import nn

from atoll.clients import method_calls
from atoll.config import Config
from atoll.core.optim.sgd import SGD
from atoll.core.payloads import Nothing
from atoll.core.prng import key
from atoll.core.task import Round
from atoll.engine.setup import build_setup
from atoll.errors import AtollError
from atoll.simulation import operations
from atoll.simulation.costs import BatchCosts, Costs, RowCosts, count_batches, count_operations, training_size
from atoll.simulation.operations import OperationCounter


def test_operations_of_a_product_and_of_its_gradient() -> None:
    """[2, 3] times [3, 4]: 2 * 2 * 3 * 4 = 48 forwards, and as many for the gradient of one factor."""
    a, b = torch.ones(2, 3), torch.ones(3, 4, requires_grad=True)
    with OperationCounter() as counter:
        (a @ b).sum().backward()
    assert counter.total == 96


@pytest.mark.parametrize("dims", [(0,), (1,), (0, 1)])
def test_operations_of_fourier_transforms(dims: tuple[int, ...]) -> None:
    """32 numbers in transforms of n points, [8, 4]: 5 * 32 * log2 n for complex numbers, half of it for real ones."""
    points = {(0,): 3, (1,): 2, (0, 1): 5}[dims]  # log2 n
    for transform, times in ((torch.fft.fftn, 5), (torch.fft.ifftn, 5)):
        with OperationCounter() as counter:
            transform(torch.ones(8, 4, dtype=torch.complex64), dim=dims)
        assert counter.total == times * 32 * points
    with OperationCounter() as counter:
        back = torch.fft.irfft(torch.fft.rfft(torch.ones(4, 8)), n=8)
    assert back.shape == (4, 8)
    assert counter.total == 2 * 2.5 * 32 * 3


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        ({"epochs": 3}, (3, 70)),  # whole epochs: in proportion to one
        ({"epochs": 0.5}, (2, 64)),  # two of three batches of 32, 32 and 6 rows
        ({"epochs": 1.5}, (5, 134)),  # 70 and two batches
        ({"steps": 2}, (2, 64)),
        ({"steps": 7}, (7, 172)),  # two epochs and one batch
    ],
)
def test_batches_and_rows_that_training_visits(length: dict[str, float], expected: tuple[int, int]) -> None:
    assert training_size(SGD(batch_size=32, **length), 70) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [{"epochs": 2}, {"epochs": 0.5}, {"epochs": None, "steps": 7}], ids=str)
def test_operations_told_for_a_client_are_those_of_its_training(length: dict[str, float | None]) -> None:
    """For clients with more rows than the one batch of the dry run; the mean loss and its like are not counted."""
    made = small_runs.setup("fedavg", **length)
    found = count_operations(made.method, made.pool, 0, 1)
    server = made.method.init_server(made.pool.task(), key(0))
    for i in made.pool.ids:
        client = made.pool.client(i)
        with torch.no_grad(), OperationCounter() as counted:
            method_calls.client_update(made.method, Round(0), server, Nothing(), client, key(1))
        assert found.of(made.pool, i)[0] == pytest.approx(counted.total, rel=1e-6)


def test_costs_follow_the_participations_of_a_client() -> None:
    made = small_runs.setup("local")
    name, rows = made.pool.models["0"].name, len(made.pool.client("0").y)
    turns = [(RowCosts(fixed, 3.0, 2.0), RowCosts()) for fixed in (100.0, 10.0, 1.0)]

    for done, fixed in ((0, 100.0), (1, 10.0), (2, 1.0), (7, 1.0)):
        found = Costs({name: turns}, 0.0, optims=(SGD(batch_size=16), None), done={"0": done} if done else {})
        assert found.of(made.pool, "0") == (fixed + 3 * -(-rows // 16) + 2 * rows, 0.0)


def test_longer_first_training_is_counted_once_for_each_client() -> None:
    """FedMD trains for ``first_epochs`` more before a client's first answer: here 3, besides the 1 of every round."""
    made = small_runs.setup("fedmd")
    longer = replace(made.method, first_epochs=3)
    alone = count_operations(small_runs.setup("local").method, made.pool, 0, 1)
    found = count_operations(longer, made.pool, 0, 1)

    for i in made.pool.ids:
        first, later = found.of(made.pool, i)[0], found._replace(done={i: 1}).of(made.pool, i)[0]
        assert first - later == pytest.approx(3 * alone.of(made.pool, i)[0], rel=1e-6)


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
    monkeypatch.setattr(operations, "flop_registry", {})

    with pytest.raises(AtollError, match="needs the time of a batch, and no operation of"):
        count_batches(made.method, made.pool, 0)
