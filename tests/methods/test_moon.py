"""MOON: the contrast by hand, and FedAvg where there is none."""

from typing import Any

import pytest
import torch
from support import toy_models
from torch import Tensor, nn

from atoll.clients import method_calls
from atoll.core.client import Client
from atoll.core.losses import objective, wmean
from atoll.core.model import Model
from atoll.core.optim.base import gradient
from atoll.core.params import sub
from atoll.core.payloads import Nothing, Params, nbytes
from atoll.core.prng import key, normal
from atoll.core.regularisers import Regularisers
from atoll.core.task import Round
from atoll.errors import AtollError
from atoll.methods.fedavg import FedAvg, Global
from atoll.methods.feddw import DW
from atoll.methods.moon import MOON, State, contrast

CLIENT = toy_models.random_client(9, 1, toy_models.mlp())
NEVER, ONCE = torch.tensor(False), torch.tensor(True)


def played(method: Any, model: Model = CLIENT.model) -> tuple[Any, list[Any]]:
    """Server and states after three rounds of two clients: the average is not what either of them sent."""
    t, clients = toy_models.task(model), [toy_models.random_client(n, n, model) for n in (9, 6)]
    server, states = method.init_server(t, key(0)), [method_calls.init_client(method, c, key(0)) for c in clients]
    for r in range(3):
        down = method.broadcast(server, "a", t, r, key(0))
        done = [toy_models.participate(method, down, s, c, key(r)) for s, c in zip(states, clients, strict=True)]
        server, states = toy_models.aggregate(method, server, [up for up, _ in done], t), [state for _, state in done]
    return server, states


def trained(method: Any, down: Params, state: Any, c: Client = CLIENT) -> Params:
    with torch.no_grad():
        up, _ = method.client_update(Global(down, {}), state, c, Round(0), key(1))
    params: Params = up.params
    return params


def test_contrast_by_hand() -> None:
    """Like the global and opposite to the last: cosines 1 and -1, over tau = 0.5: log(1 + e^-4) = 0.0181499. The other
    way round 4 more. At right angles to both: log 2. Lengths do not matter.
    """
    z, other = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    assert float(contrast(z, 2 * z, -z, 0.5)) == pytest.approx(0.0181499, abs=1e-7)
    assert float(contrast(z, -z, 2 * z, 0.5)) == pytest.approx(4.0181499, abs=1e-6)
    assert float(contrast(z, other, -other, 0.5)) == pytest.approx(0.6931472)


def test_contrast_is_a_cross_entropy_at_any_temperature() -> None:
    """Of the logits (cos_g, cos_p) / tau for the first; at tau = 0.001 exponentials would overflow."""
    z, near, far = (normal(key(i), 5, 4) for i in range(3))
    cosines = [nn.functional.cosine_similarity(z, other) for other in (near, far)]
    for tau in (0.001, 0.5, 10.0):
        expected = nn.functional.cross_entropy(
            torch.stack(cosines, 1) / tau, torch.zeros(5, dtype=torch.long), reduction="none"
        )
        torch.testing.assert_close(contrast(z, near, far, tau), expected)


def test_equal_peers_do_not_pull() -> None:
    """The last model is the global one: log 2 for each row, and no gradient at all."""
    z, peer = normal(key(0), 5, 4).requires_grad_(), normal(key(1), 5, 4)
    value = contrast(z, peer, peer, 0.5)
    torch.testing.assert_close(value, torch.full((5,), 0.6931472))
    assert not torch.autograd.grad(value.sum(), z)[0].any()
    params = CLIENT.model.init()
    plain = trained(FedAvg(toy_models.PLAIN), params, Nothing())
    toy_models.assert_near(trained(MOON(toy_models.PLAIN, mu=1e3), params, State(params, ONCE)), plain, tolerance=0)


def test_features_of_zero_do_no_harm() -> None:
    """A cosine with a vector of zeros counts as 0; the gradient stays finite."""
    z = torch.zeros(2, 4, requires_grad=True)
    value = contrast(z, torch.ones(2, 4), torch.zeros(2, 4), 0.5)
    torch.testing.assert_close(value, torch.full((2,), 0.6931472))
    assert torch.isfinite(torch.autograd.grad(value.sum(), z)[0]).all()


def test_one_step() -> None:
    """Full batch: w - 0.1 grad(CE + mu mean_i l_i), towards the download and away from the last model."""
    down, last = CLIENT.model.init(), toy_models.mlp(seed=5).init()

    def loss(p: Params, b: Any) -> Tensor:
        towards, away = (CLIENT.model.features(q, b.x) for q in (down, last))
        return objective(CLIENT.model)(p, b) + 2 * wmean(
            contrast(CLIENT.model.features(p, b.x), towards, away, 0.3), b.w
        )

    grads, _ = gradient(loss, down, toy_models.batch(CLIENT.x, CLIENT.y))
    toy_models.assert_near(
        trained(MOON(toy_models.PLAIN, mu=2.0, tau=0.3), down, State(last, ONCE)), sub(down, grads, 0.1)
    )


def test_no_contrast_in_the_first_participation() -> None:
    """Nothing was sent yet: the step is FedAvg's, bit for bit, wherever the state stands; the next one is not."""
    down, other = CLIENT.model.init(), toy_models.mlp(seed=5).init()
    plain = trained(FedAvg(toy_models.RICH), down, Nothing())
    toy_models.assert_near(trained(MOON(toy_models.RICH), down, State(other, NEVER)), plain, tolerance=0)
    assert not torch.equal(
        trained(MOON(toy_models.RICH), down, State(other, ONCE))["head.weight"], plain["head.weight"]
    )
    assert not method_calls.init_client(MOON(), CLIENT, key(0)).seen


def test_what_is_kept_is_what_was_sent() -> None:
    """Trained, not averaged."""
    method, down = MOON(toy_models.RICH), Global(CLIENT.model.init(), {})
    up, state = toy_models.participate(method, down, method_calls.init_client(method, CLIENT, key(0)), CLIENT, key(1))
    toy_models.assert_near(state.params, up.params, tolerance=0)
    assert bool(state.seen)


def test_peers_are_in_evaluation_mode() -> None:
    """With batch statistics the peers' features would not depend on their running ones, and the result would stay."""
    net = toy_models.Net(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), nn.Linear(4, 3))
    c = toy_models.random_client(8, 1, Model(toy_models.filled(net), "bn"))
    down = last = c.model.init()
    shifted = last | {"buffers.body.1.running_mean": torch.arange(4.0)}
    one, two = (trained(MOON(toy_models.PLAIN), down, State(p, ONCE), c) for p in (last, shifted))
    assert not torch.equal(one["body.0.weight"], two["body.0.weight"])
    assert torch.equal(one["buffers.body.1.running_mean"], two["buffers.body.1.running_mean"])


def test_mu_zero_is_fedavg() -> None:
    toy_models.assert_same(played(MOON(toy_models.RICH, mu=0.0))[0], played(FedAvg(toy_models.RICH))[0])
    assert not torch.equal(
        played(MOON(toy_models.RICH))[0].params["head.weight"], played(FedAvg(toy_models.RICH))[0].params["head.weight"]
    )
    assert "FedAvg" in str(MOON(mu=0.0).reduces_to())
    assert MOON().reduces_to() is None


def test_a_dw_term_of_weight_zero_changes_nothing() -> None:
    model = toy_models.mlp(bias=False)
    (host, own), (guest, other) = (
        played(MOON(toy_models.RICH, terms), model) for terms in (Regularisers(), Regularisers([DW(0.0)]))
    )
    toy_models.assert_near(host.params, guest.params, tolerance=0)
    toy_models.assert_near(own, other, tolerance=0)


def test_without_contrast_but_with_dw_it_is_feddw() -> None:
    model, terms = toy_models.mlp(bias=False), Regularisers([DW(2.0)])
    toy_models.assert_same(
        played(MOON(toy_models.RICH, terms, mu=0.0), model)[0], played(FedAvg(toy_models.RICH, terms), model)[0]
    )


def test_predictions_and_bytes() -> None:
    method, down = MOON(toy_models.RICH), Global(CLIENT.model.init(), {})
    up, state = toy_models.participate(method, down, method_calls.init_client(method, CLIENT, key(0)), CLIENT, key(1))
    for said, params in ((None, down.params), (up, up.params)):
        assert torch.equal(
            method_calls.personal_predictor(method, down, said, state, CLIENT)(CLIENT.x), CLIENT.model(params, CLIENT.x)
        )
    assert nbytes(up) == nbytes(down) + 4


@pytest.mark.parametrize("wrong", [{"mu": -1.0}, {"tau": 0.0}])
def test_senseless_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(AtollError, match=f"MOON: {next(iter(wrong))} is"):
        MOON(**wrong)


def test_vmap_equals_loop() -> None:
    toy_models.check_vmap(MOON(toy_models.RICH), toy_models.mlp(), rounds=3)
