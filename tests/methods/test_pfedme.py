"""pFedMe: personal models near a moving centre, and a centre that follows them."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from support import small_runs, toy_models
from torch import Tensor, nn

from atoll.clients import method_calls
from atoll.core.batch import Batch
from atoll.core.losses import objective
from atoll.core.model import Model
from atoll.core.optim.base import gradient
from atoll.core.params import BUFFERS, sub
from atoll.core.payloads import Params, nbytes
from atoll.core.prng import key
from atoll.core.regularisers import Regularisers
from atoll.core.vmap import functional_gradients
from atoll.errors import AtollError
from atoll.methods.fedavg import Global, Update
from atoll.methods.feddw import DW
from atoll.methods.local import State
from atoll.methods.pfedme import THETA, PFedMe

CLIENT = toy_models.random_client(9, 1, toy_models.mlp())
TASK = toy_models.task(CLIENT.model)


def pfedme(**settings: Any) -> PFedMe:
    return PFedMe(**{"optim": toy_models.RICH, "personal_optim": toy_models.PLAIN, "lam": 3.0} | settings)


def down(c: Any = CLIENT) -> Global:
    return Global(c.model.init(), {})


def played(method: PFedMe, c: Any = CLIENT, k: int = 1) -> tuple[Update, State]:
    return toy_models.participate(method, down(c), method_calls.init_client(method, c, key(0)), c, key(k))


def parabola(p: Params, b: Batch) -> Tensor:
    return (p["w"] - 2).square().sum() / 2


# -- by hand ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("functional", [False, True])
def test_five_steps_of_theta_and_one_of_w(functional: bool) -> None:
    """f = (w - 2)^2 / 2, w = 0, lam = 1, eta_p = 0.1: theta <- theta - 0.1 (theta - 2 + theta) = 0.8 theta + 0.2, which
    is 1 - 0.8^5 = 0.67232 after five steps. With eta = 0.1, w <- 0 - 0.1 (0 - 0.67232) = 0.067232.
    """
    made = pfedme(optim=toy_models.PLAIN, lam=1.0)
    start = {"w": torch.zeros(1), THETA + "w": torch.zeros(1)}
    if functional:
        with functional_gradients():
            after = made.optim.run(made.envelope(parabola), start, [toy_models.batch([[0.0]], [0])])
    else:
        after = made.optim.run(made.envelope(parabola), start, [toy_models.batch([[0.0]], [0])])
    assert float(after[THETA + "w"]) == pytest.approx(0.67232)
    assert float(after["w"]) == pytest.approx(0.067232)


def test_many_steps_find_the_minimum_of_both() -> None:
    """(theta - 2) + (theta - 0) = 0: theta = 1."""
    made = pfedme(optim=toy_models.PLAIN, lam=1.0, steps=200)
    start = {"w": torch.zeros(1), THETA + "w": torch.zeros(1)}
    after = made.optim.run(made.envelope(parabola), start, [toy_models.batch([[0.0]], [0])])
    assert float(after[THETA + "w"]) == pytest.approx(1.0)


def test_theta_goes_on_from_batch_to_batch() -> None:
    """The second batch starts from 0.67232, with centre 0.067232: theta <- 0.8 theta + 0.2 + 0.1 * 0.067232, whose
    fixed point is 1.033616: 1.033616 + 0.8^5 (0.67232 - 1.033616) = 0.915227. From w it would reach 0.717.
    """
    made = pfedme(optim=toy_models.PLAIN, lam=1.0)
    start = {"w": torch.zeros(1), THETA + "w": torch.zeros(1)}
    after = made.optim.run(made.envelope(parabola), start, [toy_models.batch([[0.0]], [0])] * 2)
    assert float(after[THETA + "w"]) == pytest.approx(0.915227, abs=1e-6)
    assert float(after["w"]) == pytest.approx(0.067232 + 0.1 * (0.915227 - 0.067232), abs=1e-6)


def test_decay_is_of_theta() -> None:
    """One step from 1 with decay 0.5: 1 - 0.1 ((1 - 2) + 0.5) = 1.05; the centre is at 1 as well."""
    made = pfedme(optim=toy_models.PLAIN, lam=1.0, steps=1, personal_optim=replace(toy_models.PLAIN, weight_decay=0.5))
    start = {"w": torch.ones(1), THETA + "w": torch.ones(1)}
    after = made.optim.run(made.envelope(parabola), start, [toy_models.batch([[0.0]], [0])])
    assert float(after[THETA + "w"]) == pytest.approx(1.05)


def test_one_round_of_a_network() -> None:
    """Nine rows in batches of four, two epochs, the loops as the paper writes them."""
    outer = replace(toy_models.PLAIN, lr=0.05, batch_size=4, epochs=2)
    up, state = played(pfedme(optim=outer, steps=3))
    f, w = objective(CLIENT.model), down().params
    theta = w
    for b in CLIENT.batches(key(1), 2, 4):
        for _ in range(3):
            slope, _ = gradient(f, theta, b)
            theta = {n: v - 0.1 * (slope[n] + 3.0 * (v - w[n])) for n, v in theta.items()}
        w = {n: v - 0.05 * 3.0 * (v - theta[n]) for n, v in w.items()}
    toy_models.assert_near(up.params, w)
    toy_models.assert_near(state.params, theta)


def test_a_round_starts_from_the_received_model() -> None:
    """What theta was in the last round does not count."""
    other = State(toy_models.mlp(seed=7).init())
    up, state = toy_models.participate(pfedme(), down(), other, CLIENT, key(1))
    same, again = played(pfedme())
    toy_models.assert_same(up, same)
    toy_models.assert_same(state, again)


# -- the server -------------------------------------------------------------------------------------------------------


def test_the_server_mixes() -> None:
    """Models 0 and 4 with 3 rows and 1: average 1. From 10, beta = 1 gives 1, 0.5 gives 5.5, 2 gives -8. Running
    statistics are averaged and not mixed: with beta = 2 a variance could become negative.
    """
    server = Global({"w": torch.tensor([10.0]), BUFFERS + "v": torch.tensor([10.0])}, {})
    ups = [
        Update({"w": torch.tensor([x]), BUFFERS + "v": torch.tensor([x])}, torch.tensor(n), {})
        for x, n in ((0.0, 3.0), (4.0, 1.0))
    ]
    for beta, expected in ((1.0, 1.0), (0.5, 5.5), (2.0, -8.0), (0.0, 10.0)):
        after = toy_models.aggregate(pfedme(beta=beta), server, ups, TASK)
        assert after.params["w"].tolist() == [expected]
        assert after.params[BUFFERS + "v"].tolist() == [1.0]
        assert list(after.params) == list(server.params)


def test_bytes_are_fedavgs() -> None:
    """theta stays at home."""
    up, _ = played(pfedme())
    assert up.params.keys() == down().params.keys()
    assert nbytes(up) == nbytes(down()) + 4


# -- models with running statistics -----------------------------------------------------------------------------------


def test_running_statistics_are_those_of_theta_and_are_not_pulled() -> None:
    """Two batches of four, three steps each: six updates; w takes over what theta saw."""
    net = toy_models.Net(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), nn.Linear(4, 3))
    c = toy_models.random_client(8, 1, Model(toy_models.filled(net), "bn"))
    up, state = played(pfedme(optim=replace(toy_models.PLAIN, batch_size=4), steps=3), c)
    kept = [n for n in up.params if n.startswith(BUFFERS)]
    assert int(up.params["buffers.body.1.num_batches_tracked"]) == 6
    assert all(torch.equal(up.params[n], state.params[n]) for n in kept)
    assert not torch.equal(up.params["buffers.body.1.running_mean"], torch.zeros(4))
    assert up.params.keys() == state.params.keys() == c.model.init().keys()


# -- who predicts, and the rest ---------------------------------------------------------------------------------------


def test_theta_predicts_and_not_w() -> None:
    method = pfedme()
    up, state = played(method)
    for sent in (None, up):
        assert torch.equal(
            method_calls.personal_predictor(method, down(), sent, state, CLIENT)(CLIENT.x),
            CLIENT.model(state.params, CLIENT.x),
        )
    assert torch.equal(
        method_calls.generic_predictor(method, down(), TASK)(CLIENT.x), CLIENT.model(down().params, CLIENT.x)
    )
    assert small_runs.gap_params(state.params, up.params) > 1e-3


def test_a_stronger_pull_keeps_theta_closer_to_w() -> None:
    gaps = []
    for lam in (0.5, 8.0):
        up, state = played(pfedme(lam=lam, optim=replace(toy_models.PLAIN, batch_size=4)))
        gaps.append(small_runs.gap_params(state.params, up.params))
    assert gaps[1] < 0.5 * gaps[0]


def test_without_pull_nothing_is_learned_together() -> None:
    up, _ = played(pfedme(lam=0.0, optim=toy_models.PLAIN))
    toy_models.assert_near(up.params, down().params, tolerance=0)
    slope, _ = gradient(objective(CLIENT.model), down().params, toy_models.batch(CLIENT.x, CLIENT.y))
    once = played(pfedme(lam=0.0, optim=toy_models.PLAIN, steps=1))[1]
    toy_models.assert_near(once.params, sub(down().params, slope, 0.1))
    assert "never moves" in str(pfedme(lam=0.0).reduces_to())
    assert "never moves" in str(pfedme(beta=0.0).reduces_to())
    assert PFedMe().reduces_to() is None


def test_regularisers_are_part_of_f() -> None:
    c = toy_models.random_client(9, 1, toy_models.mlp(bias=False))
    guest = pfedme(regularisers=Regularisers([DW(0.0)]))
    server = guest.init_server(toy_models.task(c.model), key(0))
    up, state = toy_models.participate(guest, server, method_calls.init_client(guest, c, key(0)), c, key(1))
    plain, other = played(pfedme(), c)
    toy_models.assert_near(up.params, plain.params, tolerance=0)
    toy_models.assert_same(state, other)
    strong = replace(guest, regularisers=Regularisers([DW(10.0)]))
    assert (
        small_runs.gap_params(toy_models.participate(strong, server, state, c, key(1))[1].params, other.params) > 1e-3
    )


@pytest.mark.parametrize("wrong", [{"lam": -1.0}, {"beta": -1.0}, {"steps": 0}])
def test_senseless_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(AtollError, match=f"PFedMe: {next(iter(wrong))} is"):
        PFedMe(**wrong)


@pytest.mark.parametrize("inner", [toy_models.PLAIN, toy_models.RICH])
def test_vmap_equals_loop(inner: Any) -> None:
    toy_models.check_vmap(pfedme(personal_optim=inner), toy_models.mlp())
