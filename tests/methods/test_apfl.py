"""APFL: a step of all three by hand, alpha at its bounds, FedAvg's global model, and running statistics."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from support import quadratics, small_runs, toy_models
from support.quadratics import w
from torch import nn

from atoll.clients import method_calls
from atoll.core.model import Model
from atoll.core.payloads import equal
from atoll.core.prng import key
from atoll.errors import AtollError
from atoll.methods.apfl import ALPHA, APFL, OWN, State, _Three, mix
from atoll.methods.fedavg import Global

HALF = replace(toy_models.PLAIN, lr=0.5)  # one full-batch step


@pytest.fixture
def quadratic_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    quadratics.install(monkeypatch)


def one(value: float) -> dict[str, torch.Tensor]:
    return {quadratics.W: torch.tensor([[value]])}


def step(**settings: Any) -> tuple[Any, Any]:
    """(w - 2)^2 / 2 from w = 0, v = 1, alpha = 0.5."""
    method = APFL(HALF, **settings)
    state = State(one(1.0), torch.tensor(0.5))
    return toy_models.participate(method, Global(one(0.0), {}), state, quadratics.client(2.0), key(0))


@pytest.mark.usefixtures("quadratic_losses")
def test_step_by_hand() -> None:
    """grad f(w) = -2: w = 1. u = 0.5, grad f(u) = -1.5: v = 1 + 0.5 * 0.5 * 1.5 = 1.375;
    alpha = 0.5 + 0.1 * (1 - 0) * 1.5 = 0.65. Prediction: 0.65 * 1.375 + 0.35 * 1 = 1.24375.
    """
    up, state = step(alpha_lr=0.1)
    assert w(up.params) == 1.0
    assert w(state.params) == pytest.approx(1.375)
    assert float(state.alpha) == pytest.approx(0.65)
    personal = APFL().personal_params(Global(one(0.0), {}), up, state, quadratics.client(2.0))
    assert w(personal) == pytest.approx(1.24375)
    before = APFL().personal_params(Global(one(0.0), {}), None, state, quadratics.client(2.0))
    assert w(before) == pytest.approx(0.65 * 1.375)


@pytest.mark.usefixtures("quadratic_losses")
def test_alpha_is_cut_to_the_unit_interval() -> None:
    """0.5 + 1 * 1.5 = 2 is cut to 1; from v = -1 the product is -1 * -2.5: 0.5 - 2.5 is cut to 0."""
    assert float(step(alpha_lr=1.0)[1].alpha) == 1.0
    down, low = Global(one(0.0), {}), State(one(-1.0), torch.tensor(0.5))
    _, state = toy_models.participate(APFL(HALF, alpha_lr=1.0), down, low, quadratics.client(2.0), key(0))
    assert float(state.alpha) == 0.0


@pytest.mark.usefixtures("quadratic_losses")
def test_constant_alpha_stays() -> None:
    up, state = step(adaptive=False)
    assert float(state.alpha) == 0.5
    assert (w(up.params), w(state.params)) == (1.0, pytest.approx(1.375))


def test_gradients_of_the_two_models_are_clipped_apart() -> None:
    """The gradient of w is (3, 4) of norm 5, clipped to 1, whatever that of v."""
    clipped = _Three(each=replace(HALF, clip=1.0))._clipped(
        {"a": torch.tensor([3.0, 4.0]), OWN + "a": torch.tensor([0.3, 0.4]), ALPHA: torch.tensor(7.0)}
    )
    assert clipped["a"].tolist() == pytest.approx([0.6, 0.8], abs=1e-5)
    assert clipped[OWN + "a"].tolist() == pytest.approx([0.3, 0.4])
    assert float(clipped[ALPHA]) == 7.0


def test_global_model_is_fedavgs() -> None:
    assert equal(small_runs.run("apfl").server, small_runs.run("fedavg").server)


def test_regularisers_act_on_the_global_model() -> None:
    pulled = small_runs.run("apfl", terms=("proximal:mu=10",))
    assert small_runs.gap_params(pulled.server.params, small_runs.run("apfl").server.params) > 1e-3


def test_running_statistics_of_the_mixture_belong_to_the_personal_model() -> None:
    body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    model = Model(toy_models.filled(toy_models.Net(body, nn.Linear(4, 3))), "bn")
    c, method = toy_models.random_client(8, 1, model), APFL(toy_models.RICH)
    down = method.init_server(toy_models.task(model), key(0))

    up, state = toy_models.participate(method, down, method_calls.init_client(method, c, key(0)), c, key(1))

    name = "buffers.body.1.running_mean"
    assert up.params.keys() == state.params.keys() == model.init().keys()
    assert not torch.equal(up.params[name], state.params[name])
    assert torch.equal(mix(up.params, state.params, state.alpha)[name], state.params[name])


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"alpha": 1.5}, "alpha is 1.5, but it must be from 0 to 1"), ({"alpha_lr": -1.0}, "alpha_lr is -1")],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(AtollError, match=said):
        APFL(**settings)


def test_constant_alpha_of_zero_or_one_is_told() -> None:
    assert APFL(alpha=0.0, adaptive=False).reduces_to() == "With a constant alpha of 0 clients predict by w alone."
    assert APFL(alpha=1.0, adaptive=False).reduces_to() == "With a constant alpha of 1 clients predict by v alone."
    assert APFL(alpha=1.0).reduces_to() is None


def test_vmap_equals_loop() -> None:
    toy_models.check_vmap(APFL(toy_models.RICH), toy_models.mlp())
