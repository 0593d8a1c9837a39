"""What is reached without a model."""

from pathlib import Path
from typing import Any

import pytest

from atoll.report.majority import describe_majority, majority_accuracy, warn_of_single_classes
from atoll.storage.run_reader import Run


def run(train: Any, test: Any, **summary: object) -> Run:
    holdings = {"clients": ["a", "b"], "classes": ["no", "yes"], "train": train, "test": test, "notes": []}
    return Run(Path(), summary, (), None, holdings, {})


def test_majority_accuracy_is_the_share_of_each_clients_most_frequent_class() -> None:
    # Client a names "no": 9 of 10 right. Client b names "yes": 1 of 4 right. The mean is 0.575.
    made = run([[8, 2], [1, 3]], [[9, 1], [3, 1]])

    assert majority_accuracy(made) == pytest.approx(0.575)
    assert describe_majority(made) == " Naming each client's most frequent class reaches 57.50 %."


def test_clients_without_test_rows_do_not_count() -> None:
    assert majority_accuracy(run([[8, 2], [1, 3]], [[9, 1], [0, 0]])) == pytest.approx(0.9)


def test_test_rows_of_one_class_are_told() -> None:
    (sentence,) = warn_of_single_classes(run([[8, 2], [1, 3]], [[9, 0], [3, 1]]))

    assert sentence.startswith("1 of 2 clients has test rows of one class only")
    assert warn_of_single_classes(run([[8, 2], [1, 3]], [[9, 1], [3, 1]])) == []


@pytest.mark.parametrize("counts", [None, [[None, None], [None, None]]])
def test_unknown_counts_say_nothing(counts: Any) -> None:
    made = run(counts, counts)

    assert majority_accuracy(made) is None
    assert describe_majority(made) == ""
    assert warn_of_single_classes(made) == []


def test_numbers_have_no_majority() -> None:
    assert majority_accuracy(run([[8, 2], [1, 3]], [[9, 1], [3, 1]], task="regression")) is None
