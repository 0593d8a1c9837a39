"""FedDyn: rounds by hand on quadratics, what the memories remember, and what stays out of it."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from support import quadratics, toy_models
from support.quadratics import W, rounds, w
from torch import nn

from atoll.clients import method_calls
from atoll.core.losses import objective
from atoll.core.model import Model
from atoll.core.optim.base import gradient
from atoll.core.params import weights
from atoll.core.payloads import Nothing, equal
from atoll.core.prng import key
from atoll.core.regularisers import Regularisers
from atoll.core.task import Round
from atoll.errors import AtollError
from atoll.methods.fedavg import FedAvg, Global, Update
from atoll.methods.feddyn import FedDyn, Server, State
from atoll.methods.fedprox import Proximal

PAIR = [quadratics.client(0.0), quadratics.client(2.0)]
BOTH = (0, 1)


@pytest.fixture
def quadratic_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    quadratics.install(monkeypatch)


def exact(**settings: Any) -> FedDyn:
    given: dict[str, Any] = {"optim": quadratics.EXACT, "alpha": 1.0} | settings
    return FedDyn(**given)


@pytest.mark.usefixtures("quadratic_losses")
def test_two_rounds_by_hand() -> None:
    """a = (0, 2), alpha = 1, from 0, exact minimisation: theta_k - a_k - g_k + theta_k - theta = 0.
    Round 1: theta_k = a_k / 2 = (0, 1), g = -(0, 1), h = -0.5, theta = 0.5 + 0.5 = 1.
    Round 2: theta_k = (a_k + g_k + 1) / 2 = (0.5, 1); g = (0.5, -1); h = -0.5 - (-0.5 + 0) / 2 = -0.25;
    theta = 0.75 + 0.25 = 1.
    """
    first, second = rounds(exact(), PAIR, [BOTH, BOTH])
    for played, theta, g, h in ((first, (0.0, 1.0), (0.0, -1.0), -0.5), (second, (0.5, 1.0), (0.5, -1.0), -0.25)):
        assert [w(played.uploads[i].params) for i in BOTH] == pytest.approx(theta, abs=1e-5)
        assert [w(state.g) for state in played.states] == pytest.approx(g, abs=1e-5)
        assert w(played.server.h) == pytest.approx(h, abs=1e-5)
        assert w(played.server.params) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.usefixtures("quadratic_losses")
def test_a_memory_is_the_gradient_where_its_client_ended() -> None:
    """After an exact minimisation: g_k = s_k (theta_k - a_k), for any curvature s_k."""
    clients = [quadratics.client(0.0, 1), quadratics.client(2.0, 3)]
    for played in rounds(exact(alpha=0.5), clients, [BOTH] * 3):
        theta = [w(played.uploads[i].params) for i in BOTH]
        assert [w(state.g) for state in played.states] == pytest.approx([theta[0], 3 * (theta[1] - 2)], abs=1e-4)


@pytest.mark.usefixtures("quadratic_losses")
def test_steps_by_hand() -> None:
    """a = 2, alpha = 1, g = 0.5, rate 0.1, from 0: the gradient is -2 - 0.5 = -2.5, the step leads to 0.25; there it is
    -1.75 - 0.5 + 0.25 = -2: 0.45. With the bare norm instead of its square it would be -1.75 - 0.5 + 0.5 = -1.75.
    """
    method = exact(optim=replace(toy_models.PLAIN, epochs=2))
    up, state = toy_models.participate(
        method, Global(quadratics.MODEL.init(), {}), State({W: torch.full((1, 1), 0.5)}), PAIR[1], key(0)
    )
    assert w(up.params) == pytest.approx(0.45)
    assert w(state.g) == pytest.approx(0.5 - 0.45)


@pytest.mark.usefixtures("quadratic_losses")
def test_absent_clients_keep_their_memories_and_h_is_the_mean_of_all() -> None:
    """h changes by 1/N, not 1/m: one of two clients. Round 1 of the second client alone: theta_2 = 1, h = -1/2,
    theta = 1 + 0.5 = 1.5.
    """
    played = rounds(exact(), PAIR, [(1,), (0,), (0, 1), (1,)])
    assert w(played[0].server.h) == pytest.approx(-0.5, abs=1e-5)
    assert w(played[0].server.params) == pytest.approx(1.5, abs=1e-5)
    assert w(played[0].states[0].g) == 0
    assert w(played[1].states[1].g) == w(played[0].states[1].g)
    for p in played:
        assert w(p.server.h) == pytest.approx(sum(w(state.g) for state in p.states) / 2, abs=1e-5)


@pytest.mark.usefixtures("quadratic_losses")
def test_unlike_curvatures_end_in_the_common_optimum() -> None:
    """(w - 0)^2 / 2 + 3 (w - 2)^2 / 2 is least at 6/4 = 1.5; the mean of the clients' optima is 1."""
    clients = [quadratics.client(0.0, 1), quadratics.client(2.0, 3)]
    assert w(rounds(exact(), clients, [BOTH] * 8)[-1].server.params) == pytest.approx(1.5, abs=1e-3)


@pytest.mark.usefixtures("quadratic_losses")
def test_regularisers_join_in() -> None:
    """a = 2, alpha = 1, and a pull mu = 2 to 0: (w - 2) + w + 2 w = 0 at 0.5."""
    method = exact(regularisers=Regularisers([Proximal(2.0)]))
    assert w(rounds(method, PAIR, [(1,)])[0].uploads[1].params) == pytest.approx(0.5, abs=1e-5)


def test_all_clients_count_the_same_and_statistics_are_not_corrected() -> None:
    """Models 0 and 4 with 30 and 10 rows, from 1, h = 0.5, alpha = 2: mean 2, h = 0.5 - 2 (2 - 1) = -1.5,
    2 + 1.5 / 2 = 2.75. A running mean of 0 and 4 is 2; counters take the largest.
    """
    mean, count = "buffers.m.running_mean", "buffers.m.num_batches_tracked"
    ups = [
        Update({"w": torch.tensor([v]), mean: torch.tensor([v]), count: torch.tensor(t)}, torch.tensor(n), {})
        for v, n, t in ((0.0, 30.0, 2), (4.0, 10.0, 5))
    ]
    start = {"w": torch.ones(1), mean: torch.zeros(1), count: torch.tensor(0)}
    server = Server(start, {}, {"w": torch.tensor([0.5])})
    after = toy_models.aggregate(FedDyn(alpha=2.0), server, ups, toy_models.task(toy_models.mlp()))
    assert {name: v.tolist() for name, v in after.params.items()} == {"w": [2.75], mean: [2.0], count: 5}
    assert after.h == {"w": torch.tensor([-1.5])}


def test_running_statistics_have_no_memory() -> None:
    net = toy_models.filled(toy_models.Net(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), nn.Linear(4, 3)))
    c = toy_models.random_client(8, 1, Model(net))
    method = FedDyn(toy_models.RICH, alpha=0.5)
    down = Global(c.model.init(), {})
    up, state = toy_models.participate(method, down, method_calls.init_client(method, c, key(0)), c, key(1))
    assert state.g.keys() == weights(down.params).keys()
    assert not torch.equal(up.params["buffers.body.1.running_mean"], down.params["buffers.body.1.running_mean"])
    for name, g in state.g.items():
        torch.testing.assert_close(g, -0.5 * (up.params[name] - down.params[name]))


def test_a_step_without_memory_is_fedavgs() -> None:
    """One full-batch step from theta_t: the pull vanishes there, and so does a memory of zero."""
    c = toy_models.random_client(6, 1, toy_models.mlp())
    down = Global(c.model.init(), {})
    method = FedDyn(toy_models.PLAIN)
    up, state = toy_models.participate(method, down, method_calls.init_client(method, c, key(0)), c, key(1))
    plain, _ = toy_models.participate(FedAvg(toy_models.PLAIN), down, Nothing(), c, key(1))
    assert equal(up, plain)
    again, _ = toy_models.participate(method, down, state, c, key(1))
    grads, _ = gradient(objective(c.model), down.params, toy_models.batch(c.x, c.y))
    for name, v in down.params.items():
        torch.testing.assert_close(again.params[name], v - 0.1 * (grads[name] - state.g[name]))


def test_who_predicts() -> None:
    c = toy_models.random_client(6, 1, toy_models.mlp())
    method, t = FedDyn(toy_models.RICH), toy_models.task(c.model)
    server = method.init_server(t, key(0))
    down = method.broadcast(server, "a", t, Round(0), key(0))
    up, state = toy_models.participate(method, down, method_calls.init_client(method, c, key(0)), c, key(1))
    after = toy_models.aggregate(method, server, [up], t)
    assert torch.equal(
        method_calls.personal_predictor(method, server, None, state, c)(c.x), c.model(server.params, c.x)
    )
    assert torch.equal(method_calls.personal_predictor(method, server, up, state, c)(c.x), c.model(up.params, c.x))
    assert torch.equal(method_calls.generic_predictor(method, after, t)(c.x), c.model(after.params, c.x))


@pytest.mark.parametrize("alpha", [0.0, -1.0])
def test_alpha_must_be_positive(alpha: float) -> None:
    with pytest.raises(AtollError, match="alpha is"):
        FedDyn(alpha=alpha)


def test_vmap_equals_loop() -> None:
    toy_models.check_vmap(FedDyn(toy_models.RICH, alpha=0.1), toy_models.mlp())
