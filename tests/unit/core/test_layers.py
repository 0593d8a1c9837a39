"""Layers as they are run: the numbers and gradients of torch's own."""

import copy

import pytest
import torch
import torch.nn.functional as F
from support import toy_models
from torch import Tensor, nn
from torch.func import vmap

from atoll.core import vmap as core_vmap
from atoll.core.layers import Linear, Sequence, optimise_layers
from atoll.core.model import Model
from atoll.core.prng import key, normal
from atoll.core.vmap import functional_gradients


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


def test_only_this_pair_changes_places() -> None:
    for pair in (
        [nn.Tanh(), nn.MaxPool2d(2)],
        [nn.ReLU(), nn.AvgPool2d(2)],
        [nn.MaxPool2d(2), nn.ReLU()],
        [nn.ReLU(), nn.MaxPool2d(2, return_indices=True)],
    ):
        mine = optimise_layers(nn.Sequential(*pair))
        assert isinstance(mine, Sequence)
        assert list(mine.order) == pair


def test_children_stay_where_they_are() -> None:
    """For a network that runs them one by one, and for the names of their weights."""
    net = nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU(), nn.MaxPool2d(2))
    mine = optimise_layers(copy.deepcopy(net))
    assert [type(layer) for layer in mine] == [nn.Conv2d, nn.ReLU, nn.MaxPool2d]  # type: ignore[attr-defined]
    assert list(mine.state_dict()) == list(net.state_dict())


def test_what_is_built_on_a_layer_is_left_alone() -> None:
    class Own(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 1

    net = nn.Sequential(Own(2, 2), nn.Linear(2, 2))
    optimise_layers(net)
    assert [type(layer) for layer in net] == [Own, Linear]


def test_a_model_leaves_the_network_that_it_was_given_alone() -> None:
    net = toy_models.Net(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), nn.Linear(3, 2))
    Model(net)
    assert {type(m) for m in net.modules()} == {toy_models.Net, nn.Sequential, nn.Flatten, nn.Linear}


# -- batched clients ---------------------------------------------------------------------------------------------------

CLIENTS, OUT, IN = 3, 4, 5


def sliced(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """One client after the other."""
    biases = [None] * CLIENTS if bias is None else list(bias)
    return torch.stack([F.linear(*one) for one in zip(x, weight, biases, strict=True)])


@pytest.mark.parametrize("shape", [(6, IN), (2, 6, IN), (IN,)])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("biased", [True, False])
def test_products_are_those_of_each_client(shape: tuple[int, ...], shared: bool, biased: bool) -> None:
    """Also if all clients have the same weights, as before their first step."""
    x = normal(key(1), CLIENTS, *shape)
    weight, bias = normal(key(2), CLIENTS, OUT, IN), normal(key(3), CLIENTS, OUT) if biased else None
    if shared:
        weight, bias = weight[:1].expand_as(weight), None if bias is None else bias[:1].expand_as(bias)

    def loss(params: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        out = core_vmap.linear(params["x"], params["weight"], params.get("bias"))
        return out.square().sum(), out

    params = {"x": x, "weight": weight} | ({} if bias is None else {"bias": bias})
    with torch.no_grad(), functional_gradients():
        grads, out = vmap(lambda p: core_vmap.gradient(loss, p))(params)
    leaves = {name: v.clone().requires_grad_() for name, v in params.items()}
    theirs = sliced(leaves["x"], leaves["weight"], leaves.get("bias"))
    expected = torch.autograd.grad(theirs.square().sum(), list(leaves.values()))
    assert torch.allclose(out, theirs, atol=1e-5)
    for name, slope in zip(leaves, expected, strict=True):
        assert torch.allclose(grads[name], slope, atol=1e-4), name


def test_gradients_lie_as_the_weights_do() -> None:
    x, weight = normal(key(1), CLIENTS, 6, IN), normal(key(2), CLIENTS, OUT, IN).requires_grad_()
    made = core_vmap._Linear.apply(x, weight, None)
    (slope,) = torch.autograd.grad(made.square().sum(), [weight])
    assert slope.stride() == weight.stride()


def test_rows_that_are_the_same_for_all_clients() -> None:
    """Public rows, say."""
    x, weight = normal(key(1), 6, IN), normal(key(2), CLIENTS, OUT, IN)
    with torch.no_grad(), functional_gradients():
        out = vmap(lambda w: core_vmap.linear(x, w, None))(weight)
    assert torch.allclose(out, sliced(x.expand(CLIENTS, 6, IN), weight, None), atol=1e-6)


def test_inside_other_transformations() -> None:
    """The gradient of |grad (w x)^2 / 2|^2 = |x|^4 w^2 is 2 |x|^4 w, for x = 1 and w = 3: 6; for w = 5: 10."""

    def once(w: Tensor) -> Tensor:
        return core_vmap.linear(torch.ones(1, 1), w, None).square().sum() / 2

    def twice(w: Tensor) -> Tensor:
        return torch.func.grad(lambda v: torch.func.grad(once)(v).square().sum())(w)

    with functional_gradients():
        assert vmap(twice)(torch.tensor([[[3.0]], [[5.0]]])).flatten().tolist() == [6.0, 10.0]
