"""SCAFFOLD: rounds by hand on quadratics, steps counted one by one, and optimisers that do not fit."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from support import quadratics, toy_models
from support.quadratics import rounds, w
from torch import nn

from atoll.clients import method_calls
from atoll.core.client import Client
from atoll.core.losses import objective
from atoll.core.model import Model
from atoll.core.optim.adam import Adam
from atoll.core.optim.base import gradient
from atoll.core.optim.sgd import SGD
from atoll.core.params import weights, zeros
from atoll.core.payloads import Nothing, Params, nbytes
from atoll.core.prng import key, normal
from atoll.errors import AtollError
from atoll.methods._control_variates import Global, Update
from atoll.methods._factory import make
from atoll.methods.fedavg import FedAvg
from atoll.methods.fedavg import Global as Plain
from atoll.methods.scaffold import SCAFFOLD, State

PAIR = [quadratics.client(0.0), quadratics.client(2.0)]
BOTH = (0, 1)
TWICE = replace(toy_models.PLAIN, lr=0.5, epochs=2)  # K = 2 full-batch steps
SMALL = replace(toy_models.PLAIN, epochs=2, batch_size=4)


@pytest.fixture
def quadratic_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    quadratics.install(monkeypatch)


def noise(params: Params, name: str) -> Params:
    return {n: normal(key(name, n), *v.shape) for n, v in weights(params).items()}


def with_statistics(n: int) -> Client:
    net = toy_models.filled(toy_models.Net(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), nn.Linear(4, 3)))
    return toy_models.random_client(n, 1, Model(net, "bn"))


# -- by hand ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quadratic_losses")
def test_two_rounds_by_hand() -> None:
    """a = (0, 2), x = 0, eta = 0.5, K = 2. Round 1: y_2 = 0 -> 1 -> 1.5; c_2 = -1.5 / (2 * 0.5) = -1.5; x = 0.75,
    c = -0.75. Round 2, with gradients y - a - c_k + c: client 1 has 0.75 - 0.75 = 0 and stays at 0.75, c_1 = 0.75;
    client 2 has 0.75 - 2 + 1.5 - 0.75 = -0.5: 1, then -0.25: 1.125, c_2 = -1.5 + 0.75 - 0.375 = -1.125.
    x = 0.9375, c = -0.75 + (0.75 + 0.375) / 2 = -0.1875.
    """
    first, second = rounds(SCAFFOLD(TWICE), PAIR, [BOTH, BOTH])
    assert [w(first.uploads[i].params) for i in BOTH] == [0.0, 1.5]
    assert [w(state.variate) for state in first.states] == [0.0, -1.5]
    assert (w(first.server.params), w(first.server.variate)) == (0.75, -0.75)
    assert [w(second.uploads[i].params) for i in BOTH] == [0.75, 1.125]
    assert [w(state.variate) for state in second.states] == [0.75, -1.125]
    assert (w(second.server.params), w(second.server.variate)) == (0.9375, -0.1875)


@pytest.mark.usefixtures("quadratic_losses")
def test_the_servers_variate_is_the_mean_over_all_clients() -> None:
    """1/N, not 1/m: with the second of two clients alone, c = -1.5 / 2, while x = 1.5 is its model."""
    played = rounds(SCAFFOLD(TWICE), PAIR, [(1,), (0,), BOTH, (1,)])
    assert (w(played[0].server.params), w(played[0].server.variate)) == (1.5, -0.75)
    assert w(played[1].states[1].variate) == w(played[0].states[1].variate) == -1.5
    for p in played:
        assert w(p.server.variate) == pytest.approx(sum(w(state.variate) for state in p.states) / 2, abs=1e-6)


@pytest.mark.usefixtures("quadratic_losses")
def test_unlike_curvatures_end_in_the_common_optimum() -> None:
    """(w - 0)^2 / 2 + 3 (w - 2)^2 / 2 is least at 6/4 = 1.5."""
    clients = [quadratics.client(0.0, 1), quadratics.client(2.0, 3)]
    method = SCAFFOLD(replace(toy_models.PLAIN, epochs=5))
    assert w(rounds(method, clients, [BOTH] * 30)[-1].server.params) == pytest.approx(1.5, abs=1e-3)


def test_the_servers_rate_moves_weights_only() -> None:
    """x = 1, models 0 and 4, eta_g = 0.5: 1 + 0.5 (2 - 1) = 1.5. Running means 0 and 4: 2; the larger counter."""
    mean, count = "buffers.m.running_mean", "buffers.m.num_batches_tracked"
    ups = [
        Update({"w": torch.tensor([v]), mean: torch.tensor([v]), count: torch.tensor(t)}, {"w": torch.tensor([v])})
        for v, t in ((0.0, 2), (4.0, 5))
    ]
    server = Global({"w": torch.ones(1), mean: torch.zeros(1), count: torch.tensor(0)}, {"w": torch.tensor([1.0])})
    after = toy_models.aggregate(SCAFFOLD(server_lr=0.5), server, ups, toy_models.task(toy_models.mlp()))
    assert {name: v.tolist() for name, v in after.params.items()} == {"w": [1.5], mean: [2.0], count: 5}
    assert after.variate == {"w": torch.tensor([3.0])}  # 1 + (0 + 4) / 2


# -- local steps ------------------------------------------------------------------------------------------------------


def test_the_first_round_of_a_client_is_fedavgs() -> None:
    """All variates are 0: the same bits as FedAvg with the same optimiser."""
    c = toy_models.random_client(9, 1, toy_models.mlp())
    method = SCAFFOLD(SMALL)
    down = method.init_server(toy_models.task(c.model), key(0))
    up, _ = toy_models.participate(method, down, method_calls.init_client(method, c, key(0)), c, key(1))
    plain, _ = toy_models.participate(FedAvg(SMALL), Plain(down.params, {}), Nothing(), c, key(1))
    assert all(torch.equal(v, plain.params[name]) for name, v in up.params.items())


def test_one_step_uses_both_variates_and_leaves_the_gradient_in_one() -> None:
    """y = x - eta (grad - c_k + c); with K = 1 the new c_k is grad itself, whatever c_k and c were."""
    c = toy_models.random_client(6, 1, toy_models.mlp())
    params = c.model.init()
    down, state = Global(params, noise(params, "c")), State(noise(params, "own"))
    up, after = toy_models.participate(SCAFFOLD(toy_models.PLAIN), down, state, c, key(1))
    grads, _ = gradient(objective(c.model), params, toy_models.batch(c.x, c.y))
    for name, g in grads.items():
        shift = down.variate[name] - state.variate[name]
        torch.testing.assert_close(up.params[name], params[name] - 0.1 * (g + shift))
        torch.testing.assert_close(after.variate[name], g, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(up.change[name], after.variate[name] - state.variate[name])


def test_weight_decay_is_part_of_the_loss() -> None:
    """With K = 1 the new variate is grad + decay * x."""
    c = toy_models.random_client(6, 1, toy_models.mlp())
    method = SCAFFOLD(replace(toy_models.PLAIN, weight_decay=0.5))
    down = method.init_server(toy_models.task(c.model), key(0))
    _, after = toy_models.participate(method, down, method_calls.init_client(method, c, key(0)), c, key(1))
    grads, _ = gradient(objective(c.model), down.params, toy_models.batch(c.x, c.y))
    for name, g in grads.items():
        torch.testing.assert_close(after.variate[name], g + 0.5 * down.params[name], rtol=1e-4, atol=1e-5)


def mean_step(up: Update, down: Global, steps: int) -> Params:
    return {n: (v - up.params[n]) / (steps * SMALL.lr) for n, v in weights(down.params).items()}


def test_the_number_of_steps_is_the_clients_own() -> None:
    """6 rows in batches of 4, twice: 2 * 2 = 4 steps, alone and beside a client of 13 rows (4 batches each time)."""
    model, method, keys = toy_models.mlp(), SCAFFOLD(SMALL), [key(1), key(2)]
    clients = [toy_models.random_client(n, n, model) for n in (6, 13)]
    down = method.init_server(toy_models.task(model), key(0))
    states = [method_calls.init_client(method, c, key(0)) for c in clients]
    up, alone = toy_models.participate(method, down, states[0], clients[0], keys[0])
    toy_models.assert_near(alone.variate, mean_step(up, down, 4), 1e-5)
    both = toy_models.together(method, down, states, [toy_models.padded(c, 13) for c in clients], keys)
    for (own, after), steps in zip(both, (4, 8), strict=True):
        toy_models.assert_near(after.variate, mean_step(own, down, steps), 1e-5)
    toy_models.assert_near(both[0][1], alone)


def test_a_row_that_joined_another_batch_is_no_step() -> None:
    """3 rows in batches of 2 are one batch where batch statistics need two rows: 2 epochs, 2 steps, not 4."""
    c = with_statistics(3)
    method = SCAFFOLD(replace(SMALL, batch_size=2))
    down = method.init_server(toy_models.task(c.model), key(0))
    up, state = toy_models.participate(method, down, method_calls.init_client(method, c, key(0)), c, key(1))
    assert up.params["buffers.body.1.num_batches_tracked"] == 2
    toy_models.assert_near(state.variate, mean_step(up, down, 2), 1e-5)


def test_running_statistics_have_no_variates() -> None:
    c = with_statistics(8)
    method = SCAFFOLD(SMALL)
    t = toy_models.task(c.model)
    down = method.init_server(t, key(0))
    up, state = toy_models.participate(method, down, method_calls.init_client(method, c, key(0)), c, key(1))
    names = weights(down.params).keys()
    assert down.variate.keys() == state.variate.keys() == up.change.keys() == names
    after = toy_models.aggregate(method, down, [up], t)
    assert after.params.keys() == down.params.keys()
    assert torch.equal(after.params["buffers.body.1.running_mean"], up.params["buffers.body.1.running_mean"])


def test_bytes() -> None:
    """A model of d weights travels with as many numbers of a variate, both ways: 2 d floats."""
    c = toy_models.random_client(6, 1, toy_models.mlp())
    method = SCAFFOLD(SMALL)
    down = method.init_server(toy_models.task(c.model), key(0))
    up, _ = toy_models.participate(method, down, State(zeros(down.params)), c, key(1))
    assert nbytes(down) == nbytes(up) == 2 * 4 * (3 * 4 + 4 + 4 * 3 + 3)


def test_who_predicts() -> None:
    c = toy_models.random_client(6, 1, toy_models.mlp())
    method, t = SCAFFOLD(SMALL), toy_models.task(c.model)
    server = method.init_server(t, key(0))
    up, state = toy_models.participate(method, server, method_calls.init_client(method, c, key(0)), c, key(1))
    after = toy_models.aggregate(method, server, [up], t)
    assert torch.equal(
        method_calls.personal_predictor(method, server, None, state, c)(c.x), c.model(server.params, c.x)
    )
    assert torch.equal(method_calls.personal_predictor(method, server, up, state, c)(c.x), c.model(up.params, c.x))
    assert torch.equal(method_calls.generic_predictor(method, after, t)(c.x), c.model(after.params, c.x))


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"optim": SGD()}, r"optim is SGD with momentum 0\.9\. Leave out --optimiser, or use SGD with momentum=0"),
        ({"optim": Adam()}, "SCAFFOLD computes mean gradients .* but optim is Adam"),
        ({"optim": replace(SMALL, lr=0.0)}, "lr is 0"),
        ({"optim": replace(SMALL, epochs=0)}, "epochs is 0"),
        ({"server_lr": -1.0}, "server_lr is -1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(AtollError, match=said):
        SCAFFOLD(**settings)


def test_the_common_options_leave_its_steps_plain() -> None:
    made: Any = make("scaffold", {"optim.weight_decay": "0.1"}, optimiser={"lr": 0.2, "epochs": 3, "batch_size": 7})
    assert made.optim == SGD(lr=0.2, epochs=3, batch_size=7, weight_decay=0.1, clip=10.0, momentum=0.0)
    with pytest.raises(AtollError, match="optim is Adam"):
        make("scaffold", optimiser={"optimiser": "adam"})


def test_vmap_equals_loop() -> None:
    toy_models.check_vmap(SCAFFOLD(SMALL), toy_models.mlp())
