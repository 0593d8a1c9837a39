"""Layers as they are run: the numbers and gradients of torch's own."""

import copy

import pytest
import torch
from support import toy_models
from torch import Tensor, nn

from atoll.core.layers import Linear, Sequence, optimise_layers
from atoll.core.model import Model
from atoll.core.prng import key, normal


def values(kind: str) -> Tensor:
    x = normal(key(3), 2, 3, 6, 6)
    if kind == "ties":  # many windows with several largest, or with nothing above 0
        x = x.round()
    if kind == "nan":
        x[0, 0, 0, 0] = x[1, 2, 3, 3] = float("nan")
    return x - 1


def results(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    out = net(x)
    (slope,) = torch.autograd.grad((out * normal(key(4), *out.shape)).sum(), [x])
    return out, slope


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("kind", ["any", "ties", "nan"])
@pytest.mark.parametrize("pool", [nn.MaxPool2d(2), nn.MaxPool2d(3, 2, padding=1), nn.MaxPool2d(2, ceil_mode=True)])
def test_pooling_first_changes_no_bit(pool: nn.MaxPool2d, kind: str, layout: torch.memory_format) -> None:
    net = nn.Sequential(nn.ReLU(), pool)
    mine = optimise_layers(copy.deepcopy(net))
    assert isinstance(mine, Sequence)
    assert [type(layer) for layer in mine.order] == [nn.MaxPool2d, nn.ReLU]
    x = values(kind).to(memory_format=layout)
    for ours, theirs in zip(results(mine, x), results(net, x), strict=True):
        assert torch.equal(ours.nan_to_num(7.0), theirs.nan_to_num(7.0))
        assert torch.equal(ours.isnan(), theirs.isnan())


def test_only_relu_before_max_pooling_is_reordered() -> None:
    for pair in (
        [nn.Tanh(), nn.MaxPool2d(2)],
        [nn.ReLU(), nn.AvgPool2d(2)],
        [nn.MaxPool2d(2), nn.ReLU()],
        [nn.ReLU(), nn.MaxPool2d(2, return_indices=True)],
    ):
        mine = optimise_layers(nn.Sequential(*pair))
        assert isinstance(mine, Sequence)
        assert [type(layer) for layer in mine.order] == [type(layer) for layer in pair]


def test_reordering_keeps_the_order_of_children() -> None:
    """For a network that runs them one by one, and for the names of their weights."""
    net = nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU(), nn.MaxPool2d(2))
    mine = optimise_layers(copy.deepcopy(net))
    assert [type(layer) for layer in mine] == [nn.Conv2d, nn.ReLU, nn.MaxPool2d]  # type: ignore[attr-defined]
    assert list(mine.state_dict()) == list(net.state_dict())


def test_subclasses_of_layers_are_not_replaced() -> None:
    class Own(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 1

    mine = optimise_layers(nn.Sequential(Own(2, 2), nn.Linear(2, 2)))
    assert [type(layer) for layer in mine.children()] == [Own, Linear]


def test_the_network_that_is_optimised_stays_as_it_was() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
    mine = optimise_layers(net)
    assert {type(m) for m in net.modules()} == {nn.Sequential, nn.Linear}
    assert {type(m) for m in mine.modules()} == {Sequence, Linear}
    assert not {id(v) for v in net.parameters()} & {id(v) for v in mine.parameters()}


def test_a_layer_that_is_used_twice_is_optimised_once() -> None:
    """Both places have the same layer, and its weights one name."""
    layer = nn.Linear(2, 2)
    mine = optimise_layers(nn.Sequential(layer, nn.ReLU(), layer))
    assert isinstance(mine, Sequence)
    assert mine[0] is mine[2]
    assert isinstance(mine[0], Linear)
    assert list(dict(mine.named_parameters())) == ["0.weight", "0.bias"]


def test_hooks_of_a_layer_are_kept() -> None:
    layer = nn.Linear(2, 2)
    layer.register_forward_hook(lambda module, given, out: out + 1)
    x = torch.ones(1, 2)
    assert torch.equal(optimise_layers(layer)(x), layer(x))


def test_a_model_leaves_the_network_that_it_was_given_alone() -> None:
    net = toy_models.Net(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), nn.Linear(3, 2))
    Model(net)
    assert {type(m) for m in net.modules()} == {toy_models.Net, nn.Sequential, nn.Flatten, nn.Linear}
