"""FedNova: a round by hand, weights of gradients under momentum, and FedAvg where all take equally many steps."""

from dataclasses import replace

import pytest
import torch
from support import quadratics, small_runs, toy_models
from support.quadratics import rounds, w

from atoll.core.client import Client
from atoll.core.optim.adam import Adam
from atoll.core.optim.sgd import SGD
from atoll.core.payloads import Nothing
from atoll.core.prng import key
from atoll.errors import AtollError
from atoll.methods.fednova import FedNova, Global, Update

ONE_BY_ONE = replace(toy_models.PLAIN, lr=0.5, batch_size=1)


def quadratic(a: float, n: int) -> Client:
    """n equal rows: with batches of one row, n steps on (w - a)^2 / 2."""
    return toy_models.client([[a]] * n, [1] * n, quadratics.MODEL, classes=2)


def update(value: float, n: float, norm: float) -> Update:
    return Update({"w": torch.tensor([value])}, *(torch.tensor(v) for v in (n, n / norm, n * norm)))


def test_unlike_numbers_of_steps_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """a = 2 for both, x = 0, eta = 0.5. One row: y = 1, |a| = 1. Three rows: y = 1, 1.5, 1.75, |a| = 3. p = (1/4, 3/4),
    d = -(1/4 * 1/1 + 3/4 * 1.75/3) = -0.6875, tau_eff = 1/4 * 1 + 3/4 * 3 = 2.5: x = 2.5 * 0.6875 = 1.71875.
    FedAvg would come to (1 + 3 * 1.75) / 4 = 1.5625.
    """
    quadratics.install(monkeypatch)

    (played,) = rounds(FedNova(ONE_BY_ONE), [quadratic(2.0, 1), quadratic(2.0, 3)], [(0, 1)])

    assert [w(played.uploads[i].params) for i in (0, 1)] == [1.0, 1.75]
    assert [(float(up.weight), float(up.work)) for up in played.uploads.values()] == [(1.0, 1.0), (1.0, 9.0)]
    assert w(played.server.params) == pytest.approx(1.71875)


def test_weight_of_gradients_under_momentum_by_hand() -> None:
    """rho = 0.5, tau = 3: the first gradient enters three steps, 1 + 0.5 + 0.25, the next 1.5, the last 1: 4.25."""
    assert float(FedNova(SGD(momentum=0.5)).norm(torch.tensor(3.0))) == pytest.approx(4.25)
    assert float(FedNova(SGD(momentum=0.0)).norm(torch.tensor(3.0))) == 3
    assert float(FedNova(SGD(momentum=1.0)).norm(torch.tensor(3.0))) == 6  # 3 + 2 + 1


def test_weight_of_gradients_is_the_distance_covered_at_slope_one() -> None:
    c = toy_models.client([[0.0]] * 5, [0] * 5, toy_models.mlp(1))
    optim = replace(ONE_BY_ONE, momentum=0.9)
    params, _, steps = optim.train(lambda p, b: p["w"].sum(), {"w": torch.zeros(1)}, c, key(0))
    assert float(-params["w"]) / optim.lr == pytest.approx(float(FedNova(optim).norm(steps)), rel=1e-5)


def test_equal_numbers_of_steps_give_the_mean_by_rows() -> None:
    """Models 0 and 4, n = (3, 1), |a| = 5 for both: 1, as FedAvg."""
    after = toy_models.aggregate(
        FedNova(),
        Global({"w": torch.tensor([7.0])}),
        [update(0.0, 3, 5), update(4.0, 1, 5)],
        toy_models.task(toy_models.mlp()),
    )
    assert float(after.params["w"]) == pytest.approx(1.0)


def test_running_statistics_are_averaged_not_extrapolated() -> None:
    """Weights n / |a| = 1 and 1: the mean of 0 and 4 is 2, though tau_eff d would go further."""
    mean = "buffers.m.running_mean"
    ups = [update(0.0, 1, 1), update(0.0, 3, 3)]
    ups = [replace(up, params=up.params | {mean: torch.tensor([v])}) for up, v in zip(ups, (0.0, 4.0), strict=True)]
    server = Global({"w": torch.zeros(1), mean: torch.ones(1)})
    after = toy_models.aggregate(FedNova(), server, ups, toy_models.task(toy_models.mlp()))
    assert float(after.params[mean]) == 2.0


def test_steps_are_those_of_a_clients_own_rows_among_padded_ones() -> None:
    """6 rows in batches of 4 are 2 steps an epoch, 4 in two epochs, beside a client of 13 rows with 8."""
    method = FedNova(replace(toy_models.RICH, momentum=0.0))
    clients = [toy_models.random_client(n, n, toy_models.mlp()) for n in (6, 13)]
    down = method.init_server(toy_models.task(toy_models.mlp()), key(0))
    padded = [toy_models.padded(c, 13) for c in clients]
    both = toy_models.together(method, down, [Nothing(), Nothing()], padded, [key(1), key(2)])
    assert [float(up.work / up.n) for up, _ in both] == [4.0, 8.0]


def test_a_run_differs_from_fedavg_but_not_with_equal_steps() -> None:
    nova, plain = (small_runs.run(name, epochs=None, steps=4) for name in ("fednova", "fedavg"))
    assert small_runs.gap_params(nova.server.params, plain.server.params) < 1e-5
    nova, plain = (small_runs.run(name) for name in ("fednova", "fedavg"))
    assert small_runs.gap_params(nova.server.params, plain.server.params) > 1e-3


def test_optimiser_that_is_not_sgd_is_refused() -> None:
    with pytest.raises(AtollError, match="weighs the gradients of SGD by their number, but optim is Adam"):
        FedNova(Adam())


def test_vmap_equals_loop() -> None:
    toy_models.check_vmap(FedNova(toy_models.RICH), toy_models.mlp())
