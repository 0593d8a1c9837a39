"""What is reached without a model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.run_files import make_run

from atoll.report import html
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

    assert sentence.startswith("1 of 2 clients has test samples of one class only")
    assert warn_of_single_classes([run([[8, 2], [1, 3]], [[9, 1], [3, 1]])]) == []


def test_divisions_of_the_rows_count_once() -> None:
    first, second = (run([[8, 2], [1, 3]], [[9, 0], [0, 1]], name) for name in ("a", "b"))

    (sentence,) = warn_of_single_classes([first, first, second])

    assert sentence.startswith("4 of 4 clients over 2 splits of the samples have test samples of one class only")


@pytest.mark.parametrize("counts", [None, [[None, None], [None, None]]])
def test_unknown_counts_say_nothing(counts: Any) -> None:
    made = run(counts, counts)

    assert majority_scores(made) is None
    assert warn_of_single_classes([made]) == []


def test_numbers_have_no_majority() -> None:
    assert majority_scores(run([[8, 2], [1, 3]], [[9, 1], [3, 1]], task="regression")) is None


def report_of(tmp_path: Path, scores: Mapping[str, float]) -> str:
    """The report of one run for each method, on clients whose most frequent class is 90 % of their test rows."""
    held = {"train": [[8, 2]] * 4, "test": [[9, 1]] * 4}
    for label, score in scores.items():
        make_run(tmp_path / label, label, by_val=score, holdings=held)
    return html.write([tmp_path], tmp_path / "report.html").read_text()


def test_first_sentence_says_that_no_method_exceeds_the_most_frequent_class(tmp_path: Path) -> None:
    text = report_of(tmp_path, {"fedavg": 0.9, "local": 0.9})

    assert "level with local" in text
    assert "most frequent class reaches 90.00 %: no method exceeds it." in text


def test_first_sentence_is_silent_where_a_method_exceeds_the_most_frequent_class(tmp_path: Path) -> None:
    assert "no method exceeds it" not in report_of(tmp_path, {"fedavg": 0.91, "local": 0.9})


def test_sentences_on_many_methods_are_folded(tmp_path: Path) -> None:
    names = ["fedavg", "fedprox", "ditto", "fedgh", "fedproto", "dcpfl", "fedrep"]

    text = report_of(tmp_path, {"local": 0.9} | dict.fromkeys(names, 0.91))

    shown, folded = text.partition("</details>")[0].split("<summary>2 further methods</summary>")
    assert (shown.count("gain over training alone"), folded.count("gain over training alone")) == (5, 2)
