"""LG-FedAvg: heads are averaged by rows, bodies stay where they are and may be unlike."""

from typing import Any

import torch
from support import toy_models
from support.small_runs import run, same_models
from torch import nn

from atoll.clients import method_calls
from atoll.core.model import Model
from atoll.core.optim.sgd import SGD
from atoll.core.params import part
from atoll.core.payloads import Nothing, Params, nbytes
from atoll.core.prng import key
from atoll.core.traits import Need
from atoll.methods._partial_model import Kept, Shared, Update
from atoll.methods.lgfedavg import LGFedAvg
from atoll.methods.local import Local, State
from atoll.models import build


def deep(hidden: int, seed: int = 3) -> Model:
    """Another body with the 4 features of toy_models.mlp, and running statistics."""
    body = nn.Sequential(nn.Linear(3, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, 4))
    return Model(toy_models.filled(toy_models.Net(body, nn.Linear(4, 3)), seed), f"deep{hidden}")


def same(a: Params, b: Params) -> bool:
    return list(a) == list(b) and all(torch.equal(v, b[name]) for name, v in a.items())


def test_mean_by_hand() -> None:
    """Heads 1 (100 rows) and 3 (300 rows): (100 + 900) / 400 = 2.5; a plain mean would be 2."""
    uploads = [Update({"head.w": torch.tensor(v)}, torch.tensor(n)) for v, n in ((1.0, 100.0), (3.0, 300.0))]
    after = toy_models.aggregate(LGFedAvg(), Shared({}), uploads, toy_models.task(toy_models.mlp()))
    assert after.params["head.w"].tolist() == 2.5


def test_first_round_trains_from_the_common_head() -> None:
    c = toy_models.random_client(9, 1, toy_models.mlp(seed=1))
    method = LGFedAvg(toy_models.RICH)
    down = method.init_server(toy_models.task(toy_models.mlp(seed=2)), key(0))
    up, state = toy_models.participate(method, down, method_calls.init_client(method, c, key(0)), c, key(1))
    _, alone = toy_models.participate(Local(toy_models.RICH), Nothing(), State(c.model.init() | down.params), c, key(1))
    assert same(up.params, part(alone.params, "head"))
    assert same(state.params, part(alone.params, "body"))


def test_one_client_is_local_training() -> None:
    """Bit for bit, clipping included: the norm of a gradient is summed in the order of the model."""
    c, tight = toy_models.random_client(9, 1, deep(5)), SGD(lr=0.1, epochs=2, batch_size=4, clip=0.1)
    method, local = LGFedAvg(tight), Local(tight)
    server, t = method.init_server(toy_models.task(c.model), key(0)), toy_models.task(c.model)
    state, other = method_calls.init_client(method, c, key(0)), method_calls.init_client(local, c, key(0))
    for r in range(3):
        up, state = toy_models.participate(method, server, state, c, key(r))
        _, other = toy_models.participate(local, Nothing(), other, c, key(r))
        server = toy_models.aggregate(method, server, [up], t)
    own = method.personal_params(server, None, state, c)
    assert own.keys() == other.params.keys()
    assert all(torch.equal(v, other.params[name]) for name, v in own.items())


def test_a_federation_of_one_is_local_training() -> None:
    alone: dict[str, Any] = {"clients": 1, "partition": "iid"}
    assert same_models(run("lgfedavg", **alone), run("local", **alone))


def test_a_message_leaves_the_body_alone() -> None:
    c = toy_models.random_client(9, 1, deep(5))
    method = LGFedAvg(toy_models.RICH)
    state = Kept(part(deep(5, seed=9).init(), "body"))
    own = method.personal_params(Shared(part(toy_models.mlp(seed=4).init(), "head")), None, state, c)
    assert same(part(own, "body"), state.params)
    assert same(part(own, "head"), part(toy_models.mlp(seed=4).init(), "head"))


def test_unlike_bodies_share_a_head() -> None:
    """Bodies of other shapes, one with running statistics: neither those nor anything else of a body travels."""
    clients = [toy_models.random_client(8, 1, toy_models.mlp()), toy_models.random_client(8, 2, deep(5))]
    method, t = LGFedAvg(toy_models.RICH), toy_models.task(toy_models.mlp())
    server = method.init_server(t, key(0))
    states = [method_calls.init_client(method, c, key(0)) for c in clients]
    done = [toy_models.participate(method, server, s, c, key(1)) for s, c in zip(states, clients, strict=True)]
    assert all(list(up.params) == ["head.weight", "head.bias"] for up, _ in done)
    after = toy_models.aggregate(method, server, [up for up, _ in done], t)
    torch.testing.assert_close(
        after.params["head.weight"], (done[0][0].params["head.weight"] + done[1][0].params["head.weight"]) / 2
    )
    running = "buffers.body.1.running_mean"
    assert not torch.equal(done[1][1].params[running], states[1].params[running])  # kept, and moved by training
    assert LGFedAvg.traits.needs == {Need.SAME_WIDTH, Need.SEPARATE_HEAD}


def test_who_predicts() -> None:
    """The client's own body; before training under the head received, after it under the one sent."""
    c = toy_models.random_client(9, 1, toy_models.mlp())
    method = LGFedAvg(toy_models.RICH)
    down = method.init_server(toy_models.task(toy_models.mlp(seed=4)), key(0))
    old = method_calls.init_client(method, c, key(0))
    up, state = toy_models.participate(method, down, old, c, key(1))
    assert torch.equal(
        method_calls.personal_predictor(method, down, None, old, c)(c.x), c.model(old.params | down.params, c.x)
    )
    assert torch.equal(
        method_calls.personal_predictor(method, down, up, state, c)(c.x), c.model(state.params | up.params, c.x)
    )
    assert method_calls.generic_predictor(method, down, toy_models.task(c.model)) is None


def test_bytes() -> None:
    """CNN-1, 10 classes, 500 features: 10 * 500 + 10 = 5,010 scalars of 4 bytes each way, and n_k."""
    with torch.device("meta"):
        head = part(Model(build("cnn1", (3, 32, 32), 10)).init(), "head")
    assert nbytes(Shared(head)) == 4 * 5_010
    assert nbytes(Update(head, torch.tensor(1.0))) == 4 * 5_011


def test_vmap_equals_loop() -> None:
    toy_models.check_vmap(LGFedAvg(toy_models.RICH), toy_models.mlp())
