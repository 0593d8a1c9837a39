"""FedHeNN: alignments by hand, rows and kernels that belong together, and when the pull acts."""

from dataclasses import replace
from math import sqrt
from typing import Any

import pytest
import torch
from support import toy_models
from support.small_runs import made_with, run, same_models, setup
from torch import Tensor, nn

from atoll.backends.loop import LoopBackend
from atoll.clients.state_store import MemoryStore
from atoll.core.client import Client
from atoll.core.losses import objective
from atoll.core.model import Model
from atoll.core.optim.base import gradient
from atoll.core.payloads import Nothing, Params, nbytes
from atoll.core.prng import key, normal
from atoll.core.problems import Classes
from atoll.core.replies import Replies
from atoll.core.task import Reply, Round, Task
from atoll.engine.round import run_round
from atoll.errors import AtollError
from atoll.methods.fedhenn import Alignment, FedHeNN, Kernel, Server, cka, gram
from atoll.methods.local import Local, State
from benchmarks.digests import PUBLIC

ROWS = normal(key("public"), 10, 3)
ORDER = torch.tensor([3, 1, 4, 0, 5, 9, 2, 6], dtype=torch.int32)
COMING = torch.tensor([8, 7, 0, 5], dtype=torch.int32)


def client(n: int = 9, seed: int = 1, model: Model | None = None) -> Client:
    return replace(toy_models.random_client(n, seed, model or toy_models.mlp()), public=ROWS)


def norm_client() -> Client:
    net = toy_models.Net(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.3)), nn.Linear(4, 3))
    return client(8, model=Model(toy_models.filled(net)))


def some_kernel(name: str = "kernel", rows: int = 8) -> Tensor:
    return gram(normal(key(name), rows, 5))


def pull(eta: float, kernel: Tensor | None = None) -> Alignment:
    return Alignment(eta, ORDER, some_kernel() if kernel is None else kernel, COMING)


def task() -> Task:
    return Task(toy_models.mlp(), Classes(3), ("a", "b"), None, ROWS, dict.fromkeys(("a", "b"), toy_models.mlp()))


def after(method: FedHeNN, server: Server, kernels: list[Tensor], t: int = 0) -> Server:
    replies = (Reply(i, Kernel(v)) for i, v in zip("ab", kernels, strict=False))
    return method.aggregate(server, Replies(replies), task(), Round(t), key("server", t))


# -- alignment --------------------------------------------------------------------------------------------------------


def column(*values: float) -> Tensor:
    return gram(torch.tensor(values)[:, None])


@pytest.mark.parametrize(("other", "aligned"), [((0, 0, 1), 0.75), ((0, 1, 0), 0.0), ((5, 3, 1), 1.0)])
def test_alignments_by_hand(other: tuple[float, ...], aligned: float) -> None:
    """(0, 1, 2) centred is (-1, 0, 1), (0, 0, 1) is (-1, -1, 2) / 3. For single features CKA is the squared cosine:
    (1/3 + 2/3)^2 / (2 * 6/9) = 3/4; with (-1, 2, -1) / 3 the product is 0; (2, 0, -2) is the same direction.
    """
    assert float(cka(column(0, 1, 2), column(*other))) == pytest.approx(aligned, abs=1e-6)


def test_alignment_knows_no_scale_no_rotation_and_no_width() -> None:
    z = normal(key("z"), 7, 4)
    turn, _ = torch.linalg.qr(normal(key("turn"), 4, 4))
    for other in (3.7 * z, z @ turn, torch.cat([z, z], 1), z + 5):
        assert float(cka(gram(z), gram(other))) == pytest.approx(1, abs=1e-5)
    assert float(cka(gram(z), gram(normal(key("else"), 7, 9)))) < 0.9


def test_two_rows_are_always_aligned() -> None:
    """Which is why fewer than three are refused."""
    assert float(cka(column(0, 1), column(7, -3))) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("scale", [1e-4, 1e5])
def test_small_and_large_features_are_no_trouble(scale: float) -> None:
    """Kernels of 1e10 and more: their squares would be too large for single precision if all were multiplied."""
    z = normal(key("z"), 30, 50)
    assert float(cka(gram(scale * z), gram(scale * z))) == pytest.approx(1, abs=1e-4)


def test_features_that_are_all_the_same_have_no_alignment() -> None:
    assert float(cka(torch.zeros(6, 6), some_kernel(rows=6))) == 0
    assert float(cka(torch.full((6, 6), 3.0), some_kernel(rows=6))) == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("bias", [-1.0, 0.3])
def test_features_that_are_all_the_same_are_not_torn_apart(bias: float) -> None:
    """Weights 0 and a bias give every row the same features, or none; what differs by rounding has no direction."""
    c = client()
    start = c.model.init() | {"body.0.weight": torch.zeros(4, 3), "body.0.bias": torch.full((4,), bias)}
    method = FedHeNN(toy_models.PLAIN)
    ends = [
        toy_models.participate(method, down, State(start), c, key(0))[1]
        for down in (pull(1.0), Alignment(0.0, None, None, COMING))
    ]
    toy_models.assert_near(ends[0], ends[1], 1e-3)


# -- the client -------------------------------------------------------------------------------------------------------


def test_a_step_goes_down_the_whole_objective() -> None:
    """One full batch and all public rows: w - 0.1 (grad CE + eta grad (1 - CKA)), from the formula with H = I - 1/m."""
    c, kernel = client(), some_kernel()
    start, h = c.model.init(), torch.eye(8) - 1 / 8
    _, moved = toy_models.participate(FedHeNN(toy_models.PLAIN), pull(2.0), State(start), c, key(0))

    def away(w: Params, b: Any) -> Tensor:
        z = c.model.features(w, ROWS[ORDER.long()])
        mine, theirs = h @ z @ z.T @ h, h @ kernel @ h
        return torch.sub(1, (mine * theirs).sum() / (mine.norm() * theirs.norm())) * 2

    batch = toy_models.batch(c.x, c.y)
    plain, _ = gradient(objective(c.model), start, batch)
    slope, _ = gradient(away, start, batch)
    assert float(slope["body.0.weight"].abs().max()) > 0.01
    for name, w in start.items():
        expected = w - 0.1 * (plain[name] + slope[name])
        torch.testing.assert_close(moved.params[name], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("batch", [4, 8, 100])
def test_a_client_that_agrees_is_not_pulled(batch: int) -> None:
    """CKA = 1 is the most: its gradient is 0, for any part of the rows, if the same part of K is taken."""
    c = client()
    own = gram(c.model.features(c.model.init(), ROWS[ORDER.long()]))
    ends = [
        toy_models.participate(FedHeNN(toy_models.PLAIN, batch=batch), down, State(c.model.init()), c, key(0))[1]
        for down in (pull(50.0, own), pull(50.0), Alignment(0.0, None, None, COMING))
    ]
    toy_models.assert_near(ends[0], ends[2], 1e-4)
    with pytest.raises(AssertionError):
        toy_models.assert_near(ends[1], ends[2], 1e-2)


def test_every_step_compares_another_part_of_the_rows() -> None:
    seen: list[list[int]] = []

    class Watched(Model):
        def step(self, params: Params, batch: Any) -> Any:
            if len(batch.x) == 5:
                seen.append([int((row == ROWS).all(1).nonzero()) for row in batch.x])
            return super().step(params, batch)

    model = Watched(toy_models.mlp().net, "mlp")
    c = client(9, model=model)
    toy_models.participate(FedHeNN(toy_models.RICH, batch=5), pull(1.0), State(model.init()), c, key(0))
    assert len(seen) == 6  # three batches in each of two epochs
    assert len({tuple(rows) for rows in seen}) == 6
    assert all(set(rows) <= set(ORDER.tolist()) and len(set(rows)) == 5 for rows in seen)


def test_the_kernel_goes_up_after_training_for_the_rows_to_come() -> None:
    c = norm_client()
    up, state = toy_models.participate(FedHeNN(toy_models.RICH), pull(1.0), State(c.model.init()), c, key(0))
    z = c.model.features(state.params, ROWS[COMING.long()])
    torch.testing.assert_close(up.kernel, z @ z.T)
    assert torch.equal(up.kernel, up.kernel.T)


def test_only_private_batches_move_the_running_statistics() -> None:
    c, slow = norm_client(), replace(toy_models.RICH, lr=0.0)
    _, own = toy_models.participate(FedHeNN(slow), pull(3.0), State(c.model.init()), c, key(0))
    _, alone = toy_models.participate(Local(slow), Nothing(), State(c.model.init()), c, key(0))
    toy_models.assert_same(own, alone)


def test_the_pull_draws_no_noise_of_private_batches() -> None:
    """A pull of no strength leaves training with dropout and batch statistics what it is without."""
    c = norm_client()
    _, own = toy_models.participate(FedHeNN(toy_models.RICH), pull(0.0), State(c.model.init()), c, key(0))
    _, alone = toy_models.participate(Local(toy_models.RICH), Nothing(), State(c.model.init()), c, key(0))
    toy_models.assert_near(own, alone, 0)


def test_a_pull_aligns() -> None:
    c, kernel = client(), some_kernel()

    def alignment(eta: float) -> float:
        method = FedHeNN(replace(toy_models.PLAIN, epochs=60, batch_size=64))
        _, state = toy_models.participate(method, pull(eta), State(c.model.init()), c, key(0))
        return float(cka(gram(c.model.features(state.params, ROWS[ORDER.long()])), kernel))

    assert alignment(5.0) > alignment(0.0) + 0.1


@pytest.mark.parametrize(("c", "sizes"), [(client(), (9, 6, 11)), (norm_client(), (8, 8, 8))])
def test_vmap_equals_loop(c: Client, sizes: tuple[int, int, int]) -> None:
    """With padding; but batch statistics know none."""
    clients = [client(n, seed, c.model) for seed, n in enumerate(sizes[:2])]
    method, states = FedHeNN(toy_models.RICH, batch=5), [State(c.model.init()) for _ in range(2)]
    for r, down in enumerate((Alignment(0.0, None, None, COMING), pull(1.0))):
        keys = [key(r, "local", i) for i in range(2)]
        before = toy_models.snapshot((down, states))
        one = [toy_models.participate(method, down, s, who, k) for s, who, k in zip(states, clients, keys, strict=True)]
        many = toy_models.together(method, down, states, [toy_models.padded(who, sizes[2]) for who in clients], keys)
        toy_models.assert_near(one, many, 1e-5)
        toy_models.assert_near((down, states), before, tolerance=0)
        states = [s for _, s in one]


# -- the server -------------------------------------------------------------------------------------------------------


def test_the_kernel_is_the_mean_whatever_the_widths() -> None:
    """Kernels of 1 and 4, from features of any width, have the mean 2.5."""
    server = after(FedHeNN(), FedHeNN().init_server(task(), key(0)), [torch.ones(10, 10), torch.full((10, 10), 4.0)])
    torch.testing.assert_close(server.kernel, torch.full((10, 10), 2.5))


def test_a_kernel_travels_with_the_rows_it_is_of_and_others_are_asked_for() -> None:
    method = FedHeNN(rows=6)
    server = method.init_server(task(), key(0))
    for t in range(1, 4):
        asked = method.broadcast(server, "a", task(), Round(t), key(0)).coming
        server = after(method, server, [some_kernel(str(t), 6)], t)
        downs = [method.broadcast(server, i, task(), Round(t), key(0)) for i in "ab"]
        assert all(down.rows is asked for down in downs)
        torch.testing.assert_close([down.kernel for down in downs], [some_kernel(str(t), 6)] * 2)
        assert all(down.coming is downs[0].coming for down in downs)
        assert downs[0].coming.tolist() != asked.tolist()
        assert len(downs[0].coming.unique()) == 6


def test_the_pull_grows_with_the_root_of_the_round_and_begins_in_the_second() -> None:
    method = FedHeNN(eta0=0.3)
    server = method.init_server(task(), key(0))
    assert all(
        method.broadcast(server, "a", task(), Round(t), key(0)).eta == 0 for t in (0, 3)
    )  # nobody sent a kernel yet
    server = after(method, server, [some_kernel(rows=10)])
    first = method.broadcast(server, "a", task(), Round(0), key(0))
    assert (first.eta, first.rows, first.kernel) == (0.0, None, None)
    for t in (1, 4, 7):
        assert method.broadcast(server, "a", task(), Round(t), key(0)).eta == pytest.approx(0.3 * sqrt(t))


def test_half_a_kernel_travels() -> None:
    """1000 rows: 1000 * 1001 / 2 = 500,500 numbers of 4 bytes, not a million."""
    assert nbytes(Kernel(torch.ones(1000, 1000))) == 4 * 500_500


# -- whole runs -------------------------------------------------------------------------------------------------------


def test_without_pull_it_is_local() -> None:
    assert same_models(made_with("fedhenn", eta0=0.0), run("local", public=PUBLIC))
    assert not same_models(made_with("fedhenn", eta0=1.0), run("local", public=PUBLIC))
    assert FedHeNN(eta0=0.0).reduces_to() is not None
    assert FedHeNN().reduces_to() is None


def test_unlike_models_of_unlike_widths_and_what_they_exchange() -> None:
    """60 rows: a kernel of 60 * 61 / 2 = 1830 numbers, two lists of row numbers, and eta; at first only one list."""
    mixed: dict[str, Any] = {"models": ("mlp:hidden=12", "mlp:hidden=20")}
    assert run("fedhenn", **mixed).summary["status"] == "finished"
    made = setup("fedhenn", **mixed)
    assert {m.feature_dim for m in made.pool.models.values()} == {12, 20}
    backend, server = LoopBackend(made.pool, MemoryStore()), made.method.init_server(made.pool.task(), key(0))
    for t, down in enumerate((4 * 60 + 8, 4 * (1830 + 2 * 60) + 8)):
        server, log = run_round(made.method, made.pool.task(), backend, server, t=t, seed=0, cohort=made.pool.ids)
        assert set(log.up.values()) == {4 * 1830}
        assert set(log.down.values()) == {down}


def test_mistakes_are_refused() -> None:
    for wrong in ({"eta0": -1.0}, {"rows": 2}, {"batch": 2}):
        with pytest.raises(AtollError, match=next(iter(wrong))):
            FedHeNN(**wrong)
    with pytest.raises(AtollError, match="--public"):
        FedHeNN().init_server(toy_models.task(toy_models.mlp()), key(0))
