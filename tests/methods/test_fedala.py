"""FedALA: shares by hand, when and for how long they are learned, and what training starts from."""

from dataclasses import replace

import pytest
import torch
from support import toy_models
from support.small_runs import made_with, run
from torch import Tensor, nn

from atoll.clients import method_calls
from atoll.core.batch import Batch
from atoll.core.client import Client
from atoll.core.losses import cross_entropy
from atoll.core.model import Model
from atoll.core.params import part, weights
from atoll.core.payloads import Nothing, Params, equal
from atoll.core.prng import key
from atoll.errors import AtollError
from atoll.methods.fedala import FedALA, State, mix, run_pass
from atoll.methods.fedavg import FedAvg, Global

IDLE = replace(toy_models.PLAIN, epochs=0)  # what is sent is what training starts from


def normed(seed: int) -> Model:
    """Running statistics differ from seed to seed."""
    norm = nn.BatchNorm1d(4)
    norm.register_buffer("running_mean", torch.full((4,), 0.1 * seed))
    body = nn.Sequential(nn.Linear(3, 4), norm, nn.ReLU())
    return Model(toy_models.filled(toy_models.Net(body, nn.Linear(4, 3)), seed), "normed")


def same(a: Params, b: Params) -> bool:
    return list(a) == list(b) and all(torch.equal(v, b[name]) for name, v in a.items())


def shares(params: Params, value: float = 1.0, scope: str = "head") -> Params:
    return {name: torch.full_like(v, value) for name, v in weights(part(params, scope)).items()}


def meeting(times: int, value: float = 1.0) -> tuple[Client, Global, State]:
    """A client whose model is not the server's, and how often it took part."""
    c, old = toy_models.random_client(6, 1, toy_models.mlp()), toy_models.mlp(seed=5).init()
    return c, Global(c.model.init(), {}), State(old, shares(old, value), torch.tensor(times))


def by_hand(c: Client, down: Global, state: State, passes: int) -> Params:
    """Full-batch steps W - grad_W CE of the mix, back into [0, 1]; the gradient is that of the mix times the gap."""
    w = state.w
    for _ in range(passes):
        at = {n: v.requires_grad_() for n, v in part(mix(state.params, down.params, w), "head").items()}
        value = cross_entropy(c.model(down.params | at, c.x), toy_models.batch(c.x, c.y))
        slopes = dict(zip(at, torch.autograd.grad(value, list(at.values())), strict=True))
        w = {n: (v - slopes[n] * (down.params[n] - state.params[n])).clamp(0, 1) for n, v in w.items()}
    return w


# -- shares -----------------------------------------------------------------------------------------------------------


def parabola(w: Params, b: Batch) -> Tensor:
    """(t - 0.5)^2 / 2 at the mix t of the old 0 and the new 2."""
    t = mix({"t": torch.zeros(1)}, {"t": torch.full((1,), 2.0)}, w)["t"]
    return (t - 0.5).square().sum() / 2


def test_shares_by_hand() -> None:
    """Old 0, new 2, rate 0.1. W = 1: the mix is 2, its slope 1.5, times the gap 2 is 3: W = 1 - 0.3 = 0.7, mix 1.4.
    Slope 0.9 times 2 is 1.8: W = 0.52, mix 1.04. The least loss is at mix 0.5: W = 0.25.
    """
    step = [toy_models.batch([[0.0]], [0])]
    w = {"t": torch.ones(1)}
    for share, value in ((0.7, 1.4), (0.52, 1.04)):
        w = run_pass(parabola, w, step, 0.1)
        assert float(w["t"]) == pytest.approx(share)
        assert float(mix({"t": torch.zeros(1)}, {"t": torch.full((1,), 2.0)}, w)["t"]) == pytest.approx(value)
    assert float(run_pass(parabola, w, step * 60, 0.1)["t"]) == pytest.approx(0.25)


def test_shares_stay_from_0_to_1() -> None:
    """At rate 1 the first step would go to 1 - 3 = -2: 0. There the slope is -0.5 * 2, and the next goes to 1."""
    step = [toy_models.batch([[0.0]], [0])]
    down = run_pass(parabola, {"t": torch.ones(1)}, step, 1.0)
    assert down["t"].tolist() == [0.0]
    assert run_pass(parabola, down, step, 4.0)["t"].tolist() == [1.0]


def test_the_ends_are_exact() -> None:
    """W = 1 is the new model and W = 0 the old one, to the last bit, where there are shares; elsewhere the new one."""
    old, new = normed(1).init(), normed(2).init()
    assert same(mix(old, new, shares(old, 1.0)), new)
    assert same(mix(old, new, shares(old, 0.0)), new | part(old, "head"))
    assert same(mix(old, new, shares(old, 0.0) | shares(old, 0.0, "body")), new | weights(old))


# -- when and for how long --------------------------------------------------------------------------------------------


def test_the_first_time_is_fedavg() -> None:
    c, down, state = meeting(times=0)
    up, after = toy_models.participate(FedALA(toy_models.RICH), down, state, c, key(1))
    plain, _ = toy_models.participate(FedAvg(toy_models.RICH), down, Nothing(), c, key(1))
    toy_models.assert_same(up, plain)
    assert same(after.w, state.w)
    assert int(after.times) == 1


@pytest.mark.parametrize(
    ("times", "passes", "method"),
    [
        (1, 3, FedALA(IDLE, sample=1.0, window=3, still=1e9)),  # still as soon as there are three losses
        (1, 4, FedALA(IDLE, sample=1.0, window=3, still=0.0, most_passes=4)),  # never still
        (1, 2, FedALA(IDLE, sample=1.0, most_passes=2)),
        (2, 1, FedALA(IDLE, sample=1.0, window=3, still=0.0)),
    ],
)
def test_how_long_shares_are_learned(times: int, passes: int, method: FedALA) -> None:
    """The second time until the loss stands still, later in one pass; training starts from the mix."""
    c, down, state = meeting(times, value=0.9)
    up, after = toy_models.participate(method, down, state, c, key(1))
    expected = by_hand(c, down, state, passes)
    toy_models.assert_near(after.w, expected)
    assert not torch.allclose(after.w["head.weight"], by_hand(c, down, state, passes + 1)["head.weight"])
    toy_models.assert_near(up.params, mix(state.params, down.params, expected))
    assert int(after.times) == 2


def test_learning_stops_where_losses_are_close() -> None:
    """Losses of a window spread less than the bound: it stops there, and not a pass earlier."""
    c, down, state = meeting(times=1)

    def spread(passes: int, window: int = 3) -> float:
        each = [by_hand(c, down, state, n) for n in range(passes - window + 1, passes + 1)]
        losses = [
            cross_entropy(c.model(mix(state.params, down.params, w), c.x), toy_models.batch(c.x, c.y)) for w in each
        ]
        return float(torch.stack(losses).std(correction=0))

    spreads = [spread(n) for n in (3, 4, 5)]
    assert spreads[0] > spreads[1] > spreads[2] > 0
    method = FedALA(IDLE, sample=1.0, window=3, still=(spreads[1] + spreads[2]) / 2)
    _, after = toy_models.participate(method, down, state, c, key(1))
    toy_models.assert_near(after.w, by_hand(c, down, state, 5))


def test_rows_are_a_share_of_the_clients_own() -> None:
    """ceil(0.4 * 6) = 3 rows of 6, without repetition, padding or not; other rows with another key."""
    c, down, state = meeting(times=1)
    method, seen = FedALA(sample=0.4, scope="all"), []
    for client, k in ((c, 1), (toy_models.padded(c, 11), 1), (c, 2), (c, 3)):
        _, rows = method._shares_loss(down, state, client, key(k))
        drawn = rows.x[rows.w > 0]
        assert len(drawn) == 3
        seen.append({tuple(x) for x in drawn.tolist()})
        assert len(seen[-1]) == 3
        assert seen[-1] <= {tuple(x) for x in c.x.tolist()}
    assert seen[0] == seen[1]
    assert seen[2] != seen[0] or seen[3] != seen[0]


# -- what training starts from ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 2])
def test_shares_of_one_start_from_the_global_model_and_of_zero_from_the_own_head(times: int) -> None:
    for value in (1.0, 0.0):
        c, down, state = meeting(times, value)
        method = FedALA(toy_models.RICH, eta=0.0)  # shares as they are
        up, after = toy_models.participate(method, down, state, c, key(1))
        start = down.params if value else down.params | part(state.params, "head")
        plain, _ = toy_models.participate(FedAvg(toy_models.RICH), Global(start, {}), Nothing(), c, key(1))
        toy_models.assert_same(up, plain)
        assert same(after.params, up.params)
        assert same(method.personal_params(down, None, state, c), start)
        assert same(method.personal_params(down, up, after, c), up.params)


def test_running_statistics_are_the_global_ones() -> None:
    """Learning shares neither reads the client's nor moves any: features come from the received body as it predicts."""
    c, old = toy_models.random_client(6, 1, normed(1)), normed(2).init()
    down = Global(c.model.init(), {})
    state = State(old, shares(old, 0.9), torch.tensor(2))
    up, after = toy_models.participate(FedALA(IDLE, sample=1.0), down, state, c, key(1))
    assert same(part(up.params, "body"), part(down.params, "body"))
    toy_models.assert_near(after.w, by_hand(c, down, state, 1))


def test_all_weights_can_be_mixed() -> None:
    c, old = toy_models.random_client(6, 1, normed(1)), normed(2).init()
    method = FedALA(IDLE, scope="all")
    down, fresh = Global(c.model.init(), {}), method_calls.init_client(method, c, key(0))
    assert fresh.w.keys() == weights(old).keys()
    up, after = toy_models.participate(method, down, State(old, fresh.w, torch.tensor(1)), c, key(1))
    assert all(bool((v < 1).any()) for v in after.w.values())
    assert same(weights(up.params), weights(mix(old, down.params, after.w)))
    assert torch.equal(up.params["buffers.body.1.running_mean"], down.params["buffers.body.1.running_mean"])


def test_rate_zero_is_fedavg() -> None:
    assert equal(made_with("fedala", eta=0.0).server, run("fedavg").server)
    assert not equal(run("fedala").server, run("fedavg").server)
    assert "FedAvg" in str(FedALA(eta=0.0).reduces_to())
    assert FedALA().reduces_to() is None


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"eta": -1.0}, "eta is -1"),
        ({"still": -0.1}, "still is -0.1"),
        ({"sample": 0.0}, "sample is 0"),
        ({"sample": 1.5}, "sample is 1.5"),
        ({"window": 0}, "window is 0"),
        ({"most_passes": 0}, "most_passes is 0"),
        ({"scope": "body"}, "scope is 'body', but it must be one of head, all"),
    ],
)
def test_settings_out_of_range_are_refused(bad: dict[str, float], said: str) -> None:
    with pytest.raises(AtollError, match=said):
        FedALA(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("scope", ["head", "all"])
def test_vmap_equals_loop(scope: str) -> None:
    """The first time, the second (clients stop after different numbers of passes), and later ones."""
    method = FedALA(toy_models.RICH, sample=0.7, scope=scope, window=2, still=0.01, most_passes=6)
    toy_models.check_vmap(method, toy_models.mlp(), rounds=4)
