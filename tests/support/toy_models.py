"""Small models and clients whose numbers fit on paper, and one way to run a method on them."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils import _pytree as pytree

from atoll.clients import method_calls
from atoll.clients.participation import take_part
from atoll.core.batch import Batch, Step
from atoll.core.client import Client
from atoll.core.contract import contract
from atoll.core.hooks import TrainsAfterUpload
from atoll.core.method import Method
from atoll.core.model import Model
from atoll.core.optim.sgd import SGD
from atoll.core.payloads import Params, equal
from atoll.core.prng import key, normal, randint
from atoll.core.problems import Classes
from atoll.core.replies import Replies
from atoll.core.task import Reply, Round, Task
from atoll.core.tree import stack, unstack
from atoll.core.vmap import functional_gradients

PLAIN = SGD(lr=0.1, epochs=1, batch_size=64, weight_decay=0.0, clip=0.0, momentum=0.0)
RICH = SGD(lr=0.1, epochs=2, batch_size=4)  # momentum, weight decay and clipping as by default


class Net(nn.Module):
    """Any body and head."""

    def __init__(self, body: nn.Module, head: nn.Module):
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


def filled(net: nn.Module, seed: int = 0) -> nn.Module:
    """The module with keyed random weights: no global generator decides a test."""
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.copy_(normal(key(seed, "weights", i), *p.shape) * 0.5)
    return net


def mlp(d_in: int = 3, width: int = 4, classes: int = 3, bias: bool = True, seed: int = 0) -> Model:
    """One hidden layer with ReLU."""
    body = nn.Sequential(nn.Linear(d_in, width), nn.ReLU())
    return Model(filled(Net(body, nn.Linear(width, classes, bias=bias)), seed), "mlp")


def identity_body(width: int = 2, classes: int = 2, weight: Tensor | None = None, bias: bool = True) -> Model:
    """Features are the inputs; the head starts at ``weight``, or at zero, with bias zero."""
    head = nn.Linear(width, classes, bias=bias)
    with torch.no_grad():
        head.weight.copy_(torch.zeros(classes, width) if weight is None else weight)
        if bias:
            head.bias.zero_()
    return Model(Net(nn.Identity(), head), "identity")


def client(x: Any, y: Any, model: Model, classes: int | None = None, proxy: Model | None = None) -> Client:
    x, y = torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y)
    return Client(x, y, torch.tensor(float(len(y))), model, Classes(classes or int(y.max()) + 1), proxy)


def random_client(
    n: int, seed: int, model: Model, classes: int = 3, shape: tuple[int, ...] = (3,), proxy: Model | None = None
) -> Client:
    x, y = normal(key(seed, "x"), n, *shape), randint(key(seed, "y"), classes, n)
    return client(x, y, model, classes, proxy)


def padded(c: Client, size: int, junk: float = 7.0) -> Client:
    """With rows that no method may look at."""
    more = size - len(c.x)
    x = torch.cat([c.x, torch.full((more, *c.x.shape[1:]), junk)])
    return replace(c, x=x, y=torch.cat([c.y, torch.zeros(more, dtype=torch.long)]))


def batch(x: Any, y: Any) -> Batch:
    x, y = torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y)
    return Batch(x, y, torch.ones(len(y)), key("toy"), {})


def at(params: Params, b: Batch | None = None, features: Any = None) -> Step:
    """A step for terms that look only at params, or at features."""
    z = torch.zeros(1, 1) if features is None else torch.as_tensor(features, dtype=torch.float32)
    return Step(params, b or batch(torch.zeros(1, 1), [0]), z, z)


def task(model: Model, classes: int = 3, proxy: Model | None = None) -> Task:
    return Task(model, Classes(classes), ("a", "b"), proxy, None, {"a": model, "b": model})


def participate(method: Method[Any, Any, Any, Any], down: Any, state: Any, c: Client, k: Tensor) -> tuple[Any, Any]:
    """What a client does in one round, as the loop does it."""
    with torch.no_grad():
        part = take_part(method, _exchange(method, down), down, state, c, k)
        return part.upload, part.finish()


def _exchange(method: Method[Any, Any, Any, Any], down: Any) -> Round:
    """The exchange of the first round that begins with such a download."""
    return Round(0, [messages.download for messages in contract(method).exchanges].index(type(down)))


def side_by_side(clients: list[Client]) -> Client:
    """Clients of equal size as one, along a new first dimension."""
    x, y, n = (torch.stack([getattr(c, name) for c in clients]) for name in ("x", "y", "n"))
    return replace(clients[0], x=x, y=y, n=n)


def together(
    method: Method[Any, Any, Any, Any], down: Any, states: list[Any], clients: list[Client], keys: list[Tensor]
) -> list[tuple[Any, Any]]:
    """The same for several clients at once, under vmap; clients of unequal size come padded."""
    cs, ks = side_by_side(clients), torch.stack(keys)
    with torch.no_grad(), functional_gradients():
        r = _exchange(method, down)
        update = partial(method_calls.client_update, method, r)
        ups, after = vmap(update, (None, 0, 0, 0))(down, stack(states), cs, ks)
        if isinstance(method, TrainsAfterUpload):
            finish = partial(method_calls.after_upload, method, r)
            after = vmap(finish, (None, 0, 0, 0, 0))(down, ups, after, cs, ks)
    return list(zip(unstack(ups, len(keys)), unstack(after, len(keys)), strict=True))


def aggregate(
    method: Method[Any, Any, Any, Any], server: Any, uploads: list[Any], t: Task, r: int = 0, policy: Any = None
) -> Any:
    with torch.no_grad():
        replies = (Reply(str(i), u) for i, u in enumerate(uploads))
        return method.aggregate(server, Replies(replies, policy), t, Round(r), key("server", r))


def snapshot(tree: Any) -> Any:
    """A deep copy, to see later whether somebody wrote into the original."""
    return pytree.tree_map(lambda v: v.clone() if isinstance(v, Tensor) else v, tree)


def assert_same(a: Any, b: Any) -> None:
    assert equal(a, b), f"\n{a}\n{b}"


def assert_near(a: Any, b: Any, tolerance: float = 1e-6) -> None:
    """Two payloads (or trees of tensors) agree in structure and within the tolerance."""
    left, shape = pytree.tree_flatten(a)
    right, other = pytree.tree_flatten(b)
    assert shape == other
    for u, v in zip(left, right, strict=True):
        torch.testing.assert_close(u, v, rtol=tolerance, atol=tolerance)


def check_vmap(
    method: Method[Any, Any, Any, Any],
    model: Model,
    proxy: Model | None = None,
    shape: tuple[int, ...] = (3,),
    rounds: int = 2,
    tolerance: float = 1e-6,
) -> None:
    """Padded clients under vmap do what clients alone do, for more than one round; nobody writes into an input."""
    alone = [random_client(n, seed, model, shape=shape, proxy=proxy) for n, seed in ((9, 1), (6, 2))]
    t = task(model, proxy=proxy)
    server = method.init_server(t, key("server"))
    states = [method_calls.init_client(method, c, key("init")) for c in alone]
    for r in range(rounds):
        keys = [key(r, "local", i) for i in range(2)]
        down = method.broadcast(server, "a", t, Round(r), key(0))
        before = snapshot((down, states, [(c.x, c.y) for c in alone]))
        one = [participate(method, down, s, c, k) for s, c, k in zip(states, alone, keys, strict=True)]
        many = together(method, down, states, [padded(c, 11) for c in alone], keys)
        assert_near(one, many, tolerance)
        uploads = [up for up, _ in one]
        kept = snapshot((server, uploads))
        after = aggregate(method, server, uploads, t, r)
        for was, now in zip(
            pytree.tree_leaves((before, kept)),
            pytree.tree_leaves(((down, states, [(c.x, c.y) for c in alone]), (server, uploads))),
            strict=True,
        ):
            assert torch.equal(was, now)
        server, states = after, [s for _, s in one]
