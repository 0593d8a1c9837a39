"""Training of stacked linear networks, against the training loop that goes through vmap step by step."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.linear_networks import network
from torch import Tensor, nn

from atoll.core import vmap
from atoll.core.client import Client
from atoll.core.model import Model
from atoll.core.optim.adam import Adam
from atoll.core.optim.base import Optimiser
from atoll.core.optim.sgd import SGD
from atoll.core.optim.training_loss import LossMeter, measured_by
from atoll.core.payloads import Params
from atoll.core.prng import Key, keys
from atoll.core.problems import Classes
from atoll.core.vmap import chain_training, functional_gradients
from atoll.models.registry import Net

CLIENTS, ROWS, CLASSES = 4, 7, 3
REAL = torch.tensor([7.0, 3.0, 5.0, 1.0])  # with batches of 2 or 3 rows, most clients lack some batch
PLAIN = SGD(lr=0.1, epochs=1, batch_size=2, momentum=0.0, weight_decay=0.0, clip=0.0)


def clients(model: Model) -> Client:
    torch.manual_seed(2)
    x, y = torch.randn(CLIENTS, ROWS, 2, 3), torch.randint(CLASSES, (CLIENTS, ROWS))
    x[torch.arange(ROWS) >= REAL[:, None]] = 0
    return Client(x, y, REAL, model, Classes(CLASSES))


def train(optimiser: Optimiser, model: Model, memory: Any = None) -> tuple[Any, Tensor]:
    """Return the result of ``Optimiser.train`` for all clients, from unlike weights, and the sums of losses."""
    torch.manual_seed(3)
    start = {name: v + 0.3 * torch.randn(CLIENTS, *v.shape) for name, v in model.init().items()}

    def one(params: Params, client: Client, k: Key, memory: Any) -> tuple[Any, Tensor]:
        losses = LossMeter()
        with measured_by(losses):
            trained = optimiser.train(client.objective(), params, client, k, memory=memory)
        return trained, losses.sums()

    with torch.no_grad(), functional_gradients():
        return vmap.batched_call(
            one, CLIENTS, start, clients(model), keys("k", each=map(str, range(CLIENTS))), memory or {}
        )


def assert_same(found: tuple[Any, Tensor], wanted: tuple[Any, Tensor]) -> None:
    (trained, losses), (by_steps, its_losses) = found, wanted
    for one, other in [
        (trained.params, by_steps.params),
        *((trained.memory[s], by_steps.memory[s]) for s in by_steps.memory),
    ]:
        assert one.keys() == other.keys()
        assert all(torch.equal(v, other[name]) for name, v in one.items())
    assert trained.steps.tolist() == by_steps.steps.tolist()
    assert losses.tolist() == [pytest.approx(each, rel=1e-6) for each in its_losses.tolist()]


def by_steps(monkeypatch: pytest.MonkeyPatch, *inputs: Any) -> tuple[Any, Tensor]:
    with monkeypatch.context() as context:
        context.setattr(chain_training, "train", lambda *inputs: None)
        return train(*inputs)


@pytest.mark.parametrize(
    "optimiser",
    [
        PLAIN,
        replace(PLAIN, epochs=3, batch_size=3),
        replace(PLAIN, epochs=2, momentum=0.9),
        replace(PLAIN, weight_decay=0.1),
        replace(PLAIN, momentum=0.5, weight_decay=0.1, clip=0.7),
        replace(PLAIN, clip=100.0),
    ],
    ids=["plain", "epochs", "momentum", "decay", "clipped", "unclipped"],
)
@pytest.mark.parametrize(
    "model", [network(), network(16), network(5, 4, bias=False)], ids=["flat", "hidden", "no bias"]
)
def test_training_on_stacks_equals_training_by_steps_to_the_bit(
    optimiser: SGD, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, wanted = train(optimiser, model), by_steps(monkeypatch, optimiser, model)

    assert_same(found, wanted)
    assert found[0].steps.tolist() != [found[0].steps[0]] * CLIENTS  # some clients lack some batch


def test_training_goes_on_from_the_memory_of_an_earlier_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimiser = network(5), replace(PLAIN, momentum=0.9)
    memory = train(optimiser, model)[0].memory

    found = train(optimiser, model, memory)

    assert_same(found, by_steps(monkeypatch, optimiser, model, memory))
    assert not torch.equal(found[0].params["head.weight"], train(optimiser, model)[0].params["head.weight"])


@pytest.mark.parametrize(
    ("optimiser", "is_on_stacks"),
    [
        (PLAIN, True),
        (replace(PLAIN, epochs=0.5), False),
        (replace(PLAIN, steps=2), False),
        (Adam(lr=0.1, epochs=1, batch_size=2), False),
    ],
    ids=["whole epochs", "part of an epoch", "steps", "adam"],
)
def test_only_whole_epochs_of_plain_sgd_run_on_stacks(
    optimiser: Optimiser, is_on_stacks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = list[bool]()
    train_on_stacks = chain_training.train

    def observed(*inputs: Any) -> Any:
        made = train_on_stacks(*inputs)
        found.append(made is not None)
        return made

    monkeypatch.setattr(chain_training, "train", observed)

    train(optimiser, network(5))

    assert found == [is_on_stacks]


def test_epochs_with_too_many_outputs_go_through_vmap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_training, "MOST_OUTPUTS", CLIENTS * ROWS * CLASSES)
    found = train(PLAIN, network(5))
    monkeypatch.setattr(chain_training, "MOST_OUTPUTS", CLIENTS * ROWS * CLASSES - 1)
    monkeypatch.setattr(chain_training, "_Training", None)  # an error if it is used

    assert_same(train(PLAIN, network(5)), found)


def test_one_step_has_the_numbers_worked_out_by_hand() -> None:
    """Outputs 0 and 0 for x = (1, 2) and label 0: the slope in the outputs is (-1/2, 1/2), the loss ln 2.

    A step of length 0.1 adds 0.05 x to the weights of output 0 and takes it from those of output 1.
    """
    model = Model(Net(nn.Sequential(nn.Flatten()), nn.Linear(2, 2)))
    start = {name: torch.zeros(1, *v.shape) for name, v in model.init().items()}
    client = Client(torch.tensor([[[1.0, 2.0]]]), torch.zeros(1, 1).long(), torch.ones(1), model, Classes(2))
    losses = LossMeter()

    def one(params: Params, client: Client, k: Key) -> tuple[Params, Tensor]:
        with measured_by(losses):
            return PLAIN.fit(client.objective(), params, client, k), losses.sums()

    with torch.no_grad(), functional_gradients():
        params, sums = vmap.batched_call(one, 1, start, client, keys(each=["a"]))

    assert params["head.weight"][0].tolist() == [pytest.approx([0.05, 0.1]), pytest.approx([-0.05, -0.1])]
    assert params["head.bias"][0].tolist() == pytest.approx([0.05, -0.05])
    assert sums[0].tolist() == pytest.approx([0.693147, 1.0], abs=1e-6)
