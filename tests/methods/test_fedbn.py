"""FedBN: what stays at home, the average by hand, FedAvg for a single client, and models without BatchNorm."""

import pytest
import torch
from support import small_runs, toy_models
from torch import nn

from atoll.clients import method_calls
from atoll.core.client import Client
from atoll.core.model import Model
from atoll.core.payloads import Params
from atoll.core.prng import key
from atoll.errors import AtollError
from atoll.methods._partial_model import Kept, Shared, Update
from atoll.methods.fedbn import FedBN

NORM = {
    "body.1.weight",
    "body.1.bias",
    "buffers.body.1.running_mean",
    "buffers.body.1.running_var",
    "buffers.body.1.num_batches_tracked",
}
SHARED = {"body.0.weight", "body.0.bias", "head.weight", "head.bias"}


def norm_client(n: int = 9, track: bool = True) -> Client:
    body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=track), nn.ReLU())
    return toy_models.random_client(n, 1, Model(toy_models.filled(toy_models.Net(body, nn.Linear(4, 3))), "bn"))


def test_everything_of_batch_norm_stays_at_home() -> None:
    c, method = norm_client(), FedBN(toy_models.RICH)
    down = method.init_server(toy_models.task(c.model), key(0))
    start = method_calls.init_client(method, c, key(0))

    up, state = toy_models.participate(method, down, start, c, key(1))

    assert down.params.keys() == up.params.keys() == SHARED
    assert start.params.keys() == state.params.keys() == NORM
    assert int(state.params["buffers.body.1.num_batches_tracked"]) == 6  # 9 rows in batches of 4, twice
    assert not torch.equal(state.params["body.1.weight"], start.params["body.1.weight"])


def test_batch_norm_without_running_statistics_stays_at_home_too() -> None:
    c, method = norm_client(track=False), FedBN(toy_models.RICH)
    assert method_calls.init_client(method, c, key(0)).params.keys() == {"body.1.weight", "body.1.bias"}


def test_average_by_hand() -> None:
    """Models 0 and 4, n = (3, 1): 1."""
    ups = [Update({"w": torch.tensor([v])}, torch.tensor(n)) for v, n in ((0.0, 3.0), (4.0, 1.0))]
    after = toy_models.aggregate(FedBN(), Shared({"w": torch.zeros(1)}), ups, toy_models.task(norm_client().model))
    assert after.params == {"w": torch.tensor([1.0])}


def test_client_predicts_with_its_own_statistics() -> None:
    """Two clients receive the same weights; running means 0 and 100 let them predict otherwise."""
    c, method = norm_client(), FedBN()
    down = method.init_server(toy_models.task(c.model), key(0))
    own = method_calls.init_client(method, c, key(0))
    far = Kept(own.params | {"buffers.body.1.running_mean": torch.full((4,), 100.0)})
    expected = c.model(c.model.init() | far.params, c.x)
    assert torch.equal(method_calls.personal_predictor(method, down, None, far, c)(c.x), expected)
    assert not torch.equal(method_calls.personal_predictor(method, down, None, own, c)(c.x), expected)


def test_params_keep_the_order_of_the_model() -> None:
    c, method = norm_client(), FedBN()
    down = method.init_server(toy_models.task(c.model), key(0))
    joined: Params = method.personal_params(down, None, method_calls.init_client(method, c, key(0)), c)
    assert list(joined) == list(c.model.init())


def test_single_client_equals_fedavg() -> None:
    alone = {"clients": 1, "partition": "iid", "models": ("mlp:norm=true",)}
    assert small_runs.same_models(small_runs.run("fedbn", **alone), small_runs.run("fedavg", **alone))


def test_models_without_batch_norm_are_refused() -> None:
    with pytest.raises(AtollError, match="every model needs BatchNorm layers, and mlp has none"):
        small_runs.setup("fedbn", models=("mlp",))
