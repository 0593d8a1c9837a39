"""FedAvgM: three kinds of momentum by hand, FedAvg without any, and clients that do not notice."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from support import small_runs, toy_models

from atoll.core.payloads import Nothing, Params, equal, nbytes
from atoll.core.prng import key
from atoll.core.regularisers import Regularisers
from atoll.core.task import Round
from atoll.errors import AtollError
from atoll.methods.fedavg import FedAvg, Global, Update
from atoll.methods.fedavgm import FedAvgM, Server
from atoll.methods.feddw import DW

TASK = toy_models.task(toy_models.mlp())
MEAN, COUNT = "buffers.body.0.running_mean", "buffers.body.0.num_batches_tracked"


def one(w: float) -> Params:
    return {"w": torch.tensor([w])}


def update(params: Params, n: float = 1.0) -> Update:
    return Update(params, torch.tensor(n), {})


def path(**settings: Any) -> list[float]:
    """From 0: a round in which the clients' average is 1, and one in which they return what they got."""
    method, server, seen = FedAvgM(**settings), Server(one(0.0), {}, one(0.0)), []
    for t in range(2):
        server = toy_models.aggregate(method, server, [update(one(1.0) if t == 0 else server.params)], TASK)
        seen.append(float(server.params["w"]))
    return seen


def test_heavy_ball() -> None:
    """delta = 0 - 1 = -1, v = -1: w = 1. Then delta = 0, v = -0.9: w = 1.9."""
    assert path() == pytest.approx([1.0, 1.9])


def test_nesterov() -> None:
    """v = -1, the step is delta + 0.9 v = -1.9: w = 1.9. Then v = -0.9, the step is -0.81: w = 2.71."""
    assert path(nesterov=True) == pytest.approx([1.9, 2.71])


def test_dampening() -> None:
    """v = 0.1 delta = -0.1: w = 0.1. Then v = -0.09: w = 0.19."""
    assert path(dampening=True) == pytest.approx([0.1, 0.19])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, [0.5, 0.75]), ({"nesterov": True}, [0.75, 0.875]), ({"dampening": True}, [0.25, 0.375])],
)
def test_the_servers_rate(settings: dict[str, Any], expected: list[float]) -> None:
    """beta = 0.5, eta = 0.5. Heavy ball: v = -1, w = 0.5; v = -0.5, w = 0.75. Nesterov: steps 1 + 0.5 and 0.25, halved.
    Dampened: v = -0.5, w = 0.25; v = -0.25, w = 0.375.
    """
    assert path(beta=0.5, server_lr=0.5, **settings) == expected


def test_clients_count_by_their_rows() -> None:
    """n = (3, 1), models 0 and 4, from 0: the average is 1."""
    after = toy_models.aggregate(
        FedAvgM(), Server(one(0.0), {}, one(0.0)), [update(one(0.0), 3), update(one(4.0), 1)], TASK
    )
    assert float(after.params["w"]) == 1.0
    assert float(after.velocity["w"]) == -1.0


def test_running_statistics_have_no_momentum() -> None:
    """Two rounds with averages 4 and 4 of a running mean: it is 4 each time, and the counter the largest."""
    method, t = FedAvgM(), toy_models.task(toy_models.mlp())
    server = Server(one(0.0) | {MEAN: torch.zeros(1), COUNT: torch.tensor(0)}, {}, one(0.0))
    for steps in (2, 5):
        up = update(one(1.0) | {MEAN: torch.tensor([4.0]), COUNT: torch.tensor(steps)})
        server = toy_models.aggregate(method, server, [up, up], t)
        assert server.params[MEAN].tolist() == [4.0]
        assert server.params[COUNT].tolist() == steps
        assert server.velocity.keys() == {"w"}
    assert float(server.params["w"]) == pytest.approx(1.9)  # 1, then delta = 0 again


@pytest.mark.parametrize("more", [{}, {"nesterov": True}, {"dampening": True}])
def test_without_momentum_it_is_fedavg_bit_for_bit(more: dict[str, Any]) -> None:
    """Weights whose difference rounds: 1 - (1 - 1e-9) is not 1e-9 in single precision."""
    ups = [update({"w": torch.tensor([1e-9, 0.1, -3.3])}, n) for n in (3.0, 5.0)]
    start = {"w": torch.tensor([1.0, 7.7, 1e6])}
    plain = toy_models.aggregate(FedAvg(), Global(start, {}), ups, TASK)
    moved = toy_models.aggregate(FedAvgM(beta=0.0, **more), Server(start, {}, {"w": torch.ones(3)}), ups, TASK)
    assert torch.equal(moved.params["w"], plain.params["w"])


def test_a_whole_run_without_momentum_is_fedavgs() -> None:
    still = small_runs.made_with("fedavgm", beta=0.0)
    assert small_runs.gap_params(still.server.params, small_runs.run("fedavg").server.params) == 0
    assert small_runs.same_models(still, small_runs.run("fedavg"))
    assert small_runs.gap_params(small_runs.run("fedavgm").server.params, small_runs.run("fedavg").server.params) > 0


def test_clients_do_what_fedavgs_do_and_see_no_velocity() -> None:
    c = toy_models.random_client(9, 1, toy_models.mlp())
    method, plain = FedAvgM(toy_models.RICH), FedAvg(toy_models.RICH)
    server = method.init_server(TASK, key(0))
    down = method.broadcast(server, "a", TASK, Round(0), key(0))
    assert equal(down, plain.init_server(TASK, key(0)))
    assert nbytes(down) < nbytes(server)
    toy_models.assert_same(
        toy_models.participate(method, down, Nothing(), c, key(1))[0],
        toy_models.participate(plain, down, Nothing(), c, key(1))[0],
    )


def test_regularisers_keep_what_they_keep() -> None:
    c = toy_models.random_client(9, 1, toy_models.mlp(bias=False))
    method = FedAvgM(toy_models.RICH, Regularisers([DW(0.1)]))
    t = toy_models.task(c.model)
    server = method.init_server(t, key(0))
    down = method.broadcast(server, "a", t, Round(0), key(0))
    up, _ = toy_models.participate(method, down, Nothing(), c, key(1))
    after = toy_models.aggregate(method, server, [up], t)
    plain = toy_models.aggregate(FedAvg(toy_models.RICH, method.regularisers), down, [up], t)
    assert after.extra.keys() == plain.extra.keys() != set()
    assert all(torch.equal(v, plain.extra[name]) for name, v in after.extra.items())


def test_degenerate() -> None:
    assert FedAvgM(beta=0.0).reduces_to() == "With beta = 0 and server_lr = 1 this is FedAvg."
    assert FedAvgM().reduces_to() is None
    assert replace(FedAvgM(beta=0.0), server_lr=0.5).reduces_to() is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"beta": -0.1}, "beta is -0.1, but it must be from 0 to 1"),
        ({"beta": 1.1}, "beta is 1.1"),
        ({"server_lr": -1.0}, "server_lr is -1"),
        ({"nesterov": True, "dampening": True}, "exclude each other"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(AtollError, match=said):
        FedAvgM(**settings)


def test_vmap_equals_loop() -> None:
    toy_models.check_vmap(FedAvgM(toy_models.RICH), toy_models.mlp())
