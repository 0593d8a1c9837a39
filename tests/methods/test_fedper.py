"""FedPer: bodies are averaged with their running statistics, heads stay where they are."""

from typing import Any

import torch
from support import toy_models
from support.small_runs import run, same_models
from torch import nn

from atoll.clients import method_calls
from atoll.core.client import Client
from atoll.core.model import Model
from atoll.core.optim.sgd import SGD
from atoll.core.params import part
from atoll.core.payloads import Nothing, Params
from atoll.core.prng import key
from atoll.methods._partial_model import Kept, Shared, Update
from atoll.methods.fedper import FedPer
from atoll.methods.local import Local, State


def normed() -> Model:
    body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU())
    return Model(toy_models.filled(toy_models.Net(body, nn.Linear(4, 3))), "normed")


def same(a: Params, b: Params) -> bool:
    return list(a) == list(b) and all(torch.equal(v, b[name]) for name, v in a.items())


def first(c: Client) -> tuple[Shared, Kept]:
    method = FedPer()
    return method.init_server(toy_models.task(c.model), key(0)), method_calls.init_client(method, c, key(0))


def test_mean_by_hand() -> None:
    """Rows 3 and 1, bodies 0 and 4: (3 * 0 + 1 * 4) / 4 = 1."""
    uploads = [Update({"body.w": torch.tensor(v)}, torch.tensor(n)) for v, n in ((0.0, 3.0), (4.0, 1.0))]
    after = toy_models.aggregate(FedPer(), Shared({}), uploads, toy_models.task(toy_models.mlp()))
    assert after.params["body.w"].tolist() == 1.0


def test_body_and_head_are_trained_together() -> None:
    """From the body received and the client's own head, as one model."""
    c, head = toy_models.random_client(9, 1, toy_models.mlp()), part(toy_models.mlp(seed=7).init(), "head")
    down, _ = first(c)
    up, state = toy_models.participate(FedPer(toy_models.RICH), down, Kept(head), c, key(1))
    _, alone = toy_models.participate(Local(toy_models.RICH), Nothing(), State(down.params | head), c, key(1))
    assert same(up.params, part(alone.params, "body"))
    assert same(state.params, part(alone.params, "head"))
    assert not torch.equal(state.params["head.weight"], head["head.weight"])


def test_one_client_is_local_training() -> None:
    """Bit for bit, clipping included: the norm of a gradient is summed in the order of the model."""
    c, tight = toy_models.random_client(9, 1, toy_models.mlp()), SGD(lr=0.1, epochs=2, batch_size=4, clip=0.1)
    method, local = FedPer(tight), Local(tight)
    (server, state), other = first(c), method_calls.init_client(local, c, key(0))
    for r in range(3):
        up, state = toy_models.participate(method, server, state, c, key(r))
        _, other = toy_models.participate(local, Nothing(), other, c, key(r))
        server = toy_models.aggregate(method, server, [up], toy_models.task(c.model))
    assert same(method.personal_params(server, None, state, c), other.params)


def test_a_federation_of_one_is_local_training() -> None:
    alone: dict[str, Any] = {"clients": 1, "partition": "iid"}
    assert same_models(run("fedper", **alone), run("local", **alone))


def test_heads_stay_at_home() -> None:
    """Two clients: what travels is the body, and each keeps the head it trained whatever the other does."""
    a, b = (toy_models.random_client(9, seed, toy_models.mlp()) for seed in (1, 2))
    method = FedPer(toy_models.RICH)
    server, start = first(a)
    (up_a, _), (up_b, home) = (toy_models.participate(method, server, start, c, key(1)) for c in (a, b))
    assert list(up_a.params) == ["body.0.weight", "body.0.bias"]
    later = toy_models.aggregate(method, server, [up_a, up_b], toy_models.task(a.model))
    own = method.personal_params(later, None, home, b)
    assert list(own) == list(b.model.init())
    assert same(part(own, "head"), home.params)
    assert same(part(own, "body"), later.params)


def test_running_statistics_belong_to_the_body() -> None:
    """They travel with it, are averaged by rows, and their counter takes the largest; nothing of them stays at home."""
    clients = [toy_models.random_client(n, n, normed()) for n in (12, 4)]
    method = FedPer(toy_models.RICH)
    server, start = first(clients[0])
    assert list(start.params) == ["head.weight", "head.bias"]
    ups = [toy_models.participate(method, server, start, c, key(1))[0].params for c in clients]
    after = toy_models.aggregate(
        method, server, [Update(u, c.n) for u, c in zip(ups, clients, strict=True)], toy_models.task(clients[0].model)
    ).params
    running, counter = "buffers.body.1.running_mean", "buffers.body.1.num_batches_tracked"
    torch.testing.assert_close(after[running], (12 * ups[0][running] + 4 * ups[1][running]) / 16)
    assert not torch.equal(ups[0][running], server.params[running])
    assert [int(p[counter]) for p in (*ups, after)] == [6, 2, 6]  # 2 epochs of 3 batches, and of 1


def test_who_predicts() -> None:
    """Before training the body received, after it the one sent; the client's own head either way."""
    c, head = toy_models.random_client(9, 1, toy_models.mlp()), Kept(part(toy_models.mlp(seed=4).init(), "head"))
    method, (down, _) = FedPer(toy_models.RICH), first(c)
    up, state = toy_models.participate(method, down, head, c, key(1))
    assert torch.equal(
        method_calls.personal_predictor(method, down, None, head, c)(c.x), c.model(down.params | head.params, c.x)
    )
    assert torch.equal(
        method_calls.personal_predictor(method, down, up, state, c)(c.x), c.model(up.params | state.params, c.x)
    )
    assert method_calls.generic_predictor(method, down, toy_models.task(c.model)) is None


def test_vmap_equals_loop() -> None:
    toy_models.check_vmap(FedPer(toy_models.RICH), toy_models.mlp())
