"""FD: teachers, loss and gradient by hand; who teaches whom; Local where nobody does."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from support import toy_models
from support.small_runs import made_with, run, same_models
from torch import Tensor, nn

from atoll.clients import method_calls
from atoll.clients.server_side import ServerSideStates
from atoll.clients.state_store import MemoryStore
from atoll.core.client import Client
from atoll.core.model import Model
from atoll.core.optim.base import gradient
from atoll.core.payloads import Nothing, nbytes
from atoll.core.prng import key, normal
from atoll.core.replies import Replies
from atoll.core.task import Reply, Round, Task
from atoll.errors import AtollError
from atoll.methods.fd import FD, Means, Server, Teachers
from atoll.methods.local import Local, State

PAIR = toy_models.task(toy_models.identity_body(), classes=2)


def means(*rows: tuple[float, float] | None) -> Means:
    """A table with the given rows; None for a class the client does not have."""
    return Means(torch.tensor([row or (0.0, 0.0) for row in rows]), torch.tensor([row is not None for row in rows]))


class Office:
    """The server and its states for each client, round by round."""

    def __init__(self, method: FD, t: Task = PAIR):
        self.method, self.task, self.t = method, t, 0
        self.per_client_states, self.server = (
            ServerSideStates(method, t, 0, MemoryStore()),
            method.init_server(t, key(0)),
        )

    def hear(self, **uploads: Means) -> None:
        replies = self.per_client_states.serve_replies(
            self.server, (Reply(i, up) for i, up in uploads.items()), Round(self.t)
        )
        self.server: Server = self.method.aggregate(
            self.server, Replies(replies), self.task, Round(self.t), key(self.t)
        )
        self.t += 1

    def tell(self, i: str) -> Teachers:
        down: Teachers = self.per_client_states.download(self.server, i, Round(self.t))
        return down


def rows(down: Teachers) -> list[list[float] | None]:
    return [
        [round(v, 6) for v in row.tolist()] if known else None
        for row, known in zip(down.means, down.known, strict=True)
    ]


# -- the server -------------------------------------------------------------------------------------------------------


def test_teachers_by_hand() -> None:
    """(.8, .2), (.6, .4), (1, 0) for class 0. The others of each: (.6 + 1) / 2 = .8, (.8 + 1) / 2 = .9, (.8 + .6) / 2 =
    .7. With the own share all get 2.4 / 3 = .8.
    """
    sent = {"a": means((0.8, 0.2), None), "b": means((0.6, 0.4), None), "c": means((1.0, 0.0), None)}
    server_side, everybody = Office(FD()), Office(FD(include_self=True))
    server_side.hear(**sent)
    everybody.hear(**sent)
    assert [rows(server_side.tell(i)) for i in "abc"] == [[[0.8, 0.2], None], [[0.9, 0.1], None], [[0.7, 0.3], None]]
    assert [rows(everybody.tell(i)) for i in "abc"] == [[[0.8, 0.2], None]] * 3


def test_a_class_with_one_owner_has_no_teacher() -> None:
    """And a client without the class does not dilute it: class 0 of b comes from a alone, undivided."""
    server_side = Office(FD())
    server_side.hear(a=means((0.8, 0.2), (0.3, 0.7)), b=means((0.6, 0.4), None))
    assert rows(server_side.tell("a")) == [[0.6, 0.4], None]
    assert rows(server_side.tell("b")) == [[0.8, 0.2], None]


def test_only_classes_a_client_has_are_sent_once_they_are_known() -> None:
    server_side = Office(FD())
    assert rows(server_side.tell("b")) == [None, None]
    server_side.hear(a=means((0.8, 0.2), (0.3, 0.7)))
    assert rows(server_side.tell("b")) == [[0.8, 0.2], [0.3, 0.7]]
    server_side.hear(a=means((0.8, 0.2), (0.3, 0.7)), b=means(None, (0.1, 0.9)))
    assert rows(server_side.tell("b")) == [None, [0.3, 0.7]]


@pytest.mark.parametrize("keep", [False, True])
def test_teachers_are_those_of_the_last_round_unless_kept(keep: bool) -> None:
    """Round 2 is without a: its share is not in the sum, so there is nothing to leave out. Class 1, which only a sent
    in round 1, is forgotten, or kept for others; but never does a teach itself.
    """
    server_side = Office(FD(keep_last=keep))
    server_side.hear(a=means((0.8, 0.2), (0.3, 0.7)), b=means((0.6, 0.4), None))
    server_side.hear(b=means((0.4, 0.6), None))
    assert rows(server_side.tell("a")) == [[0.4, 0.6], None]
    assert rows(server_side.tell("b")) == [None, None]
    assert rows(server_side.tell("new")) == [[0.4, 0.6], [0.3, 0.7] if keep else None]


# -- the client -------------------------------------------------------------------------------------------------------


def test_loss_and_gradient_by_hand() -> None:
    """Logits (0, 0), y = 0, teacher (.8, .2): CE = H = log 2, together 1.386294. The gradient of CE is (.5 - 1, .5), of
    H it is (.5 - .8, .5 - .2): together (-.8, .8). With gamma = 2 it is (-1.1, 1.1).
    """
    c = toy_models.client([[0.0, 0.0]], [0], toy_models.identity_body(), classes=2)
    params = c.model.init() | {"buffers.tally": torch.zeros(2, 2)}
    teachers, b = torch.tensor([[0.8, 0.2], [0.0, 0.0]]), toy_models.batch(c.x, c.y)
    assert float(FD().loss(teachers, c)(params, b)) == pytest.approx(1.386294, abs=1e-6)
    for gamma, slope in ((1.0, 0.8), (2.0, 1.1)):
        grads, _ = gradient(FD(gamma=gamma).loss(teachers, c), params, b)
        torch.testing.assert_close(grads["head.bias"], torch.tensor([-slope, slope]))


def test_rows_without_teacher_count_in_the_mean() -> None:
    """Two rows with logits (0, 0), of which class 1 has no teacher: log 2 + (log 2 + 0) / 2."""
    c = toy_models.client([[0.0, 0.0], [0.0, 0.0]], [0, 1], toy_models.identity_body())
    params = c.model.init() | {"buffers.tally": torch.zeros(2, 2)}
    loss = FD().loss(torch.tensor([[0.8, 0.2], [0.0, 0.0]]), c)
    assert float(loss(params, toy_models.batch(c.x, c.y))) == pytest.approx(1.5 * 0.693147, abs=1e-6)


def test_means_are_taken_while_the_model_moves() -> None:
    """Two epochs of one batch: F is the mean of the predictions at the start and after the first step; with post_pass
    those at the end count.
    """
    c = toy_models.random_client(6, 1, toy_models.mlp())
    twice, once = (replace(toy_models.PLAIN, epochs=n) for n in (2, 1))
    down = Teachers(torch.zeros(3, 3), torch.zeros(3, dtype=torch.bool))

    def trained(method: FD) -> tuple[Means, dict[str, Tensor]]:
        up, state = toy_models.participate(method, down, method_calls.init_client(method, c, key(0)), c, key(1))
        return up, state.params

    def predictions(params: dict[str, Tensor]) -> Tensor:
        p = c.model(params, c.x).softmax(1)
        return torch.stack([p[c.y == label].mean(0) for label in range(3)])

    first, last = trained(FD(once))[1], trained(FD(twice))[1]
    torch.testing.assert_close(trained(FD(twice))[0].means, (predictions(c.model.init()) + predictions(first)) / 2)
    torch.testing.assert_close(trained(FD(twice, post_pass=True))[0].means, predictions(last))


@pytest.mark.parametrize("post_pass", [False, True])
def test_uploads_are_distributions_of_the_classes_held(post_pass: bool) -> None:
    c = toy_models.client(normal(key(1), 7, 3), [0, 2, 2, 0, 2, 0, 0], toy_models.mlp(), classes=3)
    method = FD(toy_models.RICH, post_pass=post_pass)
    down = Teachers(torch.zeros(3, 3), torch.zeros(3, dtype=torch.bool))
    up, _ = toy_models.participate(
        method, down, method_calls.init_client(method, c, key(0)), toy_models.padded(c, 11), key(1)
    )
    assert up.held.tolist() == [True, False, True]
    torch.testing.assert_close(up.means.sum(1), torch.tensor([1.0, 0.0, 1.0]))


def batch_norm() -> Model:
    net = toy_models.Net(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), nn.Linear(4, 3))
    return Model(toy_models.filled(net), "bn")


@pytest.mark.parametrize("model", [toy_models.mlp(), batch_norm()])
@pytest.mark.parametrize("off", ["gamma", "teachers"])
def test_local_where_nothing_is_taught(model: Model, off: str) -> None:
    c = toy_models.random_client(8, 1, model)
    held = torch.full((3,), off == "gamma")
    method = FD(toy_models.RICH, gamma=0.0 if off == "gamma" else 2.0)
    down = Teachers(held[:, None] * normal(key(3), 3, 3).softmax(1), held)
    _, state = toy_models.participate(method, down, method_calls.init_client(method, c, key(0)), c, key(1))
    _, alone = toy_models.participate(Local(toy_models.RICH), Nothing(), State(model.init()), c, key(1))
    toy_models.assert_same(state, alone)
    assert (method.reduces_to() is not None) == (off == "gamma")


def test_one_owner_for_every_class_is_local() -> None:
    """Class 0 and 1 belong to a, class 2 to b; for comparison, b gets a row of class 0, and is taught."""

    def played(labels: list[int]) -> list[bool]:
        x = normal(key(2), 5, 3)
        clients = {
            "a": toy_models.client(x, [0, 1, 0, 1, 1], toy_models.mlp(), classes=3),
            "b": toy_models.client(x + 1, labels, toy_models.mlp(seed=2), classes=3),
        }
        server_side, local = Office(FD(toy_models.RICH), toy_models.task(toy_models.mlp())), Local(toy_models.RICH)
        states = {i: method_calls.init_client(local, c, key(0)) for i, c in clients.items()}
        alone = dict(states)
        for r in range(3):
            downs = {i: server_side.tell(i) for i in clients}
            done = {
                i: toy_models.participate(server_side.method, downs[i], states[i], c, key(r, i))
                for i, c in clients.items()
            }
            server_side.hear(**{i: up for i, (up, _) in done.items()})
            states = {i: state for i, (_, state) in done.items()}
            alone = {i: toy_models.participate(local, Nothing(), alone[i], c, key(r, i))[1] for i, c in clients.items()}
        return [all(torch.equal(v, alone[i].params[n]) for n, v in states[i].params.items()) for i in clients]

    assert played([2, 2, 2, 2, 2]) == [True, True]
    assert played([2, 2, 0, 2, 2]) == [False, False]


def test_teaching_brings_predictions_closer() -> None:
    c = toy_models.random_client(9, 1, toy_models.mlp())
    target = normal(key(5), 3, 3).softmax(1)
    down = Teachers(target, torch.ones(3, dtype=torch.bool))

    def gap(gamma: float) -> float:
        method = FD(toy_models.RICH, gamma=gamma, post_pass=True)
        up, _ = toy_models.participate(method, down, method_calls.init_client(method, c, key(0)), c, key(1))
        return float((up.means - target).square().sum())

    assert gap(5.0) < gap(0.0)


def test_a_whole_run_without_pull_is_local() -> None:
    assert same_models(made_with("fd", gamma=0.0), run("local"))
    assert not same_models(run("fd"), run("local"))


def test_bytes() -> None:
    """Ten classes, of which the client has two: 2 * 10 scalars and 2 labels each way; 100 and ten: 1,000 and 10."""
    for c, own in ((10, 2), (100, 10)):
        held = torch.arange(c) < own
        table = held[:, None] * torch.ones(c, c)
        assert nbytes(Means(table, held)) == nbytes(Teachers(table, held)) == 4 * (own * c + own)
    assert nbytes(Office(FD()).tell("a")) == 0


def test_negative_gamma_is_refused() -> None:
    with pytest.raises(AtollError, match="FD: gamma is -1"):
        FD(gamma=-1.0)


@pytest.mark.parametrize("settings", [{}, {"post_pass": True}])
def test_vmap_equals_loop(settings: dict[str, Any]) -> None:
    """Downloads differ from client to client; here it is the same for both."""
    method, model = FD(toy_models.RICH, **settings), toy_models.mlp()
    clients: list[Client] = [toy_models.random_client(n, seed, model) for n, seed in ((9, 1), (6, 2))]
    down = Teachers(normal(key(3), 3, 3).softmax(1) * torch.tensor([[1.0], [0.0], [1.0]]), torch.arange(3) != 1)
    states, keys = [method_calls.init_client(method, c, key(0)) for c in clients], [key("local", i) for i in range(2)]
    alone = [toy_models.participate(method, down, s, c, k) for s, c, k in zip(states, clients, keys, strict=True)]
    toy_models.assert_near(
        alone, toy_models.together(method, down, states, [toy_models.padded(c, 11) for c in clients], keys)
    )
