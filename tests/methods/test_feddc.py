"""FedDC: rounds by hand on quadratics, whose means are taken over whom, and what is sent."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from support import quadratics, toy_models
from support.quadratics import rounds, w
from torch import nn

from atoll.clients import method_calls
from atoll.core.losses import objective
from atoll.core.model import Model
from atoll.core.optim.adam import Adam
from atoll.core.optim.base import gradient
from atoll.core.optim.sgd import SGD
from atoll.core.params import weights
from atoll.core.payloads import Params, nbytes
from atoll.core.prng import key, normal
from atoll.core.task import Round
from atoll.errors import AtollError
from atoll.methods._control_variates import Global, Update
from atoll.methods.feddc import FedDC, Server, State
from atoll.methods.scaffold import SCAFFOLD
from atoll.methods.scaffold import State as Variate

PAIR = [quadratics.client(0.0), quadratics.client(2.0)]
BOTH = (0, 1)
ONCE = replace(toy_models.PLAIN, lr=0.5)  # K = 1 full-batch step
SMALL = replace(toy_models.PLAIN, epochs=2, batch_size=4)


@pytest.fixture
def quadratic_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    quadratics.install(monkeypatch)


def noise(params: Params, name: str) -> Params:
    return {n: normal(key(name, n), *v.shape) for n, v in weights(params).items()}


# -- by hand ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quadratic_losses")
def test_first_round_by_hand() -> None:
    """a = (0, 2), alpha = 1, w = 0, no variates yet, exact minimisation: theta_k = a_k / 2 = (0, 1), h = (0, 1);
    w = 0.5 + 0.5 = 1.
    """
    (played,) = rounds(FedDC(quadratics.EXACT, alpha=1.0), PAIR, [BOTH])
    assert [w(played.uploads[i].params) for i in BOTH] == pytest.approx([0.0, 1.0], abs=1e-5)
    assert [w(state.drift) for state in played.states] == pytest.approx([0.0, 1.0], abs=1e-5)
    assert w(played.server.params) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.usefixtures("quadratic_losses")
def test_two_rounds_of_one_step_by_hand() -> None:
    """a = (0, 2), alpha = 1, eta = 0.5, K = 1, w = 0. Round 1: gradients (0, -2), theta = (0, 1), h = (0, 1),
    c_k = -theta_k / 0.5 = (0, -2), c = -1, w = 0.5 + 0.5 = 1.
    Round 2, gradients theta - a + (theta - w + h) + c - c_k at theta = 1: 1 + 0 - 1 + 0 = 0 for client 1, which stays;
    h_1 = 0, c_1 = 0 + 1 + 0 = 1. For client 2: -1 + 1 - 1 + 2 = 1, theta_2 = 0.5, h_2 = 0.5, c_2 = -2 + 1 + 1 = 0.
    w = 0.75 + 0.25 = 1, c = -1 + (1 + 2) / 2 = 0.5.
    """
    first, second = rounds(FedDC(ONCE, alpha=1.0), PAIR, [BOTH, BOTH])
    assert [w(first.uploads[i].params) for i in BOTH] == [0.0, 1.0]
    assert [(w(s.drift), w(s.variate)) for s in first.states] == [(0.0, 0.0), (1.0, -2.0)]
    assert (w(first.server.params), w(first.server.variate), w(first.server.drift)) == (1.0, -1.0, 0.5)
    assert [w(second.uploads[i].params) for i in BOTH] == [1.0, 0.5]
    assert [(w(s.drift), w(s.variate)) for s in second.states] == [(0.0, 1.0), (0.5, 0.0)]
    assert (w(second.server.params), w(second.server.variate), w(second.server.drift)) == (1.0, 0.5, 0.25)


@pytest.mark.usefixtures("quadratic_losses")
def test_models_are_averaged_over_the_round_and_drifts_over_all() -> None:
    """The second of two clients alone, one step from 0: theta_2 = 1, h_2 = 1, so w = 1 + 1/2 and c = -2 / 2. In the
    next round it is absent, but its drift still counts.
    """
    played = rounds(FedDC(ONCE, alpha=1.0), PAIR, [(1,), (0,), BOTH, (1,)])
    assert (w(played[0].server.params), w(played[0].server.variate)) == (1.5, -1.0)
    assert w(played[1].states[1].drift) == 1.0
    own = played[1].uploads[0].params
    assert w(played[1].server.params) == pytest.approx(w(own) + (1.0 + w(played[1].states[0].drift)) / 2)
    for p in played:
        for name in ("drift", "variate"):
            everybody = [w(getattr(state, name)) for state in p.states]
            assert w(getattr(p.server, name)) == pytest.approx(sum(everybody) / 2, abs=1e-6)


@pytest.mark.usefixtures("quadratic_losses")
def test_unlike_curvatures_end_in_the_common_optimum() -> None:
    """(w - 0)^2 / 2 + 3 (w - 2)^2 / 2 is least at 6/4 = 1.5."""
    clients = [quadratics.client(0.0, 1), quadratics.client(2.0, 3)]
    method = FedDC(replace(toy_models.PLAIN, epochs=5), alpha=0.1)
    assert w(rounds(method, clients, [BOTH] * 60)[-1].server.params) == pytest.approx(1.5, abs=1e-2)


# -- local steps ------------------------------------------------------------------------------------------------------


def test_one_step_uses_drift_and_variates() -> None:
    """theta = w - eta (grad + alpha h_k + c - c_k): at w the centre w - h_k is h_k away. The new c_k, with K = 1, is
    grad + alpha h_k; h_k grows by theta - w.
    """
    c = toy_models.random_client(6, 1, toy_models.mlp())
    params = c.model.init()
    down, state = Global(params, noise(params, "c")), State(noise(params, "h"), noise(params, "own"))
    up, after = toy_models.participate(FedDC(toy_models.PLAIN, alpha=0.7), down, state, c, key(1))
    grads, _ = gradient(objective(c.model), params, toy_models.batch(c.x, c.y))
    for name, g in grads.items():
        pulled = g + 0.7 * state.drift[name]
        expected = params[name] - 0.1 * (pulled + down.variate[name] - state.variate[name])
        torch.testing.assert_close(up.params[name], expected)
        torch.testing.assert_close(after.variate[name], pulled, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(after.drift[name], state.drift[name] + expected - params[name])
        torch.testing.assert_close(up.change[name], after.variate[name] - state.variate[name])


def test_without_pull_clients_do_what_scaffolds_do() -> None:
    """alpha = 0: the same bits as SCAFFOLD; only the server differs, by the drifts."""
    c = toy_models.random_client(9, 1, toy_models.mlp())
    params = c.model.init()
    down, own = Global(params, noise(params, "c")), noise(params, "own")
    up, _ = toy_models.participate(FedDC(SMALL, alpha=0.0), down, State(noise(params, "h"), own), c, key(1))
    other, _ = toy_models.participate(SCAFFOLD(SMALL), down, Variate(own), c, key(1))
    toy_models.assert_same(up, other)


def test_running_statistics_are_averaged_and_nothing_else() -> None:
    """Models 0 and 4 from 1 with mean drift 0.5: mean 2, drift 0.5 + (2 - 1) = 1.5, w = 3.5. Running means: 2."""
    mean, count = "buffers.m.running_mean", "buffers.m.num_batches_tracked"
    ups = [
        Update({"w": torch.tensor([v]), mean: torch.tensor([v]), count: torch.tensor(t)}, {"w": torch.zeros(1)})
        for v, t in ((0.0, 2), (4.0, 5))
    ]
    start = {"w": torch.ones(1), mean: torch.zeros(1), count: torch.tensor(0)}
    server = Server(start, {"w": torch.zeros(1)}, {"w": torch.tensor([0.5])})
    after = toy_models.aggregate(FedDC(), server, ups, toy_models.task(toy_models.mlp()))
    assert {name: v.tolist() for name, v in after.params.items()} == {"w": [3.5], mean: [2.0], count: 5}
    assert after.drift == {"w": torch.tensor([1.5])}

    net = toy_models.filled(toy_models.Net(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), nn.Linear(4, 3)))
    c = toy_models.random_client(8, 1, Model(net))
    method = FedDC(SMALL)
    down = method.broadcast(
        method.init_server(toy_models.task(c.model), key(0)), "a", toy_models.task(c.model), Round(0), key(0)
    )
    up, state = toy_models.participate(method, down, method_calls.init_client(method, c, key(0)), c, key(1))
    assert state.drift.keys() == state.variate.keys() == up.change.keys() == weights(down.params).keys()
    assert not torch.equal(up.params["buffers.body.1.running_mean"], down.params["buffers.body.1.running_mean"])


def test_bytes() -> None:
    """A model of d weights and as many numbers of a variate, both ways; drifts stay where they are."""
    c = toy_models.random_client(6, 1, toy_models.mlp())
    method, t = FedDC(SMALL), toy_models.task(c.model)
    server = method.init_server(t, key(0))
    down = method.broadcast(server, "a", t, Round(0), key(0))
    up, _ = toy_models.participate(method, down, method_calls.init_client(method, c, key(0)), c, key(1))
    assert nbytes(down) == nbytes(up) == 2 * 4 * (3 * 4 + 4 + 4 * 3 + 3)
    assert nbytes(server) == 3 * nbytes(down) // 2


def test_who_predicts() -> None:
    c = toy_models.random_client(6, 1, toy_models.mlp())
    method, t = FedDC(SMALL), toy_models.task(c.model)
    server = method.init_server(t, key(0))
    down = method.broadcast(server, "a", t, Round(0), key(0))
    up, state = toy_models.participate(method, down, method_calls.init_client(method, c, key(0)), c, key(1))
    after = toy_models.aggregate(method, server, [up], t)
    assert torch.equal(method_calls.personal_predictor(method, down, None, state, c)(c.x), c.model(down.params, c.x))
    assert torch.equal(method_calls.personal_predictor(method, down, up, state, c)(c.x), c.model(up.params, c.x))
    assert torch.equal(method_calls.generic_predictor(method, after, t)(c.x), c.model(after.params, c.x))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"optim": SGD()}, r"optim is SGD with momentum 0\.9"),
        ({"optim": Adam()}, "FedDC computes mean gradients .* but optim is Adam"),
        ({"alpha": -1.0}, "alpha is -1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(AtollError, match=said):
        FedDC(**settings)


def test_vmap_equals_loop() -> None:
    toy_models.check_vmap(FedDC(SMALL, alpha=0.5), toy_models.mlp())
