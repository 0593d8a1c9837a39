"""Privacy options: the methods that each mechanism covers, and the reasons of refusals."""

from collections.abc import Callable

import pytest
from support.small_runs import setup

from atoll.engine.build import run_experiment
from atoll.errors import AtollError
from atoll.methods import _registry
from atoll.privacy.policy import Privacy

UPDATES = {
    "apfl", "ditto", "fedadagrad", "fedadam", "fedala", "fedamp", "fedapen", "fedavg", "fedavg_ft", "fedavgm",
    "fedbabu", "fedbn", "feddf", "feddyn", "fedper", "fedprox", "fedrep", "fedrod", "feduv", "fedyogi", "fml",
    "lgfedavg", "moon", "perfedavg", "pfedes", "pfedme", "scd",
}  # fmt: skip
STATISTICS = {"dcpfl", "fedgh", "fedproto", "fedtgp"}
TRAINING = {"fedadagrad", "fedadam", "fedavg", "fedavgm", "fedper", "fedprox", "fedyogi", "lgfedavg"}


@pytest.mark.parametrize("name", sorted(_registry.methods()))
def test_dp_covers_a_method_or_refuses_it_with_the_reason(name: str) -> None:
    """Its uploads pass the server's checks; those of updates are noise around what was received."""
    options = {"rounds": 1, "eval_every": 1, "dp": "8", "dp_seed": 3}
    if name not in UPDATES | STATISTICS:
        with pytest.raises(AtollError, match=f"--dp cannot cover {name}: it"):
            setup(name, **options)
        return
    plain = setup(name, **options)
    privacy = Privacy(plain.config, plain.method, plain.pool)
    assert privacy.kind == ("updates" if name in UPDATES else "statistics")
    result = run_experiment(plain)
    assert result.summary["status"] == "finished"
    assert not result.history[0]["rejected"]


@pytest.mark.parametrize("name", sorted(_registry.methods()))
def test_dpsgd_covers_a_method_or_refuses_it(name: str) -> None:
    options = {"rounds": 1, "eval_every": 1, "dp": "8", "dp_seed": 3, "optimiser": "dpsgd"}
    if name in TRAINING:
        plain = setup(name, **options)
        assert Privacy(plain.config, plain.method, plain.pool).kind == "training"
        return
    with pytest.raises(AtollError):
        setup(name, **options)


def test_invalid_dp_options_are_refused(refused: Callable[..., str]) -> None:
    assert "EPSILON:DELTA" in refused("run", "fedavg", "--dp", "much")
    assert "EPSILON must be a number above 0" in refused("run", "fedavg", "--dp", "-1")
    assert "DELTA must be a number above 0 and below 1" in refused("run", "fedavg", "--dp", "1:2")
    assert "--dp-clip must be above 0" in refused("run", "fedavg", "--dp", "1", "--dp-clip", 0)
    assert "nothing without --dp" in refused("run", "fedavg", "--dp-seed", 1)
    assert "min_count" in refused("run", "dcpfl", "--dp", "8", "--set", "min_count=3")
