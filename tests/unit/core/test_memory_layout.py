"""Memory layout: convolutions run with channels last everywhere, and nothing of it shows outside."""

import pickle
from itertools import chain

import numpy as np
import pytest
import torch
from support import toy_models
from torch import Tensor, nn

from atoll.core.functional_network import FunctionalNetwork
from atoll.core.losses import objective
from atoll.core.memory_layout import take_rows
from atoll.core.model import Model
from atoll.core.optim.base import gradient
from atoll.core.optim.sgd import SGD
from atoll.core.payloads import Params, equal
from atoll.core.prng import key
from atoll.core.serialization import encode
from atoll.core.tree import to_contiguous
from atoll.core.vmap import functional_gradients
from atoll.data.transforms import Transform
from atoll.methods.fedavg import FedAvg

SHAPE = (3, 8, 8)


class Seen(nn.Module):
    """Notes how the images that pass lie in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.last: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        self.last.append(x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous())
        return x


class Viewed(nn.Module):
    """What many networks do in place of a flattening layer; it fails on images with channels last."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(len(x), -1)


def network(flatten: nn.Module, *between: nn.Module) -> Model:
    body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), *between, nn.Conv2d(4, 2, 3), flatten)
    return Model(toy_models.filled(toy_models.Net(body, nn.Linear(32, 3))), "conv")


def turned(params: Params) -> Params:
    """The same values with channels last."""
    return {n: v.to(memory_format=torch.channels_last) if v.ndim == 4 else v for n, v in params.items()}


def test_convolutions_see_channels_last_in_training_and_in_evaluation() -> None:
    model = network(nn.Flatten(), Seen())
    c = toy_models.random_client(6, 1, model, shape=SHAPE)
    SGD(epochs=1, batch_size=6).fit(objective(model), model.init(), c, key(0))
    model(model.init(), c.x)
    seen = [m.last for net in (model._run._training, model.net) for m in net.modules() if isinstance(m, Seen)]
    assert all(seen)
    assert all(chain(*seen))


def test_memory_layout_of_inputs_changes_no_bit() -> None:
    """Params from the wire lie plainly, those of the training loop do not; images may lie either way."""
    model = network(nn.Flatten())
    c, params = toy_models.random_client(6, 1, model, shape=SHAPE), model.init()
    x, b = c.x.to(memory_format=torch.channels_last), toy_models.batch(c.x, c.y)
    assert torch.equal(model(params, c.x), model(turned(params), x))
    grads, stats = gradient(objective(model), params, b)
    others, stats2 = gradient(objective(model), turned(params), b._replace(x=x))
    assert all(torch.equal(grads[n], others[n]) for n in grads)
    assert all(torch.equal(stats[n], stats2[n]) for n in stats)


def test_training_returns_contiguous_params() -> None:
    model = network(nn.Flatten())
    c, params = toy_models.random_client(6, 1, model, shape=SHAPE), model.init()
    trained = SGD(epochs=1, batch_size=6).fit(objective(model), params, c, key(0))
    assert all(v.is_contiguous() for v in trained.values())


def test_bytes_do_not_depend_on_the_layout() -> None:
    model = network(nn.Flatten())
    t = toy_models.task(model)
    server = FedAvg().init_server(t, key(0))
    other = type(server)(turned(server.params), {})
    assert encode(server) == encode(other)
    assert all(v.is_contiguous() for v in to_contiguous(other).params.values())
    assert equal(to_contiguous(other), server)


@pytest.mark.parametrize("training", [True, False])
def test_a_network_that_views_its_images_runs_in_the_plain_layout(training: bool) -> None:
    model, same = network(Viewed()), network(nn.Flatten())
    c, params = toy_models.random_client(6, 1, model, shape=SHAPE), model.init()
    b = toy_models.batch(c.x, c.y)
    for _ in range(2):
        if training:
            toy_models.assert_near(gradient(objective(model), params, b), gradient(objective(same), params, b), 1e-5)
        else:
            toy_models.assert_near(model(turned(params), c.x), same(params, c.x), 1e-5)


def test_other_errors_of_a_network_are_not_hidden() -> None:
    model = network(nn.Flatten())
    with pytest.raises(RuntimeError, match="channels"):
        model(model.init(), torch.zeros(2, 5, 8, 8))


def test_a_network_is_left_as_it_was() -> None:
    """Given tensors stand in for its own while it runs, shared ones in all their places; errors change nothing."""
    first = nn.Linear(3, 3)
    body = nn.Sequential(first, nn.ReLU(), nn.Linear(3, 3))
    body[2].weight = first.weight
    model = Model(toy_models.filled(toy_models.Net(body, nn.Linear(3, 2))), "tied")
    assert "body.2.weight" not in model.init()
    zero = {n: torch.zeros_like(v) for n, v in model.init().items()}
    assert not model(zero, torch.ones(1, 3)).any()
    with pytest.raises(RuntimeError):
        model(zero, torch.ones(1, 4))
    assert all(v.any() for v in model.init().values())
    with functional_gradients():
        assert not model(zero, torch.ones(1, 3)).any()


def test_images_lie_with_channels_last_from_the_start_and_so_do_batches() -> None:
    raw = np.arange(2 * 3 * 4 * 5, dtype=np.uint8).reshape(2, 3, 4, 5)
    x = Transform().prepare(raw)
    assert torch.equal(x, torch.from_numpy(raw) / 255)
    chosen, labels = (take_rows(v, torch.tensor([1, 0, 1])) for v in (x, torch.tensor([7, 8])))
    assert torch.equal(chosen, x[[1, 0, 1]])
    assert labels.tolist() == [8, 7, 8]
    assert all(v.is_contiguous(memory_format=torch.channels_last) for v in (x, chosen))


def test_networks_are_pickled_without_names_of_modules_that_happen_to_import_torch() -> None:
    """pickle names a layout by the first module that has torch, perhaps one that a worker on another machine lacks."""
    network = FunctionalNetwork(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))

    assert b"_format" not in pickle.dumps(network)
