"""Differential privacy of updates: clipping and noise."""

import math

import pytest
import torch
from torch import Tensor

from atoll.core.schema import declared_constraints
from atoll.errors import AtollError
from atoll.methods.fedavg import Global, Update
from atoll.privacy.update_mechanism import UpdateMechanism, clip_norm, find_update_field
from atoll.utils.secure_random import secure, seeded


def silence(shape: tuple[int, ...]) -> Tensor:
    """No noise."""
    return torch.zeros(shape, dtype=torch.double)


def pair_of(change: float) -> tuple[Global, Update]:
    start = {"w": torch.zeros(3), "b": torch.ones(1)}
    moved = {"w": start["w"] + change, "b": start["b"] + change}
    return Global(start, {}), Update(moved, torch.tensor(17.0), {})


@pytest.mark.promise("Privacy", "Under `--dp`, changes are clipped as a whole, and all clients weigh the same.")
def test_update_is_clipped_over_all_tensors_together() -> None:
    """A change of 5 in each of 4 weights has norm 10; clipped to 2, each is 1. One of 0.5 has norm 1 and stays."""
    for change, expected in ((5.0, 1.0), (0.5, 0.5)):
        down, up = pair_of(change)
        out = UpdateMechanism(2.0, 1.0).release(down, up, declared_constraints(Update), silence)
        torch.testing.assert_close(out.params["w"], torch.full((3,), expected))
        torch.testing.assert_close(out.params["b"], torch.full((1,), 1 + expected))
        assert float(out.n) == 1  # all weigh the same


def test_clipped_norm_never_exceeds_the_bound() -> None:
    for seed in range(2000):
        v = {"a": seeded(seed, "a")((7,)) * 10.0 ** (seed % 9 - 4), "b": seeded(seed, "b")((2, 3))}
        out = clip_norm(v, 0.37)
        assert math.sqrt(sum(float(t.square().sum()) for t in out.values())) <= 0.37


def test_change_with_nan_or_infinity_becomes_zero() -> None:
    down, up = pair_of(math.nan)
    assert torch.equal(
        UpdateMechanism(2.0, 1.0).release(down, up, declared_constraints(Update), silence).params["w"], torch.zeros(3)
    )


def test_noise_on_updates_has_the_deviation_of_multiplier_times_clip() -> None:
    start = {"w": torch.zeros(300_000)}
    out = UpdateMechanism(2.0, 0.7).release(
        Global(start, {}), Update(start, torch.ones(()), {}), declared_constraints(Update), secure
    )
    assert float(out.params["w"].std()) == pytest.approx(1.4, rel=0.01)


def test_models_with_running_statistics_are_refused() -> None:
    params = {"w": torch.zeros(2), "buffers.seen": torch.zeros((), dtype=torch.long)}
    with pytest.raises(AtollError, match="running statistics"):
        find_update_field(Global(params, {}), Update(params, torch.ones(()), {}), declared_constraints(Update))
