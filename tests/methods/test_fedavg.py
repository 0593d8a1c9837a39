"""FedAvg: hand numbers of the weighted mean, and what it does with buffers."""

import pytest
import torch
from support import toy_models
from torch import Tensor, nn

from atoll.clients import method_calls
from atoll.core.batch import Batch
from atoll.core.model import Model
from atoll.core.payloads import Nothing, Params, nbytes
from atoll.core.prng import key
from atoll.methods.fedavg import FedAvg, Global, Update
from atoll.models import build


def update(w: float, n: float) -> Update:
    return Update({"w": torch.tensor([w])}, torch.tensor(n), {})


def average(*ups: Update) -> float:
    server = Global({"w": torch.zeros(1)}, {})
    return float(toy_models.aggregate(FedAvg(), server, list(ups), toy_models.task(toy_models.mlp())).params["w"])


def test_one_round_on_quadratics() -> None:
    """Losses (w - a_k)^2 / 2 with a = (0, 4), n = (100, 300), from w = 0 with rate 0.1: the gradients are 0 and -4, so
    w_1 = 0 and w_2 = 0.4; the average is 0.75 * 0.4 = 0.3. The centralised gradient is 0.75 * -4 = -3: also 0.3.
    """

    def trained(a: float) -> float:
        def loss(p: Params, b: Batch) -> Tensor:
            return (p["w"] - a).square().sum() / 2

        return float(toy_models.PLAIN.run(loss, {"w": torch.zeros(1)}, [toy_models.batch([[0.0]], [0])])["w"])

    assert trained(0.0) == 0
    assert trained(4.0) == pytest.approx(0.4)
    assert average(update(trained(0.0), 100), update(trained(4.0), 300)) == pytest.approx(0.3)


def test_mean_by_rows() -> None:
    """n = (3, 1), models 0 and 4: 4 * 1/4 = 1."""
    assert average(update(0.0, 3), update(4.0, 1)) == 1.0


def test_equal_models_stay_as_they_are() -> None:
    assert average(update(0.1, 3), update(0.1, 5), update(0.1, 11)) == float(torch.tensor(0.1))


def test_order_of_uploads_is_immaterial() -> None:
    ups = [update(0.1, 3), update(-2.7, 5), update(1e-3, 7)]
    assert average(*ups) == pytest.approx(average(*reversed(ups)), rel=1e-6)


def test_buffers_are_averaged_and_counters_take_the_largest() -> None:
    """Running means 0 and 4 with n = (3, 1): 1; counters 2 and 5: 5."""
    name = "buffers.body.0."
    ups = [
        Update(
            {name + "running_mean": torch.tensor([m]), name + "num_batches_tracked": torch.tensor(t)},
            torch.tensor(n),
            {},
        )
        for m, t, n in ((0.0, 2, 3.0), (4.0, 5, 1.0))
    ]
    out = toy_models.aggregate(FedAvg(), Global({}, {}), ups, toy_models.task(toy_models.mlp())).params
    assert out[name + "running_mean"].tolist() == [1.0]
    assert out[name + "num_batches_tracked"].tolist() == 5
    assert out[name + "num_batches_tracked"].dtype == torch.int64


def test_a_single_upload_comes_back_bit_for_bit() -> None:
    c = toy_models.random_client(7, 3, toy_models.mlp())
    method = FedAvg(toy_models.RICH)
    server = method.init_server(toy_models.task(c.model), key(0))
    up, _ = toy_models.participate(method, server, Nothing(), c, key(1))
    toy_models.assert_same(toy_models.aggregate(method, server, [up], toy_models.task(c.model)), Global(up.params, {}))


def test_who_predicts() -> None:
    """Before training the received model, afterwards the trained one; the server's model is its own."""
    c = toy_models.random_client(7, 3, toy_models.mlp())
    method = FedAvg(toy_models.RICH)
    down = method.init_server(toy_models.task(c.model), key(0))
    up, state = toy_models.participate(method, down, Nothing(), c, key(1))
    assert torch.equal(method_calls.personal_predictor(method, down, None, state, c)(c.x), c.model(down.params, c.x))
    assert torch.equal(method_calls.personal_predictor(method, down, up, state, c)(c.x), c.model(up.params, c.x))
    assert torch.equal(
        method_calls.generic_predictor(method, down, toy_models.task(c.model))(c.x), c.model(down.params, c.x)
    )
    assert not torch.equal(c.model(up.params, c.x), c.model(down.params, c.x))


def test_bytes_of_the_published_cnn() -> None:
    """CNN-1 with 10 classes has 2,621,558 weights of 4 bytes; the upload adds n_k."""
    with torch.device("meta"):
        params = Model(build("cnn1", (3, 32, 32), 10)).init()
    assert nbytes(Global(params, {})) == 4 * 2_621_558
    assert nbytes(Update(params, torch.tensor(1.0), {})) == 4 * 2_621_559


def test_batch_norm_statistics_travel() -> None:
    net = toy_models.filled(toy_models.Net(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), nn.Linear(4, 3)))
    c = toy_models.random_client(8, 1, Model(net))
    method = FedAvg(toy_models.RICH)
    down = method.init_server(toy_models.task(c.model), key(0))
    up, _ = toy_models.participate(method, down, Nothing(), c, key(1))
    assert up.params["buffers.body.1.num_batches_tracked"] == 4  # two epochs of two batches
    assert not torch.equal(up.params["buffers.body.1.running_mean"], down.params["buffers.body.1.running_mean"])


def test_vmap_equals_loop() -> None:
    toy_models.check_vmap(FedAvg(toy_models.RICH), toy_models.mlp())
