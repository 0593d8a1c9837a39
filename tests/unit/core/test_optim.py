"""The training loop against torch.optim and a plain module, in both of its gradient paths."""

import copy
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import toy_models
from torch import Tensor, nn
from torch.func import vmap

from atoll.aggregation import averaging
from atoll.aggregation.averaging import mean
from atoll.core.batch import Batch
from atoll.core.client import Client
from atoll.core.layers import KeyedDropout, noise
from atoll.core.losses import cross_entropy, objective, wmean
from atoll.core.model import Model
from atoll.core.optim.adam import Adam
from atoll.core.optim.base import Optimiser, gradient
from atoll.core.optim.sgd import SGD
from atoll.core.params import add, sqnorm, sub, trainable, weights, zeros
from atoll.core.payloads import Params, about, payload
from atoll.core.prng import Key, fold, key, normal
from atoll.core.replies import Replies
from atoll.core.tree import lazy_rows, stack, unstack
from atoll.core.vmap import functional_gradients

SMALL = {"epochs": 2, "batch_size": 4}
OPTIMISERS: list[tuple[Optimiser, Callable[..., torch.optim.Optimizer], dict[str, Any]]] = [
    (SGD(0.1, **SMALL, weight_decay=0.0, clip=0.0, momentum=0.0), torch.optim.SGD, {"lr": 0.1}),
    (SGD(0.1, **SMALL, weight_decay=0.0, clip=0.0, momentum=0.9), torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    (
        SGD(0.1, **SMALL, weight_decay=0.2, clip=0.3, momentum=0.5),
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.2},
    ),
    (Adam(0.02, **SMALL), torch.optim.Adam, {"lr": 0.02}),
    (
        Adam(0.02, **SMALL, weight_decay=0.2, clip=0.3, beta1=0.8, beta2=0.9),
        torch.optim.Adam,
        {"lr": 0.02, "weight_decay": 0.2, "betas": (0.8, 0.9)},
    ),
]


def plain_training(
    net: nn.Module, batches: list[Batch], make: Any, options: dict[str, Any], clip: float
) -> Iterator[Params]:
    """The usual way: a module in training mode, an optimiser of torch; its state after every step."""
    net = copy.deepcopy(net).train()
    for p in net.parameters():
        p.requires_grad_()
    optimiser = make(net.parameters(), **options)
    for b in batches:
        optimiser.zero_grad()
        F.cross_entropy(net(b.x), b.y).backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimiser.step()
        buffers = {f"buffers.{name}": v.detach().clone() for name, v in net.named_buffers()}
        yield {name: v.detach().clone() for name, v in net.named_parameters()} | buffers


def norm_model() -> Model:
    """Nothing that BatchNorm cancels: gradients that are only rounding noise would be blown up by Adam."""
    body = nn.Sequential(nn.Linear(3, 5, bias=False), nn.BatchNorm1d(5, momentum=0.3), nn.ReLU(), nn.Linear(5, 4))
    return Model(toy_models.filled(toy_models.Net(body, nn.Linear(4, 3))))


def drop_model(p: float = 0.5) -> Model:
    body = nn.Sequential(nn.Linear(3, 16), nn.Dropout(p), nn.ReLU(), nn.Linear(16, 8), nn.Dropout(p))
    return Model(toy_models.filled(toy_models.Net(body, nn.Linear(8, 3))))


# ----------------------------------------------------------------------------------------------- against torch


@pytest.mark.parametrize("build", [toy_models.mlp, norm_model])
@pytest.mark.parametrize(("optimiser", "make", "options"), OPTIMISERS)
def test_optimiser_steps_equal_those_of_torch(
    build: Any, optimiser: Optimiser, make: Any, options: dict[str, Any]
) -> None:
    """Weights and running statistics after 1, 2, ... steps; the clip of 0.3 bites in some and not in others."""
    c = toy_models.random_client(12, 1, build())
    batches = list(c.batches(key(3), 2, 4))
    truth = plain_training(c.model.net, batches, make, options, optimiser.clip)
    for steps, expected in enumerate(truth, 1):
        mine = optimiser.run(objective(c.model), c.model.init(), batches[:steps])
        assert mine.keys() == expected.keys()
        for name, v in expected.items():
            torch.testing.assert_close(mine[name], v, rtol=1e-5, atol=1e-6)


def test_fit_is_run_on_the_clients_batches() -> None:
    c = toy_models.random_client(10, 1, toy_models.mlp())
    a = toy_models.RICH.fit(objective(c.model), c.model.init(), c, key(3))
    b = toy_models.RICH.run(objective(c.model), c.model.init(), c.batches(key(3), 2, 4))
    toy_models.assert_near(a, b, 0)


@pytest.mark.parametrize("steps", [0, 1, 4, 6, 7])
def test_steps_of_fit_go_through_epochs_in_order(steps: int) -> None:
    """Ten rows make three batches of up to four rows, so that the fourth step is the first batch of epoch two."""
    c = toy_models.random_client(10, 1, toy_models.mlp())
    batches = list(c.batches(key(3), 3, 4))[:steps]
    a = toy_models.RICH.fit(objective(c.model), c.model.init(), c, key(3), steps=steps)
    b = toy_models.RICH.run(objective(c.model), c.model.init(), batches)
    toy_models.assert_near(a, b, 0)
    if steps == 6:  # two epochs, as the optimiser has
        toy_models.assert_near(a, toy_models.RICH.fit(objective(c.model), c.model.init(), c, key(3)), 0)


def test_clipping_by_hand() -> None:
    """Gradient (3, 4) of norm 5, clipped to 1: (0.6, 0.8); with rate 0.1 a step of (-0.06, -0.08). Clipped to 50, or
    not at all, (-0.3, -0.4). The norm is that of all tensors together.
    """

    def loss(p: Params, b: Batch) -> Tensor:
        return 3 * p["a"].sum() + 4 * p["b"].sum()

    for clip, expected in ((1.0, [-0.06, -0.08]), (50.0, [-0.3, -0.4]), (0.0, [-0.3, -0.4])):
        start = {"a": torch.zeros(1), "b": torch.zeros(1)}
        out = replace(toy_models.PLAIN, clip=clip).run(loss, start, [toy_models.batch([[0.0]], [0])])
        assert [out["a"].item(), out["b"].item()] == pytest.approx(expected, rel=1e-5)


def test_momentum_by_hand() -> None:
    """Gradient 1 always, momentum 0.9, rate 0.1: steps of 0.1, 0.1 * 1.9, 0.1 * 2.71."""
    heavy = replace(toy_models.PLAIN, momentum=0.9)
    out = heavy.run(lambda p, b: p["w"].sum(), {"w": torch.zeros(1)}, [toy_models.batch([[0.0]], [0])] * 3)
    assert out["w"].item() == pytest.approx(-0.1 * (1 + 1.9 + 2.71))


@pytest.mark.parametrize(
    "settings", [{}, {"weight_decay": 0.1}, {"momentum": 0.5}, {"momentum": 0.5, "weight_decay": 0.1}]
)
def test_step_does_not_depend_on_the_memory_layout_of_gradients(settings: dict[str, float]) -> None:
    """Two steps from w = 0 for gradients g that lie as the weights do, or transposed, or are one number repeated."""
    optimiser, batches = replace(toy_models.PLAIN, **settings), [toy_models.batch([[0.0]], [0])] * 2
    g = torch.arange(6.0).view(2, 3)
    decay, keep = settings.get("weight_decay", 0.0), settings.get("momentum", 0.0)
    for given in (g, g.T.contiguous().T, torch.ones(()).expand(2, 3)):
        out = optimiser.run(lambda p, b: p["w"].sum(), {"w": torch.zeros(2, 3)}, batches, lambda _, v=given: {"w": v})
        first = -0.1 * given
        second = first - 0.1 * (keep * given + given + decay * first)
        torch.testing.assert_close(out["w"], second)


@pytest.mark.parametrize("optimiser", [toy_models.RICH, Adam(0.02)])
def test_momentum_starts_anew_with_each_call(optimiser: Optimiser) -> None:
    """Two calls are not one long call, because the second starts without momentum; without any they would be."""
    c = toy_models.random_client(8, 1, toy_models.mlp())
    one, two = list(c.batches(key(0), 1, 4))
    loss, start = objective(c.model), c.model.init()
    whole = optimiser.run(loss, start, [one, two])
    halves = optimiser.run(loss, optimiser.run(loss, start, [one]), [two])
    assert not torch.equal(whole["head.weight"], halves["head.weight"])
    again = optimiser.run(loss, start, [one, two])
    toy_models.assert_near(whole, again, 0)
    forgetful = toy_models.PLAIN.run(loss, toy_models.PLAIN.run(loss, start, [one]), [two])
    toy_models.assert_near(toy_models.PLAIN.run(loss, start, [one, two]), forgetful, 0)


def test_corrections_change_each_gradient() -> None:
    out = toy_models.PLAIN.run(
        lambda p, b: p["w"].sum(),
        {"w": torch.zeros(2)},
        [toy_models.batch([[0.0]], [0])] * 2,
        correct=lambda g: add(g, {"w": torch.tensor([1.0, -1.0])}),
    )
    torch.testing.assert_close(out["w"], torch.tensor([-0.4, 0.0]))


@pytest.mark.parametrize("optimiser", [toy_models.RICH, Adam(0.02, **SMALL)])
@pytest.mark.parametrize("functional", [False, True])
def test_inputs_are_not_modified(optimiser: Optimiser, functional: bool) -> None:
    c = toy_models.random_client(8, 1, norm_model())
    params = c.model.init()
    before = toy_models.snapshot((params, c.x, c.y))
    if functional:
        with functional_gradients():
            out = optimiser.fit(objective(c.model), params, c, key(0))
    else:
        out = optimiser.fit(objective(c.model), params, c, key(0))
    toy_models.assert_near(before, (params, c.x, c.y), 0)
    toy_models.assert_near(c.model.init(), params, 0)
    assert not {v.data_ptr() for v in out.values()} & {v.data_ptr() for v in params.values()}
    assert not any(v.requires_grad for v in out.values())


def test_zero_epochs_change_no_weight() -> None:
    c = toy_models.random_client(8, 1, toy_models.mlp())
    out = replace(toy_models.RICH, epochs=0).fit(objective(c.model), c.model.init(), c, key(0))
    toy_models.assert_near(out, c.model.init(), 0)


# ----------------------------------------------------------------------------------------------- two gradient paths


def vmapped(optimiser: Optimiser, clients: list[Client], keys: list[Key]) -> list[Params]:
    model = clients[0].model
    params = [model.init() for _ in clients]
    with torch.no_grad(), functional_gradients():
        out = vmap(lambda p, c, k: optimiser.fit(objective(model), p, c, k))(
            stack(params), toy_models.side_by_side(clients), torch.stack(keys)
        )
    return unstack(out, len(clients))


@pytest.mark.parametrize("optimiser", [o for o, _, _ in OPTIMISERS])
@pytest.mark.parametrize("build", [toy_models.mlp, drop_model])
def test_vmap_over_padded_clients(optimiser: Optimiser, build: Any) -> None:
    """11 and 3 rows, padded to 14, in batches of 4: rows of padding in one batch of each, and for the second client
    two or three batches of nothing else, which may move neither weights (decay!) nor momentum (of the next epoch).
    """
    model = build()
    alone = [toy_models.random_client(n, n, model) for n in (11, 3)]
    keys = [key("a"), key("b")]
    one = [optimiser.fit(objective(model), model.init(), c, k) for c, k in zip(alone, keys, strict=True)]
    many = vmapped(optimiser, [toy_models.padded(c, 14) for c in alone], keys)
    toy_models.assert_near(one, many)


@pytest.mark.parametrize("optimiser", [o for o, _, _ in OPTIMISERS])
def test_functional_path_gives_the_same_weights(optimiser: Optimiser) -> None:
    c = toy_models.random_client(11, 1, norm_model())
    c = replace(c, x=c.x[:8], y=c.y[:8], n=torch.tensor(8.0))
    one = optimiser.fit(objective(c.model), c.model.init(), c, key(0))
    with functional_gradients():
        other = optimiser.fit(objective(c.model), c.model.init(), c, key(0))
    toy_models.assert_near(one, other)


def test_batch_statistics_under_vmap() -> None:
    """Clients of equal size: running statistics are values like any other, one set for each client."""
    model = norm_model()
    alone = [toy_models.random_client(8, seed, model) for seed in (1, 2)]
    keys = [key("a"), key("b")]
    one = [toy_models.RICH.fit(objective(model), model.init(), c, k) for c, k in zip(alone, keys, strict=True)]
    toy_models.assert_near(one, vmapped(toy_models.RICH, alone, keys))
    assert not torch.equal(one[0]["buffers.body.1.running_mean"], one[1]["buffers.body.1.running_mean"])


def test_gradient_of_both_paths() -> None:
    """The same numbers; unused weights get zeros; running statistics come back and the batch keeps its own."""
    model = norm_model()
    params, b = model.init() | {"unused": torch.ones(2)}, toy_models.batch(normal(key(0), 6, 3), [0, 1, 2, 0, 1, 2])
    grads, stats = gradient(objective(model), params, b)
    with functional_gradients():
        other, stats2 = gradient(objective(model), params, b)
    toy_models.assert_near(grads, other)
    toy_models.assert_near(stats, stats2)
    assert grads.keys() == weights(params).keys()
    assert grads["unused"].tolist() == [0, 0]
    assert stats["buffers.body.1.num_batches_tracked"] == 1
    assert b.stats == {}


def test_gradients_are_taken_where_gradients_are_off() -> None:
    model, b = toy_models.mlp(), toy_models.batch(normal(key(0), 2, 3), [0, 1])
    with torch.no_grad():
        inside, _ = gradient(objective(model), model.init(), b)
    toy_models.assert_near(inside, gradient(objective(model), model.init(), b)[0], 0)


# ----------------------------------------------------------------------------------------------- model, batch, noise


def test_evaluation_uses_running_statistics_and_no_dropout() -> None:
    for model in (norm_model(), drop_model()):
        params, x = model.init(), normal(key(0), 600, 3)
        truth = model.net.eval()(x)
        torch.testing.assert_close(model(params, x), truth)
        torch.testing.assert_close(model.classify(params, model.features(params, x)), truth)


def test_dropout_is_a_function_of_the_key() -> None:
    model, x = drop_model(), normal(key(0), 6, 3)
    b = toy_models.batch(x, [0] * 6)
    first = model.step(model.init(), b).logits
    assert torch.equal(model.step(model.init(), b).logits, first)
    assert not torch.equal(model.step(model.init(), b._replace(k=key("other"))).logits, first)
    assert torch.equal(model.step(model.init(), b._replace(x=x[:4])).logits, first[:4])  # padding disturbs nothing


def test_dropout_keeps_the_mean_and_the_rate() -> None:
    """p = 0.2: a fifth of 50,000 values is zero (+- 0.2 %), the others are 1 / 0.8."""
    layer, x = KeyedDropout(0.2, 0, channels=False), torch.ones(50_000)
    with noise(key(0)):
        y = layer(x)
    assert (y == 0).float().mean().item() == pytest.approx(0.2, abs=0.008)
    assert set(y.unique().tolist()) == {0.0, 1.25}
    assert torch.equal(layer(x), x)  # outside of training there is no key
    with noise(key(0)):
        assert torch.equal(layer.eval()(x), x)


def test_layers_drop_independently_and_channels_together() -> None:
    model = Model(toy_models.Net(nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5)), nn.Linear(64, 2)))
    first, second = (m for m in model.net.modules() if isinstance(m, KeyedDropout))
    assert (first.stream, second.stream) == (0, 1)
    x = torch.ones(4, 8, 3, 3)
    with noise(key(0)):
        assert not torch.equal(first.train()(x), second.train()(x))
        y = KeyedDropout(0.5, 0, channels=True)(x)
    assert torch.equal(y, y[:, :, :1, :1].expand_as(y))
    assert 0 < (y[:, :, 0, 0] == 0).sum() < 32


def test_batches_cover_every_row_once_in_each_epoch() -> None:
    x = torch.arange(11.0)[:, None]
    c = toy_models.client(x, [0] * 11, toy_models.mlp(1), classes=3)
    batches = list(c.batches(key(0), 2, 4))
    assert [len(b.y) for b in batches] == [4, 4, 3] * 2
    epochs = [torch.cat([b.x for b in batches[i : i + 3]]).flatten() for i in (0, 3)]
    assert all(sorted(e.tolist()) == list(range(11)) for e in epochs)
    assert not torch.equal(*epochs)
    assert len({b.k.item() for b in batches}) == 6
    again = list(c.batches(key(0), 2, 4))
    assert all(torch.equal(a.x, b.x) for a, b in zip(batches, again, strict=True))


def test_padded_batches_start_with_the_same_rows() -> None:
    c = toy_models.client(torch.arange(5.0)[:, None], [0] * 5, toy_models.mlp(1), classes=3)
    own, more = list(c.batches(key(0), 1, 2)), list(toy_models.padded(c, 8).batches(key(0), 1, 2))
    assert [b.w.tolist() for b in more] == [[1, 1], [1, 1], [1, 0], [0, 0]]
    for a, b in zip(own, more, strict=False):
        assert torch.equal(a.x, b.x[: len(a.x)])
        assert torch.equal(a.k, b.k)


def test_augmentation_has_its_own_noise() -> None:
    def jitter(x: Tensor, k: Key) -> Tensor:
        return x + normal(k, *x.shape)

    c = replace(toy_models.client(torch.zeros(6, 1), [0] * 6, toy_models.mlp(1), classes=3), augment=jitter)
    seen = torch.cat([b.x for b in c.batches(key(0), 2, 3)]).flatten()
    assert len(set(seen.tolist())) == 12
    for b in c.batches(key(0), 1, 6):
        assert not torch.equal(b.x.flatten(), normal(b.k, 6))
    assert not c.x.any()


def test_optimiser_batches_cover_the_given_rows_in_each_epoch() -> None:
    optimiser = SGD(epochs=2, batch_size=4)
    batches = list(optimiser.batches(torch.arange(6.0)[:, None], torch.arange(6), key(0)))
    assert [len(b.y) for b in batches] == [4, 2, 4, 2]
    assert all(torch.equal(b.x.flatten().long(), b.y) for b in batches)
    assert sorted(torch.cat([b.y for b in batches[:2]]).tolist()) == list(range(6))
    assert not torch.equal(batches[0].y, batches[2].y)


def test_members_are_one_hot_and_zero_for_padding() -> None:
    c = toy_models.padded(toy_models.client(torch.zeros(3, 1), [2, 0, 2], toy_models.mlp(1), classes=4), 5)
    assert c.members().tolist() == [[0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]


# ----------------------------------------------------------------------------------------------- losses, arithmetic


def test_losses_ignore_padding() -> None:
    """Values 1 and 3, and 9 for padding: the mean is 2. Without any real row it is 0 and not NaN."""
    assert wmean(torch.tensor([1.0, 3.0, 9.0]), torch.tensor([1.0, 1.0, 0.0])) == 2
    assert wmean(torch.tensor([9.0]), torch.tensor([0.0])) == 0
    b = toy_models.batch(torch.zeros(3, 1), [0, 1, 0])._replace(w=torch.tensor([1.0, 1.0, 0.0]))
    logits = normal(key(0), 3, 2)
    torch.testing.assert_close(cross_entropy(logits, b), F.cross_entropy(logits[:2], b.y[:2]))


def test_objective_adds_its_terms() -> None:
    model, b = toy_models.mlp(), toy_models.batch(normal(key(0), 2, 3), [0, 1])
    ce = objective(model)(model.init(), b)
    both = objective(model, lambda s: torch.tensor(1.0), lambda s: s.features.sum() * 0 + 2.0)(model.init(), b)
    torch.testing.assert_close(both, ce + 3)


class Sent:
    def __init__(self, w: list[float], count: int, n: float):
        self.params = {"w": torch.tensor(w), "count": torch.tensor(count)}
        self.n = torch.tensor(n)


def test_mean_with_weights_without_weights_and_of_counters() -> None:
    """(0, 4) with weights (3, 1): 1; without weights 2. Whole numbers take the largest."""
    sent = [Sent([0.0], 2, 3.0), Sent([4.0], 5, 1.0)]
    weighted, plain = mean(Replies(sent), "params", weight="n"), mean(Replies(iter(sent)), "params")
    assert (weighted["w"].item(), plain["w"].item()) == (1.0, 2.0)
    assert weighted["w"].dtype == torch.float32
    assert (weighted["count"].item(), weighted["count"].dtype) == (5, torch.int64)


def test_mean_is_exact_where_it_must_be() -> None:
    """One upload comes back bit for bit; a million and its negative leave 1/3 of what is beside them."""
    w = normal(key(0), 100).tolist()
    assert torch.equal(mean(Replies([Sent(w, 0, 7.0)]), "params", weight="n")["w"], torch.tensor(w))
    three = [Sent([1e8], 0, 1.0), Sent([1.0], 0, 1.0), Sent([-1e8], 0, 1.0)]
    assert mean(Replies(three), "params")["w"].item() == pytest.approx(1 / 3)


@pytest.mark.parametrize("handful", [0, 100, 2**20])
def test_chunk_size_changes_no_bit_of_a_mean(handful: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = [Sent(normal(key(i), 10).tolist(), i, 0.1 + i) for i in range(9)]
    at_once = mean(Replies(sent), "params", weight="n")
    monkeypatch.setattr(averaging, "CHUNK_BYTES", handful)
    again = mean(Replies(iter(sent)), "params", weight="n")
    assert all(torch.equal(v, again[name]) for name, v in at_once.items())


class SentTensors:
    def __init__(self, v: list[float], steps: int, n: float):
        self.v, self.steps, self.n = torch.tensor(v), torch.tensor(steps), torch.tensor(n)


@pytest.mark.parametrize("handful", [0, 2**20])
def test_the_mean_of_a_tensor_field_is_a_tensor(handful: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """(0, 4) and (8, 0) with weights (3, 1): (2, 3). Steps 1 and 4 are averaged, not taken for counters: 2.5."""
    monkeypatch.setattr(averaging, "CHUNK_BYTES", handful)
    sent = [SentTensors([0.0, 4.0], 1, 3.0), SentTensors([8.0, 0.0], 4, 1.0)]

    assert torch.equal(mean(Replies(iter(sent)), "v", weight="n"), torch.tensor([2.0, 3.0]))
    assert torch.equal(mean(Replies(sent), "steps"), torch.tensor(2.5))
    assert torch.equal(mean(Replies(sent), "n"), torch.tensor(2.0))


def test_the_mean_of_a_tensor_field_of_stacked_uploads_is_a_tensor() -> None:
    @payload
    class Up:
        v: Tensor = about("numbers")

    uploads = lazy_rows(Up(torch.tensor([[0.0, 4.0], [8.0, 0.0]])), 2)

    assert torch.equal(mean(Replies(uploads), "v"), torch.tensor([4.0, 2.0]))


@pytest.mark.parametrize("weight", [None, "n"])
def test_a_mean_of_no_uploads_is_refused(weight: str | None) -> None:
    with pytest.raises(ValueError, match="no mean of 'params', because there are no uploads"):
        mean(Replies(iter([])), "params", weight=weight)


def test_a_mean_holds_one_large_upload_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(averaging, "CHUNK_BYTES", 10)
    alive: list[weakref.ref[Sent]] = []

    def uploads() -> Iterator[Sent]:
        for _ in range(4):
            assert not any(ref() for ref in alive[:-1])
            sent = Sent([1.0, 2.0, 3.0], 0, 1.0)
            alive.append(weakref.ref(sent))
            yield sent
            del sent

    assert mean(Replies(uploads()), "params")["w"].tolist() == [1.0, 2.0, 3.0]


def test_params_arithmetic_by_hand() -> None:
    a, b = {"x": torch.tensor([1.0, 2.0])}, {"x": torch.tensor([3.0, 5.0])}
    assert add(a, b)["x"].tolist() == [4, 7]
    assert add(a, b, 2.0)["x"].tolist() == [7, 12]
    assert sub(a, b)["x"].tolist() == [-2, -3]
    assert sub(a, b, 0.5)["x"].tolist() == [-0.5, -0.5]
    assert zeros(a)["x"].tolist() == [0, 0]
    assert sqnorm(b | {"y": torch.ones(2, 2)}).item() == 9 + 25 + 4
    assert trainable({"w": torch.ones(2, 3), "buffers.m": torch.ones(9)}) == 6


def test_keys_of_epochs_do_not_collide_with_a_second_phase() -> None:
    """A method that trains twice folds its key by -1, which no epoch does."""
    c = toy_models.client(torch.arange(40.0)[:, None], [0] * 40, toy_models.mlp(1), classes=3)
    first, second = (torch.cat([b.x for b in c.batches(k, 3, 40)]).reshape(3, 40) for k in (key(0), fold(key(0), -1)))
    orders = {tuple(order) for order in torch.cat([first, second]).tolist()}
    assert len(orders) == 6
