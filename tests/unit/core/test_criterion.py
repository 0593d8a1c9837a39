"""Direction and format of the score that selects rounds."""

import math

from atoll.core.criterion import ACCURACY, Criterion

ERROR = Criterion("mse", "MSE", higher=False, percent=False)


def test_best_value_follows_the_direction_and_the_first_wins_a_tie() -> None:
    items = [("a", 2.0), ("b", 1.0), ("c", 2.0), ("d", 1.0), ("e", math.nan)]

    assert ACCURACY.best(items, lambda item: item[1])[0] == "a"
    assert ERROR.best(items, lambda item: item[1])[0] == "b"


def test_target_is_reached_from_the_side_of_worse_values() -> None:
    assert [ACCURACY.reaches(v, 0.5) for v in (0.4, 0.5, 0.6)] == [False, True, True]
    assert [ERROR.reaches(v, 0.5) for v in (0.4, 0.5, 0.6)] == [True, True, False]
    assert not ACCURACY.reaches(math.nan, 0.5)
    assert not ERROR.reaches(math.nan, 0.5)


def test_shares_are_shown_in_percent_and_other_scores_with_four_digits() -> None:
    assert (ACCURACY.format(0.93456), ACCURACY.digits(93.456), ACCURACY.unit) == ("93.46%", "93.46", ", %")
    assert (ERROR.format(3008.123), ERROR.digits(0.0123456), ERROR.unit) == ("3008", "0.01235", "")
    assert (ACCURACY.named(0.5), ERROR.named(2.0)) == ("50.00%", "MSE 2")
    assert (ACCURACY.heading, ERROR.heading, Criterion("map", "mAP").heading) == ("Accuracy", "MSE", "mAP")
