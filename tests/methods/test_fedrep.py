"""FedRep: the head first, on a body that does not move; then the body, under a head that does not move."""

from dataclasses import replace

import torch
from support import toy_models
from support.small_runs import made_with, run
from torch import nn

from atoll.clients import method_calls
from atoll.core.client import Client
from atoll.core.losses import objective
from atoll.core.model import Model
from atoll.core.optim.base import gradient
from atoll.core.params import part
from atoll.core.payloads import Params, equal
from atoll.core.prng import key
from atoll.methods._partial_model import Kept, Shared, fit_head
from atoll.methods.fedbabu import FedBABU
from atoll.methods.fedrep import FedRep

IDLE = replace(toy_models.RICH, epochs=0)


def normed() -> Model:
    """With running statistics that are not those of any batch."""
    norm = nn.BatchNorm1d(4)
    norm.register_buffer("running_mean", torch.full((4,), 0.7))
    body = nn.Sequential(nn.Linear(3, 4), norm, nn.Dropout(0.3))
    return Model(toy_models.filled(toy_models.Net(body, nn.Linear(4, 3))), "normed")


def same(a: Params, b: Params) -> bool:
    return list(a) == list(b) and all(torch.equal(v, b[name]) for name, v in a.items())


def first(c: Client) -> tuple[Shared, Kept]:
    method = FedRep()
    return method.init_server(toy_models.task(c.model), key(0)), method_calls.init_client(method, c, key(0))


def test_the_body_stays_while_the_head_is_trained() -> None:
    """Momentum and weight decay are on; running statistics stay too."""
    c = toy_models.random_client(9, 1, normed())
    down, start = first(c)
    up, state = toy_models.participate(FedRep(IDLE, head_optim=toy_models.RICH), down, start, c, key(1))
    assert same(up.params, down.params)
    assert all(not torch.equal(v, start.params[name]) for name, v in state.params.items())


def test_the_head_stays_while_the_body_is_trained() -> None:
    """Momentum and weight decay are on; running statistics follow the batches."""
    c = toy_models.random_client(9, 1, normed())
    down, start = first(c)
    up, state = toy_models.participate(FedRep(toy_models.RICH, head_optim=IDLE), down, start, c, key(1))
    assert same(state.params, start.params)
    assert list(up.params) == list(down.params)
    moved = ("body.0.weight", "body.1.weight", "buffers.body.1.running_mean")
    assert all(not torch.equal(up.params[name], down.params[name]) for name in moved)


def test_head_step_by_hand() -> None:
    """Features (1, 0) of class 0 and (0, 1) of class 1, head zero: p = (1/2, 1/2). The mean gradient of column 0 is
    (-0.5, 0.5) / 2, so a step of 0.1 makes it (0.025, -0.025); column 1 mirrors it and the biases cancel.
    """
    c = toy_models.client([[1.0, 0.0], [0.0, 1.0]], [0, 1], toy_models.identity_body())
    head = fit_head(toy_models.PLAIN, {}, part(c.model.init(), "head"), c, key(1))
    torch.testing.assert_close(head["head.weight"], torch.tensor([[0.025, -0.025], [-0.025, 0.025]]))
    torch.testing.assert_close(head["head.bias"], torch.zeros(2))


def test_the_head_sees_the_body_as_it_predicts() -> None:
    """One full-batch step of 0.1 on features by running statistics, without dropout: W - 0.1 (p - y)^T z / n."""
    c = toy_models.random_client(6, 1, normed())
    down, start = first(c)
    _, state = toy_models.participate(FedRep(IDLE, head_optim=toy_models.PLAIN), down, start, c, key(1))
    z = c.model.features(down.params, c.x)
    error = c.model(down.params | start.params, c.x).softmax(1) - nn.functional.one_hot(c.y, 3)
    torch.testing.assert_close(state.params["head.weight"], start.params["head.weight"] - 0.1 * error.T @ z / 6)
    torch.testing.assert_close(state.params["head.bias"], start.params["head.bias"] - 0.1 * error.mean(0))


def test_the_body_follows_the_new_head() -> None:
    """One full-batch step of the body: b - 0.1 grad_b CE(b, h), h being the head after its own training."""
    c = toy_models.random_client(6, 1, toy_models.mlp())
    down, start = first(c)
    up, state = toy_models.participate(FedRep(toy_models.PLAIN, head_optim=toy_models.RICH), down, start, c, key(1))
    grads, _ = gradient(objective(c.model), down.params | state.params, toy_models.batch(c.x, c.y))
    for name, b in down.params.items():
        torch.testing.assert_close(up.params[name], b - 0.1 * grads[name])


def test_heads_go_on_where_they_stopped() -> None:
    c = toy_models.random_client(6, 1, toy_models.mlp())
    down, start = first(c)
    once = FedRep(IDLE, head_optim=toy_models.PLAIN)
    _, state = toy_models.participate(once, down, toy_models.participate(once, down, start, c, key(1))[1], c, key(2))
    _, both = toy_models.participate(
        replace(once, head_optim=replace(toy_models.PLAIN, epochs=2)), down, start, c, key(1)
    )
    toy_models.assert_near(state, both)


def test_each_phase_has_an_order_of_its_own() -> None:
    """With the key of the body's batches the head would see its rows in the same order."""
    c = toy_models.random_client(9, 1, toy_models.mlp())
    down, start = first(c)
    _, state = toy_models.participate(FedRep(toy_models.RICH, head_optim=toy_models.RICH), down, start, c, key(1))
    assert not same(state.params, fit_head(toy_models.RICH, down.params, start.params, c, key(1)))


def test_without_head_training_bodies_are_those_of_fedbabu() -> None:
    c = toy_models.random_client(9, 1, normed())
    fedrep, fedbabu = FedRep(toy_models.RICH, head_optim=IDLE), FedBABU(toy_models.RICH, finetune=toy_models.RICH)
    a = b = first(c)[0]
    mine, theirs = method_calls.init_client(fedrep, c, key(0)), method_calls.init_client(fedbabu, c, key(0))
    for r in range(2):
        up, mine = toy_models.participate(fedrep, a, mine, c, key(r))
        other, theirs = toy_models.participate(fedbabu, b, theirs, c, key(r))
        a, b = (
            toy_models.aggregate(m, s, [u], toy_models.task(c.model))
            for m, s, u in ((fedrep, a, up), (fedbabu, b, other))
        )
    toy_models.assert_same(a, b)
    assert "FedBABU" in str(fedrep.reduces_to())
    assert FedRep().reduces_to() is None


def test_a_whole_run_without_head_training_is_fedbabu() -> None:
    assert equal(made_with("fedrep", **{"head_optim.epochs": 0}).server, run("fedbabu").server)
    assert not equal(run("fedrep").server, run("fedbabu").server)


def test_who_predicts() -> None:
    """The fresh average before training, the body sent after it; the client's own head either way."""
    c = toy_models.random_client(9, 1, toy_models.mlp())
    method, fresh = (
        FedRep(toy_models.RICH, head_optim=toy_models.RICH),
        Shared(part(toy_models.mlp(seed=6).init(), "body")),
    )
    down, start = first(c)
    up, state = toy_models.participate(method, down, start, c, key(1))
    assert torch.equal(
        method_calls.personal_predictor(method, down, up, state, c)(c.x), c.model(up.params | state.params, c.x)
    )
    assert torch.equal(
        method_calls.personal_predictor(method, fresh, None, state, c)(c.x), c.model(fresh.params | state.params, c.x)
    )
    assert method_calls.generic_predictor(method, down, toy_models.task(c.model)) is None


def test_vmap_equals_loop() -> None:
    toy_models.check_vmap(FedRep(toy_models.RICH, head_optim=toy_models.RICH), toy_models.mlp())
