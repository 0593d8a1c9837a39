"""FedAdam, FedYogi and FedAdagrad: what they have in common, clients that do not notice, and settings out of range."""

from typing import Any

import pytest
import torch
from support import small_runs, toy_models
from support.server_optimisers import TASK, one, update

from atoll.core.payloads import equal
from atoll.core.prng import key
from atoll.core.task import Round
from atoll.errors import AtollError
from atoll.methods._server_optimiser import AdaptiveServer, Server
from atoll.methods.fedadagrad import FedAdagrad
from atoll.methods.fedadam import FedAdam
from atoll.methods.fedavg import FedAvg
from atoll.methods.fedyogi import FedYogi

KINDS = [FedAdam, FedYogi, FedAdagrad]
MEAN = "buffers.body.0.running_mean"


@pytest.mark.parametrize("kind", KINDS)
def test_second_moment_starts_at_the_square_of_tau(kind: type[AdaptiveServer]) -> None:
    server = kind(tau=0.5).init_server(TASK, key(0))
    assert all(bool((v == 0.25).all()) for v in server.second.values())
    assert all(bool((m == 0).all()) for m in server.first.values())


@pytest.mark.parametrize("kind", KINDS)
def test_running_statistics_are_averaged(kind: type[AdaptiveServer]) -> None:
    server = Server(one(0.0) | {MEAN: torch.zeros(1)}, {}, one(0.0), one(1e-6))
    ups = [update(one(1.0) | {MEAN: torch.tensor([v])}, n) for v, n in ((0.0, 1), (4.0, 3))]
    after = toy_models.aggregate(kind(), server, ups, TASK)
    assert float(after.params[MEAN]) == 3.0
    assert after.first.keys() == after.second.keys() == {"w"}


@pytest.mark.parametrize("kind", KINDS)
def test_clients_receive_what_fedavgs_do(kind: type[AdaptiveServer]) -> None:
    method = kind(toy_models.RICH)
    down = method.broadcast(method.init_server(TASK, key(0)), "a", TASK, Round(0), key(0))
    assert equal(down, FedAvg().init_server(TASK, key(0)))


@pytest.mark.parametrize("kind", KINDS)
def test_run_differs_from_fedavg(kind: type[AdaptiveServer]) -> None:
    own, plain = small_runs.run(kind.__name__.lower()), small_runs.run("fedavg")
    assert small_runs.gap_params(own.server.params, plain.server.params) > 1e-3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"server_lr": -1.0}, "server_lr is -1"),
        ({"tau": 0.0}, "tau is 0"),
        ({"beta1": 1.1}, "beta1 is 1.1, but it must be from 0 to 1"),
    ],
)
def test_settings_out_of_range_are_refused(kind: type[AdaptiveServer], settings: dict[str, Any], said: str) -> None:
    with pytest.raises(AtollError, match=said):
        kind(**settings)
