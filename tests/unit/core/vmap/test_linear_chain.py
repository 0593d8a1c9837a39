"""Gradients of chains of linear layers by hand, against autograd and against numbers."""

from functools import partial

import pytest
import torch
from support.linear_networks import network
from torch import Tensor, nn

from atoll.core import vmap
from atoll.core.batch import Batch
from atoll.core.layers import Linear, Sequence
from atoll.core.losses import Objective, cross_entropy, objective
from atoll.core.model import Model
from atoll.core.optim.base import slope
from atoll.core.payloads import Params
from atoll.core.prng import key
from atoll.core.vmap import functional_gradients, linear_chain
from atoll.core.vmap.linear_chain import ChainLayer, find_chain
from atoll.models.registry import Net

CLIENTS, ROWS = 3, 4


class Doubled(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


SHARED = nn.Linear(6, 6)


def batches() -> tuple[Tensor, Tensor, Tensor]:
    """Rows, labels and weights of three clients with 4, 2 and no real rows."""
    torch.manual_seed(2)
    x, y = torch.randn(CLIENTS, ROWS, 2, 3), torch.randint(3, (CLIENTS, ROWS))
    return x, y, (torch.arange(ROWS) < torch.tensor([[4], [2], [0]])).float()


def batched_slope(loss: Objective, params: Params) -> tuple[Params, Tensor]:
    def one(params: Params, x: Tensor, y: Tensor, w: Tensor) -> tuple[Params, Tensor]:
        found = slope(loss, params, Batch(x, y, w, key(0), {}))
        return found.grads, found.loss

    with torch.no_grad(), functional_gradients():
        return vmap.batched_call(one, CLIENTS, params, *batches())


def stacked(model: Model) -> Params:
    torch.manual_seed(3)
    return {name: v + 0.1 * torch.randn(CLIENTS, *v.shape) for name, v in model.init().items()}


@pytest.mark.parametrize("model", [network(), network(5), network(5, 4), network(5, bias=False)])
def test_gradients_by_hand_equal_those_of_autograd_to_the_bit(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    params, loss = stacked(model), Objective(model, (), cross_entropy)
    assert loss.linear_chain is not None

    by_hand = batched_slope(loss, params)
    monkeypatch.setattr(linear_chain, "slope", lambda *inputs: None)
    by_autograd = batched_slope(loss, params)

    assert by_hand[0].keys() == by_autograd[0].keys()
    for name, g in by_autograd[0].items():
        assert torch.equal(by_hand[0][name], g), name
    assert torch.equal(by_hand[1], by_autograd[1])


def test_gradient_of_one_row_has_the_numbers_worked_out_by_hand() -> None:
    """Outputs 0 and 0 for x = (1, 2): probabilities 1/2 and 1/2, loss ln 2.

    The slope of the loss in the outputs is (1/2 - 1, 1/2) for label 0, the gradient of the weights its product with x.
    """
    chain = (ChainLayer("w", "b", cuts=False),)
    params = {"w": torch.zeros(1, 2, 2), "b": torch.zeros(1, 2)}

    def one(params: Params, x: Tensor, y: Tensor) -> tuple[Params, Tensor]:
        found = linear_chain.slope(chain, params, Batch(x, y, torch.ones(1), key(0), {}))
        assert found is not None
        return found

    x, y = torch.tensor([[[1.0, 2.0]]]), torch.zeros(1, 1, dtype=torch.int64)
    with torch.no_grad(), functional_gradients():
        grads, loss = vmap.batched_call(one, 1, params, x, y)

    assert loss.item() == pytest.approx(0.693147, abs=1e-6)
    assert grads["w"].tolist() == [[[-0.5, -1.0], [0.5, 1.0]]]
    assert grads["b"].tolist() == [[-0.5, 0.5]]


def test_clients_take_the_step_by_hand_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = network(5), list[int]()
    monkeypatch.setattr(linear_chain, "slope", lambda *inputs: calls.append(1))

    batched_slope(Objective(model, (), cross_entropy), stacked(model))

    assert calls == [1]


@pytest.mark.parametrize(
    "body",
    [
        nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh()),
        nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.BatchNorm1d(5)),
        nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(6, 5)),
        nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Dropout()),
        nn.Sequential(nn.Flatten(0, -1), nn.Linear(6, 5)),
        nn.Linear(6, 5),
        Doubled(nn.Flatten(), nn.Linear(6, 5)),
        nn.Sequential(nn.Flatten(), SHARED, SHARED),
    ],
)
def test_other_networks_are_no_chain(body: nn.Module) -> None:
    assert Model(Net(body, nn.Linear(5, 3))).linear_chain is None


def test_network_with_a_hook_is_no_chain() -> None:
    model = network(5)
    layer = model.net.get_submodule("head")
    layer.register_forward_hook(lambda *inputs: None)

    assert find_chain(model.net, Linear, Sequence) is None


def test_loss_with_a_term_or_of_another_kind_is_left_to_autograd() -> None:
    model = network(5)

    with_term = objective(model, lambda step: step.logits.sum())
    of_own = objective(model, data_loss=partial(lambda outputs, batch: outputs.sum()))

    assert isinstance(with_term, Objective)
    assert isinstance(of_own, Objective)
    assert with_term.linear_chain is None
    assert of_own.linear_chain is None
