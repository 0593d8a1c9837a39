"""Scores of predicted probabilities, by hand numbers and by scikit-learn's."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch import Tensor

from atoll.clients.metrics import load_metrics
from atoll.core.decision_scores import (
    all_scores,
    auprc,
    auroc,
    balanced_accuracy,
    bootstrap,
    brier,
    calibration_error,
    reliability,
    sensitivity,
    specificity,
)
from atoll.errors import AtollError


def logits_of(*positive: float) -> Tensor:
    """Return logits of two classes with these probabilities of the second."""
    p = torch.tensor(positive, dtype=torch.float64)
    return torch.stack([(1 - p).log(), p.log()], 1)


LOGITS = logits_of(0.9, 0.6, 0.4, 0.2, 0.3)
Y = torch.tensor([1, 1, 1, 0, 0])


def test_balanced_accuracy_is_the_mean_over_classes() -> None:
    """Positive rows: 0.9 and 0.6 right, 0.4 wrong, 2/3. Negative rows: both right."""
    assert balanced_accuracy(LOGITS, Y) == pytest.approx((2 / 3 + 1) / 2)


def test_areas_count_pairs_and_precisions() -> None:
    """Every positive row is above both negative ones: both areas are 1. With the third row negative and the last
    positive, 0.3 is above 0.2 and below 0.4: 5 of 6 pairs; precisions at the positive rows are 1, 1 and 3/4."""
    assert (auroc(LOGITS, Y), auprc(LOGITS, Y)) == (1, 1)
    other = torch.tensor([1, 1, 0, 0, 1])
    assert auroc(LOGITS, other) == pytest.approx(5 / 6)
    assert auprc(LOGITS, other) == pytest.approx((1 + 1 + 3 / 4) / 3)


def test_brier_is_the_mean_squared_error_of_probabilities() -> None:
    """(0.01 + 0.16 + 0.36 + 0.04 + 0.09) / 5."""
    assert brier(LOGITS, Y) == pytest.approx(0.66 / 5)


def test_calibration_error_weighs_bins_by_rows() -> None:
    """Confidences 0.9 | 0.6, 0.6 | 0.8 | 0.7 in bins up to 0.9, 0.6, 0.8, 0.7; the row of 0.4 is predicted wrong.

    Errors: |0.9 - 1|, two rows of |0.6 - 0.5|, |0.8 - 1| and |0.7 - 1|: (0.1 + 0.2 + 0.2 + 0.3) / 5.
    """
    assert calibration_error(LOGITS, Y) == pytest.approx(0.8 / 5)
    assert [bin.rows for bin in reliability(LOGITS, Y)] == [2, 1, 1, 1]


def test_the_point_decides_what_counts_as_positive() -> None:
    """From 0.5 on: 2 of 3 positive rows and no negative one. From 0.25 on: all positive rows, and 0.3 falsely."""
    assert (sensitivity(LOGITS, Y), specificity(LOGITS, Y)) == (pytest.approx(2 / 3), 1)
    assert (sensitivity(LOGITS, Y, 0.25), specificity(LOGITS, Y, 0.25)) == (1, 0.5)


def test_a_row_at_the_point_counts_as_positive() -> None:
    one, at_half = torch.tensor([1]), logits_of(0.5)
    assert (sensitivity(at_half, one), specificity(at_half, 1 - one)) == (1, 0)


def test_area_of_three_classes_is_the_mean_of_each_against_the_others() -> None:
    """Classes 0 and 2 are above all others, the row of class 1 above one of three; rows of a class do not weigh."""
    p = torch.tensor([[0.8, 0.1, 0.1], [0.6, 0.25, 0.15], [0.3, 0.2, 0.5], [0.1, 0.3, 0.6]], dtype=torch.float64)
    assert auroc(p.log(), torch.tensor([0, 0, 1, 2])) == pytest.approx((1 + 1 / 3 + 1) / 3)


def test_scores_without_a_class_are_undefined() -> None:
    ones = torch.ones(5, dtype=torch.long)
    assert math.isnan(auroc(LOGITS, ones))
    assert math.isnan(specificity(LOGITS, ones))
    assert math.isnan(sensitivity(LOGITS, 1 - ones))
    assert math.isnan(auprc(LOGITS, 1 - ones))


def test_scores_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 200)
    logits = torch.from_numpy(rng.normal(size=(200, 2)) + 0.8 * np.eye(2)[y])
    p = logits.softmax(1).numpy()[:, 1]
    expected = {
        "balanced_accuracy": sk.balanced_accuracy_score(y, p > 0.5),
        "auroc": sk.roc_auc_score(y, p),
        "auprc": sk.average_precision_score(y, p),
        "brier": sk.brier_score_loss(y, p),
        "sensitivity": sk.recall_score(y, p >= 0.5),
        "specificity": sk.recall_score(y, p >= 0.5, pos_label=0),
    }
    found = {name: score(logits, torch.from_numpy(y)) for name, score in all_scores(2).items() if name != "ece"}
    assert found == pytest.approx(expected)


def test_points_need_two_classes() -> None:
    assert set(all_scores(3)) == {"balanced_accuracy", "auroc", "auprc", "brier", "ece"}
    with pytest.raises(AtollError, match="need two classes, and there are 3"):
        sensitivity(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))


def test_bootstrap_interval_of_a_share_is_near_the_normal_one() -> None:
    """A share of 1/2 among 400 rows has the deviation 0.025, so 95 % lie within 0.049."""
    y = torch.arange(400) % 2
    interval = bootstrap(balanced_accuracy, torch.tensor([[1.0, 0.0]] * 400), y, draws=200)
    assert interval == (0.5, 0.5, 0.5)  # each class is all right or all wrong, in every draw

    def share(logits: Tensor, labels: Tensor) -> float:
        return labels.double().mean().item()

    value, low, high = bootstrap(share, torch.zeros(400, 2), y, draws=2000)
    assert value == 0.5
    assert (low, high) == (pytest.approx(0.451, abs=0.01), pytest.approx(0.549, abs=0.01))


def test_scores_are_metrics_by_name() -> None:
    metrics: Any = load_metrics(["auroc", "ece", "sensitivity", "specificity=0.25"], [])
    assert list(metrics) == ["auroc", "ece", "sensitivity", "specificity_at_0_25"]
    assert metrics["specificity_at_0_25"](LOGITS, Y) == 0.5
    for text in ("sensitivity=2", "sensitivity=x"):
        with pytest.raises(AtollError, match="between 0 and 1"):
            load_metrics([text], [])
    with pytest.raises(AtollError, match="Did you mean 'auroc'"):
        load_metrics(["aurok"], [])
