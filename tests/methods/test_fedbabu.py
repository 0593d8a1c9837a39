"""FedBABU: a head that never moves, a body that is averaged, and a tuned copy that nobody trains on."""

from dataclasses import replace

import pytest
import torch
from support import toy_models
from support.small_runs import made_with, run, same_models
from torch import nn

from atoll.clients import method_calls
from atoll.core.client import Client
from atoll.core.losses import objective
from atoll.core.model import Model
from atoll.core.optim.base import gradient
from atoll.core.optim.sgd import SGD
from atoll.core.params import part
from atoll.core.payloads import Params, equal
from atoll.core.prng import key
from atoll.errors import AtollError
from atoll.methods._partial_model import Shared, Update
from atoll.methods.fedbabu import FedBABU

IDLE = replace(toy_models.RICH, epochs=0)


def normed() -> Model:
    body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU())
    return Model(toy_models.filled(toy_models.Net(body, nn.Linear(4, 3))), "normed")


def same(a: Params, b: Params) -> bool:
    return list(a) == list(b) and all(torch.equal(v, b[name]) for name, v in a.items())


def rounds(method: FedBABU, c: Client, count: int) -> list[Shared]:
    """The server before each round, and after the last."""
    servers, state = [method.init_server(toy_models.task(c.model), key(0))], method_calls.init_client(method, c, key(0))
    for r in range(count):
        up, state = toy_models.participate(method, servers[-1], state, c, key(r))
        servers.append(toy_models.aggregate(method, servers[-1], [up], toy_models.task(c.model)))
    return servers


def test_mean_by_hand() -> None:
    """Rows 3 and 1, bodies 0 and 4: (3 * 0 + 1 * 4) / 4 = 1; a plain mean would be 2."""
    uploads = [Update({"body.w": torch.tensor(v)}, torch.tensor(n)) for v, n in ((0.0, 3.0), (4.0, 1.0))]
    after = toy_models.aggregate(FedBABU(), Shared({}), uploads, toy_models.task(toy_models.mlp()))
    assert after.params["body.w"].tolist() == 1.0


def test_the_head_never_moves() -> None:
    """Three rounds with momentum and weight decay; the body moves, its running statistics too."""
    c = toy_models.random_client(9, 1, normed())
    method, start = FedBABU(toy_models.RICH, finetune=toy_models.RICH), c.model.init()
    after = rounds(method, c, 3)[-1]
    assert list(after.params) == list(part(start, "body"))
    assert all(not torch.equal(v, start[name]) for name, v in after.params.items())
    own = method.personal_params(after, None, method_calls.init_client(method, c, key(0)), c)
    assert same(part(own, "head"), part(start, "head"))


def test_body_step_by_hand() -> None:
    """One full-batch step: b - 0.1 grad_b CE(b, h), h being the head of the start."""
    c = toy_models.random_client(6, 1, toy_models.mlp())
    method, down = FedBABU(toy_models.PLAIN, finetune=IDLE), Shared(part(toy_models.mlp(seed=8).init(), "body"))
    up, _ = toy_models.participate(method, down, method_calls.init_client(method, c, key(0)), c, key(1))
    grads, _ = gradient(objective(c.model), down.params | part(c.model.init(), "head"), toy_models.batch(c.x, c.y))
    for name, b in down.params.items():
        torch.testing.assert_close(up.params[name], b - 0.1 * grads[name])


def test_tuning_does_not_touch_training() -> None:
    c = toy_models.random_client(9, 1, normed())
    plain = rounds(FedBABU(toy_models.RICH, finetune=IDLE), c, 2)
    for method in (
        FedBABU(toy_models.RICH, finetune=toy_models.RICH),
        FedBABU(toy_models.RICH, finetune=toy_models.RICH, tune="head"),
    ):
        assert all(equal(a, b) for a, b in zip(plain, rounds(method, c, 2), strict=True))


def test_the_received_model_is_tuned() -> None:
    """All of it, from the body received and the head of the start: neither the upload nor the last tuned copy."""
    c = toy_models.random_client(9, 1, toy_models.mlp())
    method = FedBABU(toy_models.RICH, finetune=toy_models.PLAIN)
    down = method.init_server(toy_models.task(c.model), key(0))
    _, once = toy_models.participate(method, down, method_calls.init_client(method, c, key(0)), c, key(1))
    _, twice = toy_models.participate(method, down, once, c, key(1))
    tuned = toy_models.PLAIN.fit(objective(c.model), c.model.init(), c, key(1))
    assert same(once.params, tuned)
    toy_models.assert_same(once, twice)


def test_tuning_the_head_leaves_the_body() -> None:
    """Bit for bit, with momentum and weight decay on, running statistics included; tuning all moves them."""
    c = toy_models.random_client(9, 1, normed())
    for tune in ("head", "all"):
        method = FedBABU(toy_models.RICH, finetune=toy_models.RICH, tune=tune)
        down = method.init_server(toy_models.task(c.model), key(0))
        _, state = toy_models.participate(method, down, method_calls.init_client(method, c, key(0)), c, key(1))
        assert same(part(state.params, "body"), down.params) == (tune == "head")
        assert not torch.equal(state.params["head.weight"], c.model.init()["head.weight"])
    assert not torch.equal(*(p["buffers.body.1.running_var"] for p in (state.params, down.params)))


def test_without_tuning_all_use_the_generic_model() -> None:
    c = toy_models.random_client(9, 1, normed())
    for tune in ("head", "all"):
        method = FedBABU(toy_models.RICH, finetune=IDLE, tune=tune)
        *_, down, after = rounds(method, c, 2)
        up, state = toy_models.participate(method, down, method_calls.init_client(method, c, key(0)), c, key(1))
        generic = method_calls.generic_predictor(method, down, toy_models.task(c.model))
        assert torch.equal(method_calls.personal_predictor(method, down, up, state, c)(c.x), generic(c.x))
        assert not torch.equal(
            method_calls.generic_predictor(method, after, toy_models.task(c.model))(c.x), generic(c.x)
        )
        assert "generic" in str(method.reduces_to())
    assert FedBABU().reduces_to() is None


def test_a_whole_run_without_tuning() -> None:
    """The server's model is the same with and without; the personal models are not."""
    idle, tuned = made_with("fedbabu", **{"finetune.epochs": 0}), run("fedbabu")
    assert equal(idle.server, tuned.server)
    assert not same_models(idle, tuned)
    assert idle.summary["personal"]["final"] != tuned.summary["personal"]["final"]


def test_who_predicts() -> None:
    """Before training the model received, after it the tuned copy."""
    c = toy_models.random_client(9, 1, toy_models.mlp())
    method, down = (
        FedBABU(toy_models.RICH, finetune=toy_models.PLAIN),
        Shared(part(toy_models.mlp(seed=8).init(), "body")),
    )
    up, state = toy_models.participate(method, down, method_calls.init_client(method, c, key(0)), c, key(1))
    received = c.model(c.model.init() | down.params, c.x)
    assert torch.equal(method_calls.personal_predictor(method, down, None, state, c)(c.x), received)
    assert torch.equal(method_calls.generic_predictor(method, down, toy_models.task(c.model))(c.x), received)
    assert torch.equal(method_calls.personal_predictor(method, down, up, state, c)(c.x), c.model(state.params, c.x))


def test_unequal_heads_are_refused() -> None:
    one, other = toy_models.mlp(seed=1), toy_models.mlp(seed=2)
    unlike = replace(toy_models.task(one), models={"a": one, "b": other})
    with pytest.raises(AtollError, match=r"all clients need the same one\. Leave out --init per_client"):
        FedBABU().init_server(unlike, key(0))
    other_body = Model(toy_models.Net(other.net.get_submodule("body"), one.net.get_submodule("head")))
    FedBABU().init_server(replace(unlike, models={"a": one, "b": other_body}), key(0))


def test_unknown_part_is_refused() -> None:
    with pytest.raises(AtollError, match="tune is 'body', but it must be one of all, head"):
        FedBABU(tune="body")


@pytest.mark.parametrize("tune", ["all", "head"])
def test_vmap_equals_loop(tune: str) -> None:
    toy_models.check_vmap(
        FedBABU(toy_models.RICH, finetune=SGD(lr=0.1, epochs=1, batch_size=4), tune=tune), toy_models.mlp()
    )
