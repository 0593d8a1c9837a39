"""Local: hand numbers, silence, and continuity."""

import torch
import toys

from atoll.config import Config
from atoll.core.payload import Nothing, nbytes
from atoll.core.prng import key
from atoll.engine.setup import build_setup
from atoll.methods.fedavg import FedAvg, Global
from atoll.methods.local import Local, State


def test_one_step_by_hand() -> None:
    """W = 0, b = 0, x = (1, 0), y = 0: both classes have probability 1/2, so the gradient of the logits is
    (-0.5, 0.5), that of W is [[-0.5, 0], [0.5, 0]]. A step of 0.1: W = [[0.05, 0], [-0.05, 0]], b = (0.05, -0.05).
    """
    c = toys.client([[1.0, 0.0]], [0], toys.identity_body(), classes=2)
    method = Local(toys.PLAIN)
    _, state = toys.participate(method, Nothing(), method.init_client(c, key(0)), c, key(1))
    torch.testing.assert_close(state.params["head.weight"], torch.tensor([[0.05, 0.0], [-0.05, 0.0]]))
    torch.testing.assert_close(state.params["head.bias"], torch.tensor([0.05, -0.05]))


def test_a_head_may_go_without_bias() -> None:
    plain, free = (Local(toys.PLAIN, bias_free_head=flag).bias_free() for flag in (False, True))
    assert (plain, free) == (False, True)
    models = build_setup(Config("local", clients=2, settings={"bias_free_head": True})).fleet.models
    assert all("head.bias" not in model.init() for model in models.values())


def test_sends_nothing() -> None:
    c = toys.random_client(5, 0, toys.mlp())
    method = Local(toys.RICH)
    up, _ = toys.participate(method, Nothing(), method.init_client(c, key(0)), c, key(1))
    assert nbytes(up) == 0
    assert nbytes(method.broadcast(Nothing(), "a", toys.task(c.model), None)) == 0  # type: ignore[arg-type]


def test_goes_on_where_it_stopped() -> None:
    c = toys.random_client(5, 0, toys.mlp())
    method = Local(toys.PLAIN)
    first = toys.participate(method, Nothing(), method.init_client(c, key(0)), c, key(1))[1]
    second = toys.participate(method, Nothing(), first, c, key(2))[1]
    fresh = toys.participate(method, Nothing(), method.init_client(c, key(0)), c, key(2))[1]
    restarted = toys.participate(method, Nothing(), State(first.params), c, key(2))[1]
    toys.assert_same(second, restarted)
    assert not torch.equal(second.params["head.weight"], fresh.params["head.weight"])


def test_is_fedavg_with_one_client() -> None:
    c = toys.random_client(7, 3, toys.mlp())
    local, fedavg = Local(toys.RICH), FedAvg(toys.RICH)
    t, state, server = toys.task(c.model), local.init_client(c, key(0)), Global(c.model.init(), {})
    for r in range(2):
        state = toys.participate(local, Nothing(), state, c, key(r))[1]
        up, _ = toys.participate(fedavg, server, Nothing(), c, key(r))
        server = toys.aggregate(fedavg, server, [up], t)
    toys.assert_same(State(server.params), state)


def test_vmap_equals_loop() -> None:
    toys.check_vmap(Local(toys.RICH), toys.mlp())
