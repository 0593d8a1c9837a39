"""DP-SGD: clipping of every row, noise of a step, and use in a run."""

import math
from typing import Any

import pytest
import torch
from support.small_runs import setup
from support.toy_models import batch, mlp
from torch import Tensor

from atoll.core.batch import Batch
from atoll.core.losses import objective
from atoll.core.optim.base import gradient
from atoll.core.optim.dpsgd import DPSGD, row_gradients, row_scales
from atoll.core.payloads import Params
from atoll.engine.build import run_experiment
from atoll.errors import AtollError
from atoll.privacy.accountant import compute_noise_multiplier


def test_dpsgd_step_without_noise_and_clipping_equals_sgd() -> None:
    model, b = mlp(), batch([[1.0, 2, 3], [0, 1, 0], [2, 0, 1]], [0, 1, 2])
    plain, _ = gradient(objective(model), model.init(), b)
    private, _, _ = DPSGD(clip=1e6)._slope(objective(model), model.init(), b)
    for name, g in plain.items():
        torch.testing.assert_close(private[name], g)


def squares(w: Params, b: Batch) -> Tensor:
    """1/2 sum_i ||w - x_i||^2 / |B|: the gradient of a row is w - x_i."""
    return ((w["w"] - b.x).square().sum(1) * b.w).sum() / 2 / b.w.sum().clamp(min=1)


def test_dpsgd_clips_the_gradient_of_every_row() -> None:
    """At w = 0 the gradients are -(3, 4) of norm 5 and -(0.3, 0.4) of norm 0.5.

    Clipped to 1 they are -(0.6, 0.8) and -(0.3, 0.4); their mean is -(0.45, 0.6).
    """
    b, params = batch([[3.0, 4.0], [0.3, 0.4]], [0, 0]), {"w": torch.zeros(2)}
    each, _ = row_gradients(squares, params, b)
    torch.testing.assert_close(each["w"], -b.x)
    torch.testing.assert_close(row_scales(each, 1.0), torch.tensor([0.2, 1.0], dtype=torch.double))
    found, _, _ = DPSGD(clip=1.0)._slope(squares, params, b)
    torch.testing.assert_close(found["w"], -torch.tensor([0.45, 0.6]))


def test_row_changes_the_dpsgd_sum_by_at_most_the_clip() -> None:
    """Whatever stands in a row, NaN included."""
    params, base = {"w": torch.zeros(2)}, [[0.1, 0.2], [5.0, -1.0]]
    for row in ([1e30, 1.0], [math.nan, 0.0], [math.inf, 0.0], [0.0, 0.0], [-3.0, 2.0]):
        full, _, _ = DPSGD(clip=0.5)._slope(squares, params, batch([*base, row], [0, 0, 0]))
        less, _, _ = DPSGD(clip=0.5)._slope(squares, params, batch(base, [0, 0]))
        assert float((3 * full["w"] - 2 * less["w"]).norm()) <= 0.5 + 1e-6


def test_noise_of_a_dpsgd_step_has_the_expected_deviation() -> None:
    """Deviation noise * clip / |B| = 1.5 * 2 / 4 in every weight."""
    b, params = batch(torch.zeros(4, 100_000), [0] * 4), {"w": torch.zeros(100_000)}
    found, _, _ = DPSGD(clip=2.0, noise=1.5)._slope(squares, params, b)
    assert float(found["w"].std()) == pytest.approx(0.75, rel=0.01)


def test_dpsgd_run_counts_one_release_per_epoch() -> None:
    """2 rounds of 3 epochs are 6 releases for a row."""
    plain = setup("fedavg", rounds=2, eval_every=2, dp="8", optimiser="dpsgd", epochs=3, batch_size=128, dp_clip=0.5)
    optim = plain.method.optim  # type: ignore[attr-defined]
    assert optim.noise == pytest.approx(compute_noise_multiplier(8, 1e-5, 6))
    assert optim.clip == 0.5
    assert plain.config.backend == "loop"
    found = run_experiment(plain).summary["privacy"]["dp"]
    assert (found["mechanism"], found["releases"], found["planned"]) == ("training", 6, 6)
    assert found["dp_scope"].startswith("sample level, end to end")


@pytest.mark.parametrize(
    ("method", "options", "reason"),
    [
        ("fedavg", {}, "needs a budget"),
        ("feddw", {"dp": "8"}, "cannot cover feddw"),
        ("scd", {"dp": "8"}, "cannot cover scd"),
        ("fedavg", {"dp": "8", "terms": ("dw",)}, "--with"),
        ("fedavg", {"dp": "8", "backend": "vmap"}, "vmap"),
    ],
)
def test_dpsgd_is_refused_where_it_gives_no_guarantee(method: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(AtollError, match=reason):
        setup(method, optimiser="dpsgd", **options)


def test_dpsgd_refuses_models_with_running_statistics() -> None:
    params = {"w": torch.zeros(2), "buffers.seen": torch.zeros((), dtype=torch.long)}
    with pytest.raises(AtollError, match="running statistics"):
        row_gradients(squares, params, batch([[1.0, 2.0]], [0]))
