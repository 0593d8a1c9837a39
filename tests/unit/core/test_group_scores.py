"""Scores of many groups at once equal those of one group at a time."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from atoll.core import group_scores
from atoll.core.problems import Classes, Labels, NextToken, Numbers, Problem

UNIT = 2.3e-16  # of the last place, for numbers below 1


def groups(classes: int, seed: int) -> tuple[Tensor, Tensor, list[int]]:
    """Groups of very different sizes, with ties: logits are rounded, and some groups have one class or no row."""
    draw = torch.Generator().manual_seed(seed)
    sizes = [1, 0, 2, 3, 40, 5, 0, 9, 64, 2]
    logits = (torch.randn(sum(sizes), classes, generator=draw) * 2).round() / 2
    y = torch.randint(classes, (sum(sizes),), generator=draw)
    y[:6] = 0
    return logits, y, sizes


def one_by_one(problem: Problem, outputs: Tensor, y: Tensor, sizes: list[int]) -> dict[str, list[float]]:
    each = [problem.scores(*of) for of in zip(outputs.split(sizes), y.split(sizes), strict=True)]
    return {name: [score[name] for score in each] for name in each[0]}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("classes", [2, 3, 10, 60])
@pytest.mark.parametrize("numbers", [1, 2**22])
def test_class_scores_of_groups_equal_those_of_each(
    numbers: int, classes: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if only few rows are looked at together."""
    monkeypatch.setattr(group_scores, "NUMBERS", numbers)
    problem, (logits, y, sizes) = Classes(classes), groups(classes, seed)

    found, wanted = problem.scores_each(logits, y, sizes), one_by_one(problem, logits, y, sizes)

    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, rtol=0, atol=UNIT, err_msg=name)


def test_undefined_logits_are_ranked_as_in_one_group() -> None:
    problem, (logits, y, sizes) = Classes(3), groups(3, 0)
    logits[10:20] = torch.nan

    found, wanted = problem.scores_each(logits, y, sizes), one_by_one(problem, logits, y, sizes)

    np.testing.assert_allclose(found["auc"], wanted["auc"], rtol=0, atol=UNIT)


@pytest.mark.parametrize(
    ("problem", "outputs", "y"),
    [
        (Numbers(2), torch.arange(24.0).view(12, 2), torch.ones(12, 2)),
        (Labels(2), torch.arange(24.0).view(12, 2) - 12, (torch.arange(24).view(12, 2) % 3 == 0).float()),
        (NextToken(5, 2), torch.arange(120.0).view(12, 2, 5) % 7, torch.arange(24).view(12, 2) % 5),
    ],
)
def test_other_problems_are_scored_group_by_group(problem: Problem, outputs: Tensor, y: Tensor) -> None:
    sizes = [4, 0, 8]

    found, wanted = problem.scores_each(outputs, y, sizes), one_by_one(problem, outputs, y, sizes)

    for name, values in wanted.items():
        np.testing.assert_array_equal(found[name], values)


def test_mean_cross_entropy_of_groups_by_hand() -> None:
    # Logits (ln 3, 0): probabilities 3/4 and 1/4. Losses of the three rows: ln 4/3, ln 4, ln 4/3.
    logits = torch.tensor([[math.log(3), 0.0]] * 3)

    found = group_scores.cross_entropy_each(logits, torch.tensor([0, 1, 0]), [2, 0, 1])

    assert found[0] == pytest.approx((math.log(4 / 3) + math.log(4)) / 2, abs=1e-7)
    assert math.isnan(found[1])
    assert found[2] == pytest.approx(math.log(4 / 3), abs=1e-7)
