"""Per-FedAvg: a model that is good after one step, with the Hessian or without, adapted on training rows only."""

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
from atoll.core.params import add, sub, weights
from atoll.core.payloads import Nothing, Params, equal
from atoll.core.prng import fold, key
from atoll.core.regularisers import Regularisers
from atoll.core.task import Round
from atoll.core.vmap import functional_gradients
from atoll.errors import AtollError
from atoll.methods.fedavg import FedAvg, Global
from atoll.methods.feddw import DW
from atoll.methods.perfedavg import PerFedAvg

CLIENT = toy_models.random_client(9, 1, toy_models.mlp())
FORMS = pytest.mark.parametrize("hf", [False, True])


def method(**settings: Any) -> PerFedAvg:
    return PerFedAvg(**{"optim": toy_models.RICH} | settings)


def down() -> Global:
    return Global(CLIENT.model.init(), {})


def with_statistics() -> Any:
    net = toy_models.Net(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), nn.Linear(4, 3))
    return toy_models.random_client(8, 1, Model(toy_models.filled(net), "bn"))


# -- the meta step ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("functional", [False, True])
@pytest.mark.parametrize(("hf", "expected"), [(False, 0.55), (True, 0.595)])
def test_one_step_on_a_parabola(hf: bool, expected: float, functional: bool) -> None:
    """f = w^2 / 2 from w = 1, alpha = 0.1, beta = 0.5: v = 0.9 with slope 0.9. First order: 1 - 0.5 * 0.9 = 0.55. The
    Hessian is 1, and a difference of gradients finds it exactly: 1 - 0.5 * (1 - 0.1) * 0.9 = 0.595.
    """

    def f(p: Params, b: Batch) -> Tensor:
        return p["w"].square().sum() / 2

    b = toy_models.batch([[0.0]], [0])
    b = b._replace(extra={"others": [b, b]})
    made = method(optim=replace(toy_models.PLAIN, lr=0.5), alpha=0.1, hessian_free=hf)
    start = {"w": torch.ones(1)}
    if functional:
        with functional_gradients():
            after = made.optim.run(made.meta(f), start, [b])
    else:
        after = made.optim.run(made.meta(f), start, [b])
    assert float(after["w"]) == pytest.approx(expected, abs=1e-4)  # 1e-3 apart, single precision leaves four digits


def test_the_hessian_of_a_network() -> None:
    """(I - alpha H) g by two backward passes: the gradient of <grad f(w), g> is H g."""
    b = toy_models.batch(CLIENT.x, CLIENT.y)
    b = b._replace(extra={"others": [b, b]})
    f, w, alpha = objective(CLIENT.model), CLIENT.model.init(), 0.5
    w = {name: v.double() for name, v in w.items()}
    b = b._replace(x=b.x.double(), extra={"others": [b._replace(x=b.x.double())] * 2})
    found, _ = gradient(method(alpha=alpha, hessian_free=True, delta=1e-5).meta(f), w, b)
    g, _ = gradient(f, sub(w, gradient(f, w, b)[0], alpha), b)
    leaves = {name: v.clone().requires_grad_() for name, v in w.items()}
    slopes = torch.autograd.grad(f(leaves, b), list(leaves.values()), create_graph=True)
    along = sum((s * v).sum() for s, v in zip(slopes, g.values(), strict=True))
    product = dict(zip(w, torch.autograd.grad(along, list(leaves.values())), strict=True))
    toy_models.assert_near(found, sub(g, product, alpha), tolerance=1e-6)
    assert small_runs.gap_params(found, g) > 1e-3


def test_two_batches_drawn_apart() -> None:
    """From w: v by B, then the slope of B' at v. In the first step of two epochs of four rows of nine, by hand."""
    made = method(optim=replace(toy_models.PLAIN, batch_size=4, epochs=2), alpha=0.3)
    triples = list(made._triples(CLIENT, key(1)))
    plain = list(CLIENT.batches(key(1), 2, 4))
    assert [len(b.x) for b in triples] == [4, 4, 1] * 2
    for b, same in zip(triples, plain, strict=True):
        (other,) = b.extra["others"]
        assert torch.equal(b.x, same.x)
        assert len(other.x) == len(b.x)
    assert not any(torch.equal(b.x, b.extra["others"][0].x) for b in triples if len(b.x) > 1)
    f, w = objective(CLIENT.model), down().params
    inner, _ = gradient(f, w, triples[0].extra["others"][0])
    outer, _ = gradient(f, sub(w, inner, 0.3), triples[0])
    toy_models.assert_near(made.optim.run(made.meta(f), w, triples[:1]), sub(w, outer, 0.1))


def test_the_hessian_has_a_batch_of_its_own() -> None:
    """Three batches of four rows of nine, no two of them alike; the difference of gradients is that of the third."""
    made = method(optim=replace(toy_models.PLAIN, batch_size=4), alpha=0.3, hessian_free=True, delta=0.01)
    b = next(made._triples(CLIENT, key(1)))
    first, third = b.extra["others"]
    assert not any(torch.equal(one.x, other.x) for one, other in ((first, third), (b, first), (b, third)))
    f, w = objective(CLIENT.model), down().params
    g, _ = gradient(f, sub(w, gradient(f, w, first)[0], 0.3), b)
    ahead, behind = (gradient(f, add(w, g, step), third)[0] for step in (0.01, -0.01))
    expected = sub(g, sub(ahead, behind), 0.3 / 0.02)
    toy_models.assert_near(made.optim.run(made.meta(f), w, [b]), sub(w, expected, 0.1), tolerance=1e-5)


@FORMS
def test_without_inner_steps_it_is_fedavg(hf: bool) -> None:
    """Bit for bit, with running statistics too: those follow B' alone. The rate of optim is beta."""
    for c in (CLIENT, with_statistics()):
        start = Global(c.model.init(), {})
        for lr in (0.1, 0.02):
            optim = replace(toy_models.RICH, lr=lr)
            made = PerFedAvg(optim, alpha=0.0, hessian_free=hf)
            up, state = toy_models.participate(made, start, method_calls.init_client(made, c, key(0)), c, key(1))
            toy_models.assert_same(up, toy_models.participate(FedAvg(optim), start, Nothing(), c, key(1))[0])
            toy_models.assert_near(weights(state.params), weights(start.params), tolerance=0)
    assert "FedAvg" in str(method(alpha=0.0).reduces_to())
    assert method().reduces_to() is None


def test_a_whole_run_without_inner_steps_is_fedavg() -> None:
    assert equal(small_runs.made_with("perfedavg", alpha=0.0).server, small_runs.run("fedavg").server)


@FORMS
def test_running_statistics_move_once_in_a_step(hf: bool) -> None:
    c = with_statistics()
    made = method(optim=replace(toy_models.PLAIN, batch_size=8), alpha=0.1, hessian_free=hf)
    up, _ = made.client_update(
        Global(c.model.init(), {}), method_calls.init_client(made, c, key(0)), c, Round(0), key(1)
    )
    assert int(up.params["buffers.body.1.num_batches_tracked"]) == 1
    assert not torch.equal(up.params["buffers.body.1.running_mean"], torch.zeros(4))


@FORMS
def test_regularisers_are_part_of_the_loss(hf: bool) -> None:
    c = toy_models.random_client(9, 1, toy_models.mlp(bias=False))
    guest = method(hessian_free=hf, regularisers=Regularisers([DW(0.0)]))
    server = guest.init_server(toy_models.task(c.model), key(0))
    up, state = toy_models.participate(guest, server, method_calls.init_client(guest, c, key(0)), c, key(1))
    plain, _ = toy_models.participate(method(hessian_free=hf), Global(server.params, {}), state, c, key(1))
    toy_models.assert_near(up.params, plain.params, tolerance=0)
    strong = replace(guest, regularisers=Regularisers([DW(10.0)]))
    assert (
        small_runs.gap_params(toy_models.participate(strong, server, state, c, key(1))[0].params, plain.params) > 1e-3
    )


# -- the adapted model ------------------------------------------------------------------------------------------------


def test_the_received_model_is_adapted() -> None:
    """One batch holds all rows: w_t - alpha grad f(w_t), neither momentum nor decay, and not from the upload."""
    made = method(optim=replace(toy_models.RICH, batch_size=16), alpha=0.3)
    up, state = toy_models.participate(made, down(), method_calls.init_client(made, CLIENT, key(0)), CLIENT, key(1))
    slope, _ = gradient(objective(CLIENT.model), down().params, toy_models.batch(CLIENT.x, CLIENT.y))
    toy_models.assert_near(state.params, sub(down().params, slope, 0.3))
    assert small_runs.gap_params(state.params, up.params) > 1e-3


def test_a_few_steps() -> None:
    """Three full batches, each from where the last one ended; none at all leaves the received model."""
    f, b = objective(CLIENT.model), toy_models.batch(CLIENT.x, CLIENT.y)
    expected = down().params
    for _ in range(3):
        expected = add(expected, gradient(f, expected, b)[0], -0.3)
    whole = replace(toy_models.RICH, batch_size=16)
    for steps, wanted in ((3, expected), (0, down().params)):
        made = method(optim=whole, alpha=0.3, adapt_steps=steps)
        toy_models.assert_near(
            toy_models.participate(made, down(), method_calls.init_client(made, CLIENT, key(0)), CLIENT, key(1))[
                1
            ].params,
            wanted,
        )


def test_small_batches_differ_from_step_to_step() -> None:
    """The first step is that of the first batch of a shuffle; the second step is not."""
    made = method(optim=replace(toy_models.RICH, batch_size=2), alpha=0.3, adapt_steps=2)
    one = replace(made, adapt_steps=1)
    first, second = (
        toy_models.participate(m, down(), method_calls.init_client(m, CLIENT, key(0)), CLIENT, key(1))[1]
        for m in (one, made)
    )
    f, b = objective(CLIENT.model), next(CLIENT.batches(fold(key(1), -3), 1, 2))
    toy_models.assert_near(first.params, sub(down().params, gradient(f, down().params, b)[0], 0.3))
    assert small_runs.gap_params(sub(first.params, gradient(f, first.params, b)[0], 0.3), second.params) > 1e-4


def test_who_predicts() -> None:
    """The received model before training, the adapted one afterwards; the server judges the model as it is."""
    made = method(alpha=0.3)
    up, state = toy_models.participate(made, down(), method_calls.init_client(made, CLIENT, key(0)), CLIENT, key(1))
    assert torch.equal(
        method_calls.personal_predictor(made, down(), None, state, CLIENT)(CLIENT.x),
        CLIENT.model(down().params, CLIENT.x),
    )
    assert torch.equal(
        method_calls.personal_predictor(made, down(), up, state, CLIENT)(CLIENT.x), CLIENT.model(state.params, CLIENT.x)
    )
    assert torch.equal(
        method_calls.generic_predictor(made, down(), toy_models.task(CLIENT.model))(CLIENT.x),
        CLIENT.model(down().params, CLIENT.x),
    )


@pytest.mark.parametrize("wrong", [{"alpha": -0.1}, {"delta": 0.0}, {"adapt_steps": -1}])
def test_senseless_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(AtollError, match=f"PerFedAvg: {next(iter(wrong))} is"):
        PerFedAvg(**wrong)


@FORMS
def test_vmap_equals_loop(hf: bool) -> None:
    toy_models.check_vmap(method(alpha=0.1, hessian_free=hf, adapt_steps=4, delta=0.1), toy_models.mlp())
