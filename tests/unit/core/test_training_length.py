"""How long training lasts: parts of epochs, numbers of steps, and what is left to go on from."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from support import toy_models
from torch import Tensor

from atoll.core.batch import Batch
from atoll.core.batch_order import count_batches
from atoll.core.client import Client
from atoll.core.model import Model
from atoll.core.optim.adam import Adam
from atoll.core.optim.base import Optimiser, Trained
from atoll.core.optim.dpsgd import DPSGD
from atoll.core.optim.sgd import SGD
from atoll.core.payloads import Params
from atoll.core.prng import key
from atoll.core.vmap import batched_call, functional_gradients, functorch
from atoll.errors import AtollError
from atoll.methods._factory import make

ROWS = (3, 10, 14)  # with batches of 4: epochs of 1, 3 and 4 batches
LENGTHS: list[dict[str, Any]] = [{"epochs": 0.5}, {"epochs": 2.5}, {"epochs": 0.1}, {"steps": 7}, {"steps": 1}]


def clients(model: Model | None = None, rows: tuple[int, ...] = ROWS) -> list[Client]:
    return [toy_models.random_client(n, n, model or toy_models.mlp()) for n in rows]


def batch_norm() -> Model:
    body = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU())
    return Model(toy_models.filled(toy_models.Net(body, torch.nn.Linear(4, 3))))


def train_together(optim: Optimiser, members: list[Client]) -> list[Trained]:
    """The clients in one call, padded to the largest."""
    most = max(len(c.x) for c in members)
    stacked = toy_models.side_by_side([toy_models.padded(c, most) for c in members])
    keys = torch.stack([key(i) for i in range(len(members))])
    starts = {name: torch.stack([v] * len(members)) for name, v in stacked.model.init().items()}

    def train(start: Params, x: Tensor, y: Tensor, n: Tensor, k: Tensor) -> tuple[Params, Params, Tensor]:
        c = replace(stacked, x=x, y=y, n=n)
        made = optim.train(c.objective(), start, c, k)
        return made.params, made.memory.get("velocity", {}), made.steps

    with torch.no_grad(), functional_gradients():
        params, velocity, steps = batched_call(train, len(members), starts, stacked.x, stacked.y, stacked.n, keys)
    return [
        Trained({name: v[i] for name, v in params.items()}, {"velocity": {n: v[i] for n, v in velocity.items()}}, s)
        for i, s in enumerate(steps)
    ]


@pytest.fixture(params=["internals", "torch.func"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to run batched clients: by functorch's internals, and by the public functions alone."""
    functorch.is_usable()
    if request.param == "torch.func":
        monkeypatch.setattr(functorch, "enabled", False)
        monkeypatch.setattr(functorch, "is_usable", lambda: False)


# -- numbers of steps -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epochs", "per_epoch", "expected"),
    [(1, 3, 3), (0.5, 3, 2), (0.5, 4, 2), (2.5, 3, 8), (0.1, 4, 1), (1.1, 10, 11), (0.7, 10, 7), (0, 5, 0)],
)
def test_part_of_an_epoch_is_rounded_up_to_whole_batches(epochs: float, per_epoch: int, expected: int) -> None:
    assert count_batches(epochs, per_epoch) == expected


@pytest.mark.parametrize(
    ("length", "expected"),
    # 3, 10 and 14 rows in batches of 4 are 1, 3 and 4 batches: half of them 0.5, 1.5 and 2, rounded up 1, 2 and 2.
    [({"epochs": 1}, [1, 3, 4]), ({"epochs": 0.5}, [1, 2, 2]), ({"epochs": 2.5}, [3, 8, 10]), ({"steps": 7}, [7] * 3)],
)
def test_trained_steps_are_those_of_each_clients_own_rows(path: None, length: dict[str, Any], expected: Any) -> None:
    optim = replace(toy_models.RICH, **length)

    alone = [optim.train(c.objective(), c.model.init(), c, key(0)).steps for c in clients()]

    assert [float(n) for n in alone] == expected
    assert [float(trained.steps) for trained in train_together(optim, clients())] == expected


def test_argument_steps_stands_for_the_setting() -> None:
    c = clients()[1]
    for optim in (toy_models.RICH, replace(toy_models.RICH, steps=9)):
        assert float(optim.train(c.objective(), c.model.init(), c, key(0), steps=2).steps) == 2
        unchanged = optim.fit(c.objective(), c.model.init(), c, key(0), steps=0)
        assert all(torch.equal(v, unchanged[name]) for name, v in c.model.init().items())


def test_steps_go_through_epochs_in_order() -> None:
    """10 rows in batches of 4: 7 steps are two epochs of 3 batches and the first batch of a third."""
    c = clients()[1]
    three = list(c.batches(key(5), 3, 4))

    seven = list(c.batches(key(5), 1, 4, steps=7))

    assert len(three) == 9
    assert len(seven) == 7
    assert all(torch.equal(a.x, b.x) and torch.equal(a.k, b.k) for a, b in zip(three, seven, strict=False))


# -- batched clients --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("optim", [toy_models.RICH, Adam(0.02, batch_size=4)])
def test_batched_clients_of_unlike_sizes_train_as_alone(path: None, optim: Optimiser, length: dict[str, Any]) -> None:
    optim = replace(optim, **length)
    members = clients()

    together = train_together(optim, members)

    for i, (c, found) in enumerate(zip(members, together, strict=True)):
        alone = optim.train(c.objective(), c.model.init(), c, key(i))
        toy_models.assert_near(alone.params, found.params, 1e-6)
        if isinstance(optim, SGD):
            toy_models.assert_near(alone.memory["velocity"], found.memory["velocity"], 1e-6)


@pytest.mark.parametrize("length", LENGTHS)
def test_batched_clients_with_running_statistics_train_as_alone(path: None, length: dict[str, Any]) -> None:
    optim = replace(toy_models.RICH, **length)
    members = clients(batch_norm(), (10, 10))

    together = train_together(optim, members)

    for i, (c, found) in enumerate(zip(members, together, strict=True)):
        toy_models.assert_near(optim.fit(c.objective(), c.model.init(), c, key(i)), found.params, 1e-5)


# -- memory -----------------------------------------------------------------------------------------------------------


def slope(p: Params, b: Batch) -> Tensor:
    return p["w"].sum()  # gradient 1 everywhere


def test_velocity_carried_over_by_hand() -> None:
    """Momentum 0.9, rate 0.1, gradient 1: velocities 1, 1.9, 2.71, so w = -0.1 (1 + 1.9 + 2.71) = -0.561."""
    c, heavy = toy_models.client([[0.0]], [0], toy_models.mlp(1)), replace(toy_models.PLAIN, momentum=0.9)

    two = heavy.train(slope, {"w": torch.zeros(1)}, c, key(0), steps=2)
    three = heavy.train(slope, two.params, c, key(0), steps=1, memory=two.memory)

    assert two.params["w"].item() == pytest.approx(-0.29)
    assert two.memory["velocity"]["w"].item() == pytest.approx(1.9)
    assert three.params["w"].item() == pytest.approx(-0.561)
    assert three.memory["velocity"]["w"].item() == pytest.approx(2.71)
    assert two.memory["velocity"]["w"].item() == pytest.approx(1.9)  # given memory is left as it is


@pytest.mark.parametrize("optim", [SGD(0.1, momentum=0.9), Adam(0.02)])
@pytest.mark.parametrize("build", [toy_models.mlp, lambda: convolution()])
def test_two_calls_with_memory_equal_one_long_call(optim: Optimiser, build: Callable[[], Model]) -> None:
    """One batch holds all rows, in the same order: an epoch begins anew with each call."""
    model = build()
    shape = (3,) if model.name == "mlp" else (2, 4, 4)
    c = toy_models.random_client(1, 3, model, shape=shape)
    loss, start = c.objective(), model.init()

    whole = optim.train(loss, start, c, key(1), steps=5)
    first = optim.train(loss, start, c, key(1), steps=2)
    second = optim.train(loss, first.params, c, key(1), steps=3, memory=first.memory)

    toy_models.assert_near(whole.params, second.params, 0)
    for slot, values in whole.memory.items():
        toy_models.assert_near(values, second.memory[slot], 0)


def convolution() -> Model:
    body = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.ReLU(), torch.nn.Flatten())
    return Model(toy_models.filled(toy_models.Net(body, torch.nn.Linear(12, 3))), "convolution")


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_dpsgd_refuses_steps_whose_releases_it_cannot_count() -> None:
    c = clients()[0]
    with pytest.raises(AtollError, match="passes over the data, not for steps"):
        DPSGD(steps=3).fit(c.objective(), c.model.init(), c, key(0))
    with pytest.raises(AtollError, match="passes over the data, not for steps"):
        DPSGD().fit(c.objective(), c.model.init(), c, key(0), steps=1)


@pytest.mark.parametrize("name", ["fedgen", "fedpd"])
def test_method_that_counts_epochs_refuses_steps(name: str) -> None:
    with pytest.raises(AtollError, match="counts epochs"):
        make(name, {"optim.steps": 5})


@pytest.mark.parametrize("steps", [0, -1])
def test_optimiser_refuses_fewer_steps_than_one(steps: int) -> None:
    with pytest.raises(AtollError, match="steps is"):
        SGD(steps=steps)
