"""The losses that training steps report, by hand numbers and over backends."""

from typing import Any

import pytest
import torch
from torch import Tensor

import atoll
from atoll.core.batch import Batch
from atoll.core.optim.dpsgd import DPSGD
from atoll.core.optim.sgd import SGD
from atoll.core.optim.training_loss import LossMeter, TrainingLoss, measured_by
from atoll.core.payloads import Params
from atoll.core.prng import key
from benchmarks.digests import COMMON

PLAIN = SGD(lr=0.5, weight_decay=0.0, clip=0.0, momentum=0.0)


def batch(values: list[float], weights: list[float]) -> Batch:
    return Batch(torch.tensor(values), torch.zeros(len(values)), torch.tensor(weights), key(0), {})


def distance(params: Params, b: Batch) -> Tensor:
    """Mean over real rows of w x."""
    return (params["w"] * b.x * b.w).sum() / b.w.sum().clamp(min=1)


def test_losses_are_weighted_by_the_real_rows_of_a_step() -> None:
    """w = 1: a step on x = 2, 4 has loss 3 and 2 rows, and moves w by -0.5 * 3 to -0.5; the step on x = 6 with one row
    of padding has loss -3 and 1 row. Together 2 * 3 - 3 = 3 over 3 rows."""
    meter = LossMeter()

    with measured_by(meter):
        PLAIN.run(distance, {"w": torch.tensor(1.0)}, [batch([2, 4], [1, 1]), batch([6, 9], [1, 0])])

    assert meter.read() == TrainingLoss(3.0, 3.0)
    assert meter.read().mean == 1.0


def test_batch_of_padding_counts_for_nothing_whatever_its_loss() -> None:
    meter = LossMeter()

    meter.add(torch.tensor(float("nan")), batch([1.0], [0.0]))

    assert meter.read() == TrainingLoss(0.0, 0.0)
    assert meter.read().mean is None


def test_training_outside_of_a_measurement_reports_nothing() -> None:
    meter = LossMeter()
    with measured_by(meter):
        pass

    PLAIN.run(distance, {"w": torch.tensor(1.0)}, [batch([2], [1])])

    assert meter.read().rows == 0


def losses(method: str, **more: Any) -> list[float]:
    result = atoll.run(method, **COMMON | {"eval_every": 1} | more)
    return [line["training"]["loss"] for line in result.history]


@pytest.mark.parametrize(
    "method", ["fedavg", "scd:code", "fedpac"]
)  # one training, one after the upload, two exchanges
def test_backends_measure_the_same_training_loss(method: str) -> None:
    loop = losses(method, backend="loop")

    assert losses(method, backend="processes", workers=2) == loop
    assert losses(method, backend="vmap") == pytest.approx(loop, rel=1e-4)
    assert loop[1] < loop[0]


def test_dpsgd_reports_the_mean_of_the_losses_of_single_rows() -> None:
    """w = 1: rows of x = 2 and 4 have losses 2 and 4, and the row of padding none: 3 on average over 2 rows."""
    meter = LossMeter()

    with measured_by(meter):
        DPSGD(lr=0.5).run(distance, {"w": torch.tensor([1.0])}, [batch([2, 4, 9], [1, 1, 0])])

    assert meter.read() == TrainingLoss(6.0, 2.0)


def test_training_loss_is_that_of_the_first_model_before_any_step() -> None:
    """With a tiny learning rate nothing moves, so training and a second round see the same loss, about log 10."""
    found = losses("fedavg", lr=1e-12, backend="loop")

    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert found[0] == pytest.approx(2.30, abs=0.15)


def test_losses_are_in_the_table_and_the_figure_of_a_result() -> None:
    result = atoll.run("fedavg", **COMMON | {"eval_every": 1})

    rows = result.to_table().to_pylist()

    assert [row["training_loss"] for row in rows] == [line["training"]["loss"] for line in result.history]
    assert [row["loss"] for row in rows] == [line["personal"]["post"]["loss"] for line in result.history]
    (axes,) = result.plot("losses").axes[:1]
    drawn = [line.get_ydata().tolist() for line in axes.lines]  # type: ignore[union-attr]
    assert [row["training_loss"] for row in rows] in drawn
    assert [row["loss"] for row in rows] in drawn
