"""SCD: who teaches whom, with which bins; FedAvg and Local where nobody does."""

from typing import Any

import pytest
import torch
from support import toy_models
from torch import nn

from atoll.clients import method_calls
from atoll.core.client import Client
from atoll.core.losses import objective
from atoll.core.model import Model
from atoll.core.optim.base import gradient
from atoll.core.params import add, part, sub, weights
from atoll.core.payloads import Nothing, Params, nbytes
from atoll.core.prng import key, normal
from atoll.core.regularisers import Regularisers
from atoll.core.task import Round
from atoll.errors import AtollError
from atoll.methods import _fourier
from atoll.methods._factory import make
from atoll.methods._fourier import Transform
from atoll.methods._spectrum import spectral_distance
from atoll.methods.fedavg import FedAvg, Global, Update
from atoll.methods.feddw import DW
from atoll.methods.local import Local, State
from atoll.methods.scd import SCD, _every, _near

CLIENT = toy_models.random_client(9, 1, toy_models.mlp())
TASK = toy_models.task(CLIENT.model)
NAMES = [name for name, _ in CLIENT.model.net.named_parameters()]


def scd(**settings: Any) -> SCD:
    """Return SCD with a strength at which training of a few weights at a high rate does not diverge."""
    return SCD(**{"optim": toy_models.RICH, "personal_optim": toy_models.RICH, "lam_p": 1.0} | settings)


def played(method: Any, c: Client = CLIENT, rounds: int = 2) -> tuple[Any, Any]:
    """Server and state after some rounds of one client."""
    server, state = method.init_server(toy_models.task(c.model), key(0)), method_calls.init_client(method, c, key(0))
    for r in range(rounds):
        up, state = toy_models.participate(method, method.broadcast(server, "a", TASK, r, key(0)), state, c, key(r))
        server = toy_models.aggregate(method, server, [up], TASK)
    return server, state


def moved(params: Params, by: float, seed: int = 0) -> Params:
    """The params with noise on every weight."""
    return params | {n: v + by * normal(key(seed, n), *v.shape) for n, v in weights(params).items()}


def step(params: Params, c: Client, lam: float = 0.0, of: Any = None) -> Params:
    """One full-batch step of rate 0.1 on CE + lam * of(params)."""
    grads, _ = gradient(objective(c.model), params, toy_models.batch(c.x, c.y))
    pull, _ = gradient(lambda p, b: of(p), params, toy_models.batch(c.x, c.y)) if of else (grads, {})
    return sub(params, add(grads, pull, lam if of else 0.0), 0.1)


# ------------------------------------------------------------------------------------------------- who teaches whom


def test_the_global_model_learns_the_low_bins_of_the_personal_one() -> None:
    """One full-batch step from the download: w - 0.1 (grad CE + lam_g grad D(s_tau(w) || s_tau(w_p)))."""
    method, down = scd(optim=toy_models.PLAIN, lam_g=3.0, tau=0.3, pad="exact"), Global(CLIENT.model.init(), {})
    state = State(moved(down.params, 0.3))
    up, _ = method.client_update(down, state, CLIENT, Round(0), key(1))
    of = spectral_distance(state.params, NAMES, tau=0.3, pad="exact")
    toy_models.assert_near(up.params, step(down.params, CLIENT, 3.0, of))
    assert float(spectral_distance(up.params, NAMES)(down.params)) > 0


def test_the_personal_model_learns_all_bins_of_the_global_one_just_trained() -> None:
    """One step from where it stopped: v - 0.1 (grad CE + lam_p grad D(s(v) || s(w_G,k))), not D(s(v) || s(w_G))."""
    method, down = scd(personal_optim=toy_models.PLAIN, lam_p=3.0), Global(CLIENT.model.init(), {})
    state = State(moved(down.params, 0.3))
    up, after = toy_models.participate(method, down, state, CLIENT, key(1))
    fresh, stale = (
        step(state.params, CLIENT, 3.0, spectral_distance(teacher, NAMES)) for teacher in (up.params, down.params)
    )
    toy_models.assert_near(after.params, fresh)
    assert any((after.params[name] - stale[name]).abs().max() > 1e-4 for name in NAMES)


def test_in_the_first_step_both_are_equal_and_nothing_pulls() -> None:
    """Personal models start as the global one, where a divergence is flat: the step is FedAvg's, bit for bit."""
    method = scd(optim=toy_models.PLAIN, lam_g=1e6)
    down, state = method.init_server(TASK, key(0)), method_calls.init_client(method, CLIENT, key(0))
    toy_models.assert_near(down.params, state.params, tolerance=0)
    up, _ = method.client_update(down, state, CLIENT, Round(0), key(1))
    plain, _ = FedAvg(toy_models.PLAIN).client_update(down, Nothing(), CLIENT, Round(0), key(1))
    toy_models.assert_same(up, plain)


def test_gradients_flow_to_every_tensor() -> None:
    """Spectra taken outside of autograd, as constants, would give none."""
    teacher = moved(CLIENT.model.init(), 0.1)
    (pull,) = scd()._pulls(1.0, 1.0, teacher, CLIENT, toy_models.RICH)
    grads, _ = gradient(lambda p, b: pull(toy_models.at(p)), CLIENT.model.init(), toy_models.batch(CLIENT.x, CLIENT.y))
    assert all(g.abs().sum() > 0 for g in grads.values())


def test_the_pull_acts() -> None:
    """After training, personal and global spectra are closer with the term than without."""
    teacher = moved(CLIENT.model.init(), 0.5)
    up = Update(teacher, CLIENT.n, {})
    gaps = []
    for lam in (0.0, 30.0):
        with torch.no_grad():
            after = scd(lam_p=lam).after_upload(
                Global(teacher, {}), up, State(CLIENT.model.init()), CLIENT, Round(0), key(1)
            )
        gaps.append(float(spectral_distance(teacher, NAMES)(after.params)))
    assert gaps[1] < 0.5 * gaps[0]


def test_a_phase_transforms_its_teacher_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine rows in batches of four, two epochs: six steps and one teacher."""
    calls, plain = [], Transform.__call__

    def counted(self: Transform, v: Any) -> Any:
        calls.append(len(v))
        return plain(self, v)

    monkeypatch.setattr(_fourier.Transform, "__call__", counted)
    down = scd().init_server(TASK, key(0))
    up, _ = scd().client_update(down, State(CLIENT.model.init()), CLIENT, Round(0), key(1))
    assert len(calls) == 7
    scd().after_upload(down, up, State(CLIENT.model.init()), CLIENT, Round(0), key(1))
    assert len(calls) == 14


def test_running_statistics_have_no_spectrum() -> None:
    net = toy_models.Net(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), nn.Linear(4, 3))
    c = toy_models.random_client(8, 1, Model(toy_models.filled(net), "bn"))
    down = Global(c.model.init(), {})
    other = State({n: v + 5 if n.startswith("buffers.") else v for n, v in down.params.items()})
    up, _ = scd(optim=toy_models.PLAIN, lam_g=1e6).client_update(down, other, c, Round(0), key(1))
    toy_models.assert_same(up, FedAvg(toy_models.PLAIN).client_update(down, Nothing(), c, Round(0), key(1))[0])


def test_the_order_in_which_a_state_comes_back_does_not_matter() -> None:
    """The vector follows the model, not the dictionary."""
    down = Global(CLIENT.model.init(), {})
    kept = moved(down.params, 0.3)
    up, after = toy_models.participate(scd(), down, State(kept), CLIENT, key(1))
    again, later = toy_models.participate(scd(), down, State(dict(reversed(kept.items()))), CLIENT, key(1))
    toy_models.assert_same(up, again)
    assert all(torch.equal(after.params[name], later.params[name]) for name in NAMES)


def test_both_models_predict() -> None:
    state, server = State(moved(CLIENT.model.init(), 1.0)), Global(CLIENT.model.init(), {})
    assert torch.equal(
        method_calls.personal_predictor(scd(), server, None, state, CLIENT)(CLIENT.x),
        CLIENT.model(state.params, CLIENT.x),
    )
    assert torch.equal(
        method_calls.generic_predictor(scd(), server, TASK)(CLIENT.x), CLIENT.model(server.params, CLIENT.x)
    )


def test_bytes_are_fedavgs() -> None:
    """No spectrum travels, and no personal model."""
    down = scd().init_server(TASK, key(0))
    up, _ = toy_models.participate(scd(), down, State(down.params), CLIENT, key(1))
    plain, _ = toy_models.participate(FedAvg(toy_models.RICH), down, Nothing(), CLIENT, key(1))
    assert nbytes(up) == nbytes(plain)


# --------------------------------------------------------------------------------------------------- simpler methods


@pytest.mark.parametrize("variant", ["no-gm", "no-both"])
def test_without_its_pull_the_global_model_is_fedavgs(variant: str) -> None:
    """Whatever the personal ones do."""
    server, _ = played(scd(**SCD.traits.variants[variant]))
    toy_models.assert_same(server, played(FedAvg(toy_models.RICH))[0])
    toy_models.assert_same(played(scd(lam_p=9.0, lam_g=0.0))[0], server)


@pytest.mark.parametrize("variant", ["no-pm", "no-both"])
def test_without_their_pull_personal_models_are_locals(variant: str) -> None:
    _, state = played(scd(**SCD.traits.variants[variant]))
    toy_models.assert_same(state, played(Local(toy_models.RICH))[1])


def test_with_both_pulls_it_is_neither() -> None:
    server, state = played(scd())
    assert not torch.equal(server.params["head.weight"], played(FedAvg(toy_models.RICH))[0].params["head.weight"])
    assert not torch.equal(state.params["head.weight"], played(Local(toy_models.RICH))[1].params["head.weight"])


def test_it_says_what_it_has_become() -> None:
    assert SCD().reduces_to() is None
    assert "FedAvg" in str(SCD(lam_g=0.0).reduces_to())
    assert "Local" in str(SCD(lam_p=0.0).reduces_to())
    assert SCD(lam_p=0.0, prox_beta=1.0).reduces_to() is None
    both = make("scd:no-both").reduces_to()
    assert both is not None
    assert "FedAvg" in both
    assert "Local" in both


def test_a_dw_term_of_weight_zero_changes_nothing() -> None:
    c = toy_models.random_client(9, 1, toy_models.mlp(bias=False))
    (host, own), (guest, other) = played(scd(), c), played(scd(regularisers=Regularisers([DW(0.0)])), c)
    toy_models.assert_near(host.params, guest.params, tolerance=0)
    toy_models.assert_same(own, other)
    assert guest.extra.keys() == {"DW.omega"}


# ----------------------------------------------------------------------------------------------------------- options


def test_pulling_now_and_then() -> None:
    """Nine rows in batches of two are five steps: with r = 2 those at 0, 2 and 4 pull, 5/3 as strong: 5 in an epoch, as
    with r = 1. In batches of nine there is one step, which pulls as it would, whatever r is.
    """
    term = _every(2, lambda s: torch.ones(()), CLIENT, 2)
    seen = [float(term(toy_models.at({}))) for _ in range(10)]
    assert seen == pytest.approx([5 / 3, 0, 5 / 3, 0, 5 / 3] * 2)
    assert float(_every(10, lambda s: torch.ones(()), CLIENT, 9)(toy_models.at({}))) == 1


def test_pulling_in_every_second_step_of_an_even_number_is_twice_as_strong() -> None:
    method, down = scd(optim=toy_models.PLAIN, reg_every=7, lam_g=3.0), Global(CLIENT.model.init(), {})
    state = State(moved(down.params, 0.3))
    once = scd(optim=toy_models.PLAIN, lam_g=3.0).client_update(down, state, CLIENT, Round(0), key(1))[0]
    toy_models.assert_same(method.client_update(down, state, CLIENT, Round(0), key(1))[0], once)  # one step: the first
    assert (
        float(
            _every(2, lambda s: torch.ones(()), toy_models.random_client(8, 1, toy_models.mlp()), 2)(toy_models.at({}))
        )
        == 2
    )


def test_distance_of_weights() -> None:
    """beta ||w - anchor||: 2 * sqrt(9 + 16) = 10, slope 2 * (0.6, 0.8), and 0 where both are equal."""
    near = _near({"w": torch.zeros(2), "buffers.m": torch.zeros(1)}, 2.0)
    w = {"w": torch.tensor([3.0, 4.0]), "buffers.m": torch.ones(1)}
    assert float(near(toy_models.at(w))) == pytest.approx(10)
    for at, expected in ((w, [1.2, 1.6]), ({"w": torch.zeros(2)}, [0.0, 0.0])):
        grads, _ = gradient(lambda p, b: near(toy_models.at(p)), at, toy_models.batch([[0.0]], [0]))
        assert grads["w"].tolist() == pytest.approx(expected)


def test_the_distance_is_from_the_download_and_moves_personal_models_only() -> None:
    down, state = Global(CLIENT.model.init(), {}), State(moved(CLIENT.model.init(), 0.3))
    bare, near = (scd(personal_optim=toy_models.PLAIN, lam_p=0.0, prox_beta=beta) for beta in (0.0, 2.0))
    (up, after), (same, drawn) = (toy_models.participate(m, down, state, CLIENT, key(1)) for m in (bare, near))
    toy_models.assert_same(up, same)
    gap = sub(state.params, down.params)
    norm = sum(float(v.square().sum()) for v in gap.values()) ** 0.5
    toy_models.assert_near(drawn.params, sub(after.params, gap, 0.1 * 2.0 / norm))


def test_a_new_client_tunes_the_global_model() -> None:
    """Two epochs of plain training from it, on the client's rows."""
    server, new_client = Global(moved(CLIENT.model.init(), 0.2), {}), toy_models.random_client(6, 5, toy_models.mlp())
    with torch.no_grad():
        state = scd(adapt_epochs=2).adapt(server, new_client, key(3))
        expected = toy_models.RICH.fit(objective(new_client.model), server.params, new_client, key(3))
        same = scd(adapt_epochs=0).adapt(server, new_client, key(3))
    toy_models.assert_same(state, State(expected))
    toy_models.assert_same(same, State(server.params))
    before, after = (
        float(nn.functional.cross_entropy(new_client.model(p, new_client.x), new_client.y))
        for p in (server.params, state.params)
    )
    assert after < before


@pytest.mark.parametrize(
    "wrong",
    [
        {"lam_g": -1.0}, {"lam_p": -1.0}, {"tau": 0.0}, {"tau": 1.1}, {"div": "kl"}, {"scope": "x"}, {"pad": "x"},
        {"reg_every": 0}, {"prox_beta": -1.0}, {"adapt_epochs": -1},
    ],
)  # fmt: skip
def test_senseless_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(AtollError, match=f"SCD: {next(iter(wrong))} is"):
        SCD(**wrong)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        # A weak term of the shared part: at its default strength, steps magnify the last bits of this divergence.
        {"div": "gen_kl", "scope": "layer", "reg_every": 2, "prox_beta": 0.1, "lam_g": 0.01},
        {"div": "raw", "pad": "exact", "tau": 0.8, "lam_g": 0.01, "lam_p": 0.01},
    ],
)
def test_vmap_equals_loop(settings: dict[str, Any]) -> None:
    toy_models.check_vmap(scd(**settings), toy_models.mlp())


def test_heads_alone_have_a_spectrum_too() -> None:
    """A model whose body has no weights."""
    c = toy_models.client([[1.0, 0.0], [0.0, 1.0]], [0, 1], toy_models.identity_body(weight=torch.eye(2)))
    _, state = played(scd(), c)
    assert part(state.params, "head").keys() == {"head.weight", "head.bias"}
    assert all(torch.isfinite(v).all() for v in state.params.values())
