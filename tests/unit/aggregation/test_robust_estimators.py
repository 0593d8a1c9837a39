"""Robust estimators: numbers computed by hand."""

from math import sqrt

import pytest
import torch
from torch import Tensor

from atoll.aggregation import robust_estimators
from atoll.aggregation.robust_estimators import (
    apply_by_columns,
    clip_rows,
    geometric_median,
    krum,
    median,
    trimmed_mean,
)
from atoll.core.prng import key, normal


def doubles(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.double)


def ones(n: int) -> Tensor:
    return torch.ones(n, dtype=torch.double)


def test_weighted_median() -> None:
    """Columns sorted with their weights, of 8 in all, so that half is 4.

    (1, w 1), (2, w 2), (9, w 5): the weight up to 2 is 3, up to 9 it is 8, so 9.
    (-7, w 5), (0, w 1), (3, w 2): 5 are reached at -7.
    """
    x, w = doubles([[1, 0], [2, 3], [9, -7]]), doubles([1, 2, 5])
    assert median(x, w).tolist() == [9, -7]


def test_median_of_a_tie_is_the_midpoint() -> None:
    """Of 1, 2, 4, 9, alike: between 2 and 4. With weights 1, 2, 3, 0 half is 3, reached exactly at 2: the next is 4."""
    x = doubles([[9.0], [1], [4], [2]])
    assert median(x, ones(4)).tolist() == [3]
    assert median(x, doubles([0, 1, 3, 2])).tolist() == [3]
    assert median(x, doubles([5, 0, 0, 5])).tolist() == [5.5]  # between 2 and 9: what has no weight is not there


def test_trimmed_mean_with_equal_weights_drops_both_ends() -> None:
    """A fifth of five is one at either end: (2 + 3 + 10) / 3 = 5."""
    assert trimmed_mean(doubles([[-100.0], [2], [10], [3], [50]]), ones(5), 0.2).tolist() == pytest.approx([5])


def test_trimmed_mean_cuts_weights_at_the_boundary() -> None:
    """Weights 1, 2, 5 at 1, 2, 9; a quarter of 8 is 2 at either end.

    Below, 1 goes whole and 2 by half; above, 9 loses 2 of 5. So (1 * 2 + 3 * 9) / 4 = 29/4.
    """
    assert trimmed_mean(doubles([[9.0], [1], [2]]), doubles([5, 1, 2]), 0.25).tolist() == pytest.approx([29 / 4])


@pytest.mark.parametrize("at", [1e30, -1e30])
def test_trimmed_outliers_leave_no_rounding_residue(at: float) -> None:
    """1/K of the weight is one client. For some K, rounding leaves 1e-16 of that, which times 1e30 would be 1e14."""
    for clients in range(3, 60):
        x = torch.cat([doubles([[at]]), ones(clients - 1)[:, None]])
        assert trimmed_mean(x, ones(clients), 1 / clients).item() == pytest.approx(1)


@pytest.mark.parametrize("height", [1, 10, 1e6, 1e30])
def test_geometric_median_of_a_triangle_is_its_fermat_point(height: float) -> None:
    """Of (-1, 0), (1, 0), (0, h): sides are seen from it at 120 degrees, so it is (0, tan 30), however large h is."""
    z = geometric_median(doubles([[-1, 0], [1, 0], [0, height]]), ones(3))
    assert z.tolist() == pytest.approx([0, 1 / sqrt(3)], abs=1e-9)


def test_geometric_median_that_starts_on_a_row_leaves_it_if_needed() -> None:
    """The search starts at the median, which is a row in both cases.

    On a line, with weights 1, 1, 1, it is the middle row. In a right angle it is Fermat's point: by symmetry (t, 1 - t)
    for (0, 0), (0, 1), (1, 1); seen from there, (0, 0) and (1, 1) lie at 120 degrees, which makes the distance to their
    midpoint tan 30 of half their distance, sqrt(2)/2 / sqrt(3); so t = 1/2 - 1 / (2 sqrt(3)).
    """
    assert geometric_median(doubles([[0.0], [1], [10]]), ones(3)).tolist() == [1]
    t = 0.5 - 1 / (2 * sqrt(3))
    assert geometric_median(doubles([[0, 0], [0, 1], [1, 1]]), ones(3)).tolist() == pytest.approx([t, 1 - t], abs=1e-9)


def test_weiszfeld_step_from_a_row_is_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    """From (0, 1), above: both others are 1 away and pull towards (1/2, 1/2), with a force of 2 / sqrt(2).

    The row itself holds with its weight of 1, which leaves 1 - 1 / sqrt(2) of the way.
    """
    monkeypatch.setattr(robust_estimators, "ITERATIONS", 1)
    t = 0.5 * (1 - 1 / sqrt(2))
    assert geometric_median(doubles([[0, 0], [0, 1], [1, 1]]), ones(3)).tolist() == pytest.approx([t, 1 - t], abs=1e-12)


def test_geometric_median_is_the_row_with_most_of_the_weight() -> None:
    """A row with more than half of the weight is the median, wherever the others are."""
    x = doubles([[0, 0], [4, 0], [0, 3]])
    assert geometric_median(x, doubles([5, 2, 2])).tolist() == pytest.approx([0, 0], abs=1e-9)


def test_krum_selects_rows_with_the_lowest_scores() -> None:
    """Of 0, 1, 3, 4.5, 100 with one attacker, scores are sums over the 5 - 1 - 2 = 2 nearest.

    0: 1 + 9 = 10; 1: 1 + 4 = 5; 3: 4 + 2.25 = 6.25; 4.5: 2.25 + 12.25 = 14.5; 100: above 9000.
    So Krum takes 1, and multi-Krum 1 and 3.
    """
    x = doubles([[100.0], [3], [0], [4.5], [1]])
    assert krum(x, f=1, most=1).tolist() == [4]
    assert krum(x, f=1).tolist() == [1, 4]
    assert krum(x, f=1, most=4).tolist() == [1, 2, 3, 4]


def test_clip_rows_shortens_long_updates_only() -> None:
    """Around (1, 1): (4, 5) is (3, 4) away, a length of 5, which becomes 1: (1.6, 1.8). (1, 2) is near enough."""
    x = clip_rows(doubles([[4, 5], [1, 2]]), doubles([1, 1]), 1.0)
    assert torch.allclose(x, doubles([[1.6, 1.8], [1, 2]]))


def test_splitting_columns_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = normal(key(1), 5, 23).double(), doubles([1, 2, 3, 4, 5])
    whole = apply_by_columns(median, x, w)
    monkeypatch.setattr(robust_estimators, "COLUMNS_AT_ONCE", 4)
    assert torch.equal(apply_by_columns(median, x, w), whole)
