"""Measures of clients, populations and curves."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, precision_score, recall_score, roc_auc_score
from torch import Tensor

from atoll.clients.evaluation import DETAILS, accuracy, measure, population, predict, reached, select
from atoll.core.prng import key, normal, randint


def answers(right: int, of: int) -> tuple[Tensor, Tensor]:
    """Two classes, label 0 throughout; the first ``right`` rows are answered with 0, the others with 1."""
    guess = torch.tensor([0] * right + [1] * (of - right))
    return torch.nn.functional.one_hot(guess, 2).float(), torch.zeros(of, dtype=torch.long)


def random_case(seed: int, rows: int = 40, classes: int = 5, held: int = 5) -> tuple[Tensor, Tensor]:
    return normal(key(seed, "logits"), rows, classes) * 2, randint(key(seed, "labels"), held, rows)


# -- one client -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("held", [2, 5])
def test_precision_recall_and_f1_are_scikit_learns(seed: int, held: int) -> None:
    logits, y = random_case(seed, held=held)
    guess, found = logits.argmax(1).numpy(), measure(logits, y)
    for prefix, average in (("", "weighted"), ("macro_", "macro")):
        for name, theirs in (("precision", precision_score), ("recall", recall_score), ("f1", f1_score)):
            wanted = theirs(y.numpy(), guess, average=average, zero_division=0)
            assert found[prefix + name] == pytest.approx(wanted, abs=1e-12)
    assert found["accuracy"] == pytest.approx(float((guess == y.numpy()).mean()))
    assert found["n"] == 40


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("held", [2, 5])
def test_auc_is_scikit_learns_one_against_the_rest_over_classes_with_both_kinds(seed: int, held: int) -> None:
    logits, y = random_case(seed, held=held)
    logits = (logits * 2).round() / 2  # ties
    p, truth = logits.double().softmax(1).numpy(), y.numpy()
    classes = np.unique(truth)
    areas = [roc_auc_score(truth == c, p[:, c]) for c in classes]
    found = measure(logits, y)
    assert found["macro_auc"] == pytest.approx(np.mean(areas), abs=1e-12)
    assert found["auc"] == pytest.approx(np.average(areas, weights=[(truth == c).sum() for c in classes]), abs=1e-12)


def test_auc_tells_confident_answers_apart() -> None:
    """Margins 20 and 25 for class 0 belong to rows of class 1 and 0: a perfect order, although both are 1 - 2e-9 or so.

    Single precision would round both probabilities of class 0 to 1, and call it a tie: 1/2.
    """
    logits, y = torch.tensor([[20.0, 0.0], [25.0, 0.0]]), torch.tensor([1, 0])
    assert measure(logits, y)["auc"] == 1.0


def test_a_client_with_one_class_has_no_auc() -> None:
    logits, y = answers(3, 4)
    found = measure(logits, y)
    assert math.isnan(found["auc"])
    assert math.isnan(found["macro_auc"])
    assert found["recall"] == 0.75


def test_a_client_without_rows_has_nothing_to_measure() -> None:
    found = measure(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))
    assert found["n"] == 0
    assert all(math.isnan(found[name]) for name in ("accuracy", *DETAILS))


def test_predictions_in_batches_are_those_of_all_rows_and_leave_no_gradient() -> None:
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


def test_the_weighted_and_the_plain_mean_by_hand() -> None:
    """A: 8 of 10 right, B: 1 of 2. By rows: 9 / 12 = 0.75. By clients: (0.8 + 0.5) / 2 = 0.65."""
    found = population({"A": measure(*answers(8, 10)), "B": measure(*answers(1, 2))})
    assert found["weighted"] == pytest.approx(0.75)
    assert found["accuracy"] == pytest.approx(0.65)


@pytest.mark.parametrize(
    ("clients", "worst"), [(1, [0]), (10, [0]), (11, [0, 1]), (20, [0, 1]), (25, [0, 1, 2])]
)  # a tenth, rounded up
def test_the_worst_tenth_of_clients(clients: int, worst: list[int]) -> None:
    accuracies = [at / 100 for at in range(clients)]
    scores = {str(at): {"n": 5.0, "accuracy": a} for at, a in enumerate(reversed(accuracies))}
    assert population(scores)["worst_decile"] == pytest.approx(np.mean([accuracies[at] for at in worst]))


def test_undefined_measures_are_left_out_of_the_mean() -> None:
    two = measure(*random_case(0))
    one_class, empty = measure(*answers(3, 4)), measure(torch.zeros(0, 5), torch.zeros(0, dtype=torch.long))
    found = population({"two": two | {"val": 0.5}, "one": one_class, "empty": empty | {"val": math.nan}})
    assert found["auc"] == two["auc"]
    assert found["accuracy"] == pytest.approx((two["accuracy"] + 0.75) / 2)
    assert found["worst_decile"] == min(two["accuracy"], 0.75)
    assert found["val"] == 0.5


def test_clients_without_any_row_give_an_undefined_mean() -> None:
    empty = measure(torch.zeros(0, 5), torch.zeros(0, dtype=torch.long))
    assert math.isnan(population({"a": empty, "b": empty})["accuracy"])


def test_accuracy_counts_the_largest_score() -> None:
    assert accuracy(torch.tensor([[1.0, 2.0], [2.0, 1.0], [0.0, 5.0]]), torch.tensor([1, 1, 1])) == pytest.approx(2 / 3)


# -- which round to report --------------------------------------------------------------------------------------------


def curve(*points: tuple[float, float]) -> list[tuple[int, dict[str, float]]]:
    """Rounds 2, 4, ... with (accuracy, validation accuracy)."""
    return [
        (2 * at + 2, {"accuracy": a, "val": val, "worst_decile": a / 2}) for at, (a, val) in enumerate(points)
    ]  # fmt: skip


def test_final_best_and_validated_values() -> None:
    found = select(curve((0.3, 0.9), (0.8, 0.1), (0.5, 0.5)))
    assert (found["final"], found["best"], found["best_by_val"]) == (0.5, 0.8, 0.3)
    assert (found["best_round"], found["best_by_val_round"]) == (4, 2)
    assert found["worst_decile"] == 0.15  # of the validated round
    assert found["metrics"]["best"]["accuracy"] == 0.8


def test_the_first_round_wins_a_tie() -> None:
    found = select(curve((0.3, 0.4), (0.8, 0.7), (0.8, 0.7), (0.2, 0.7)))
    assert (found["best_round"], found["best_by_val_round"]) == (4, 4)


def test_without_validation_rows_the_final_round_stands_in() -> None:
    found = select(curve((0.8, math.nan), (0.4, math.nan)))
    assert (found["best"], found["best_by_val"], found["best_by_val_round"]) == (0.8, 0.4, 4)


def test_a_round_without_validation_is_not_chosen() -> None:
    assert select(curve((0.9, math.nan), (0.4, 0.2), (0.5, 0.1)))["best_by_val"] == 0.4


def line(at: int, accuracy: float) -> dict[str, Any]:
    costs = {"bytes": {"up": at}, "flops": {"clients": 2 * at}, "clock": {"waiting": 4 * at}, "seconds": 3.0 * at}
    return {"round": at, "personal": {"post": {"accuracy": accuracy}}, **costs}


def test_what_a_target_took_is_read_off_the_first_round_that_reached_it() -> None:
    lines = [line(1, 0.2), line(2, 0.5), line(3, 0.4), line(4, 0.9)]
    took = {"bytes": {"up": 2}, "flops": {"clients": 4}, "clock": {"waiting": 8}, "seconds": 6.0}
    assert reached(lines, 0.5) == {"round": 2, **took}
    assert reached(lines, 0.95) is None
