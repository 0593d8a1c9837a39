"""Ditto: a FedAvg that does not notice, and personal models pulled to what was received."""

import pytest
import torch
from support import toy_models
from torch import Tensor

from atoll.clients import method_calls
from atoll.core.batch import Batch
from atoll.core.losses import objective
from atoll.core.optim.base import gradient
from atoll.core.payloads import Nothing, Params
from atoll.core.prng import key
from atoll.errors import AtollError
from atoll.methods.ditto import Ditto
from atoll.methods.fedavg import FedAvg, Global
from atoll.methods.fedprox import Proximal
from atoll.methods.local import Local, State


def test_global_branch_is_fedavg() -> None:
    c = toy_models.random_client(9, 1, toy_models.mlp())
    ditto, fedavg = Ditto(toy_models.RICH, personal_optim=toy_models.RICH), FedAvg(toy_models.RICH)
    a = b = fedavg.init_server(toy_models.task(c.model), key(0))
    state = method_calls.init_client(ditto, c, key(0))
    for r in range(2):
        up, state = toy_models.participate(ditto, a, state, c, key(r))
        plain, _ = toy_models.participate(fedavg, b, Nothing(), c, key(r))
        a, b = (
            toy_models.aggregate(m, s, [u], toy_models.task(c.model))
            for m, s, u in ((ditto, a, up), (fedavg, b, plain))
        )
    toy_models.assert_same(a, b)


def test_fixed_point() -> None:
    """(v - 2)^2 / 2 + lam/2 (v - w)^2 with w = 0 and lam = 1 is least where (v - 2) + v = 0: v = 1."""
    pull = Proximal(Ditto().lam).bind({}, {"v": torch.zeros(1)}, toy_models.random_client(4, 0, toy_models.mlp()))

    def loss(p: Params, b: Batch) -> Tensor:
        return (p["v"] - 2).square().sum() / 2 + pull(toy_models.at(p))

    v = toy_models.PLAIN.run(loss, {"v": torch.zeros(1)}, [toy_models.batch([[0.0]], [0])] * 200)
    assert float(v["v"]) == pytest.approx(1.0)


def test_the_centre_is_what_was_received() -> None:
    """One full-batch step from v: v - 0.1 (grad CE(v) + lam (v - w)), w being the download, not the upload."""
    c = toy_models.random_client(6, 1, toy_models.mlp())
    ditto = Ditto(toy_models.RICH, lam=3.0, personal_optim=toy_models.PLAIN)
    down = Global(c.model.init(), {})
    v = {name: w + 0.3 for name, w in down.params.items()}
    up, state = toy_models.participate(ditto, down, State(v), c, key(1))
    grads, _ = gradient(objective(c.model), v, toy_models.batch(c.x, c.y))
    for name, w in down.params.items():
        torch.testing.assert_close(state.params[name], v[name] - 0.1 * (grads[name] + 3.0 * (v[name] - w)))
        assert not torch.equal(up.params[name], w)


def test_lam_zero_is_local_training() -> None:
    c = toy_models.random_client(9, 1, toy_models.mlp())
    ditto, local = Ditto(toy_models.PLAIN, lam=0.0, personal_optim=toy_models.RICH), Local(toy_models.RICH)
    a, b = method_calls.init_client(ditto, c, key(0)), method_calls.init_client(local, c, key(0))
    down = ditto.init_server(toy_models.task(c.model), key(0))
    for r in range(2):
        a = toy_models.participate(ditto, down, a, c, key(r))[1]
        b = toy_models.participate(local, Nothing(), b, c, key(r))[1]
    toy_models.assert_same(a, b)
    assert "Local" in str(ditto.reduces_to())
    assert Ditto().reduces_to() is None


def test_the_personal_model_predicts() -> None:
    c = toy_models.random_client(9, 1, toy_models.mlp())
    ditto, state = Ditto(toy_models.RICH), State(toy_models.mlp(seed=5).init())
    down = ditto.init_server(toy_models.task(c.model), key(0))
    assert torch.equal(method_calls.personal_predictor(ditto, down, None, state, c)(c.x), c.model(state.params, c.x))


def test_negative_lam_is_refused() -> None:
    with pytest.raises(AtollError, match="lam is -1"):
        Ditto(lam=-1.0)


def test_vmap_equals_loop() -> None:
    toy_models.check_vmap(Ditto(toy_models.RICH, personal_optim=toy_models.RICH), toy_models.mlp())
