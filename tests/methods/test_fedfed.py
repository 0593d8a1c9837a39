"""FedFed: what is distilled, what is shared, once, and how it is mixed in; FedAvg where nothing is."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from support import small_runs, toy_models
from torch import Tensor, nn

from atoll.backends.loop import LoopBackend
from atoll.clients import method_calls
from atoll.clients.state_store import MemoryStore
from atoll.core.losses import objective
from atoll.core.model import Model
from atoll.core.optim.adam import Adam
from atoll.core.optim.base import gradient
from atoll.core.payloads import Nothing, Params, equal, nbytes
from atoll.core.prng import key, normal
from atoll.core.replies import Replies
from atoll.core.task import Reply, Round
from atoll.engine.cohort import sample_cohort
from atoll.engine.round import run_round
from atoll.errors import AtollError
from atoll.methods._autoencoder import build_autoencoder, reconstruct
from atoll.methods._class_sampling import balanced_sampler
from atoll.methods.fedavg import FedAvg
from atoll.methods.fedavg import Global as Average
from atoll.methods.fedfed import DISTIL, MIX, SHARE, FedFed, Global, PerClient, State, Update

CLIENT = toy_models.random_client(9, 1, toy_models.mlp())
TASK = toy_models.task(CLIENT.model)
QUICK = Adam(lr=0.01, epochs=2, batch_size=4)


def fedfed(**settings: Any) -> FedFed:
    return FedFed(**{"optim": toy_models.RICH, "distil": QUICK, "distil_rounds": 2} | settings)


def at(rounds: int, params: Params | None = None, pool: Params | None = None) -> Global:
    return Global(params or CLIENT.model.init(), pool or {}, rounds, key("q"))


def pool_of(*labels: int) -> Params:
    """Rows (l, l, l) for label l in the first copy, minus that in the second."""
    y = torch.tensor(labels, dtype=torch.int32)
    rows = y.float()[:, None].expand(-1, 3)
    return {"one": rows.clone(), "two": -rows, "y": y}


class Code(nn.Module):
    """The row minus ``keeps`` as the mean of its code, with one variance."""

    def __init__(self, keeps: tuple[float, ...], log_variance: float):
        super().__init__()
        self.keeps, self.log_variance = keeps, log_variance

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x - torch.tensor(self.keeps), torch.full_like(x, self.log_variance)], 1)


def less(*keeps: float, log_variance: float = -80.0) -> Model:
    """An autoencoder with q(x) = x - keeps, so that x_s = keeps."""
    return Model(toy_models.Net(Code(keeps, log_variance), nn.Identity()), "less")


# -- step 1: features are distilled -----------------------------------------------------------------------------------


def test_nothing_is_left_of_a_row_that_comes_back_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """sigma = 0 and q(x) = x: x_1 = x_2 = x - q(x) = 0 exactly."""
    monkeypatch.setattr("atoll.methods.fedfed.build_autoencoder", lambda shape, k: less(0.0))
    shared = fedfed(sigma1=0.0, sigma2=0.0).features(at(2), CLIENT, key(1))
    assert all(torch.equal(shared[kind], torch.zeros(9, 3)) for kind in ("one", "two"))


@pytest.mark.parametrize("shape", [(3,), (1, 8, 8), (3, 17, 22), (1, 28, 28)])
def test_features_and_rest_make_up_the_row(shape: tuple[int, ...]) -> None:
    """x_s + q(x) = x up to rounding, whatever shape rows have."""
    c = toy_models.random_client(5, 1, toy_models.mlp(), shape=shape)
    down = at(2)
    shared = fedfed(sigma1=0.0, sigma2=0.0).features(down, c, key(1))
    vae = build_autoencoder(shape, down.k)
    back = reconstruct(vae, vae.init(), c.x)
    assert back.shape == c.x.shape
    torch.testing.assert_close(_sorted(shared["one"]), _sorted(c.x - back))
    assert torch.equal(shared["one"], shared["two"])


def _sorted(x: Tensor) -> Tensor:
    return x[x.flatten(1).sum(1).argsort()]


def test_noise_has_the_deviations_asked_for() -> None:
    """40,000 numbers each: the estimate of a deviation is off by a factor of 1 +- 0.0035."""
    c = toy_models.random_client(400, 1, toy_models.mlp(d_in=100), shape=(100,))
    quiet, loud = (fedfed(sigma1=s, sigma2=t).features(at(2), c, key(1)) for s, t in ((0.0, 0.0), (0.15, 0.25)))
    for kind, sigma in (("one", 0.15), ("two", 0.25)):
        assert float((loud[kind] - quiet[kind]).std()) == pytest.approx(sigma, rel=0.02)
    assert abs(float(((loud["one"] - quiet["one"]) * (loud["two"] - quiet["two"])).mean())) < 1e-3


def test_the_loss_by_hand() -> None:
    """Logits 0 for two classes: each cross-entropy is ln 2 = 0.693147. q(x) = x - 0.5: squares 0.25. Without KL that is
    5 * 0.25 + (2 + 0.4) * 0.693147 = 2.913553.
    """
    model, b = toy_models.identity_body(), toy_models.batch([[1.0, 2.0], [3.0, -1.0]], [0, 1])
    loss = fedfed(re=5.0, kl=0.0).distillation(model, less(0.5))
    assert float(loss(model.init(), b)) == pytest.approx(2.913553, abs=1e-6)


def test_kl_by_hand() -> None:
    """Codes of mean (1, 2) and variance 1: (1 + 4) / 2 for the row, over two numbers: 1.25; 6 * 1.25 / 3 = 2.5."""
    model, b = toy_models.identity_body(), toy_models.batch([[1.0, 2.0]], [0])
    loss = fedfed(re=0.0, ce=0.0, x_ce=0.0, kl=6.0).distillation(model, less(0.0, log_variance=0.0))
    assert float(loss(model.init(), b)) == pytest.approx(2.5)


def test_codes_are_noisy_while_training() -> None:
    """Of variance 1: squares of q(x) - x are 1 on average, here over 4,000 numbers (deviation 0.022)."""
    model, b = toy_models.identity_body(), toy_models.batch(torch.zeros(2000, 2), [0] * 2000)
    loss = fedfed(re=1.0, ce=0.0, x_ce=0.0, kl=0.0).distillation(model, less(0.0, log_variance=0.0))
    assert float(loss(model.init(), b)) == pytest.approx(1.0, abs=0.1)


def test_predictions_see_features_and_not_what_q_keeps() -> None:
    """q(x) = x - (1, 0): all features are (1, 0), whatever the row is; with logits x, class 0 costs
    ln(1 + e^-1) = 0.313262, class 1 ln(1 + e) = 1.313262: their mean is 0.813262.
    """
    model, b = toy_models.identity_body(weight=torch.eye(2)), toy_models.batch([[5.0, 9.0], [-3.0, 2.0]], [0, 1])
    loss = fedfed(re=0.0, kl=0.0, ce=1.0, x_ce=0.0, sigma1=0.0, sigma2=0.0).distillation(model, less(1.0, 0.0))
    assert float(loss(model.init(), b)) == pytest.approx(0.813262, abs=1e-6)


def test_rows_as_they_are_count_too() -> None:
    """Logits x: the row (5, 9) of class 0 costs ln(1 + e^4) = 4.018150, times 0.4."""
    model, b = toy_models.identity_body(weight=torch.eye(2)), toy_models.batch([[5.0, 9.0]], [0])
    loss = fedfed(re=0.0, kl=0.0, ce=0.0).distillation(model, less(1.0, 0.0))
    assert float(loss(model.init(), b)) == pytest.approx(0.4 * 4.018150, abs=1e-5)


def test_gradients_reach_all_of_f_and_q() -> None:
    vae = build_autoencoder((3,), key("q"))
    start = CLIENT.model.init() | {"q." + name: v for name, v in vae.init().items()}
    grads, _ = gradient(fedfed().distillation(CLIENT.model, vae), start, toy_models.batch(CLIENT.x, CLIENT.y))
    assert all(g.abs().sum() > 0 for g in grads.values())


def test_a_first_round_makes_the_same_q_everywhere_and_another_by_another_key() -> None:
    still = fedfed(distil=replace(QUICK, lr=0.0))
    other = toy_models.random_client(5, 8, toy_models.mlp())
    first, second = (
        still.client_update(at(0), State({}), c, Round(0), key(i))[0] for i, c in enumerate((CLIENT, other))
    )
    toy_models.assert_near(first.params, second.params, tolerance=0)
    moved, _ = still.client_update(replace(at(0), k=key("another")), State({}), CLIENT, Round(0), key(0))
    assert small_runs.gap_params(first.params, moved.params) > 1e-3


def test_distillation_distils() -> None:
    """The error of q falls; f and q go on from where the server has them."""
    method, server = fedfed(distil=replace(QUICK, epochs=30)), at(0)
    up, _ = method.client_update(server, State({}), CLIENT, Round(0), key(1))
    vae = build_autoencoder((3,), server.k)
    before, after = (
        float((reconstruct(vae, q, CLIENT.x) - CLIENT.x).square().mean())
        for q in (vae.init(), {n.removeprefix("q."): v for n, v in up.params.items() if n.startswith("q.")})
    )
    assert after < 0.5 * before
    again, _ = fedfed(distil=replace(QUICK, lr=0.0)).client_update(
        at(1, up.params), State({}), CLIENT, Round(0), key(2)
    )
    toy_models.assert_near(again.params, up.params, tolerance=0)


def test_running_statistics_are_those_of_one_pass() -> None:
    net = toy_models.Net(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), nn.Linear(4, 3))
    c = toy_models.random_client(8, 1, Model(toy_models.filled(net), "bn"))
    up, _ = fedfed(distil=replace(QUICK, epochs=1)).client_update(at(0, c.model.init()), State({}), c, Round(0), key(1))
    assert int(up.params["buffers.body.1.num_batches_tracked"]) == 2


# -- step 2: features are shared, once --------------------------------------------------------------------------------


def test_the_stages() -> None:
    method = fedfed(distil_rounds=2)
    assert [method.stage(at(t)) for t in range(5)] == [DISTIL, DISTIL, SHARE, MIX, MIX]
    assert fedfed(distil_rounds=0).stage(at(0)) == SHARE


def test_a_whole_course() -> None:
    """Two clients: f and q up and down; then features up, once; then each gets all of them, once, and f goes on."""
    method, others = fedfed(distil_rounds=1), toy_models.random_client(6, 2, toy_models.mlp())
    clients, server = {"a": CLIENT, "b": others}, method.init_server(TASK, key(0))
    states, per_client_states = (
        dict.fromkeys("ab", State({})),
        {i: method.init_per_client(TASK, i, key(0)) for i in "ab"},
    )
    downs, ups = [], []
    for t in range(4):
        r = Round(t)
        down = {i: method.broadcast_per_client(server, per_client_states[i], i, TASK, r, key(0)) for i in "ab"}
        replies = []
        for i in "ab":
            up, states[i] = toy_models.participate(method, down[i], states[i], clients[i], key(t, i))
            served, per_client_states[i] = method.serve_client(
                server, per_client_states[i], Reply(i, up), TASK, r, key(t)
            )
            replies.append(Reply(i, served))
        with torch.no_grad():
            server = method.aggregate(server, Replies(replies), TASK, r, key(t))
        downs.append(down["a"])
        ups.append(replies[0].upload)
    has_q = [any(name.startswith("q.") for name in d.params) for d in downs]
    assert has_q == [False, True, False, False]
    assert [sorted(d.pool) for d in downs] == [[], [], ["one", "two", "y"], []]
    assert [sorted(u.pool) for u in ups] == [[], ["one", "two", "y"], [], []]
    assert [bool(u.params) for u in ups] == [True, False, True, True]
    assert server.pool["one"].shape == (15, 3)
    assert server.pool["y"].tolist() == [*ups[1].pool["y"].tolist(), *server.pool["y"][9:].tolist()]
    assert sorted(ups[1].pool["y"].tolist()) == sorted(CLIENT.y.tolist())
    assert equal(states["a"], State(server.pool))
    assert server.rounds == 4


def test_bytes_of_the_exchange() -> None:
    """Nine rows of three numbers: two copies of 27 floats and nine labels of 4 bytes, and n."""
    up, _ = fedfed().client_update(at(2), State({}), CLIENT, Round(0), key(1))
    assert nbytes(up) == 4 * (2 * 27 + 9 + 1)


def test_some_rows_only() -> None:
    shared = fedfed(share=0.5, sigma1=0.0).features(at(2), CLIENT, key(1))
    assert [len(v) for v in shared.values()] == [4, 4, 4]
    assert [len(v) for v in fedfed(share=0.0).features(at(2), CLIENT, key(1)).values()] == [0, 0, 0]


def test_the_q_that_was_received_takes_features_from_rows_without_augmentation() -> None:
    method = fedfed(sigma1=0.0)
    trained, _ = method.client_update(at(0), State({}), CLIENT, Round(0), key(1))
    vae = build_autoencoder((3,), at(0).k)
    q = {n.removeprefix("q."): v for n, v in trained.params.items() if n.startswith("q.")}
    c = replace(CLIENT, augment=lambda x, k: x * 0)
    shared = method.features(at(2, trained.params), c, key(1))
    torch.testing.assert_close(_sorted(shared["one"]), _sorted(CLIENT.x - reconstruct(vae, q, CLIENT.x)))


def test_labels_go_with_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.methods.fedfed.reconstruct", lambda vae, q, x: torch.zeros_like(x))
    c = toy_models.client(torch.arange(6.0)[:, None], [0, 1, 2, 0, 1, 2], toy_models.mlp(d_in=1))
    shared = fedfed(sigma1=0.0).features(at(2), c, key(1))
    assert [int(x) % 3 for x in shared["one"].flatten()] == shared["y"].tolist()


def test_a_client_that_was_absent_is_still_sent_the_pool() -> None:
    method, server = fedfed(), at(5, pool=pool_of(0, 1, 2))
    assert method.broadcast_per_client(server, PerClient(False), "a", TASK, Round(0), key(0)).pool == server.pool
    assert method.broadcast_per_client(server, PerClient(True), "a", TASK, Round(0), key(0)).pool == {}
    reply = Reply("a", Update({}, {}, CLIENT.n))
    for rounds, informed in ((1, False), (2, False), (3, True)):
        assert method.serve_client(at(rounds), PerClient(False), reply, TASK, Round(0), key(0))[1].informed is informed


# -- step 3: features are mixed in ------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", [{}, pool_of()], ids=["none", "empty"])
def test_without_a_pool_it_is_fedavg(pool: Params) -> None:
    up, _ = toy_models.participate(fedfed(), at(3, pool=pool), State({}), CLIENT, key(1))
    plain, _ = toy_models.participate(
        FedAvg(toy_models.RICH), Average(CLIENT.model.init(), {}), Nothing(), CLIENT, key(1)
    )
    toy_models.assert_near(up.params, plain.params, tolerance=0)
    assert torch.equal(up.n, plain.n)
    assert "FedAvg" in str(fedfed(share=0.0).reduces_to())
    assert FedFed().reduces_to() is None


def test_as_many_rows_of_either_kind() -> None:
    """Nine rows in batches of four, four and one: the private ones first, as by FedAvg, then both kinds."""
    pool = pool_of(0, 0, 0, 0, 1, 2)
    batches = list(fedfed()._mixed(CLIENT, pool, key(1)))
    plain = list(CLIENT.batches(key(1), 2, 4))
    assert [len(b.x) for b in batches] == [12, 12, 3] * 2
    for b, p in zip(batches, plain, strict=True):
        m = len(p.x)
        assert torch.equal(b.x[:m], p.x)
        assert torch.equal(b.y[:m], p.y)
        assert torch.equal(b.x[m : 2 * m, 0], b.y[m : 2 * m].float())
        assert torch.equal(b.x[2 * m :, 0], -b.y[2 * m :].float())
        assert torch.equal(b.w, torch.ones(3 * m))


def test_each_batch_and_each_kind_draws_anew() -> None:
    """From 300 rows that are told apart by their values, so that equal draws would be no accident."""
    numbers = torch.arange(300.0)[:, None].expand(-1, 3)
    pool = {"one": numbers, "two": numbers, "y": torch.arange(300).int() % 3}
    draws = [b.x[4:, 0] for b in fedfed()._mixed(CLIENT, pool, key(1)) if len(b.x) == 12]
    pieces = [tuple(half.tolist()) for draw in draws for half in draw.split(4)]
    assert len(draws) == 4
    assert len(set(pieces)) == 8


def test_all_rows_of_a_batch_weigh_alike() -> None:
    """One full batch of nine rows and eighteen shared ones: one step on the mean over 27."""
    method, down = fedfed(optim=toy_models.PLAIN), at(3, pool=pool_of(0, 1, 2))
    up, state = toy_models.participate(method, down, State({}), CLIENT, key(1))
    (b,) = method._mixed(CLIENT, down.pool, key(1))
    grads, _ = gradient(objective(CLIENT.model), down.params, b)
    assert len(b.x) == 27
    toy_models.assert_near(up.params, {n: v - 0.1 * grads[n] for n, v in down.params.items()})
    toy_models.assert_same(state, State(down.pool))


def test_a_pool_that_was_kept_serves_as_one_that_comes() -> None:
    pool = pool_of(0, 1, 2, 2)
    one = toy_models.participate(fedfed(), at(3, pool=pool), State({}), CLIENT, key(1))
    two = toy_models.participate(fedfed(), at(3), State(pool), CLIENT, key(1))
    assert all(equal(a, b) for a, b in zip(one, two, strict=True))


def test_classes_are_drawn_evenly() -> None:
    """90 rows of class 0, 9 of class 3, 1 of class 4, none of 1 and 2: eight draws hold each of three two or three
    times, and 3,000 draws hold each of the nine rows about 111 times (deviation 10.5).
    """
    y = torch.tensor([0] * 90 + [3] * 9 + [4])[torch.randperm(100, generator=torch.Generator().manual_seed(1))]
    draw = balanced_sampler(y)
    for i in range(20):
        counts = y[draw(8, key(i))].bincount(minlength=5)
        assert counts[[1, 2]].tolist() == [0, 0]
        assert set(counts[[0, 3, 4]].tolist()) <= {2, 3}
    rows = draw(3000, key(7))
    each = rows.bincount(minlength=100)[y == 3]
    assert each.sum() == 1000
    assert int(each.min()) > 111 - 53
    assert int(each.max()) < 111 + 53
    assert len({int(y[draw(1, key("first", i))]) for i in range(30)}) == 3


# -- the rest ---------------------------------------------------------------------------------------------------------


def test_who_predicts() -> None:
    """f alone: as received before training and while features are shared, as trained otherwise."""
    method = fedfed()
    down = at(1, method.client_update(at(0), State({}), CLIENT, Round(0), key(1))[0].params)
    up, state = toy_models.participate(method, down, State({}), CLIENT, key(1))
    empty = Update({}, {}, CLIENT.n)
    for sent, params in ((None, down.params), (up, up.params), (empty, down.params)):
        f = {n: v for n, v in params.items() if not n.startswith("q.")}
        assert method.personal_params(down, sent, state, CLIENT).keys() == f.keys()
        assert torch.equal(
            method_calls.personal_predictor(method, down, sent, state, CLIENT)(CLIENT.x), CLIENT.model(f, CLIENT.x)
        )
    assert torch.equal(
        method_calls.generic_predictor(method, down, TASK)(CLIENT.x),
        method_calls.personal_predictor(method, down, None, state, CLIENT)(CLIENT.x),
    )


def test_shared_features_help_a_client_with_one_class() -> None:
    """After training on rows of class 0 alone everything is class 0, but not with a pool of all classes beside them."""
    model = toy_models.mlp()
    c = toy_models.client(normal(key(3), 12, 3), [0] * 12, model, classes=3)
    y = torch.arange(3).repeat(8).int()
    x = torch.eye(3)[y.long()] * 3
    pool, rows = {"one": x, "two": x, "y": y}, torch.eye(3) * 3
    method = fedfed(optim=replace(toy_models.RICH, epochs=20))
    guesses = []
    for kept in ({}, pool):
        up, _ = toy_models.participate(method, at(3, model.init()), State(kept), c, key(1))
        guesses.append(model(up.params, rows).argmax(1).tolist())
    assert guesses == [[0, 0, 0], [0, 1, 2]]


def test_a_federation_shares_with_those_who_come_later() -> None:
    """Half of the clients take part in each round; whoever is there for the first time after sharing gets the pool."""
    made = small_runs.setup("fedfed")
    task, backend, per_client_states = made.pool.task(), LoopBackend(made.pool, MemoryStore()), MemoryStore()
    server = made.method.init_server(task, key(0))
    first_time = dict[str, int]()
    for t in range(5):
        server, log = run_round(
            made.method,
            task,
            backend,
            server,
            t=t,
            seed=0,
            cohort=sample_cohort(task.clients, 0.5, 0, t),
            per_client_states=per_client_states,
        )
        for i in log.cohort if t > 1 else ():
            first_time.setdefault(i, t)
            expected = nbytes(replace(server, pool={} if first_time[i] < t else server.pool))
            assert log.down[i] == expected
    assert len(set(first_time.values())) > 1
    sharers = sum(made.pool.train.size(made.pool.position(i)) for i in sample_cohort(task.clients, 0.5, 0, 1))
    assert len(server.pool["y"]) == sharers


def test_text_is_refused() -> None:
    c = replace(CLIENT, x=torch.zeros(9, 3, dtype=torch.long))
    with pytest.raises(AtollError, match="no sense for text"):
        method_calls.init_client(FedFed(), c, key(0))


@pytest.mark.parametrize(
    "wrong", [{"distil_rounds": -1}, {"sigma1": -1.0}, {"sigma2": -1.0}, {"re": -1.0}, {"share": 1.5}, {"share": -0.1}]
)
def test_senseless_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(AtollError, match=f"FedFed: {next(iter(wrong))} is"):
        FedFed(**wrong)
