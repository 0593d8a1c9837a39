"""FedPD: coefficients, the pull and the server's work by hand; its limits; states per client that survive disks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support import toy_models
from torch import Tensor, nn

from atoll.backends.loop import LoopBackend
from atoll.clients import method_calls
from atoll.clients.server_side import ServerSideStates
from atoll.clients.state_store import MemoryStore
from atoll.config import Config
from atoll.core.client import Client
from atoll.core.model import Model
from atoll.core.optim.adam import Adam
from atoll.core.optim.sgd import SGD
from atoll.core.params import sqnorm, sub
from atoll.core.payloads import Nothing
from atoll.core.prng import key, normal
from atoll.core.problems import Classes
from atoll.core.replies import Replies
from atoll.core.task import Reply, Round, Task
from atoll.engine.build import run_experiment
from atoll.engine.round import run_round
from atoll.engine.setup import Setup, build_setup
from atoll.errors import AtollError
from atoll.methods._distillation import batches_with_public
from atoll.methods._factory import make
from atoll.methods.fedpd import Features, FedPD, Knowledge, PerClient, Server, State
from atoll.methods.local import Local
from atoll.methods.local import State as Alone
from atoll.storage.run_dir import RunDir
from atoll.typing import ClientId

PUBLIC = normal(key("public"), 10, 3)
QUICK = Adam(lr=0.01, epochs=3, batch_size=4)
FIVE = replace(toy_models.RICH, epochs=5, lr=0.0)
V1, V2, V3 = (FedPD.traits.variants[name] for name in ("v1", "v2", "v3"))


def client(n: int = 9, seed: int = 1, model: Model | None = None) -> Client:
    return replace(toy_models.random_client(n, seed, model or toy_models.mlp()), public=PUBLIC)


def begin(c: Client) -> State:
    return State(c.model.init(), torch.ones(len(PUBLIC)))


def some(d: int = 4, name: str = "z", rows: int = len(PUBLIC)) -> Tensor:
    return normal(key(name), rows, d)


def server_task(a: int = 4, b: int = 4) -> Task:
    """Two clients of the given feature widths, and server models with one extractor."""
    models = {"a": toy_models.mlp(width=a), "b": toy_models.mlp(width=b)}
    models["b"].name = "mlp" if a == b else "other"
    server_models = {i: toy_models.mlp(width=5, classes=m.feature_dim, seed=7) for i, m in models.items()}
    return Task(models["a"], Classes(3), ("a", "b"), None, PUBLIC, models, server_models)


def ensemble(
    method: FedPD, t: Task, rounds: list[dict[ClientId, Tensor]], store: MemoryStore | None = None
) -> tuple[Server, dict[ClientId, PerClient]]:
    """The server after first exchanges in which it got these features, and its states for each client."""
    server_side = ServerSideStates(method, t, 0, store or MemoryStore())
    server = method.init_server(t, key(0))
    for r, uploads in enumerate(rounds):
        replies = server_side.serve_replies(server, (Reply(i, Features(z)) for i, z in uploads.items()), Round(r))
        server = method.combine(server, Replies(replies), t, Round(r), key(r))
    return server, {i: server_side.get(i) for i in t.clients}


def sent(per_client: PerClient) -> Tensor:
    assert per_client.sent is not None
    return per_client.sent


def told(method: FedPD, server: Server, per_client: PerClient, to: ClientId, t: Task) -> Tensor:
    """What a client receives in the second exchange."""
    z = method.teach(server, per_client, to, t, Round(0, 1), key(0)).z
    assert z is not None
    return z


def body(params: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: v for name, v in params.items() if name.startswith("body.")}


# -- coefficients -----------------------------------------------------------------------------------------------------


def stepped(method: FedPD, apart: float, steps: int, rows: int = 1) -> float:
    alpha, gaps = torch.ones(rows, dtype=torch.float64), torch.full((rows,), apart, dtype=torch.float64)
    for _ in range(steps):
        alpha = method.trust(alpha, gaps)
    return float(alpha[0])


def test_five_steps_of_a_coefficient() -> None:
    """l = 0.2, tau = 0.5, eta = 0.05: the distance from the fixed point 1 - l / tau = 0.6 shrinks by 1 - 0.05 * 0.5 =
    0.975 a step, so a = 0.6 + 0.4 * 0.975^5 = 0.6 + 0.4 * 0.88109570 = 0.95243828. Divided by M = 1000, l is 0.0002,
    the fixed point 0.9996 and a = 0.9996 + 0.0004 * 0.88109570 = 0.99995244: hardly below 1.
    """
    assert stepped(FedPD(), 0.2, 5) == pytest.approx(0.95243828, abs=1e-8)
    assert stepped(FedPD(alpha_scale="literal"), 0.2, 5, rows=1000) == pytest.approx(0.99995244, abs=1e-8)


@pytest.mark.parametrize(("solver", "steps"), [("gd", 2000), ("closed_form", 1)])
def test_fixed_points(solver: str, steps: int) -> None:
    """1 - 0.2 / 0.5 = 0.6 and 1 - 0.0002 / 0.5 = 0.9996; 1 - 0.8 / 0.5 = -0.6 is cut at 0; without distance it is 1."""
    method = FedPD(alpha_solver=solver)
    assert stepped(method, 0.2, steps) == pytest.approx(0.6, abs=1e-9)
    assert stepped(replace(method, alpha_scale="literal"), 0.2, steps, rows=1000) == pytest.approx(0.9996, abs=1e-9)
    assert stepped(method, 0.8, steps) == 0
    assert stepped(replace(method, clamp=False), 0.8, steps) == pytest.approx(-0.6, abs=1e-9)
    assert stepped(method, 0.0, steps) == 1


def test_coefficients_move_once_an_epoch() -> None:
    """With a rate of 0 the model stays, and all features are 0.2 from what is sent: five epochs, whatever the number
    of batches, are the five steps above.
    """
    for size in (2, 4, 64):
        c = client()
        state = begin(c)
        z = c.model.features(state.params, PUBLIC) + 0.2
        _, after = toy_models.participate(FedPD(replace(FIVE, batch_size=size)), Knowledge(z), state, c, key(1))
        torch.testing.assert_close(after.alpha, torch.full((10,), 0.95243828), rtol=0, atol=1e-6)
        toy_models.assert_same(
            Alone(after.params), Alone(state.params)
        )  # the coefficients have not stayed among the weights


def test_one_step_by_hand() -> None:
    """f(x) = w x with w = 1, head zero, private x = 1 of class 0, the only public x = 2, sent z = 1, rate 0.1, lam 0.5.
    l = |2 - 1| = 1, so a = 1 - 0.05 * 1 = 0.95 first. CE has no slope in w, as the head is 0; the pull has
    0.5 * 0.95 * sign(2 - 1) * 2 = 0.95, so w = 1 - 0.095 = 0.905. In the head p = 1/2: weights 0.05 and -0.05.
    """
    model = Model(toy_models.Net(nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False)))
    c = replace(toy_models.client([[1.0]], [0], model, classes=2), public=torch.tensor([[2.0]]))
    state = State({"body.weight": torch.ones(1, 1), "head.weight": torch.zeros(2, 1)}, torch.ones(1))
    up, after = toy_models.participate(FedPD(toy_models.PLAIN, lam=0.5), Knowledge(torch.ones(1, 1)), state, c, key(0))
    assert isinstance(up, Nothing)
    torch.testing.assert_close(after.alpha, torch.tensor([0.95]))
    torch.testing.assert_close(after.params["body.weight"], torch.tensor([[0.905]]))
    torch.testing.assert_close(after.params["head.weight"], torch.tensor([[0.05], [-0.05]]))


def test_an_infinite_tau_leaves_the_variant_with_fixed_coefficients() -> None:
    """tau = 1e6 and eta = 1e-7 move a coefficient by 1e-7 l, which is lost beside 1."""
    c = client()
    z = c.model.features(c.model.init(), PUBLIC) + 0.2
    _, firm = toy_models.participate(FedPD(toy_models.RICH, tau=1e6, eta_alpha=1e-7), Knowledge(z), begin(c), c, key(0))
    _, fixed = toy_models.participate(FedPD(toy_models.RICH, **V3), Knowledge(z), begin(c), c, key(0))
    toy_models.assert_same(firm, fixed)
    assert bool((fixed.alpha == 1).all())
    _, loose = toy_models.participate(FedPD(toy_models.RICH), Knowledge(z), begin(c), c, key(0))
    assert not torch.equal(loose.params["body.0.weight"], fixed.params["body.0.weight"])


# -- the client -------------------------------------------------------------------------------------------------------


def test_knowledge_goes_up_before_training() -> None:
    c = client()
    up, after = toy_models.participate(FedPD(), Nothing(), begin(c), c, key(5))
    assert torch.equal(up.z, c.model.features(c.model.init(), PUBLIC))
    toy_models.assert_same(after, begin(c))


def norm_client() -> Client:
    net = toy_models.Net(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.3)), nn.Linear(4, 3))
    return client(8, model=Model(toy_models.filled(net)))


def test_without_pull_it_is_local_training() -> None:
    """To the bit, with batch statistics and dropout, whatever is sent."""
    for c in (client(), norm_client()):
        _, own = toy_models.participate(FedPD(toy_models.RICH, lam=0.0), Knowledge(some() / 0), begin(c), c, key(3))
        _, alone = toy_models.participate(Local(toy_models.RICH), Nothing(), Alone(c.model.init()), c, key(3))
        toy_models.assert_same(Alone(own.params), alone)
    assert FedPD(lam=0.0).reduces_to() is not None
    assert FedPD().reduces_to() is None


def test_only_private_batches_move_the_running_statistics() -> None:
    c = norm_client()
    _, own = toy_models.participate(FedPD(FIVE), Knowledge(some()), begin(c), c, key(0))
    _, alone = toy_models.participate(Local(FIVE), Nothing(), Alone(c.model.init()), c, key(0))
    toy_models.assert_same(Alone(own.params), alone)
    assert own.params["buffers.body.1.num_batches_tracked"] == 10


def test_public_batches_go_round_all_rows_and_leave_private_ones_alone() -> None:
    """Batches of 4 for 9 private rows, 3 an epoch, take 12 of 10 public rows: all of them, and the first two again."""
    c, method = client(), FedPD(toy_models.RICH)
    pairs, plain = list(batches_with_public(c, method.optim, key(2))), list(c.batches(key(2), 2, 4))
    assert [torch.equal(p.x, b.x) and torch.equal(p.k, b.k) for p, b in zip(pairs, plain, strict=True)] == [True] * 6
    assert [p.extra["epoch_begins"] for p in pairs] == [True, False, False] * 2
    epochs = [torch.cat([p.extra["public"].y for p in pairs[at : at + 3]]) for at in (0, 3)]
    for rows in epochs:
        assert rows[:10].sort().values.tolist() == list(range(10))
        assert torch.equal(rows[10:], rows[:2])
    assert not torch.equal(*epochs)
    assert all(torch.equal(p.extra["public"].x, PUBLIC[p.extra["public"].y]) for p in pairs)


def test_padding_changes_no_public_batch() -> None:
    c, method = client(), FedPD(toy_models.RICH)
    alone, with_padding = (
        list(batches_with_public(who, method.optim, key(2))) for who in (c, toy_models.padded(c, 14))
    )
    for at, twin in zip(range(6), (0, 1, 2, 4, 5, 6), strict=True):  # a fourth batch of each epoch is all padding
        assert torch.equal(alone[at].extra["public"].y, with_padding[twin].extra["public"].y)


def test_layer_norm_makes_knowledge_free_of_scale() -> None:
    c, method = client(), FedPD(feature_norm="layernorm")
    w = c.model.init()
    loud = w | {name: 100 * w[name] for name in ("body.0.weight", "body.0.bias")}
    ups = [toy_models.participate(method, Nothing(), replace(begin(c), params=p), c, key(0))[0].z for p in (w, loud)]
    some_on = c.model.features(w, PUBLIC).amax(1) > 0.1  # rows whose features are not all cut at 0
    torch.testing.assert_close(ups[0][some_on], ups[1][some_on], rtol=0, atol=0.02)
    assert float(method._apart(c.model.features(w, PUBLIC), ups[0]).abs().max()) == 0


@pytest.mark.parametrize("changes", [{}, V3, {"alpha_solver": "closed_form", "feature_norm": "layernorm"}])
def test_vmap_equals_loop(changes: dict[str, Any]) -> None:
    method = FedPD(toy_models.RICH, **changes)
    alone = [client(9, 1), client(6, 2)]
    alone[1] = replace(alone[1], model=alone[0].model)
    states = [begin(c) for c in alone]
    for r, down in enumerate((Nothing(), Knowledge(some()), Nothing(), Knowledge(some(name="next")))):
        keys = [key(r, "local", i) for i in range(2)]
        before = toy_models.snapshot((down, states))
        one = [toy_models.participate(method, down, s, c, k) for s, c, k in zip(states, alone, keys, strict=True)]
        many = toy_models.together(method, down, states, [toy_models.padded(c, 14) for c in alone], keys)
        toy_models.assert_near(one, many)
        toy_models.assert_near((down, states), before, tolerance=0)
        states = [s for _, s in one]


def test_predictions_are_those_of_the_clients_own_model() -> None:
    c = client()
    state = replace(begin(c), params={name: v + 1 for name, v in c.model.init().items()})
    assert torch.equal(
        method_calls.personal_predictor(FedPD(), Nothing(), None, state, c)(c.x), c.model(state.params, c.x)
    )
    assert method_calls.generic_predictor(FedPD(), Server({}, {}), server_task()) is None


# -- the server -------------------------------------------------------------------------------------------------------


def test_a_step_of_the_server_by_hand() -> None:
    """H(x) = v w x with w = 2, v = 1 here and 1 in the mean, one row x = 1, Z = 5, rate 0.1, mu = 0.6.
    |2 - 5| has slope -v x = -1 in w and -w x = -2 in v; the pull has 0.6 * 2 * (2 - 1) = 1.2 in w and none in v.
    w = 2 - 0.1 * 0.2 = 1.98 and v = 1 + 0.2 = 1.2; sent: 1.98 * 1.2 = 2.376. Of two clients: H changes by -0.02 / 2.
    """
    server_model = Model(toy_models.Net(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)))
    t = Task(server_model, Classes(2), ("a", "b"), None, torch.ones(1, 1), {}, {"a": server_model, "b": server_model})
    per_client = PerClient({"body.weight": torch.tensor([[2.0]]), "head.weight": torch.tensor([[1.0]])}, None)
    server, reply = Server({"body.weight": torch.tensor([[1.0]])}, {}), Reply("a", Features(torch.tensor([[5.0]])))
    method = FedPD(server=toy_models.PLAIN)
    share, after = method.train_server_model(server, per_client, reply, t, Round(0), key(0))
    torch.testing.assert_close(after.params["body.weight"], torch.tensor([[1.98]]))
    torch.testing.assert_close(after.params["head.weight"], torch.tensor([[1.2]]))
    torch.testing.assert_close(after.sent, torch.tensor([[2.376]]))
    later = method.combine(server, iter([Reply("a", share)]), t, Round(0), key(0))
    torch.testing.assert_close(later.centre["body.weight"], torch.tensor([[0.99]]))


def test_the_centre_is_the_mean_over_all_clients_not_over_those_of_the_round() -> None:
    t = server_task()
    rounds = [{"a": some(name="1")}, {"a": some(name="2"), "b": some(name="3")}, {"b": some(name="4")}]
    server, per_client_states = ensemble(FedPD(server=QUICK), t, rounds)
    mean = {
        name: (v + per_client_states["b"].params[name]) / 2 for name, v in body(per_client_states["a"].params).items()
    }
    toy_models.assert_near(server.centre, mean, 1e-5)
    first, half = ensemble(FedPD(server=QUICK), t, rounds[:1])
    start = t.server_models["a"].init()
    moved = {name: start[name] + (v - start[name]) / 2 for name, v in body(half["a"].params).items()}
    toy_models.assert_near(first.centre, moved, 1e-5)
    assert list(first.centre) == ["body.0.weight", "body.0.bias"]


def test_a_huge_mu_keeps_every_extractor() -> None:
    """With 2 mu lr = 1 a plain step sets an extractor to the mean minus lr times the slope of the error, which is far
    below 10: with lr = 5e-6 it cannot be 5e-5 away, over any number of steps. Its output layer moves freely.
    """
    t = server_task()
    firm = SGD(lr=5e-6, epochs=20, batch_size=4, weight_decay=0.0, clip=0.0, momentum=0.0)
    rounds = [{"a": 5 * some(name="1"), "b": 5 * some(name="2")}] * 2
    _, per_client_states = ensemble(FedPD(server=firm, mu=1e5), t, rounds)
    for i, per_client in per_client_states.items():
        start = t.server_models[i].init()
        assert all(float((v - start[name]).abs().max()) < 5e-5 for name, v in body(per_client.params).items())
        assert not torch.equal(per_client.params["head.weight"], start["head.weight"])


def test_mu_pulls_extractors_together() -> None:
    def spread(mu: float) -> float:
        _, per_client_states = ensemble(
            FedPD(server=QUICK, mu=mu), server_task(), [{"a": some(name="1"), "b": some(name="2")}] * 3
        )
        return float(sqnorm(sub(body(per_client_states["a"].params), body(per_client_states["b"].params))))

    assert spread(0.0) > 2 * spread(10.0)


@pytest.mark.parametrize(("mu", "alone"), [(0.0, True), (0.6, False)])
def test_without_mu_no_client_hears_of_another(mu: float, alone: bool) -> None:
    """Another client's features change what is sent a round later, by way of the mean extractor, and only so."""
    received = []
    for other in ("2", "3"):
        rounds = [{"b": some(name=other), "a": some(name="1")}] * 2
        method = FedPD(server=QUICK, mu=mu)
        received.append([sent(ensemble(method, server_task(), rounds[:n])[1]["a"]) for n in (1, 2)])
    assert torch.equal(received[0][0], received[1][0])
    assert torch.equal(received[0][1], received[1][1]) == alone


def test_unlike_widths() -> None:
    """Every client gets features of its own width, from server models that begin with one extractor."""
    t = server_task(2, 6)
    toy_models.assert_same(Alone(body(t.server_models["a"].init())), Alone(body(t.server_models["b"].init())))
    uploads = {"a": some(2), "b": some(6)}
    server, per_client_states = ensemble(FedPD(server=QUICK), t, [uploads])
    for i, z in uploads.items():
        assert told(FedPD(), server, per_client_states[i], i, t).shape == z.shape


def test_what_is_sent_is_in_evaluation_mode() -> None:
    net = toy_models.Net(nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5)), nn.Linear(5, 4))
    server_model = Model(toy_models.filled(net))
    t = replace(server_task(), server_models={"a": server_model, "b": server_model})
    server, per_client_states = ensemble(FedPD(server=replace(QUICK, batch_size=5)), t, [{"a": some()}])
    assert torch.equal(sent(per_client_states["a"]), server_model(per_client_states["a"].params, PUBLIC))
    assert per_client_states["a"].params["buffers.body.1.num_batches_tracked"] == 6
    assert not any(name.startswith("buffers.") for name in server.centre)


def test_server_models_come_nearer_to_what_they_are_shown() -> None:
    t, z, method = server_task(), some(), FedPD(server=replace(QUICK, epochs=10), mu=0.0)
    errors = [float((t.server_models["a"](t.server_models["a"].init(), PUBLIC) - z).abs().mean())]
    errors += [float((sent(ensemble(method, t, [{"a": z}] * n)[1]["a"]) - z).abs().mean()) for n in (1, 2, 3, 4)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.7 * errors[0]


def test_second_exchange_leaves_the_server_models_unchanged() -> None:
    t, method = server_task(), FedPD(server=QUICK)
    server, per_client_states = ensemble(method, t, [{"a": some()}])
    second = Round(0, 1)
    reply = Reply("a", Nothing())
    _, per_client = method_calls.serve_client(method, server, per_client_states["a"], reply, t, second, key(0))
    toy_models.assert_same(per_client, per_client_states["a"])
    toy_models.assert_same(method.forget(server, iter([reply]), t, second, key(0)), server)


# -- variants ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", [V1, V2])
def test_the_mean_of_all_clients(variant: dict[str, Any]) -> None:
    """Features of 1 and 4 have the mean 2.5, whoever asks; the server keeps no model."""
    t, method = server_task(), FedPD(**variant)
    uploads = {"a": torch.ones(10, 4), "b": torch.full((10, 4), 4.0)}
    server, per_client_states = ensemble(method, t, [uploads])
    for i in uploads:
        assert torch.equal(told(method, server, per_client_states[i], i, t), torch.full((10, 4), 2.5))
        assert per_client_states[i].params == server.centre == {}


def test_the_mean_within_architectures() -> None:
    t, method = server_task(2, 6), FedPD(**V1, mean_scope="arch")
    t = replace(t, clients=("a", "b", "c"), models={**t.models, "c": t.models["a"]})
    uploads = {"a": torch.ones(10, 2), "b": torch.full((10, 6), 9.0), "c": torch.full((10, 2), 4.0)}
    server, per_client_states = ensemble(method, t, [uploads])
    for i, value, d in (("a", 2.5, 2), ("b", 9.0, 6), ("c", 2.5, 2)):
        assert torch.equal(told(method, server, per_client_states[i], i, t), torch.full((10, d), value))


def test_a_mean_over_unlike_widths_is_refused_with_the_remedy() -> None:
    with pytest.raises(AtollError, match=r"mlp 2, other 6.*--width 2.*mean_scope=arch"):
        FedPD(**V2).init_server(server_task(2, 6), key(0))


def test_variants_are_the_four_cells_of_the_ablation() -> None:
    made: dict[str, Any] = {name: make(name) for name in ("fedpd:v1", "fedpd:v2", "fedpd:v3", "fedpd")}
    cells = {name: (m.adaptive, m.knowledge) for name, m in made.items()}
    assert cells == {
        "fedpd:v1": (False, "mean"),
        "fedpd:v2": (True, "mean"),
        "fedpd:v3": (False, "models"),
        "fedpd": (True, "models"),
    }


def test_mistakes_are_refused() -> None:
    for wrong in ({"lam": -1.0}, {"tau": 0.0}, {"alpha_scale": "none"}, {"knowledge": "mode"}, {"feature_norm": "l2"}):
        with pytest.raises(AtollError, match=next(iter(wrong))):
            FedPD(**wrong)
    with pytest.raises(AtollError, match="--public"):
        method_calls.init_client(FedPD(), toy_models.random_client(4, 0, toy_models.mlp()), key(0))


# -- whole runs -------------------------------------------------------------------------------------------------------


def setup(**changes: Any) -> Setup:
    """Four clients with two unlike models of unlike widths, of whom three take part in a round."""
    options: dict[str, Any] = {
        "method": "fedpd", "rows": 200, "clients": 4, "rounds": 3, "rate": 0.75, "eval_every": 3, "epochs": 2,
        "batch_size": 16, "models": ("mlp:hidden=12", "mlp:hidden=20"), "public": 30, "server_model": "mlp_a",
        "backend": "loop", "settings": {"server.epochs": 2}, "checkpoint_every": 1,
    }  # fmt: skip
    return build_setup(Config(**options | changes))


def test_traffic_is_two_tables_of_features() -> None:
    """M = 30 rows of 12 or 20 numbers of 4 bytes, once each way."""
    made = setup()
    backend, task = LoopBackend(made.pool, MemoryStore()), made.pool.task()
    server = made.method.init_server(task, key(0))
    _, log = run_round(
        made.method, task, backend, server, t=0, seed=0, cohort=task.clients, per_client_states=MemoryStore()
    )
    sizes = {i: 4 * 30 * made.pool.models[i].feature_dim for i in made.pool.ids}
    assert log.up == log.down == sizes
    assert set(sizes.values()) == {1440, 2400}


def test_resuming_and_desks_on_disk_change_nothing(tmp_path: Path) -> None:
    whole = run_experiment(setup())
    for name, changes in (("memory", {}), ("disk", {"store": "disk", "cache": 1})):
        made = setup(**changes)
        short = replace(made, config=replace(made.config, rounds=1))
        with RunDir(tmp_path / name) as folder:
            folder.start(short.config, resume=False, force=False)
            run_experiment(short, folder)
            resumed = run_experiment(made, folder)
        assert resumed.summary["digest"] == whole.summary["digest"]
        assert all(isinstance(resumed.stores.server_side.get(i), PerClient) for i in made.pool.ids)
