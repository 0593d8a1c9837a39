"""KT-pFL: the steps of the coefficients and of the distillation by hand, and rows that stay on the simplex."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from support import toy_models
from support.small_runs import made_with, run, same_models, setup
from torch import Tensor, nn

from atoll.backends.loop import LoopBackend
from atoll.clients import method_calls
from atoll.clients.state_store import MemoryStore
from atoll.core.client import Client
from atoll.core.model import Model
from atoll.core.optim.base import gradient
from atoll.core.payloads import Nothing
from atoll.core.prng import key, normal
from atoll.core.problems import Classes
from atoll.core.replies import Replies
from atoll.core.task import Reply, Round, Task
from atoll.engine.round import run_round
from atoll.errors import AtollError
from atoll.methods._distillation import imitation_loss, kl_divergence
from atoll.methods.ktpfl import KTpFL, Predictions, Question, Server, Target, simplex
from atoll.methods.local import Local, State
from benchmarks.digests import PUBLIC

ROWS = normal(key("public"), 10, 3)
ORDER = torch.tensor([3, 1, 4, 0, 5, 9, 2, 6], dtype=torch.int32)
STILL = replace(toy_models.PLAIN, epochs=0)
AXES = torch.eye(2, dtype=torch.double)  # s_1 = (1, 0), s_2 = (0, 1), for one public row


def client(n: int = 9, seed: int = 1, model: Model | None = None) -> Client:
    return replace(toy_models.random_client(n, seed, model or toy_models.mlp()), public=ROWS)


def norm_client() -> Client:
    net = toy_models.Net(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.3)), nn.Linear(4, 3))
    return client(8, model=Model(toy_models.filled(net)))


def task(n: int = 3) -> Task:
    ids = tuple("abcdef"[:n])
    return Task(toy_models.mlp(), Classes(3), ids, None, ROWS, dict.fromkeys(ids, toy_models.mlp()))


def taught(method: KTpFL, c: Tensor, uploads: dict[str, Tensor]) -> Server:
    """The server after a first exchange, its coefficients having been c."""
    server = replace(method.init_server(task(len(c)), key(0)), c=c)
    replies = (Reply(i, Predictions(v)) for i, v in uploads.items())
    return method.weigh(server, Replies(replies), task(len(c)), Round(0), key("server"))


def soft(name: str, rows: int = 10) -> Tensor:
    return normal(key(name), rows, 3).softmax(1)


# -- coefficients -----------------------------------------------------------------------------------------------------


def learned(c: list[float], s: Tensor = AXES, **settings: Any) -> list[float]:
    """The first row, if all rows are c."""
    rows = torch.tensor([c] * len(c), dtype=torch.double)
    out: list[float] = KTpFL(**settings).next_weights(rows, s)[0].tolist()
    return out


def test_a_step_of_the_coefficients_by_hand() -> None:
    """c_1 = (1/2, 1/2) predicts (1/2, 1/2), which is (-1/2, 1/2) off s_1. The mean of squares over two entries has the
    slope 2 / 2 (-1/2 * 1 + 1/2 * 0) = -1/2 in c_11 and 1/2 in c_12: a step of 0.1 leads to (0.55, 0.45).
    """
    assert learned([0.5, 0.5], eta=0.1, rho=0.0) == pytest.approx([0.55, 0.45], abs=1e-12)


def test_the_distance_is_a_mean_over_rows_as_well() -> None:
    """The same two predictions for three rows change nothing."""
    assert learned([0.5, 0.5], AXES.repeat(1, 3), eta=0.1, rho=0.0) == pytest.approx([0.55, 0.45], abs=1e-12)


def test_the_pull_to_equal_shares_by_hand() -> None:
    """With equal predictions only the pull acts: 2 * 0.7 (0.7 - 0.5, 0.3 - 0.5) = (0.28, -0.28), times 0.1."""
    same = torch.full((2, 2), 0.5, dtype=torch.double)
    assert learned([0.7, 0.3], same, eta=0.1) == pytest.approx([0.672, 0.328], abs=1e-12)


def test_the_softmax_of_the_released_code() -> None:
    """Softmax of 5 (0.55, 0.45) is 1 / (1 + e^-0.5) = 0.622459; a row that is not moved is drawn to equal shares."""
    assert learned([0.5, 0.5], eta=0.1, rho=0.0, projection="softmax") == pytest.approx([0.622459, 0.377541], abs=1e-6)
    assert max(learned([1.0, 0.0, 0.0], torch.eye(3).double(), eta=0.0, projection="softmax")) < 0.99


@pytest.mark.parametrize(
    ("v", "nearest"),
    [
        ((0.55, 0.45), (0.55, 0.45)),
        ((0.8, 0.6), (0.6, 0.4)),
        ((2.0, 0.0, 0.0), (1.0, 0.0, 0.0)),
        ((-1.0, 0.5, 0.9), (0.0, 0.3, 0.7)),
        ((0.0, 0.0, 0.0, 0.0), (0.25, 0.25, 0.25, 0.25)),
    ],
)
def test_projection_onto_the_simplex_by_hand(v: tuple[float, ...], nearest: tuple[float, ...]) -> None:
    """All numbers above 0 lose the same: 0.2 of (0.8, 0.6), 1 of 2, 0.2 of (0.5, 0.9), -1/4 of zeros."""
    assert simplex(torch.tensor([v]))[0].tolist() == pytest.approx(nearest, abs=1e-6)


def test_no_point_of_the_simplex_is_nearer() -> None:
    v, others = normal(key("v"), 1, 5), normal(key("points"), 500, 5).softmax(1)
    p = simplex(v)
    assert float(p.sum()) == pytest.approx(1, abs=1e-6)
    assert float(p.min()) >= 0
    assert bool(((others - v).norm(dim=1) >= (p - v).norm()).all())


@pytest.mark.parametrize("projection", ["simplex", "softmax"])
def test_rows_stay_on_the_simplex_whoever_takes_part(projection: str) -> None:
    method, c = KTpFL(eta=20.0, rho=0.1, projection=projection), torch.full((4, 4), 0.25)
    for t, who in enumerate(("abcd", "ab", "bcd", "a", "abd")):
        c = taught(method, c, {i: soft(f"{t}{i}") ** 3 for i in who}).c
        torch.testing.assert_close(c.sum(1), torch.ones(4))
        assert float(c.min()) >= 0
    assert not torch.allclose(c, torch.full((4, 4), 0.25), atol=0.01)


# -- the server -------------------------------------------------------------------------------------------------------


def test_targets_are_mixtures_of_predictions() -> None:
    """The rows (0.5, 0.3, 0.2) and (0, 0, 1) of c, not learned: 0.5 s_a + 0.3 s_b + 0.2 s_c, and s_c itself."""
    c = torch.tensor([[0.5, 0.3, 0.2], [0.0, 0.0, 1.0], [1 / 3, 1 / 3, 1 / 3]])
    s = {i: soft(i) for i in "abc"}
    method = KTpFL(eta=0.0)
    server = taught(method, c, s)
    torch.testing.assert_close(server.targets["a"], 0.5 * s["a"] + 0.3 * s["b"] + 0.2 * s["c"])
    torch.testing.assert_close(server.targets["b"], s["c"])
    assert method.teach(server, "a", task(), Round(0, 1), key(0)).probs is server.targets["a"]


def test_targets_come_from_the_coefficients_just_learned() -> None:
    method, s = KTpFL(eta=0.1, rho=0.0), {"a": torch.tensor([[1.0, 0.0]]), "b": torch.tensor([[0.0, 1.0]])}
    server = taught(method, torch.full((2, 2), 0.5), s)
    torch.testing.assert_close(server.c, torch.tensor([[0.55, 0.45], [0.45, 0.55]]))
    torch.testing.assert_close(server.targets["a"], torch.tensor([[0.55, 0.45]]))
    torch.testing.assert_close(server.targets["b"], torch.tensor([[0.45, 0.55]]))


def test_clients_that_are_absent_neither_teach_nor_change() -> None:
    """Without c, the row (0.5, 0.3, 0.2) counts as (0.5, 0.3) / 0.8 = (0.625, 0.375), and 0.2 stays c's. One step with
    the predictions of the axes moves it by 0.1 * 0.375 to (0.6625, 0.3375), and so the row to (0.53, 0.27, 0.2).
    The slope is 2 / 2 (0.625 - 1, 0.375) = (-0.375, 0.375).
    """
    c = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.3, 0.5], [0.1, 0.1, 0.8]])
    s = {"a": torch.tensor([[1.0, 0.0]]), "b": torch.tensor([[0.0, 1.0]])}
    server = taught(KTpFL(eta=0.1, rho=0.0), c, s)
    torch.testing.assert_close(server.c[0], torch.tensor([0.53, 0.27, 0.2]))
    torch.testing.assert_close(server.targets["a"], torch.tensor([[0.6625, 0.3375]]))
    assert torch.equal(server.c[2], c[2])
    assert float(server.c[1, 2]) == 0.5
    assert server.targets.keys() == {"a", "b"}


def test_a_row_with_nothing_for_those_present_teaches_equal_shares() -> None:
    c = torch.tensor([[0.0, 0.0, 1.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    s = {i: soft(i) for i in "ab"}
    server = taught(KTpFL(eta=0.0), c, s)
    torch.testing.assert_close(server.targets["a"], (s["a"] + s["b"]) / 2)
    assert torch.equal(server.c, c)


def test_all_clients_of_a_round_get_the_same_rows_and_the_next_round_others() -> None:
    method = KTpFL(rows=6)
    server = method.init_server(task(), key(0))
    assert torch.equal(server.c, torch.full((3, 3), 1 / 3))
    seen = []
    for t in range(3):
        assert all(method.ask(server, i, task(), Round(t), key(0)).rows is server.rows for i in "abc")
        seen.append(server.rows.tolist())
        server = method.weigh(server, iter([Reply("a", Predictions(soft("a", 6)))]), task(), Round(t), key(t))
        learned = server.c
        server = method.draw_rows(server, iter([Reply("a", Nothing())]), task(), Round(t, 1), key(t, "next"))
        assert server.targets == {}
        assert server.c is learned
    assert seen[0] != seen[1] != seen[2]


# -- the client -------------------------------------------------------------------------------------------------------


def test_a_step_of_distillation_by_hand() -> None:
    """Logits 0, so (1/2, 1/2); target (0.9, 0.1); T = 2; x = 1. The slope in the logits is ((0.5, 0.5) - target) / T =
    (-0.2, 0.2), whatever the number of classes: with the rate 0.1 weights and bias become (0.02, -0.02). Two rows alike
    make no difference.
    """
    rows = torch.tensor([[1.0], [1.0]])
    c = replace(toy_models.client([[0.0]], [0], toy_models.identity_body(1), classes=2), public=rows)
    down = Target(torch.tensor([0, 1], dtype=torch.int32), torch.tensor([[0.9, 0.1], [0.9, 0.1]]))
    up, state = toy_models.participate(
        KTpFL(distil=toy_models.PLAIN, temperature=2.0), down, State(c.model.init()), c, key(0)
    )
    assert isinstance(up, Nothing)
    torch.testing.assert_close(state.params["head.weight"], torch.tensor([[0.02], [-0.02]]))
    torch.testing.assert_close(state.params["head.bias"], torch.tensor([0.02, -0.02]))


def test_predictions_go_up_after_training_in_evaluation_mode() -> None:
    c, method = norm_client(), KTpFL(toy_models.RICH, temperature=3.0)
    up, state = toy_models.participate(method, Question(ORDER), State(c.model.init()), c, key(1))
    _, alone = toy_models.participate(Local(toy_models.RICH), Nothing(), State(c.model.init()), c, key(1))
    toy_models.assert_same(state, alone)
    torch.testing.assert_close(up.probs, (c.model(alone.params, ROWS[ORDER.long()]) / 3).softmax(1))


def test_without_transfer_there_is_nothing_to_learn() -> None:
    """With c = I the target is what the client predicts itself: the gradient is 0 up to rounding."""
    clients = {i: client(9, seed) for seed, i in enumerate("ab")}
    method = KTpFL(STILL, distil=toy_models.PLAIN, eta=0.0, temperature=2.0)
    states = {i: State(toy_models.mlp(seed=seed).init()) for seed, i in enumerate("ab")}
    ups = {
        i: toy_models.participate(method, Question(ORDER), states[i], c, key(0))[0].probs for i, c in clients.items()
    }
    for c, least, most in ((torch.eye(2), 0.0, 1e-7), (torch.full((2, 2), 0.5), 1e-4, 1.0)):
        target = taught(method, c, ups).targets["a"]
        own = clients["a"].model
        b = toy_models.batch(ROWS[ORDER.long()], target)
        grads, _ = gradient(imitation_loss(own, lambda t, f: kl_divergence(t, f / 2)), states["a"].params, b)
        assert least <= max(float(g.abs().max()) for g in grads.values()) <= most


def test_public_batches_do_not_move_the_running_statistics() -> None:
    c, method = norm_client(), KTpFL(distil=replace(toy_models.RICH, batch_size=4))
    before = c.model.init()
    _, after = toy_models.participate(method, Target(ORDER, soft("target", 8)), State(before), c, key(0))
    for name, v in before.items():
        assert torch.equal(after.params[name], v) == name.startswith("buffers.")


def test_predictions_are_those_of_the_clients_own_model() -> None:
    c = client()
    state = State({name: v + 1 for name, v in c.model.init().items()})
    assert torch.equal(
        method_calls.personal_predictor(KTpFL(), Question(ORDER), None, state, c)(c.x), c.model(state.params, c.x)
    )


@pytest.mark.parametrize(("c", "sizes"), [(client(), (9, 6, 11)), (norm_client(), (8, 8, 8))])
def test_vmap_equals_loop(c: Client, sizes: tuple[int, int, int]) -> None:
    """With padding; but batch statistics know none."""
    clients = [client(n, seed, c.model) for seed, n in enumerate(sizes[:2])]
    method = KTpFL(toy_models.RICH, distil=replace(toy_models.RICH, batch_size=3), temperature=2.0)
    states = [State(c.model.init()) for _ in range(2)]
    for r, down in enumerate((Question(ORDER), Target(ORDER, soft("target", 8)))):
        keys = [key(r, "local", i) for i in range(2)]
        before = toy_models.snapshot((down, states))
        one = [toy_models.participate(method, down, s, who, k) for s, who, k in zip(states, clients, keys, strict=True)]
        many = toy_models.together(method, down, states, [toy_models.padded(who, sizes[2]) for who in clients], keys)
        toy_models.assert_near(one, many, 1e-5)
        toy_models.assert_near((down, states), before, tolerance=0)
        states = [s for _, s in one]


# -- whole runs -------------------------------------------------------------------------------------------------------


def test_without_distillation_it_is_local() -> None:
    assert same_models(made_with("ktpfl", **{"distil.steps": None, "distil.epochs": 0}), run("local", public=PUBLIC))
    assert "Local" in str(KTpFL(distil=STILL).reduces_to())
    assert "plain mean" in str(KTpFL(eta=0.0).reduces_to())
    assert KTpFL().reduces_to() is None


def test_unlike_models_of_unlike_widths_and_what_they_exchange() -> None:
    """All 60 rows: their numbers (4 bytes each) twice, soft predictions of 10 classes once each way."""
    mixed: dict[str, Any] = {"models": ("mlp:hidden=12", "mlp:hidden=20")}
    assert run("ktpfl", **mixed).summary["status"] == "finished"
    made = setup("ktpfl", **mixed)
    assert {m.feature_dim for m in made.pool.models.values()} == {12, 20}
    backend, server = LoopBackend(made.pool, MemoryStore()), made.method.init_server(made.pool.task(), key(0))
    _, log = run_round(made.method, made.pool.task(), backend, server, t=0, seed=0, cohort=made.pool.ids)
    assert set(log.up.values()) == {4 * 60 * 10}
    assert set(log.down.values()) == {2 * 4 * 60 + 4 * 60 * 10}


def test_mistakes_are_refused() -> None:
    for wrong in ({"temperature": 0.0}, {"eta": -1.0}, {"rho": -1.0}, {"rows": 0}, {"projection": "sum"}):
        with pytest.raises(AtollError, match=next(iter(wrong))):
            KTpFL(**wrong)
    with pytest.raises(AtollError, match="--public"):
        KTpFL().init_server(toy_models.task(toy_models.mlp()), key(0))
