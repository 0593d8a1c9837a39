"""Intervals, tests and verdicts over the means of seeds."""

import numpy as np
import pytest

from atoll.report.seed_statistics import Verdict, difference, holm, paired_difference, seeds_needed


def test_interval_of_five_paired_seeds_by_hand() -> None:
    """Differences 1, 2, 3, 4, 5: mean 3, deviation sqrt(2.5), error sqrt(0.5) = 0.70711; t(0.975, 4) = 2.77645.

    The margin is 1.96324, t is 4.24264, and the two-sided p-value of t with 4 degrees of freedom is 0.013236.
    """
    found = paired_difference({s: 10.0 + s for s in range(1, 6)}, dict.fromkeys(range(1, 6), 10.0))

    assert found is not None
    assert found.mean == pytest.approx(3)
    assert found.low == pytest.approx(3 - 1.96324, abs=1e-5)
    assert found.high == pytest.approx(3 + 1.96324, abs=1e-5)
    assert found.p == pytest.approx(0.013236, abs=1e-5)
    assert found.verdict is Verdict.HOLDS


def test_pairs_seeds_by_number_and_leaves_others_out() -> None:
    found = paired_difference({0: 1.0, 1: 2.0, 7: 99.0}, {1: 1.0, 0: 0.0, 8: -99.0})

    assert found is not None
    assert (found.mean, found.seeds) == (1.0, 2)


def test_one_common_seed_gives_no_interval() -> None:
    assert paired_difference({0: 1.0, 1: 2.0}, {1: 0.0, 2: 0.0}) is None


@pytest.mark.parametrize(
    ("gaps", "verdict", "text"),
    [
        ([1.0, 1.1, 0.9], Verdict.HOLDS, "holds"),
        ([-1.0, -1.1, -0.9], Verdict.FAILS, "does not hold"),
        ([1.0, -0.5, 0.4], Verdict.OPEN, "not decided (±1.9)"),  # deviation 0.7550, error 0.4359, t(2) 4.3027
        ([0.0, 0.0], Verdict.OPEN, "not decided (±0)"),
        ([2.0, 2.0], Verdict.HOLDS, "holds"),
    ],
)
def test_verdict_is_decided_only_if_the_interval_excludes_zero(
    gaps: list[float], verdict: Verdict, text: str
) -> None:  # fmt: skip
    found = difference(gaps)

    assert found.verdict is verdict
    assert found.describe() == text


def test_holm_multiplies_by_the_comparisons_left() -> None:
    """Sorted, 0.01 to 0.04 times 4, 3, 2 and 1 are 0.04, 0.06, 0.06 and 0.04; the last one may not fall: 0.06."""
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


def test_seeds_needed_grow_with_the_square_of_the_spread() -> None:
    few, many = seeds_needed([1.0, 2.0, 3.0]), seeds_needed([-1.0, 2.0, 5.0])

    assert few is not None
    assert many is not None
    assert few < many < 10 * few + 10
    assert seeds_needed([-1.0, 1.0]) is None


def test_false_alarms_stay_at_five_per_cent_with_client_and_seed_effects() -> None:
    """Equal methods whose difference has an effect of the seed and an effect of the client in that seed.

    A test that takes all clients of all seeds as independent raises a false alarm in about a third of such draws.
    """
    rng = np.random.default_rng(7)
    draws, seeds, clients = 1000, 3, 20
    gaps = rng.normal(0, 1, (draws, seeds, 1)) + rng.normal(0, 3, (draws, seeds, clients))

    alarms = np.mean([difference(means).verdict is not Verdict.OPEN for means in gaps.mean(2).tolist()])

    assert 0.03 <= alarms <= 0.07
