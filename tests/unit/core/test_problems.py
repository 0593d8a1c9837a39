"""Losses and scores of every problem, by hand numbers."""

import math

import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score, r2_score
from support import toy_models
from torch import Tensor, nn
from torch.func import vmap

from atoll.core import Batch, Need, cross_entropy
from atoll.core.client import Client
from atoll.core.prng import key, normal
from atoll.core.problems import PROBLEMS, Classes, Labels, NextToken, Numbers, Problem, criterion_named
from atoll.core.vmap import functional_gradients
from atoll.errors import AtollError

LN2, LN3 = math.log(2), math.log(3)


def batch(y: Tensor, real: int | None = None) -> Batch:
    w = (torch.arange(len(y)) < (len(y) if real is None else real)).float()
    return Batch(torch.zeros(len(y), 1), y, w, key(0), {})


# -- losses -----------------------------------------------------------------------------------------------------------


def test_loss_of_classes_is_cross_entropy() -> None:
    """Logits (0, ln 3) give p = (1/4, 3/4): -log 3/4 = ln 4 - ln 3 for class 1, ln 4 for class 0; the mean of both."""
    outputs, y = torch.tensor([[0.0, LN3], [0.0, LN3]]), torch.tensor([1, 0])

    assert float(Classes(2).loss(outputs, batch(y))) == pytest.approx(2 * LN2 - LN3 / 2)


def test_loss_of_several_labels_is_mean_binary_cross_entropy() -> None:
    """Logits 0 and ln 3: p = 1/2 and 3/4. Row 1 (1, 0): ln 2 + ln 4 over 2 labels; row 2 (0, 1): ln 2 + ln 4/3."""
    outputs, y = torch.tensor([[0.0, LN3]] * 2), torch.tensor([[1.0, 0.0], [0.0, 1.0]])

    expected = ((LN2 + 2 * LN2) / 2 + (LN2 + 2 * LN2 - LN3) / 2) / 2
    assert float(Labels(2).loss(outputs, batch(y))) == pytest.approx(expected)


def test_loss_of_numbers_is_mean_squared_error_in_standard_units() -> None:
    """Targets 10 and 14 with centre 10, scale 2 are 0 and 2; outputs 1 and 1 miss them by 1 and -1: the mean is 1."""
    problem = Numbers(1, centre=(10.0,), scale=(2.0,))
    outputs, y = torch.tensor([[1.0], [1.0]]), torch.tensor([[10.0], [14.0]])

    assert float(problem.loss(outputs, batch(y))) == pytest.approx(1.0)
    assert float(problem.loss(outputs, batch(y[:, 0]))) == pytest.approx(1.0)  # labels of shape [N]


def test_loss_of_next_token_is_cross_entropy_over_positions() -> None:
    """Two positions with p = (1/4, 3/4): tokens 1 and 0 cost ln 4/3 and ln 4, on average ln 4 - ln 3 / 2."""
    outputs, y = torch.tensor([[[0.0, LN3], [0.0, LN3]]]), torch.tensor([[1, 0]])

    assert float(NextToken(2, 2).loss(outputs, batch(y))) == pytest.approx(2 * LN2 - LN3 / 2)


CASES: dict[str, tuple[Problem, Tensor, Tensor]] = {
    "classes": (Classes(3), normal(key("o"), 6, 3), torch.tensor([0, 1, 2, 0, 1, 2])),
    "multilabel": (Labels(3), normal(key("o"), 6, 3), (normal(key("y"), 6, 3) > 0).float()),
    "regression": (Numbers(3), normal(key("o"), 6, 3), normal(key("y"), 6, 3)),
    "next-token": (NextToken(3, 2), normal(key("o"), 6, 2, 3), torch.arange(12).view(6, 2) % 3),
}


@pytest.mark.parametrize("task", CASES)
def test_padding_does_not_count_in_a_loss(task: str) -> None:
    problem, outputs, y = CASES[task]

    padded = problem.loss(outputs, batch(y, real=4))

    torch.testing.assert_close(padded, problem.loss(outputs[:4], batch(y[:4])))
    assert float(problem.loss(outputs, batch(y, real=0))) == 0.0


@pytest.mark.parametrize("task", CASES)
def test_loss_is_the_same_for_full_batches_and_under_vmap(task: str) -> None:
    problem, outputs, y = CASES[task]
    plain = problem.loss(outputs, batch(y))

    full = problem.loss(outputs, batch(y)._replace(full=True))
    with functional_gradients():
        both = vmap(lambda o, labels: problem.loss(o, batch(labels)))(
            torch.stack([outputs, outputs + 1]), torch.stack([y, y])
        )

    torch.testing.assert_close(full, plain)
    torch.testing.assert_close(both, torch.stack([plain, problem.loss(outputs + 1, batch(y))]))


def test_cross_entropy_refuses_labels_that_are_no_classes() -> None:
    with pytest.raises(AtollError, match=r"cross_entropy needs one class for each sample.*client\.problem\.loss"):
        cross_entropy(torch.zeros(2, 1), batch(torch.zeros(2, 1)))


# -- scores -----------------------------------------------------------------------------------------------------------


def test_scores_of_numbers_match_hand_computed_values() -> None:
    """Predictions 1, 2, 6 for 1, 3, 5: errors 0, -1, 1. MSE 2/3, MAE 2/3; the variance sums to 8, so R² = 1 - 2/8."""
    found = Numbers().scores(torch.tensor([[1.0], [2.0], [6.0]]), torch.tensor([[1.0], [3.0], [5.0]]))

    assert found == {
        "mse": pytest.approx(2 / 3),
        "loss": pytest.approx(2 / 3),
        "mae": pytest.approx(2 / 3),
        "r2": pytest.approx(0.75),
    }


def test_scores_of_numbers_are_in_the_unit_of_the_data() -> None:
    """Outputs 0 and 1 with centre 10 and scale 5 predict 10 and 15; for 10 and 17 the errors are 0 and 2."""
    problem, outputs = Numbers(1, (10.0,), (5.0,)), torch.tensor([[0.0], [1.0]])

    found = problem.scores(outputs, torch.tensor([[10.0], [17.0]]))

    assert (found["mse"], found["mae"]) == (pytest.approx(2.0), pytest.approx(1.0))
    assert problem.predict(outputs).tolist() == [[10.0], [15.0]]


def test_r2_of_several_targets_matches_scikit_learn_and_is_nan_for_a_constant_target() -> None:
    guess, y = normal(key("g"), 9, 3), normal(key("t"), 9, 3)
    assert Numbers(3).scores(guess, y)["r2"] == pytest.approx(r2_score(y.numpy(), guess.numpy()))

    y[:, 1] = 4.0
    assert math.isnan(Numbers(3).scores(guess, y)["r2"])


def test_scores_of_several_labels_match_hand_computed_values() -> None:
    """One label; logits 3, 2, -1 for 1, 0, 1: ranked hit, miss, hit. AP = 1/2 * 1 + 1/2 * 2/3 = 5/6.

    Predicted are the first two: one hit of two predictions and two true ones, F1 = 2 / 4.
    """
    found = Labels(1).scores(torch.tensor([[3.0], [2.0], [-1.0]]), torch.tensor([[1.0], [0.0], [1.0]]))

    # The loss is the mean of ln(1 + e^-3), ln(1 + e^2) and ln(1 + e^1).
    loss = (math.log1p(math.exp(-3)) + math.log1p(math.exp(2)) + math.log1p(math.exp(1))) / 3
    assert found == {"map": pytest.approx(5 / 6), "loss": pytest.approx(loss), "micro_f1": 0.5, "macro_f1": 0.5}


@pytest.mark.parametrize("seed", range(6))
def test_scores_of_several_labels_match_scikit_learn(seed: int) -> None:
    logits = (normal(key(seed, "o"), 30, 4) * 2).round() / 2  # ties
    y = (normal(key(seed, "y"), 30, 4) > 0.5).float()
    found, guess = Labels(4).scores(logits, y), (logits > 0).numpy()

    assert found["map"] == pytest.approx(average_precision_score(y.numpy(), logits.numpy(), average="macro"))
    for average in ("micro", "macro"):
        assert found[f"{average}_f1"] == pytest.approx(f1_score(y.numpy(), guess, average=average))


def test_labels_that_do_not_occur_are_left_out_of_map() -> None:
    """The first label is ranked perfectly, the second never occurs: the mean over the first alone is 1."""
    logits, y = torch.tensor([[2.0, 5.0], [1.0, 6.0]]), torch.tensor([[1.0, 0.0], [0.0, 0.0]])

    assert Labels(2).score(logits, y) == 1.0
    assert math.isnan(Labels(2).score(logits, torch.zeros(2, 2)))


def test_scores_of_next_token_match_hand_computed_values() -> None:
    """p = (1/4, 3/4) at both positions, tokens 1 and 0: perplexity exp((ln 4/3 + ln 4) / 2) = 4 / sqrt(3); 1 of 2."""
    found = NextToken(2, 2).scores(torch.tensor([[[0.0, LN3], [0.0, LN3]]]), torch.tensor([[1, 0]]))

    loss = math.log(4 / math.sqrt(3))
    assert found == {"perplexity": pytest.approx(math.exp(loss)), "loss": pytest.approx(loss), "token_accuracy": 0.5}


@pytest.mark.parametrize("task", CASES)
def test_scores_of_groups_are_those_of_each_group_and_nan_without_rows(task: str) -> None:
    problem, outputs, y = CASES[task]

    found = problem.score_each(outputs, y, [2, 0, 4])

    assert found[0] == pytest.approx(problem.score(outputs[:2], y[:2]))
    assert found[2] == pytest.approx(problem.score(outputs[2:], y[2:]))
    assert math.isnan(found[1])
    empty = problem.scores(outputs[:0], y[:0])
    assert list(empty) == [problem.criterion.name, *problem.details]
    assert all(math.isnan(v) for v in empty.values())


@pytest.mark.parametrize("task", CASES)
def test_problem_has_its_outputs_blank_labels_and_names(task: str) -> None:
    problem, outputs, y = CASES[task]

    assert problem.outputs == outputs.shape[-1]
    assert problem.blank_labels(6).shape == y.shape
    assert problem.blank_labels(6).dtype == y.dtype
    assert PROBLEMS[task] is type(problem)
    assert criterion_named(problem.criterion.name) == problem.criterion
    assert set(problem.shares) <= set(problem.details)


# -- clients ----------------------------------------------------------------------------------------------------------


def test_objective_adds_the_loss_of_the_problem_and_all_terms() -> None:
    """Weight 1 at inputs 1 and 3 for targets 0 and 1: errors 1 and 2, mean square 5/2; terms add 10."""
    model = toy_models.identity_body(1, 1, torch.ones(1, 1), bias=False)
    x, y = torch.tensor([[1.0], [3.0]]), torch.tensor([[0.0], [1.0]])
    client = Client(x, y, torch.tensor(2.0), model, Numbers(), terms=lambda: [lambda s: torch.tensor(3.0)])

    loss = client.objective(lambda s: torch.tensor(7.0))

    assert float(loss(model.init(), Batch(x, y, torch.ones(2), key(0), {}))) == pytest.approx(2.5 + 10)


def test_number_of_classes_is_refused_where_labels_are_no_classes() -> None:
    model = toy_models.identity_body(1, 1)
    client = Client(torch.zeros(2, 1), torch.zeros(2, 1), torch.tensor(2.0), model, Numbers())

    with pytest.raises(AtollError, match=r"asks for the number of classes, but labels are numbers.*Need\.CLASSES"):
        client.members()


def test_head_with_bias_but_tied_weight_is_no_separate_head() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3, 3))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight

    body, head = Tied(), nn.Linear(3, 3)
    head.weight = body.weight
    task = toy_models.task(toy_models.Model(toy_models.Net(body, head), "tied"))

    assert "tied to another layer" in str(Need.SEPARATE_HEAD.find_problem(task))


@pytest.mark.parametrize(("centre", "scale"), [((1.0,), ()), ((), (1.0,)), ((0.0, 0.0), (1.0, 0.0))])
def test_numbers_refuse_a_unit_for_another_number_of_targets_or_without_scale(
    centre: tuple[float, ...], scale: tuple[float, ...]
) -> None:
    with pytest.raises(AtollError, match="needs 2 numbers in centre and in scale"):
        Numbers(2, centre, scale)
