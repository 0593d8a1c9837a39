"""What is reached without a model."""

from pathlib import Path
from typing import Any

import pytest

from atoll.report.majority import majority_scores, warn_of_single_classes
from atoll.storage.run_reader import Run


def run(train: Any, test: Any, name: str = "", **summary: object) -> Run:
    holdings = {
        "name": name,
        "clients": ["a", "b"],
        "classes": ["no", "yes"],
        "train": train,
        "test": test,
        "notes": [],
    }
    return Run(Path(), summary, (), None, holdings, {})


def test_majority_accuracy_is_the_share_of_each_clients_most_frequent_class() -> None:
    # Client a names "no": 9 of 10 right. Client b names "yes": 1 of 4 right. The mean is 0.575.
    made = run([[8, 2], [1, 3]], [[9, 1], [3, 1]])

    assert majority_scores(made) == (pytest.approx(0.575), pytest.approx(0.25))  # The worst 10 % is client b.


def test_clients_without_test_rows_do_not_count() -> None:
    assert majority_scores(run([[8, 2], [1, 3]], [[9, 1], [0, 0]])) == (pytest.approx(0.9), pytest.approx(0.9))


def test_test_rows_of_one_class_are_told() -> None:
    (sentence,) = warn_of_single_classes([run([[8, 2], [1, 3]], [[9, 0], [3, 1]])])

    assert sentence.startswith("1 of 2 clients has test rows of one class only")
    assert warn_of_single_classes([run([[8, 2], [1, 3]], [[9, 1], [3, 1]])]) == []


def test_divisions_of_the_rows_count_once() -> None:
    first, second = (run([[8, 2], [1, 3]], [[9, 0], [0, 1]], name) for name in ("a", "b"))

    (sentence,) = warn_of_single_classes([first, first, second])

    assert sentence.startswith("4 of 4 clients over 2 splits of the rows have test rows of one class only")


@pytest.mark.parametrize("counts", [None, [[None, None], [None, None]]])
def test_unknown_counts_say_nothing(counts: Any) -> None:
    made = run(counts, counts)

    assert majority_scores(made) is None
    assert warn_of_single_classes([made]) == []


def test_numbers_have_no_majority() -> None:
    assert majority_scores(run([[8, 2], [1, 3]], [[9, 1], [3, 1]], task="regression")) is None
