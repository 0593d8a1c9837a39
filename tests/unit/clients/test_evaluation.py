"""Measures of clients, populations and curves."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, precision_score, recall_score, roc_auc_score
from torch import Tensor

from atoll.clients.evaluation import find_target_round, measure, predict, select_rounds, summarise_clients
from atoll.clients.score_table import to_columns
from atoll.core.criterion import ACCURACY
from atoll.core.prng import key, normal, randint
from atoll.core.problems import Classes, Numbers
from atoll.core.scores import accuracy

CLASSES = Classes(5)


def answers(right: int, of: int) -> tuple[Tensor, Tensor]:
    """Two classes, label 0 throughout; the first ``right`` rows are answered with 0, the others with 1."""
    guess = torch.tensor([0] * right + [1] * (of - right))
    return torch.nn.functional.one_hot(guess, 2).float(), torch.zeros(of, dtype=torch.long)


def random_case(seed: int, rows: int = 40, classes: int = 5, held: int = 5) -> tuple[Tensor, Tensor]:
    return normal(key(seed, "logits"), rows, classes) * 2, randint(key(seed, "labels"), held, rows)


# -- one client -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("held", [2, 5])
def test_precision_recall_and_f1_match_scikit_learn(seed: int, held: int) -> None:
    logits, y = random_case(seed, held=held)
    guess, found = logits.argmax(1).numpy(), measure(CLASSES, logits, y)
    for prefix, average in (("", "weighted"), ("macro_", "macro")):
        for name, theirs in (("precision", precision_score), ("recall", recall_score), ("f1", f1_score)):
            wanted = theirs(y.numpy(), guess, average=average, zero_division=0)
            assert found[prefix + name] == pytest.approx(wanted, abs=1e-12)
    assert found["accuracy"] == pytest.approx(float((guess == y.numpy()).mean()))
    assert found["n"] == 40


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("held", [2, 5])
def test_auc_matches_scikit_learn_one_vs_rest_over_classes_with_both_kinds(seed: int, held: int) -> None:
    logits, y = random_case(seed, held=held)
    logits = (logits * 2).round() / 2  # ties
    p, truth = logits.double().softmax(1).numpy(), y.numpy()
    classes = np.unique(truth)
    areas = [roc_auc_score(truth == c, p[:, c]) for c in classes]
    found = measure(CLASSES, logits, y)
    assert found["macro_auc"] == pytest.approx(np.mean(areas), abs=1e-12)
    assert found["auc"] == pytest.approx(np.average(areas, weights=[(truth == c).sum() for c in classes]), abs=1e-12)


def test_auc_distinguishes_confident_predictions() -> None:
    """Margins 20 and 25 for class 0 belong to rows of class 1 and 0: a perfect order, although both are 1 - 2e-9 or so.

    Single precision would round both probabilities of class 0 to 1, and call it a tie: 1/2.
    """
    logits, y = torch.tensor([[20.0, 0.0], [25.0, 0.0]]), torch.tensor([1, 0])
    assert measure(CLASSES, logits, y)["auc"] == 1.0


def test_auc_is_nan_for_client_with_one_class() -> None:
    logits, y = answers(3, 4)
    found = measure(CLASSES, logits, y)
    assert math.isnan(found["auc"])
    assert math.isnan(found["macro_auc"])
    assert found["recall"] == 0.75


def test_metrics_are_nan_for_client_without_rows() -> None:
    found = measure(CLASSES, torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))
    assert found["n"] == 0
    assert all(math.isnan(found[name]) for name in ("accuracy", *CLASSES.details))


def test_batched_predictions_equal_unbatched_ones_and_have_no_gradient() -> None:
    x = normal(key("x"), 600, 3)
    weight = normal(key("w"), 3, 2).requires_grad_()
    sizes: list[int] = []

    def predictor(rows: Tensor) -> Tensor:
        sizes.append(len(rows))
        return rows @ weight

    found = predict(predictor, x)
    assert max(sizes) <= 256
    torch.testing.assert_close(found, (x @ weight).detach())
    assert not found.requires_grad


# -- all clients ------------------------------------------------------------------------------------------------------


def test_weighted_and_unweighted_means_match_hand_computed_values() -> None:
    """A: 8 of 10 right, B: 1 of 2. By rows: 9 / 12 = 0.75. By clients: (0.8 + 0.5) / 2 = 0.65."""
    found = summarise_clients(
        to_columns([measure(CLASSES, *answers(8, 10)), measure(CLASSES, *answers(1, 2))]), CLASSES
    )
    assert found["weighted"] == pytest.approx(0.75)
    assert found["accuracy"] == pytest.approx(0.65)


@pytest.mark.promise("Results", "`worst_decile` is the mean of the worst 10 % of the clients.")
@pytest.mark.parametrize(
    ("clients", "worst"), [(1, [0]), (10, [0]), (11, [0, 1]), (20, [0, 1]), (25, [0, 1, 2])]
)  # a tenth, rounded up
def test_worst_decile_is_mean_of_worst_tenth_of_clients(clients: int, worst: list[int]) -> None:
    accuracies = [at / 100 for at in range(clients)]
    scores = to_columns([{"n": 5.0, "accuracy": a} for a in reversed(accuracies)])
    assert summarise_clients(scores, CLASSES)["worst_decile"] == pytest.approx(
        np.mean([accuracies[at] for at in worst])
    )


def test_mean_leaves_out_undefined_metrics() -> None:
    two = measure(CLASSES, *random_case(0))
    one_class, empty = (
        measure(CLASSES, *answers(3, 4)),
        measure(CLASSES, torch.zeros(0, 5), torch.zeros(0, dtype=torch.long)),
    )
    found = summarise_clients(to_columns([two | {"val": 0.5}, one_class, empty | {"val": math.nan}]), CLASSES)
    assert found["auc"] == two["auc"]
    assert found["accuracy"] == pytest.approx((two["accuracy"] + 0.75) / 2)
    assert found["worst_decile"] == min(two["accuracy"], 0.75)
    assert found["val"] == 0.5


def test_mean_is_nan_if_no_client_has_rows() -> None:
    empty = measure(CLASSES, torch.zeros(0, 5), torch.zeros(0, dtype=torch.long))
    assert math.isnan(summarise_clients(to_columns([empty, empty]), CLASSES)["accuracy"])


def test_accuracy_compares_largest_logit_with_label() -> None:
    assert accuracy(torch.tensor([[1.0, 2.0], [2.0, 1.0], [0.0, 5.0]]), torch.tensor([1, 1, 1])) == pytest.approx(2 / 3)


# -- which round to report --------------------------------------------------------------------------------------------


def curve(*points: tuple[float, float]) -> list[tuple[int, dict[str, float]]]:
    """Rounds 2, 4, ... with (accuracy, validation accuracy)."""
    return [
        (2 * at + 2, {"accuracy": a, "val": val, "worst_decile": a / 2}) for at, (a, val) in enumerate(points)
    ]  # fmt: skip


@pytest.mark.promise("Results", "Final, best and validation-selected values are reported side by side.")
def test_selection_reports_final_best_and_validation_selected_values() -> None:
    found = select_rounds(curve((0.3, 0.9), (0.8, 0.1), (0.5, 0.5)), ACCURACY)
    assert (found["final"], found["best"], found["best_by_val"]) == (0.5, 0.8, 0.3)
    assert (found["best_round"], found["best_by_val_round"]) == (4, 2)
    assert found["worst_decile"] == 0.15  # of the validated round
    assert found["metrics"]["best"]["accuracy"] == 0.8


def test_last_ten_rounds_are_averaged_as_far_as_they_were_evaluated() -> None:
    """Twelve evaluations of rounds 2, 4, ..., 24: the last ten rounds, 15 to 24, hold those of 16 to 24.

    Accuracies are round / 100, so that their mean is 0.2.
    """
    found = select_rounds([(at, {"accuracy": at / 100, "val": 0.5}) for at in range(2, 26, 2)], ACCURACY)
    assert found["last10"] == pytest.approx(0.2)
    assert found["metrics"]["last10"] == pytest.approx({"accuracy": 0.2, "val": 0.5})


@pytest.mark.promise("Results", "Validation alone chooses the round of `by val`; the first of equals counts.")
def test_selection_takes_first_round_of_a_tie() -> None:
    found = select_rounds(curve((0.3, 0.4), (0.8, 0.7), (0.8, 0.7), (0.2, 0.7)), ACCURACY)
    assert (found["best_round"], found["best_by_val_round"]) == (4, 4)


def test_selection_takes_final_round_without_validation_rows() -> None:
    found = select_rounds(curve((0.8, math.nan), (0.4, math.nan)), ACCURACY)
    assert (found["best"], found["best_by_val"], found["best_by_val_round"]) == (0.8, 0.4, 4)


def test_selection_ignores_rounds_without_validation_score() -> None:
    assert select_rounds(curve((0.9, math.nan), (0.4, 0.2), (0.5, 0.1)), ACCURACY)["best_by_val"] == 0.4


def line(at: int, accuracy: float) -> dict[str, Any]:
    costs = {"bytes": {"up": at}, "flops": {"clients": 2 * at}, "clock": {"waiting": 4 * at}, "seconds": 3.0 * at}
    return {"round": at, "personal": {"post": {"accuracy": accuracy}}, **costs}


def test_target_can_be_about_the_weighted_mean_or_the_generic_model() -> None:
    """Personal models reach 0.5 in round 1, their mean over rows in round 2, the server's model in round 3."""
    lines = [
        line(at, 0.6) | {"generic": {"global": {"accuracy": generic}}, "bytes": {"up": at, "down": 10 * at}}
        for at, generic in ((1, 0.1), (2, 0.2), (3, 0.5))
    ]
    for entry, weighted in zip(lines, (0.4, 0.5, 0.6), strict=True):
        entry["personal"]["post"]["weighted"] = weighted
    found = [find_target_round(lines, 0.5, ACCURACY, of) for of in ("personal", "weighted", "generic")]
    assert [entry and entry["round"] for entry in found] == [1, 2, 3]
    assert found[2] is not None
    assert found[2]["bytes"] == {"up": 3, "down": 30, "both": 33}
    lines[0]["generic"] = lines[1]["generic"] = lines[2]["generic"] = None
    assert find_target_round(lines, 0.5, ACCURACY, "generic") is None


def test_target_round_is_first_round_at_target_accuracy() -> None:
    lines = [line(1, 0.2), line(2, 0.5), line(3, 0.4), line(4, 0.9)]
    took = {"bytes": {"up": 2, "both": 2}, "flops": {"clients": 4}, "clock": {"waiting": 8}, "seconds": 6.0}
    assert find_target_round(lines, 0.5, ACCURACY) == {"round": 2, **took}
    assert find_target_round(lines, 0.95, ACCURACY) is None


# -- scores of which lower ones are better ----------------------------------------------------------------------------


def test_worst_clients_are_those_with_the_highest_error() -> None:
    """Errors 1 and 9 over 1 and 3 rows: mean 5, by rows (1 + 27) / 4 = 7, the worst 10 % is the client with 9."""
    found = summarise_clients(to_columns([{"n": 1.0, "mse": 1.0}, {"n": 3.0, "mse": 9.0}]), Numbers())

    assert (found["mse"], found["weighted"], found["worst_decile"]) == (5.0, 7.0, 9.0)


def test_selection_takes_the_lowest_error() -> None:
    history = [(1, {"mse": 4.0, "val": 2.0}), (2, {"mse": 3.0, "val": 5.0}), (3, {"mse": 6.0, "val": 7.0})]

    found = select_rounds(history, Numbers.criterion)

    assert (found["final"], found["best"], found["best_by_val"]) == (6.0, 3.0, 4.0)
    assert (found["best_round"], found["best_by_val_round"]) == (2, 1)


def test_target_round_is_first_round_at_or_below_target_error() -> None:
    lines = [line(at, 0.0) | {"personal": {"post": {"mse": mse}}} for at, mse in enumerate((9.0, 5.0, 4.0), 1)]

    found = find_target_round(lines, 5.0, Numbers.criterion)

    assert found is not None
    assert found["round"] == 2
    assert find_target_round(lines, 3.9, Numbers.criterion) is None
