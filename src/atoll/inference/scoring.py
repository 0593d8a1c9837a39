"""Score the models of a run on each client's test rows, with bootstrap intervals and reliability diagrams."""

from collections.abc import Iterator
from typing import NamedTuple

import torch

from ..clients.evaluation import predict
from ..core.decision_scores import Bin, Interval, all_scores, bootstrap, reliability
from ..core.scores import accuracy
from ..errors import AtollError
from ..typing import ClientId
from .models import TrainedModels

ALL = "all rows"  # the test rows of all clients, each predicted by its own client's model


class ClientScores(NamedTuple):
    """Scores of one client's model on the client's test rows.

    Args:
        client: the client, or ``ALL``.
        rows: number of test rows.
        scores: every score with its interval, by name.
        bins: bins of the reliability diagram.
        confusion: number of rows of each true class (first index) that were predicted as each class.
    """

    client: str
    rows: int
    scores: dict[str, Interval]
    bins: list[Bin]
    confusion: list[list[int]]


def score_clients(models: TrainedModels, point: float = 0.5, draws: int = 1000) -> list[ClientScores]:
    """Score the personal model of each client on its test rows; the last entry is of the test rows of all clients.

    Args:
        models: the trained models.
        point: probability from which on a row counts as positive, with two classes.
        draws: number of bootstrap resamples.

    Raises:
        AtollError: labels are no classes, or no client has test rows.
    """
    problem = models.pool.problem
    if not problem.num_classes:
        raise AtollError(f"These scores are for classes, and the labels of the run are {problem.labels}.")
    parts = list(_outputs(models))
    if not parts:
        raise AtollError("No client has test samples to score.")
    whole = (ALL, torch.cat([logits for _, logits, _ in parts]), torch.cat([y for _, _, y in parts]))
    wanted = {"accuracy": accuracy} | all_scores(problem.num_classes, point)
    return [
        ClientScores(
            client,
            len(y),
            {name: bootstrap(score, logits, y, draws) for name, score in wanted.items()},
            reliability(logits, y),
            confusion_matrix(logits, y, problem.num_classes),
        )
        for client, logits, y in [*parts, whole]
    ]


def confusion_matrix(logits: torch.Tensor, y: torch.Tensor, classes: int) -> list[list[int]]:
    """Count the rows of each true class (first index) that were predicted as each class (second index).

    Example:
        >>> confusion_matrix(torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0]]), torch.tensor([0, 1, 1]), 2)
        [[1, 0], [1, 1]]
    """
    counts = torch.bincount(y * classes + logits.argmax(1), minlength=classes * classes)
    matrix: list[list[int]] = counts.view(classes, classes).tolist()
    return matrix


def _outputs(models: TrainedModels) -> Iterator[tuple[ClientId, torch.Tensor, torch.Tensor]]:
    for at, i in enumerate(models.clients):
        x, y = models.pool.test[at]
        if len(y):
            yield i, predict(models.personal(i), x).cpu(), y.cpu()
