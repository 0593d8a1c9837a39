"""FedMD: consensus and digest by hand, who trains first, and that all of a round mean the same rows."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from support import toy_models
from support.small_runs import made_with, run, same_models, setup
from torch import Tensor, nn

from atoll.backends.loop import LoopBackend
from atoll.backends.vmap import VmapBackend
from atoll.clients import method_calls
from atoll.clients.state_store import MemoryStore
from atoll.core.client import Client
from atoll.core.model import Model
from atoll.core.optim.base import gradient
from atoll.core.payloads import Nothing, nbytes
from atoll.core.prng import fold, key, normal
from atoll.core.problems import Classes
from atoll.core.replies import Replies
from atoll.core.task import Reply, Round, Task
from atoll.engine.cohort import sample_cohort
from atoll.engine.round import run_round
from atoll.engine.vmap_trial import largest_gap
from atoll.errors import AtollError
from atoll.methods._distillation import imitation_loss
from atoll.methods.fedmd import DISTANCES, FedMD, Lesson, Question, Scores, Server
from atoll.methods.local import Local, State
from benchmarks.digests import PUBLIC

ROWS = normal(key("public"), 10, 3)
ORDER = torch.tensor([3, 1, 4, 0, 5, 9, 2, 6], dtype=torch.int32)
STILL = replace(toy_models.PLAIN, epochs=0)


def client(n: int = 9, seed: int = 1, model: Model | None = None) -> Client:
    return replace(toy_models.random_client(n, seed, model or toy_models.mlp()), public=ROWS)


def norm_client() -> Client:
    net = toy_models.Net(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.3)), nn.Linear(4, 3))
    return client(8, model=Model(toy_models.filled(net)))


def task(*clients: str) -> Task:
    ids = clients or ("a", "b", "c")
    return Task(toy_models.mlp(), Classes(3), ids, None, ROWS, dict.fromkeys(ids, toy_models.mlp()))


def pooled(method: FedMD, uploads: dict[str, Tensor], server: Server | None = None) -> Server:
    """The server after a first exchange with these logits."""
    server = server or method.init_server(task(), key(0))
    replies = (Reply(i, Scores(v)) for i, v in uploads.items())
    return method.agree(server, Replies(replies), task(), Round(0), key("server"))


# -- the server -------------------------------------------------------------------------------------------------------


def test_the_consensus_is_the_plain_mean_over_the_round() -> None:
    """Scores of 1 and -1 have the mean 0; those of 1 and 4 have 2.5, though there is a third client."""
    ones = torch.ones(10, 3)
    torch.testing.assert_close(pooled(FedMD(), {"a": ones, "c": -ones}).consensus, 0 * ones)
    torch.testing.assert_close(pooled(FedMD(), {"b": ones, "c": 4 * ones}).consensus, 2.5 * ones)


def test_the_consensus_travels_in_the_second_exchange_only() -> None:
    method = FedMD()
    server = pooled(method, {"a": torch.ones(10, 3)})
    assert method.teach(server, "a", task(), Round(0, 1), key(0)).consensus is server.consensus


def test_clients_train_first_until_an_answer_of_theirs_was_accepted() -> None:
    method = FedMD()
    server = method.init_server(task(), key(0))
    assert all(method.ask(server, i, task(), Round(0), key(0)).first for i in "abc")
    later = pooled(method, {"b": torch.zeros(10, 3)}, server)
    assert [method.ask(later, i, task(), Round(1), key(0)).first for i in "abc"] == [True, False, True]
    assert not bool(server.met.any())
    done = method.draw_rows(later, Replies([Reply("b", Nothing())]), task(), Round(0, 1), key(1))
    assert torch.equal(done.met, later.met)


def test_all_clients_of_a_round_get_the_same_rows_and_the_next_round_others() -> None:
    method = FedMD(rows=6)
    server = method.init_server(task(), key(0))
    seen = []
    for t in range(3):
        downs = [method.ask(server, i, task(), Round(t), key(0)) for i in "abc"]
        assert all(down.rows is server.rows for down in downs)
        assert len(server.rows.unique()) == 6
        seen.append(server.rows.tolist())
        server = method.agree(server, Replies([Reply("a", Scores(torch.ones(6, 3)))]), task(), Round(t), key(t))
        server = method.draw_rows(server, Replies([Reply("a", Nothing())]), task(), Round(t, 1), key(t, "next"))
        assert server.consensus is None
    assert seen[0] != seen[1] != seen[2]
    assert sorted(FedMD().init_server(task(), key(0)).rows.tolist()) == list(range(10))


# -- the client -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("distance", "moved"), [("mae", 0.05), ("mse", 0.1)])
def test_a_digest_by_hand(distance: str, moved: float) -> None:
    """Logits (0, 0) of x = (1, 2), consensus (1, -1), rate 0.1. The mean of |f - f~| over two classes has the slope
    sign(f - f~) / 2 = (-1/2, 1/2), that of the squares 2 (f - f~) / 2 = (-1, 1): b moves by 0.05 or 0.1, W by x times.
    """
    c = replace(
        toy_models.client([[0.0, 0.0]], [0], toy_models.identity_body(), classes=2), public=torch.tensor([[1.0, 2.0]])
    )
    down = Lesson(torch.zeros(1, dtype=torch.int32), torch.tensor([[1.0, -1.0]]))
    method = FedMD(STILL, digest=toy_models.PLAIN, distance=distance)
    up, state = toy_models.participate(method, down, State(c.model.init()), c, key(0))
    assert isinstance(up, Nothing)
    torch.testing.assert_close(state.params["head.bias"], torch.tensor([moved, -moved]))
    expected = torch.tensor([[moved, 2 * moved], [-moved, -2 * moved]])
    torch.testing.assert_close(state.params["head.weight"], expected)


@pytest.mark.parametrize("distance", DISTANCES)
def test_identical_clients_have_nothing_to_digest(distance: str) -> None:
    """Whole numbers keep the arithmetic exact: loss and gradient are 0, and digesting leaves every bit as it was."""
    model = toy_models.identity_body(3, 2, torch.tensor([[1.0, -2.0, 3.0], [0.0, 4.0, -1.0]]))
    whole = (4 * ROWS).round()
    clients = [replace(toy_models.random_client(5, seed, model, classes=2), public=whole) for seed in (1, 2)]
    method = FedMD(STILL, digest=replace(toy_models.PLAIN, epochs=3, batch_size=4), distance=distance)
    ups = [toy_models.participate(method, Question(ORDER, False), State(model.init()), c, key(0))[0] for c in clients]
    consensus = pooled(method, {"a": ups[0].logits, "b": ups[1].logits}).consensus
    assert consensus is not None
    loss, b = imitation_loss(model, DISTANCES[distance]), toy_models.batch(whole[ORDER.long()], consensus)
    assert float(loss(model.init(), b)) == 0
    grads, _ = gradient(loss, model.init(), b)
    assert all(not bool(g.any()) for g in grads.values())
    _, after = toy_models.participate(method, Lesson(ORDER, consensus), State(model.init()), clients[0], key(1))
    toy_models.assert_same(after, State(model.init()))


def test_scores_are_those_of_the_rows_asked_for_in_evaluation_mode() -> None:
    c = norm_client()
    up, state = toy_models.participate(FedMD(), Question(ORDER, False), State(c.model.init()), c, key(0))
    torch.testing.assert_close(up.logits, c.model(c.model.init(), ROWS)[ORDER.long()])
    toy_models.assert_same(state, State(c.model.init()))


def test_a_first_answer_comes_after_training_on_private_rows() -> None:
    c, method = client(), FedMD(toy_models.RICH, first_epochs=7)
    up, state = toy_models.participate(method, Question(ORDER, True), State(c.model.init()), c, key(3))
    alone = Local(replace(toy_models.RICH, epochs=7))
    _, trained = toy_models.participate(alone, Nothing(), State(c.model.init()), c, fold(key(3), -2))
    toy_models.assert_same(state, trained)
    assert torch.equal(up.logits, c.model(trained.params, ROWS[ORDER.long()]))


def test_digest_comes_before_revisit() -> None:
    c, consensus = client(), normal(key("consensus"), 8, 3)
    method = FedMD(toy_models.RICH, digest=replace(toy_models.RICH, batch_size=3))
    down = Lesson(ORDER, consensus)
    _, digested = toy_models.participate(replace(method, optim=STILL), down, State(c.model.init()), c, key(3))
    _, after = toy_models.participate(method, down, State(c.model.init()), c, key(3))
    toy_models.assert_same(after, toy_models.participate(Local(toy_models.RICH), Nothing(), digested, c, key(3))[1])


def test_public_batches_do_not_move_the_running_statistics() -> None:
    c, consensus = norm_client(), normal(key("consensus"), 8, 3)
    method = FedMD(STILL, digest=replace(toy_models.RICH, batch_size=4))
    before = c.model.init()
    _, after = toy_models.participate(method, Lesson(ORDER, consensus), State(before), c, key(0))
    for name, v in before.items():
        assert torch.equal(after.params[name], v) == name.startswith("buffers.")


def test_predictions_are_those_of_the_clients_own_model() -> None:
    c, method = client(), FedMD()
    state = State({name: v + 1 for name, v in c.model.init().items()})
    assert torch.equal(
        method_calls.personal_predictor(method, Question(ORDER, True), None, state, c)(c.x),
        c.model(state.params, c.x),
    )


@pytest.mark.parametrize(("c", "sizes"), [(client(), (9, 6, 11)), (norm_client(), (8, 8, 8))])
def test_vmap_equals_loop(c: Client, sizes: tuple[int, int, int]) -> None:
    """With padding; but batch statistics know none."""
    clients = [client(n, seed, c.model) for seed, n in enumerate(sizes[:2])]
    method = FedMD(toy_models.RICH, digest=replace(toy_models.RICH, batch_size=3), first_epochs=2)
    states = [State(c.model.init()) for _ in range(2)]
    for r, down in enumerate((Question(ORDER, True), Lesson(ORDER, normal(key("consensus"), 8, 3)))):
        keys = [key(r, "local", i) for i in range(2)]
        before = toy_models.snapshot((down, states))
        one = [toy_models.participate(method, down, s, who, k) for s, who, k in zip(states, clients, keys, strict=True)]
        many = toy_models.together(method, down, states, [toy_models.padded(who, sizes[2]) for who in clients], keys)
        toy_models.assert_near(one, many, 1e-5)
        toy_models.assert_near((down, states), before, tolerance=0)
        states = [s for _, s in one]


# -- whole runs -------------------------------------------------------------------------------------------------------


def test_without_digest_and_first_training_it_is_local() -> None:
    assert same_models(made_with("fedmd", **{"digest.epochs": 0, "first_epochs": 0}), run("local", public=PUBLIC))
    assert FedMD(digest=STILL).reduces_to() is not None
    assert FedMD().reduces_to() is None


def test_new_clients_and_old_hands_train_side_by_side() -> None:
    """With three of five clients a round, some get first = True and others not: one batched call cannot serve both."""
    made = setup("fedmd", rate=0.6)
    task, kept = made.pool.task(), []
    for kind in (LoopBackend, VmapBackend):
        backend, server = kind(made.pool, MemoryStore()), made.method.init_server(task, key(0))
        met = [server.met.clone()]
        for t in range(3):
            server, log = run_round(
                made.method, task, backend, server, t=t, seed=0, cohort=sample_cohort(task.clients, 0.6, 0, t)
            )
            met.append(server.met.clone())
            mixed = {bool(met[t][task.clients.index(i)]) for i in log.cohort}
            assert t != 1 or mixed == {True, False}
        kept.append([backend.state(made.method, 0, i) for i in made.pool.ids])
    assert max(largest_gap(a, b) for a, b in zip(*kept, strict=True)) < 1e-3


def test_unlike_models_of_unlike_widths_and_what_they_exchange() -> None:
    """All 60 rows: their numbers (4 bytes each) twice, logits of 10 classes once each way, a flag (8 bytes) twice."""
    mixed: dict[str, Any] = {"models": ("mlp:hidden=12", "mlp:hidden=20")}
    assert run("fedmd", **mixed).summary["status"] == "finished"
    made = setup("fedmd", **mixed)
    assert {m.feature_dim for m in made.pool.models.values()} == {12, 20}
    backend, server = LoopBackend(made.pool, MemoryStore()), made.method.init_server(made.pool.task(), key(0))
    _, log = run_round(made.method, made.pool.task(), backend, server, t=0, seed=0, cohort=made.pool.ids)
    assert set(log.up.values()) == {4 * 60 * 10}
    assert set(log.down.values()) == {(4 * 60 + 8) + (4 * 60 + 4 * 60 * 10)}  # question and lesson
    assert nbytes(Nothing()) == 0


def test_mistakes_are_refused() -> None:
    for wrong in ({"rows": 0}, {"first_epochs": -1}, {"distance": "l2"}):
        with pytest.raises(AtollError, match=next(iter(wrong))):
            FedMD(**wrong)
    with pytest.raises(AtollError, match="--public"):
        FedMD().init_server(toy_models.task(toy_models.mlp()), key(0))
