"""DC-PFL: the auxiliary loss, the server's steps and what travels, by hand."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from support import toy_models

from atoll.clients import method_calls
from atoll.core.class_statistics import class_means, covariance_factors, draw
from atoll.core.losses import objective
from atoll.core.optim.base import gradient
from atoll.core.params import part
from atoll.core.payloads import Nothing, nbytes, pack, unpack
from atoll.core.prng import fold, key, normal
from atoll.core.task import Round, Task
from atoll.errors import AtollError
from atoll.methods._prototypes import class_mean_batches, head_loss, pull_to_means
from atoll.methods.dcpfl import DCPFL, Gaussians, Knowledge, Server
from atoll.methods.fedgh import FedGH
from atoll.methods.local import Local, State

NO_GC = DCPFL(virtual=0)
AXES = Gaussians(torch.tensor([5.0, 5.0]), torch.eye(2), None, None)


def planar() -> Task:
    return toy_models.task(toy_models.identity_body(), classes=2)


def served(method: DCPFL, *uploads: Gaussians, server: Server | None = None) -> Server:
    after: Server = toy_models.aggregate(
        method, server or method.init_server(planar(), key(0)), list(uploads), planar()
    )
    return after


def cloud(n: float, mean: float, spread: float, c: int = 0) -> Gaussians:
    """``n`` rows of class ``c`` around (mean, mean) with covariance spread * I."""
    at = torch.arange(2) == c
    sigma = at[:, None, None] * torch.eye(2) * spread
    return Gaussians(at * n, at[:, None] * torch.full((1, 2), mean), sigma, None)


# --------------------------------------------------------------------------------------------------------- the client


@pytest.mark.parametrize(("aux", "value"), [("l2", 2.5), ("sq", 12.5), ("mse", 6.25)])
def test_auxiliary_loss(aux: str, value: float) -> None:
    """Features (3, 4) and (0, 0), both means (0, 0): norms 5 and 0, mean 2.5. Squares 25 and 0:
    mean 12.5, and over d = 2 also 6.25.
    """
    pull = pull_to_means(torch.zeros(1, 2), torch.tensor([True]), 1.0, aux)
    step = toy_models.at({}, toy_models.batch([[0.0], [0.0]], [0, 0]), [[3.0, 4.0], [0.0, 0.0]])
    assert float(pull(step)) == pytest.approx(value, abs=1e-6)


def test_gradient_of_the_norm() -> None:
    """That of ||z|| at (3, 4) is z / 5 = (0.6, 0.8); at 0, where there is none, it is 0 and not NaN."""

    def loss(p: Any, b: Any) -> torch.Tensor:
        pull = pull_to_means(torch.zeros(1, 2), torch.tensor([True]), 1.0, "l2")
        return pull(toy_models.at({}, b)._replace(features=p["z"]))

    for z, slope in ([3.0, 4.0], [0.6, 0.8]), ([0.0, 0.0], [0.0, 0.0]):
        grads, _ = gradient(loss, {"z": torch.tensor([z])}, toy_models.batch([[0.0]], [0]))
        torch.testing.assert_close(grads["z"], torch.tensor([slope]))


def test_first_round_loss_is_cross_entropy() -> None:
    c = toy_models.random_client(9, 1, toy_models.mlp())
    method = DCPFL(toy_models.RICH, lam=5.0)
    down = method.broadcast(
        method.init_server(toy_models.task(c.model), key(0)), "a", toy_models.task(c.model), Round(0), key(0)
    )
    assert down.means is not None
    pull = pull_to_means(down.means, down.seen, 5.0, "l2")
    b, params = toy_models.batch(c.x, c.y), c.model.init()
    assert objective(c.model, pull)(params, b) == objective(c.model)(params, b)
    _, state = toy_models.participate(method, down, method_calls.init_client(method, c, key(0)), c, key(1))
    _, alone = toy_models.participate(Local(toy_models.RICH), Nothing(), State(c.model.init() | down.head), c, key(1))
    toy_models.assert_same(state, alone)


def test_upload_is_the_statistics_of_the_trained_features() -> None:
    c = toy_models.client(normal(key(3), 12, 3), [0, 1, 2] * 4, toy_models.mlp())
    method = DCPFL(toy_models.RICH)
    down = method.broadcast(
        method.init_server(toy_models.task(c.model), key(0)), "a", toy_models.task(c.model), Round(0), key(0)
    )
    up, state = toy_models.participate(method, down, method_calls.init_client(method, c, key(0)), c, key(1))
    z = c.model.features(state.params, c.x)
    for label in range(3):
        rows = z[c.y == label]
        assert up.n[label] == len(rows)
        torch.testing.assert_close(up.mu[label], rows.mean(0))
        torch.testing.assert_close(up.sigma[label], torch.cov(rows.T))
    packed = pack(up)
    toy_models.assert_same(unpack(Gaussians, packed.tensors, packed.scalars), up)
    back = unpack(Gaussians, packed.tensors, packed.scalars).sigma
    assert back is not None
    assert torch.equal(back, up.sigma)


def test_small_classes_stay_at_home() -> None:
    """Two rows of class 0, three of class 1: with min_count = 3 nothing is said about class 0."""
    x = torch.arange(10.0).reshape(5, 2)
    c = toy_models.client(x, [0, 0, 1, 1, 1], toy_models.identity_body(), classes=2)
    method = DCPFL(toy_models.PLAIN, min_count=3)
    down = method.broadcast(method.init_server(planar(), key(0)), "a", planar(), Round(0), key(0))
    up, _ = toy_models.participate(method, down, method_calls.init_client(method, c, key(0)), c, key(1))
    assert up.n.tolist() == [0, 3]
    assert up.mu.tolist() == [[0, 0], [6, 7]]
    assert not up.sigma[0].any()
    assert up.sigma[1].tolist() == [[4, 4], [4, 4]]


def sent(method: DCPFL, x: torch.Tensor, labels: list[int]) -> Gaussians:
    """The upload of a client whose features are its rows."""
    model = toy_models.identity_body()
    task = toy_models.task(model, 2)
    c = toy_models.client(x, labels, model, classes=2)
    down = method.broadcast(method.init_server(task, key(0)), "a", task, Round(0), key(0))
    return toy_models.participate(method, down, method_calls.init_client(method, c, key(0)), c, key(1))[0]


def test_low_rank_sends_the_directions_of_most_variance() -> None:
    """Class 0: rows (0, 0), (2, 0), (1, 3), (1, -3), mean (1, 0). Their covariance is diag(2, 18) / 3, so that the
    first column is (0, sqrt 6) and the second one (sqrt 2/3, 0). Class 1 has one row and no covariance.
    """
    x = torch.tensor([[0.0, 0], [2, 0], [1, 3], [1, -3], [5, 5]])
    labels = [0, 0, 0, 0, 1]
    full, one, two, nine = (
        sent(DCPFL(toy_models.PLAIN, cov_source=source), x, labels)
        for source in ("client", "lowrank:1", "lowrank:2", "lowrank:9")
    )
    assert full.factors is None
    assert one.sigma is None
    torch.testing.assert_close(full.sigma[0], torch.tensor([[2 / 3, 0], [0, 6]]))
    torch.testing.assert_close(one.factors[0], torch.tensor([[0.0], [6**0.5]]))
    torch.testing.assert_close(two.factors[0], torch.tensor([[0.0, (2 / 3) ** 0.5], [6**0.5, 0.0]]))
    assert not one.factors[1].any()
    toy_models.assert_same(nine, two)  # a factor has at most as many columns as features


def test_low_rank_of_all_columns_gives_the_same_head() -> None:
    x, labels = normal(key(4), 12, 2), [0, 1] * 6
    full, all_columns, one = (
        served(DCPFL(virtual=40), sent(DCPFL(toy_models.PLAIN, cov_source=source), x, labels)).head["head.weight"]
        for source in ("client", "lowrank:2", "lowrank:1")
    )
    torch.testing.assert_close(all_columns, full)
    assert not torch.allclose(one, full)


def test_low_rank_pads_classes_with_fewer_rows_than_columns() -> None:
    """Two rows of three features span one direction: (1, 2, 2) / 3 with the variance 2 * 1.5^2 = 4.5 of +-1.5."""
    z, member = torch.tensor([[0.5, 1.0, 1.0], [-0.5, -1.0, -1.0]]), torch.tensor([[1.0], [1.0]])
    n, mu = class_means(z, member)
    factors = covariance_factors(z, member, n, mu, 3)
    assert factors.shape == (1, 3, 3)
    torch.testing.assert_close(factors[0, :, 0], torch.tensor([1.0, 2, 2]) / 3 * 4.5**0.5)
    assert float(factors[0, :, 1:].abs().max()) < 1e-6


@pytest.mark.parametrize("source", ["lowrank", "lowrank:0", "lowrank:-1", "lowrank:1.5", "lowrank:x", "full"])
def test_unknown_sources_of_covariances_are_refused(source: str) -> None:
    with pytest.raises(AtollError, match=r"lowrank:R"):
        DCPFL(cov_source=source)


def test_who_predicts() -> None:
    c = toy_models.random_client(9, 1, toy_models.mlp())
    method = DCPFL(toy_models.RICH)
    t = toy_models.task(toy_models.mlp(seed=4))
    down = method.broadcast(method.init_server(t, key(0)), "a", t, Round(0), key(0))
    old = method_calls.init_client(method, c, key(0))
    up, state = toy_models.participate(method, down, old, c, key(1))
    assert torch.equal(
        method_calls.personal_predictor(method, down, None, old, c)(c.x), c.model(old.params | down.head, c.x)
    )
    assert torch.equal(method_calls.personal_predictor(method, down, up, state, c)(c.x), c.model(state.params, c.x))


# --------------------------------------------------------------------------------------------------------- the server


def test_head_step() -> None:
    """W = 0, b = 0, one client with means (1, 0) of class 0 and (0, 1) of class 1, rate 0.01: p = (1/2, 1/2) for both,
    so that the mean gradient of W is [[-0.25, 0.25], [0.25, -0.25]] and that of b is 0.
    """
    head = served(NO_GC, AXES).head
    torch.testing.assert_close(head["head.weight"], torch.tensor([[0.0025, -0.0025], [-0.0025, 0.0025]]))
    torch.testing.assert_close(head["head.bias"], torch.zeros(2))


def test_head_steps_are_cumulative() -> None:
    other = Gaussians(torch.tensor([0.0, 3.0]), torch.tensor([[0.0, 0.0], [2.0, 1.0]]), None, None)
    both, one = served(NO_GC, AXES, other), served(NO_GC, AXES)
    assert torch.equal(both.head["head.weight"], served(NO_GC, other, server=one).head["head.weight"])
    again = served(replace(NO_GC, head_passes=2), AXES)
    assert torch.equal(again.head["head.weight"], served(NO_GC, AXES, server=one).head["head.weight"])


def test_means_are_pooled_by_rows_and_go_stale() -> None:
    """1 row around 4 and 3 rows around 0: 1. Nobody has class 1: it keeps its mean, or has none."""
    fresh = served(NO_GC, cloud(1, 4.0, 0.0), cloud(3, 0.0, 0.0))
    assert fresh.means.tolist() == [[1.0, 1.0], [0.0, 0.0]]
    assert fresh.seen.tolist() == [True, False]
    stale = served(NO_GC, cloud(2, 7.0, 0.0, c=1), server=fresh)
    assert stale.means.tolist() == [[1.0, 1.0], [7.0, 7.0]]
    assert stale.seen.tolist() == [True, True]


def test_calibration_is_training_on_draws() -> None:
    """The head after the steps on means, then one pass over 30 draws in batches of 8."""
    method = DCPFL(virtual=30, calibrate=replace(DCPFL().calibrate, batch_size=8))
    ups = [cloud(4, 1.0, 0.5), cloud(2, -1.0, 0.25, c=1)]
    stepped = served(replace(method, virtual=0), *ups).head
    k = key("server", 0)
    sigma = torch.stack([0.5 * torch.eye(2), 0.25 * torch.eye(2)])
    z, y = draw(torch.tensor([4.0, 2.0]), torch.tensor([[1.0, 1.0], [-1.0, -1.0]]), sigma, 30, fold(k, 1))
    assert y.bincount().tolist() == [20, 10]
    batches = list(method.calibrate.batches(z, y, fold(k, 2)))
    assert [len(b.y) for b in batches] == [8, 8, 8, 6]
    expected = method.calibrate.run(head_loss(planar().model), stepped, batches)
    toy_models.assert_near(served(method, *ups).head, expected)


def test_paper_formula_widens_the_draws() -> None:
    """Two rows each: within-client weights n / (N - 1) instead of (n - 1) / (N - 1) double that part."""
    ups = [cloud(2, 1.0, 1.0), cloud(2, 1.0, 1.0)]
    exact, paper = (served(DCPFL(cov_formula=f, stats_scope="cached"), *ups) for f in ("exact", "paper"))
    assert exact.sigma is not None
    assert paper.sigma is not None
    torch.testing.assert_close(exact.sigma[0], torch.eye(2) * 2 / 3)
    torch.testing.assert_close(paper.sigma[0], torch.eye(2) * 4 / 3)


def test_cached_statistics_are_drawn_from_too() -> None:
    """Round 1 has class 0, round 2 class 1. With the scope of a round the second calibration knows class 1 alone."""
    first, second = cloud(4, 1.0, 0.5), cloud(4, -1.0, 0.5, c=1)
    heads = {}
    for scope in ("round", "cached"):
        method = DCPFL(stats_scope=scope)
        heads[scope] = served(method, second, server=served(method, first))
    assert heads["round"].sigma is None
    assert heads["cached"].n is not None
    assert heads["cached"].n.tolist() == [4, 4]
    only = (heads["round"].head["head.bias"] - heads["cached"].head["head.bias"]).tolist()
    assert only[0] < 0 < only[1]  # without class 0 among the draws, the head leans to class 1
    packed = pack(heads["cached"])
    toy_models.assert_same(unpack(Server, packed.tensors, packed.scalars), heads["cached"])


def test_draws_can_be_cut_at_zero() -> None:
    """Around -5 with little spread every draw is cut to 0: the gradient of W vanishes, only the bias is calibrated."""
    up = cloud(4, -5.0, 0.01)
    cut, free = served(DCPFL(virtual_relu=True), up), served(DCPFL(), up)
    steps = served(NO_GC, up)
    assert torch.equal(cut.head["head.weight"], steps.head["head.weight"])
    assert not torch.equal(cut.head["head.bias"], steps.head["head.bias"])
    assert not torch.equal(free.head["head.weight"], steps.head["head.weight"])


def test_collapsed_features_do_not_stop_the_server() -> None:
    """Singletons, equal features, rank one, tiny and huge scales: every head stays finite."""
    line = torch.tensor([[1.0, 2.0], [2.0, 4.0]])
    for scale in (1e-18, 1.0, 1e10):
        sigma = torch.stack([line * scale, torch.zeros(2, 2)])
        up = Gaussians(torch.tensor([3.0, 1.0]), torch.tensor([[0.5, 1.0], [3.0, 3.0]]), sigma, None)
        head = served(DCPFL(), up, cloud(1, 2.0, 0.0)).head
        assert all(bool(torch.isfinite(v).all()) for v in head.values())


def test_nobody_has_anything_to_say() -> None:
    silent = Gaussians(torch.zeros(2), torch.zeros(2, 2), torch.zeros(2, 2, 2), None)
    server = DCPFL().init_server(planar(), key(0))
    toy_models.assert_same(served(DCPFL(), silent, server=server), server)


def test_order_of_uploads_is_immaterial_for_what_is_pooled() -> None:
    ups = [cloud(4, 1.0, 0.5), cloud(2, -1.0, 0.25), cloud(1, 3.0, 0.0)]
    a, b = (served(DCPFL(stats_scope="cached"), *order) for order in (ups, ups[::-1]))
    toy_models.assert_near((a.means, a.n, a.sigma), (b.means, b.n, b.sigma))


# ------------------------------------------------------------------------------------------- what travels, and FedGH


def test_without_both_halves_it_is_fedgh() -> None:
    """Two rounds, two clients, bit for bit."""
    dcpfl, fedgh = DCPFL(toy_models.RICH, lam=0.0, virtual=0), FedGH(toy_models.RICH, server_mode="per_client_mean")
    clients = [toy_models.random_client(n, n, toy_models.mlp()) for n in (9, 6)]
    t = toy_models.task(toy_models.mlp())
    results = []
    for method in (dcpfl, fedgh):
        server: Any = method.init_server(t, key(0))
        states = [method_calls.init_client(method, c, key(0)) for c in clients]
        for r in range(2):
            down = method.broadcast(server, "a", t, Round(r), key(0))
            both = [
                toy_models.participate(method, down, s, c, key(r, len(c.y)))
                for s, c in zip(states, clients, strict=True)
            ]
            states = [s for _, s in both]
            server = toy_models.aggregate(method, server, [up for up, _ in both], t)
        results.append((server.head, states))
    toy_models.assert_near(results[0], results[1], tolerance=0)
    assert "FedGH" in str(dcpfl.reduces_to())
    assert DCPFL().reduces_to() is None


def test_variants() -> None:
    assert {name: DCPFL(**fields) for name, fields in DCPFL.traits.variants.items()} == {
        "no-al": DCPFL(lam=0.0),
        "no-gc": DCPFL(virtual=0),
    }


def broadcast(method: DCPFL, seen: int) -> Knowledge:
    t = toy_models.task(toy_models.identity_body(500, 10), 10)
    server = method.init_server(t, key(0))
    flags = torch.arange(10) < seen
    return method.broadcast(
        replace(server, means=flags[:, None] * torch.ones(10, 500), seen=flags), "a", t, Round(0), key(0)
    )


def test_bytes_down() -> None:
    """C = 10, d = 500: head 5,010 scalars and 5,000 of means, 10,010; in the first round, and without the auxiliary
    loss, only the head. While 3 classes are seen their labels travel too: 5,010 + 3 * 501.
    """
    assert nbytes(broadcast(DCPFL(), 10)) == 4 * 10_010
    assert nbytes(broadcast(DCPFL(), 3)) == 4 * (5_010 + 3 * 501)
    assert nbytes(broadcast(DCPFL(), 0)) == 4 * 5_010
    assert nbytes(broadcast(DCPFL(lam=0.0), 10)) == 4 * 5_010
    assert broadcast(DCPFL(lam=0.0), 10).means is None


def test_bytes_up() -> None:
    """Two classes of 500 features: label, count, mean and the triangle of 500 * 501 / 2 = 125,250 each, that is
    2 * (2 + 500 + 125,250) = 251,504 scalars; without calibration 2 * 502 = 1,004.
    """
    n = torch.tensor([40.0, 7.0] + [0.0] * 8)
    mu, sigma = (n > 0)[:, None] * torch.ones(10, 500), (n > 0)[:, None, None] * torch.ones(10, 500, 500)
    assert nbytes(Gaussians(n, mu, sigma, None)) == 4 * 2 * (2 + 500 + 500 * 501 // 2) == 4 * 251_504
    assert nbytes(Gaussians(n, mu, None, None)) == 4 * 1_004


def test_bytes_up_of_low_rank() -> None:
    """Two classes of 500 features and 8 columns: 2 * (label, count, 500 means and 500 * 8 = 4,000) = 9,004 scalars."""
    n = torch.tensor([40.0, 7.0] + [0.0] * 8)
    mu, factors = (n > 0)[:, None] * torch.ones(10, 500), (n > 0)[:, None, None] * torch.ones(10, 500, 8)
    assert nbytes(Gaussians(n, mu, None, factors)) == 4 * 2 * (2 + 500 + 4_000) == 4 * 9_004


def test_no_covariance_is_made_without_calibration() -> None:
    c = toy_models.random_client(9, 1, toy_models.mlp())
    method = DCPFL(toy_models.RICH, virtual=0)
    down = method.broadcast(
        method.init_server(toy_models.task(c.model), key(0)), "a", toy_models.task(c.model), Round(0), key(0)
    )
    up, _ = toy_models.participate(method, down, method_calls.init_client(method, c, key(0)), c, key(1))
    assert up.sigma is None


def test_lessons_leave_out_who_has_nothing() -> None:
    table, held = torch.eye(3), torch.tensor([True, False, True])
    (only,) = class_mean_batches([(table, held), (table, torch.zeros(3, dtype=torch.bool))])
    assert only.y.tolist() == [0, 2]
    assert only.x.tolist() == [[1, 0, 0], [0, 0, 1]]
    assert part(toy_models.mlp().init(), "head").keys() == {"head.weight", "head.bias"}


@pytest.mark.parametrize(
    "wrong",
    [{"lam": -1.0}, {"aux": "l1"}, {"virtual": -1}, {"min_count": 0}, {"cov_formula": "x"}, {"stats_scope": "x"}],
)
def test_senseless_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(AtollError, match=f"DCPFL: {next(iter(wrong))} is"):
        DCPFL(**wrong)


@pytest.mark.parametrize("settings", [{}, {"lam": 0.0}, {"virtual": 0}, {"aux": "mse", "min_count": 3}])
def test_vmap_equals_loop(settings: dict[str, Any]) -> None:
    toy_models.check_vmap(DCPFL(toy_models.RICH, **settings), toy_models.mlp())
