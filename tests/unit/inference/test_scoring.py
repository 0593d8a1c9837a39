"""Confusion of classes."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from atoll.inference.scoring import confusion_matrix


def test_confusion_matrix_counts_true_by_predicted_class() -> None:
    # True classes 0, 0, 1, 2; predicted 0, 2, 1, 1.
    logits = torch.tensor([[5.0, 1, 1], [0, 1, 2], [0, 3, 1], [0, 3, 1]])

    assert confusion_matrix(logits, torch.tensor([0, 0, 1, 2]), 3) == [[1, 0, 1], [0, 1, 0], [0, 1, 0]]


@pytest.mark.usefixtures("without_report")
def test_scores_show_recall_and_precision_by_class(atoll: Callable[..., Any]) -> None:
    atoll("run", "local", "--rows", 200, "--clients", 2, "--rounds", 1, "--out", "run", "--quiet")

    found = json.loads(atoll("scores", "run", "--draws", 5, "--json").stdout)
    shown = atoll("scores", "run", "--draws", 5).stdout

    whole = found[-1]["confusion"]
    assert sum(map(sum, whole)) == found[-1]["rows"]
    recall = whole[3][3] / sum(whole[3])
    (line,) = [line for line in shown.splitlines() if line.startswith("3 ")]
    assert line.split()[1:3] == [str(sum(whole[3])), f"{recall:.3f}"]
