"""Learning-rate schedules: hand numbers, composition, and runs that follow them."""

from dataclasses import replace
from math import sqrt

import pytest
import torch

import atoll
from atoll.core import SGD
from atoll.core.optim.schedules import factor_at
from atoll.errors import AtollError
from atoll.methods.ditto import Ditto
from atoll.methods.fedavg import FedAvg

SMALL = {"clients": 3, "rounds": 3, "rows": 200, "partition": "iid"}


@pytest.mark.parametrize(
    ("schedule", "t", "factor"),
    [
        ("constant", 7, 1.0),
        ("step:10:0.5", 9, 1.0),
        ("step:10:0.5", 10, 0.5),
        ("step:10:0.5", 29, 0.25),
        ("exponential:0.9", 2, 0.81),
        ("cosine:4", 0, 1.0),
        ("cosine:4", 1, (1 + sqrt(2) / 2) / 2),  # cos(pi / 4)
        ("cosine:4", 2, 0.5),
        ("cosine:4", 4, 0.0),
        ("cosine:4", 9, 0.0),
        ("cosine:4:0.1", 2, 0.55),  # 0.1 + 0.9 * 0.5
        ("warmup:4", 0, 0.25),
        ("warmup:4", 3, 1.0),
        ("warmup:4", 8, 1.0),
        ("warmup:2,step:1:0.5", 1, 0.5),
    ],
)
def test_factor_by_hand(schedule: str, t: int, factor: float) -> None:
    assert factor_at(schedule, t) == pytest.approx(factor, abs=1e-12)
    assert SGD(lr=2.0, schedule=schedule).at(t).lr == pytest.approx(2 * factor, abs=1e-12)


@pytest.mark.parametrize("text", ["linear", "step:0:0.5", "cosine", "exponential:1.5", "warmup:two", "constant:1", ""])
def test_text_that_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(AtollError, match="schedule"):
        SGD(schedule=text)


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_round_trains_with_the_rate_of_that_round(backend: str) -> None:
    """After one round at the first rate, a run with rate 0 from then on stays where it is."""
    stopping = FedAvg(SGD(epochs=1, schedule="step:1:1e-30"))
    once = atoll.run(FedAvg(SGD(epochs=1)), backend=backend, **{**SMALL, "rounds": 1})
    thrice = atoll.run(stopping, backend=backend, **SMALL)

    for name, v in once.server.params.items():
        torch.testing.assert_close(thrice.server.params[name], v)


def test_every_optimiser_of_a_method_follows_its_own_schedule() -> None:
    """Personal training of Ditto at rate 0 leaves the first personal models; the global model still learns."""
    still = replace(Ditto(SGD(epochs=1)), personal_optim=SGD(epochs=1, schedule="exponential:1e-30,step:1:1e-30"))
    result = atoll.run(replace(still, personal_optim=replace(still.personal_optim, lr=0.0)), backend="loop", **SMALL)
    same = atoll.run(still, backend="loop", **SMALL)

    torch.testing.assert_close(same.server.params["head.bias"], result.server.params["head.bias"])
    assert not torch.equal(
        same.state("0").params["head.bias"], result.state("0").params["head.bias"]
    )  # round 1 moved it


def test_option_sets_the_schedule_of_local_training() -> None:
    result = atoll.run("fedavg", lr_schedule="cosine:3", backend="loop", **SMALL)

    assert result.setup.method.optim.schedule == "cosine:3"
