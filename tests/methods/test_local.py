"""Local: hand numbers, silence, and continuity."""

import torch
from support import toy_models

from atoll.clients import method_calls
from atoll.config import Config
from atoll.core.payloads import Nothing, nbytes
from atoll.core.prng import key
from atoll.engine.setup import build_setup
from atoll.methods.fedavg import FedAvg, Global
from atoll.methods.local import Local, State


def test_one_step_by_hand() -> None:
    """W = 0, b = 0, x = (1, 0), y = 0: both classes have probability 1/2, so the gradient of the logits is
    (-0.5, 0.5), that of W is [[-0.5, 0], [0.5, 0]]. A step of 0.1: W = [[0.05, 0], [-0.05, 0]], b = (0.05, -0.05).
    """
    c = toy_models.client([[1.0, 0.0]], [0], toy_models.identity_body(), classes=2)
    method = Local(toy_models.PLAIN)
    _, state = toy_models.participate(method, Nothing(), method_calls.init_client(method, c, key(0)), c, key(1))
    torch.testing.assert_close(state.params["head.weight"], torch.tensor([[0.05, 0.0], [-0.05, 0.0]]))
    torch.testing.assert_close(state.params["head.bias"], torch.tensor([0.05, -0.05]))


def test_a_head_may_go_without_bias() -> None:
    plain, free = (Local(toy_models.PLAIN, bias_free_head=flag).bias_free() for flag in (False, True))
    assert (plain, free) == (False, True)
    models = build_setup(Config("local", clients=2, settings={"bias_free_head": True})).pool.models
    assert all("head.bias" not in model.init() for model in models.values())


def test_sends_nothing() -> None:
    c = toy_models.random_client(5, 0, toy_models.mlp())
    method = Local(toy_models.RICH)
    up, _ = toy_models.participate(method, Nothing(), method_calls.init_client(method, c, key(0)), c, key(1))
    assert nbytes(up) == 0
    assert nbytes(method.broadcast(Nothing(), "a", toy_models.task(c.model), None, key(0))) == 0  # type: ignore[arg-type]


def test_goes_on_where_it_stopped() -> None:
    c = toy_models.random_client(5, 0, toy_models.mlp())
    method = Local(toy_models.PLAIN)
    first = toy_models.participate(method, Nothing(), method_calls.init_client(method, c, key(0)), c, key(1))[1]
    second = toy_models.participate(method, Nothing(), first, c, key(2))[1]
    fresh = toy_models.participate(method, Nothing(), method_calls.init_client(method, c, key(0)), c, key(2))[1]
    restarted = toy_models.participate(method, Nothing(), State(first.params), c, key(2))[1]
    toy_models.assert_same(second, restarted)
    assert not torch.equal(second.params["head.weight"], fresh.params["head.weight"])


def test_is_fedavg_with_one_client() -> None:
    c = toy_models.random_client(7, 3, toy_models.mlp())
    local, fedavg = Local(toy_models.RICH), FedAvg(toy_models.RICH)
    t, state, server = toy_models.task(c.model), method_calls.init_client(local, c, key(0)), Global(c.model.init(), {})
    for r in range(2):
        state = toy_models.participate(local, Nothing(), state, c, key(r))[1]
        up, _ = toy_models.participate(fedavg, server, Nothing(), c, key(r))
        server = toy_models.aggregate(fedavg, server, [up], t)
    toy_models.assert_same(State(server.params), state)


def test_vmap_equals_loop() -> None:
    toy_models.check_vmap(Local(toy_models.RICH), toy_models.mlp())
