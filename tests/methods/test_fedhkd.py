"""FedHKD: knowledge and both pulls by hand, its noise, FedAvg and Local where the pulls are off."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from support import toy_models
from support.small_runs import gap_params, made_with, run, same_models
from torch import nn

from atoll.clients import method_calls
from atoll.core.client import Client
from atoll.core.losses import objective
from atoll.core.model import Model
from atoll.core.optim.base import gradient
from atoll.core.payloads import Nothing, nbytes
from atoll.core.prng import key, normal
from atoll.core.problems import Classes
from atoll.core.task import Task
from atoll.errors import AtollError
from atoll.methods.fedavg import FedAvg
from atoll.methods.fedhkd import FedHKD, Knowledge, Update
from atoll.methods.local import Local, State

STILL = replace(toy_models.PLAIN, epochs=0)
EYE = toy_models.identity_body(weight=torch.eye(2))


def update(n: list[float], features: Any, predictions: Any) -> Update:
    counts = torch.tensor(n)
    return Update({}, counts.sum(), counts, torch.tensor(features), torch.tensor(predictions))


def unlike() -> Task:
    other = toy_models.mlp(seed=1)
    other.name = "other"
    return Task(toy_models.mlp(), Classes(3), ("a", "b"), None, None, {"a": toy_models.mlp(), "b": other})


def knowledge(model: Model, seen: list[bool] | None = None) -> Knowledge:
    """Something to be pulled to."""
    flags = torch.tensor(seen or [True] * 3)
    h, q = normal(key("h"), 3, model.feature_dim), normal(key("q"), 3, 3).softmax(1)
    return Knowledge(model.init(), h * flags[:, None], q * flags[:, None], flags)


def taken(method: FedHKD, c: Client, down: Knowledge) -> tuple[Update, State]:
    up, state = toy_models.participate(method, down, method_calls.init_client(method, c, key(0)), c, key(1))
    return up, state


# -- knowledge --------------------------------------------------------------------------------------------------------


def test_means_over_clients_are_weighted_by_rows() -> None:
    """3 rows of mean (1, 0) and 1 of (0, 1): H = (.75, .25), not the last client's, not (.5, .5). Predictions (.8, .2)
    and (.4, .6): Q = (.7, .3). Class 1, which nobody has, keeps what it had.
    """
    server = Knowledge(
        {}, torch.tensor([[9.0, 9.0], [5.0, 6.0]]), torch.tensor([[0.5, 0.5], [0.1, 0.9]]), torch.ones(2) > 0
    )
    ups = [
        update([3.0, 0.0], [[1.0, 0.0], [0.0, 0.0]], [[0.8, 0.2], [0.0, 0.0]]),
        update([1.0, 0.0], [[0.0, 1.0], [0.0, 0.0]], [[0.4, 0.6], [0.0, 0.0]]),
    ]
    for order in (ups, ups[::-1]):
        after = toy_models.aggregate(FedHKD(), server, order, toy_models.task(EYE, 2))
        torch.testing.assert_close(after.features, torch.tensor([[0.75, 0.25], [5.0, 6.0]]))
        torch.testing.assert_close(after.predictions, torch.tensor([[0.7, 0.3], [0.1, 0.9]]))
    first = toy_models.aggregate(
        FedHKD(), FedHKD().init_server(toy_models.task(EYE, 2), key(0)), ups, toy_models.task(EYE, 2)
    )
    assert first.seen.tolist() == [True, False]


def test_what_a_client_reports() -> None:
    """Features (1, 0) and (3, 2) of class 0: mean (2, 1). A temperature of 1/2 sharpens logits (1, 0) to predictions
    1 / (1 + e^-2) = .880797 and .119203; here both rows have logits that differ by 1.
    """
    c = toy_models.client([[1.0, 0.0], [3.0, 2.0]], [0, 0], EYE, classes=2)
    down = FedHKD().init_server(toy_models.task(EYE, 2), key(0))
    up, _ = taken(FedHKD(STILL, sigma=0.0), c, down)
    assert up.counts.tolist() == [2.0, 0.0]
    torch.testing.assert_close(up.features, torch.tensor([[2.0, 1.0], [0.0, 0.0]]))
    torch.testing.assert_close(up.predictions, torch.tensor([[0.880797, 0.119203], [0.0, 0.0]]))


def test_knowledge_is_that_of_the_trained_model() -> None:
    c = toy_models.random_client(9, 1, toy_models.mlp())
    up, state = taken(FedHKD(toy_models.RICH, sigma=0.0), c, knowledge(c.model))
    z = c.model.features(state.params, c.x)
    torch.testing.assert_close(up.features[2], z[c.y == 2].mean(0))
    soft = (c.model(state.params, c.x) / 0.5).softmax(1)
    torch.testing.assert_close(up.predictions[2], soft[c.y == 2].mean(0))


def test_noise_is_drawn_for_each_class() -> None:
    """Spread 2 around the mean features, which are 0; no two classes share it; an absent class gets none."""
    model = toy_models.identity_body(400, 3)
    c = toy_models.client(torch.zeros(4, 400), [0, 1, 0, 1], model, classes=3)
    up, _ = taken(FedHKD(STILL, sigma=2.0), c, FedHKD().init_server(toy_models.task(model), key(0)))
    assert float(up.features[:2].std()) == pytest.approx(2, abs=0.15)
    assert abs(float(torch.corrcoef(up.features[:2])[0, 1])) < 0.2
    assert not up.features[2].any()
    again = toy_models.participate(
        FedHKD(STILL), FedHKD().init_server(toy_models.task(model), key(0)), State({}), c, key(2)
    )[0]
    assert not torch.equal(again.features[0], up.features[0])


def test_classes_with_a_small_share_stay_at_home() -> None:
    """One row of five is a share of .2: below .25 it is not sent, at .2 it is."""
    c = toy_models.client(normal(key(0), 5, 2), [0, 0, 0, 0, 1], EYE)
    down = FedHKD().init_server(toy_models.task(EYE, 2), key(0))
    few, all_ = (taken(FedHKD(STILL, min_share=share), c, down)[0] for share in (0.25, 0.2))
    assert few.counts.tolist() == [4.0, 0.0]
    assert not few.features[1].any()
    assert not few.predictions[1].any()
    assert all_.counts.tolist() == [4.0, 1.0]
    assert float(few.n) == 5


# -- pulls ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("distance", "value"), [("l2", 0.538528), ("kl", 0.433781)])
def test_pull_of_the_head_by_hand(distance: str, value: float) -> None:
    """H_0 = (1, 0) is classified as (.880797, .119203), Q_0 = (.5, .5): the distance is .380797 sqrt 2 = .538528, the
    divergence .5 log(.5 / .880797) + .5 log(.5 / .119203) = -.283110 + .716891 = .433781. Class 1, unknown, is skipped,
    in the mean too; with (1, 0) and (.880797, .119203) for it, the mean of the two is half.
    """
    c = toy_models.client([[0.0, 0.0]], [0], EYE, classes=2)
    q = torch.tensor([0.880797, 0.119203])
    method = FedHKD(lam=1.0, q_distance=distance)
    for seen, factor in ((False, 1.0), (True, 0.5)):
        h = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
        down = Knowledge({}, h, torch.stack([torch.tensor([0.5, 0.5]), q]), torch.tensor([True, seen]))
        for lam in (1.0, 3.0):
            term = replace(method, lam=lam).head_term(down, c)
            assert float(term(toy_models.at(EYE.init()))) == pytest.approx(lam * factor * value, abs=3e-6)


def test_each_pull_reaches_its_part_of_the_model() -> None:
    """One full-batch step: with lam the body moves as without, with gamma the head does."""
    c = toy_models.random_client(6, 1, toy_models.mlp())
    down = knowledge(c.model)
    plain, head, body = (
        taken(FedHKD(toy_models.PLAIN, lam=lam, gamma=gamma), c, down)[1].params
        for lam, gamma in ((0, 0), (1, 0), (0, 1))
    )
    same = [
        torch.equal(plain[name], pulled[name]) for pulled in (head, body) for name in ("body.0.weight", "head.weight")
    ]
    assert same == [True, False, False, True]


@pytest.mark.parametrize(("distance", "value"), [("l2", 5**0.5), ("sq", 5.0), ("mse", 2.5)])
def test_pull_of_features_by_hand(distance: str, value: float) -> None:
    """f(x) = (1, 1), H = (2, 3): squared differences 1 and 4. With gamma = 2, a step of 0.1 from the shift of a body
    moves against 2 d/dz, by hand: z - H = (-1, -2), over the distance, doubled, or as it is.
    """
    net = toy_models.Net(nn.Linear(2, 2), nn.Linear(2, 2))
    model = Model(toy_models.filled(net))
    start = {name: torch.zeros_like(v) for name, v in model.init().items()} | {"body.bias": torch.ones(2)}
    down = Knowledge(start, torch.tensor([[2.0, 3.0], [0.0, 0.0]]), torch.zeros(2, 2), torch.tensor([True, False]))
    c = toy_models.client([[0.0, 0.0]], [0], model, classes=2)
    _, state = taken(FedHKD(toy_models.PLAIN, lam=0.0, gamma=2.0, h_distance=distance), c, down)
    slope = torch.tensor([-1.0, -2.0]) * {"l2": 1 / value, "sq": 2.0, "mse": 1.0}[distance]
    torch.testing.assert_close(state.params["body.bias"], torch.ones(2) - 0.1 * 2 * slope)


def test_the_own_mean_pulls_nowhere() -> None:
    """One class, whose H is the client's own mean feature: squared distances pull its rows together, and the shift of
    the last layer of the body not at all.
    """
    model = Model(toy_models.filled(toy_models.Net(nn.Linear(3, 4), nn.Linear(4, 3))))
    c = replace(toy_models.random_client(8, 1, model), y=torch.zeros(8, dtype=torch.long))
    h = model.features(model.init(), c.x).mean(0, keepdim=True)
    method = FedHKD(toy_models.PLAIN, lam=0.0, gamma=5.0, h_distance="sq")
    down = Knowledge(
        model.init(), torch.cat([h, torch.zeros(2, 4)]), torch.zeros(3, 3), torch.tensor([True, False, False])
    )
    pulled, plain = (taken(replace(method, gamma=g), c, down)[1].params for g in (5.0, 0.0))
    torch.testing.assert_close(pulled["body.bias"], plain["body.bias"])
    assert not torch.allclose(pulled["body.weight"], plain["body.weight"])


def test_unknown_classes_are_not_pulled() -> None:
    c = toy_models.random_client(9, 1, toy_models.mlp())
    first = FedHKD().init_server(toy_models.task(c.model), key(0))
    _, state = taken(FedHKD(toy_models.RICH, lam=5.0, gamma=5.0), c, first)
    _, plain = toy_models.participate(Local(toy_models.RICH), Nothing(), State(c.model.init()), c, key(1))
    toy_models.assert_same(state, plain)
    assert nbytes(replace(first, params={})) == 0


# -- like and unlike models -------------------------------------------------------------------------------------------


def batch_norm() -> Model:
    net = toy_models.Net(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), nn.Linear(4, 3))
    return Model(toy_models.filled(net), "bn")


@pytest.mark.parametrize("model", [toy_models.mlp(), batch_norm()])
def test_without_pulls_it_is_fedavg(model: Model) -> None:
    """Running statistics are averaged by rows as well."""
    clients = [toy_models.random_client(n, seed, model) for n, seed in ((8, 1), (4, 2))]
    hkd, fedavg, t = FedHKD(toy_models.RICH, lam=0.0, gamma=0.0), FedAvg(toy_models.RICH), toy_models.task(model)
    a, b = hkd.init_server(t, key(0)), fedavg.init_server(t, key(0))
    states: list[Any] = [State(model.init())] * 2
    for r in range(2):
        done = [
            toy_models.participate(hkd, a, s, c, key(r, i))
            for i, (s, c) in enumerate(zip(states, clients, strict=True))
        ]
        ups = [toy_models.participate(fedavg, b, Nothing(), c, key(r, i))[0] for i, c in enumerate(clients)]
        a, b, states = (
            toy_models.aggregate(hkd, a, [up for up, _ in done], t),
            toy_models.aggregate(fedavg, b, ups, t),
            [s for _, s in done],
        )
    assert gap_params(a.params, b.params) == 0
    assert "FedAvg" in str(hkd.reduces_to())
    assert FedHKD(lam=0.0).reduces_to() is FedHKD(gamma=0.0).reduces_to() is None


def test_whole_runs_without_pulls_are_fedavg() -> None:
    off = made_with("fedhkd", lam=0.0, gamma=0.0)
    assert gap_params(off.server.params, run("fedavg").server.params) == 0
    assert same_models(off, run("fedavg"))


def test_unlike_models_stay_at_home() -> None:
    """Knowledge travels, parameters do not; without pulls every client trains alone, from where it stopped."""
    method, t = FedHKD(toy_models.RICH, lam=0.0, gamma=0.0), unlike()
    c = toy_models.random_client(9, 1, t.models["b"])
    server, state, alone = (
        method.init_server(t, key(0)),
        method_calls.init_client(method, c, key(0)),
        State(c.model.init()),
    )
    for r in range(2):
        up, state = toy_models.participate(method, server, state, c, key(r))
        assert up.params == server.params == {}
        assert up.features.any()
        server = toy_models.aggregate(method, server, [up], t)
        alone = toy_models.participate(Local(toy_models.RICH), Nothing(), alone, c, key(r))[1]
    toy_models.assert_same(state, alone)
    assert method_calls.generic_predictor(method, server, t) is None
    assert server.seen.all()
    pulled = toy_models.participate(FedHKD(toy_models.RICH), server, state, c, key(3))[1]
    assert not torch.equal(
        pulled.params["head.weight"], toy_models.participate(method, server, state, c, key(3))[1].params["head.weight"]
    )


def test_who_predicts() -> None:
    """Like models: the received one, then the trained one. Unlike ones: the client's own."""
    c = toy_models.random_client(9, 1, toy_models.mlp())
    method, down, old = FedHKD(toy_models.RICH), knowledge(toy_models.mlp(seed=3)), State(toy_models.mlp(seed=4).init())
    up, state = toy_models.participate(method, down, old, c, key(1))
    assert torch.equal(method_calls.personal_predictor(method, down, None, old, c)(c.x), c.model(down.params, c.x))
    assert torch.equal(method_calls.personal_predictor(method, down, up, state, c)(c.x), c.model(up.params, c.x))
    alone = replace(down, params={})
    assert torch.equal(method_calls.personal_predictor(method, alone, None, old, c)(c.x), c.model(old.params, c.x))
    generic = method_calls.generic_predictor(method, down, toy_models.task(c.model))
    assert generic is not None
    assert torch.equal(generic(c.x), c.model(down.params, c.x))


def test_training_starts_from_what_was_received() -> None:
    """One step of 0.1 from w_t, whatever the client kept."""
    c = toy_models.random_client(6, 1, toy_models.mlp())
    down = replace(FedHKD().init_server(toy_models.task(c.model), key(0)), params=toy_models.mlp(seed=3).init())
    _, state = toy_models.participate(FedHKD(toy_models.PLAIN), down, State(toy_models.mlp(seed=4).init()), c, key(1))
    grads, _ = gradient(objective(c.model), down.params, toy_models.batch(c.x, c.y))
    toy_models.assert_near(state.params, {name: v - 0.1 * grads[name] for name, v in down.params.items()})


def test_bytes() -> None:
    """Ten classes, 64 features. With two classes 2 (64 + 10 + 2) scalars and n_k go up beside the model; 740 down."""
    counts = torch.tensor([3.0, 4.0] + [0.0] * 8)
    table = (counts > 0)[:, None]
    up = Update({}, torch.tensor(7.0), counts, table * torch.ones(10, 64), table * torch.ones(10, 10))
    assert nbytes(up) == 4 * (2 * (64 + 10 + 2) + 1)
    assert nbytes(Knowledge({}, torch.ones(10, 64), torch.ones(10, 10), torch.ones(10) > 0)) == 4 * 740


@pytest.mark.parametrize(
    "wrong",
    [
        {"lam": -1.0}, {"gamma": -1.0}, {"temperature": 0.0}, {"sigma": -1.0}, {"min_share": 1.5},
        {"q_distance": "mse"}, {"h_distance": "kl"},
    ],
)  # fmt: skip
def test_senseless_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(AtollError, match=f"FedHKD: {next(iter(wrong))} is"):
        FedHKD(**wrong)


@pytest.mark.parametrize("settings", [{}, {"q_distance": "kl", "h_distance": "mse", "min_share": 0.2}])
def test_vmap_equals_loop(settings: dict[str, Any]) -> None:
    toy_models.check_vmap(FedHKD(toy_models.RICH, **settings), toy_models.mlp())
