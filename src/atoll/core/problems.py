"""Define what a data set asks for: classes, several labels, numbers or the next token, with its loss and scores.

A data set has a ``Problem``. The problem decides how many outputs a model has, which loss clients minimise, which
scores are computed and which of them selects rounds. Methods reach the loss by ``client.objective(*terms)``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import AtollError
from . import scores
from .batch import Batch
from .criterion import ACCURACY, Criterion
from .group_scores import Columns, accuracy_each, class_scores_each, cross_entropy_each
from .losses import cross_entropy, mean_over_rows
from .model import Predictor
from .prng import key
from .scores import Scores

LOSS = "loss"  # name of the mean loss of a model's outputs, without a method's own terms


@dataclass(frozen=True)
class Problem:
    """What models are to predict. Subclasses define the functions that raise NotImplementedError here.

    Attributes:
        task: name of the problem, a value of ``--task``.
        labels: what the labels are, as part of a sentence.
        dtype: type of labels as tensors.
        criterion: the score that selects rounds.
        details: names of the other scores.
        shares: those of them that are shown in percent.
        group, groups: words for what partitions keep apart, such as ``class`` and ``classes``.
    """

    task: ClassVar[str]
    labels: ClassVar[str]
    dtype: ClassVar[torch.dtype] = torch.long
    criterion: ClassVar[Criterion]
    details: ClassVar[tuple[str, ...]]
    shares: ClassVar[tuple[str, ...]]
    group: ClassVar[str] = ""
    groups: ClassVar[str] = "rows"

    @property
    def outputs(self) -> int:
        """Number of outputs of a model."""
        raise NotImplementedError

    @property
    def num_classes(self) -> int:
        """Number of classes; 0 if labels are no classes."""
        return 0

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the mean loss over the real rows of a batch. Padding has weight 0."""
        raise NotImplementedError

    def score(self, outputs: Tensor, y: Tensor) -> float:
        """Return the criterion; NaN where it is undefined, as without rows."""
        raise NotImplementedError

    def other_scores(self, outputs: Tensor, y: Tensor) -> Scores:
        """Return the scores in ``details`` but the loss, of at least one row, on the CPU."""
        raise NotImplementedError

    def scores(self, outputs: Tensor, y: Tensor) -> Scores:
        """Return the criterion and all details; NaN where a score is undefined."""
        if not len(y):
            return {self.criterion.name: self.score(outputs, y), **dict.fromkeys(self.details, math.nan)}
        more = {LOSS: self.mean_loss(outputs, y), **self.other_scores(outputs, y)}
        return {self.criterion.name: self.score(outputs, y), **more}

    def mean_loss(self, outputs: Tensor, y: Tensor) -> float:
        """Return the mean loss of at least one row, without a method's own terms."""
        return self.loss(outputs, Batch(outputs, y, torch.ones(len(y)), key(0), {}, full=True)).item()

    def score_each(self, outputs: Tensor, y: Tensor, sizes: Sequence[int]) -> list[float]:
        """Return the criterion of consecutive groups of rows, such as those of each client."""
        groups = zip(outputs.split(list(sizes)), y.split(list(sizes)), strict=True)
        return [self.score(*group) for group in groups]

    def scores_each(self, outputs: Tensor, y: Tensor, sizes: Sequence[int]) -> Columns:
        """Return the criterion and all details of consecutive groups of rows, on the CPU."""
        groups = zip(outputs.split(list(sizes)), y.split(list(sizes)), strict=True)
        each = [self.scores(*group) for group in groups]
        return {name: np.array([score[name] for score in each]) for name in (self.criterion.name, *self.details)}

    @classmethod
    def format_of(cls, name: str) -> Criterion:
        """Return the format of a score; a metric of the user is shown as the criterion is."""
        return cls.criterion._replace(percent=name in cls.shares) if name in cls.details else cls.criterion

    def in_unit(self, outputs: Tensor) -> Tensor:
        """Return the outputs of a model as users see them: numbers in the unit of the data, others unchanged."""
        return outputs

    def predictor_in_unit(self, predictor: Predictor) -> Predictor:
        """Return a predictor whose outputs are in the unit of the data."""
        return lambda x: self.in_unit(predictor(x))

    def predict(self, outputs: Tensor) -> Tensor:
        """Return predictions, in the form of labels, from the outputs of a model."""
        raise NotImplementedError

    def blank_labels(self, rows: int) -> Tensor:
        """Return labels without information, for trials of a method without private data."""
        raise NotImplementedError


@dataclass(frozen=True)
class Classes(Problem):
    """One class for each row: ``y`` is int64 ``[N]``, models have a logit for each class.

    The loss is cross-entropy. Accuracy selects rounds.
    """

    count: int

    task: ClassVar[str] = "classes"
    labels: ClassVar[str] = "classes"
    group: ClassVar[str] = "class"
    groups: ClassVar[str] = "classes"
    criterion: ClassVar[Criterion] = ACCURACY
    details: ClassVar[tuple[str, ...]] = (
        LOSS, "precision", "recall", "f1", "auc", "macro_precision", "macro_recall", "macro_f1", "macro_auc",
    )  # fmt: skip
    shares: ClassVar[tuple[str, ...]] = details[1:]

    loss = staticmethod(cross_entropy)  # the function itself, which training recognises

    @property
    def outputs(self) -> int:
        return self.count

    @property
    def num_classes(self) -> int:
        return self.count

    def score(self, outputs: Tensor, y: Tensor) -> float:
        return scores.accuracy(outputs, y)

    def other_scores(self, outputs: Tensor, y: Tensor) -> Scores:
        return scores.class_scores(outputs, y)

    def mean_loss(self, outputs: Tensor, y: Tensor) -> float:
        return float(cross_entropy_each(outputs, y, [len(y)])[0])

    def score_each(self, outputs: Tensor, y: Tensor, sizes: Sequence[int]) -> list[float]:
        # One call for all clients: with many clients, one call for each would take longer than a round.
        return accuracy_each(outputs, y, sizes)

    def scores_each(self, outputs: Tensor, y: Tensor, sizes: Sequence[int]) -> Columns:
        criterion = np.array(accuracy_each(outputs, y, sizes))
        losses = cross_entropy_each(outputs, y, sizes)
        return {self.criterion.name: criterion, LOSS: losses, **class_scores_each(outputs, y, sizes)}

    def predict(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(1)

    def blank_labels(self, rows: int) -> Tensor:
        return torch.arange(rows) % self.count


@dataclass(frozen=True)
class Labels(Problem):
    """Several labels for each row: ``y`` is 0 or 1, float ``[N, L]``, models have a logit for each label.

    The loss is binary cross-entropy, averaged over labels. Mean average precision selects rounds, because it needs no
    threshold and does not reward a model that never predicts rare labels.
    """

    count: int

    task: ClassVar[str] = "multilabel"
    labels: ClassVar[str] = "several labels for each sample"
    dtype: ClassVar[torch.dtype] = torch.float32
    criterion: ClassVar[Criterion] = Criterion("map", "mAP")
    details: ClassVar[tuple[str, ...]] = (LOSS, "micro_f1", "macro_f1")
    shares: ClassVar[tuple[str, ...]] = details[1:]

    @property
    def outputs(self) -> int:
        return self.count

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        each = F.binary_cross_entropy_with_logits(outputs, batch.y, reduction="none")
        return mean_over_rows(each.mean(-1), batch)

    def score(self, outputs: Tensor, y: Tensor) -> float:
        return scores.mean_average_precision(outputs.cpu(), y.cpu())

    def other_scores(self, outputs: Tensor, y: Tensor) -> Scores:
        return scores.label_scores(outputs, y)

    def predict(self, outputs: Tensor) -> Tensor:
        return (outputs > 0).long()

    def blank_labels(self, rows: int) -> Tensor:
        return (torch.arange(rows * self.count).view(rows, self.count) % 2).float()


@dataclass(frozen=True)
class Numbers(Problem):
    """Numbers for each row: ``y`` is float ``[N, T]``, models have an output for each of the T targets.

    The loss is the squared error of ``centre + scale * output``, divided by the square of ``scale`` and averaged over
    targets: models learn standardised targets, and scores are in the unit of the data. The mean squared error selects
    rounds (lower is better), because it is what clients minimise, and because R² divides by the variance of a client's
    few test rows.

    Args:
        count: T, number of targets.
        centre: what is added to each output; zeros by default.
        scale: factor of each output; ones by default.
    """

    count: int = 1
    centre: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()

    task: ClassVar[str] = "regression"
    labels: ClassVar[str] = "numbers"
    dtype: ClassVar[torch.dtype] = torch.float32
    group: ClassVar[str] = "range"
    groups: ClassVar[str] = "ranges"
    criterion: ClassVar[Criterion] = Criterion("mse", "MSE", higher=False, percent=False)
    details: ClassVar[tuple[str, ...]] = (LOSS, "mae", "r2")
    shares: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if (
            len(self.centre) not in (0, self.count)
            or len(self.scale) not in (0, self.count)
            or min(self.scale, default=1) <= 0
        ):
            raise AtollError(
                f"Numbers({self.count}) needs {self.count} numbers in centre and in scale, those in scale above 0, not "
                f"{self.centre} and {self.scale}."
            )

    @property
    def outputs(self) -> int:
        return self.count

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        centre, scale = self._units(outputs)
        apart = outputs - (batch.y.reshape(outputs.shape) - centre) / scale
        return mean_over_rows(apart.square().mean(-1), batch)

    def score(self, outputs: Tensor, y: Tensor) -> float:
        return scores.mean_squared_error(self.predict(outputs), y.reshape(outputs.shape))

    def other_scores(self, outputs: Tensor, y: Tensor) -> Scores:
        return scores.number_scores(self.predict(outputs), y.reshape(outputs.shape))

    def in_unit(self, outputs: Tensor) -> Tensor:
        centre, scale = self._units(outputs)
        return centre + scale * outputs

    def predict(self, outputs: Tensor) -> Tensor:
        return self.in_unit(outputs)

    def blank_labels(self, rows: int) -> Tensor:
        return torch.zeros(rows, self.count)

    def _units(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return centre and scale of each target, on the device of ``like``."""
        centre, scale = self.centre or (0.0,) * self.count, self.scale or (1.0,) * self.count
        return torch.tensor(centre, device=like.device), torch.tensor(scale, device=like.device)


@dataclass(frozen=True)
class NextToken(Problem):
    """The next token at every position: ``y`` is int64 ``[N, T]``, models have logits ``[N, T, V]``.

    The loss is cross-entropy over positions. Perplexity, exp of that loss, selects rounds (lower is better): it also
    tells models apart that predict the same tokens.
    """

    vocabulary: int
    length: int

    task: ClassVar[str] = "next-token"
    labels: ClassVar[str] = "tokens"
    criterion: ClassVar[Criterion] = Criterion("perplexity", "perplexity", higher=False, percent=False)
    details: ClassVar[tuple[str, ...]] = (LOSS, "token_accuracy")
    shares: ClassVar[tuple[str, ...]] = details[1:]

    @property
    def outputs(self) -> int:
        return self.vocabulary

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return mean_over_rows(self._surprise(outputs, batch.y).mean(-1), batch)

    def score(self, outputs: Tensor, y: Tensor) -> float:
        return self._surprise(outputs.double(), y).mean().exp().item()

    def other_scores(self, outputs: Tensor, y: Tensor) -> Scores:
        return {"token_accuracy": (outputs.argmax(-1) == y).double().mean().item()}

    def predict(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(-1)

    def blank_labels(self, rows: int) -> Tensor:
        return (torch.arange(rows * self.length) % self.vocabulary).view(rows, self.length)

    def _surprise(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return -log p of the true token at each position, ``[N, T]``."""
        return -outputs.log_softmax(-1).gather(-1, y[..., None])[..., 0]


PROBLEMS: dict[str, type[Problem]] = {problem.task: problem for problem in (Classes, Labels, Numbers, NextToken)}
TASKS = tuple(PROBLEMS)


def criterion_named(name: str) -> Criterion:
    """Return the criterion with this name in files."""
    return next(problem.criterion for problem in PROBLEMS.values() if problem.criterion.name == name)


def classes_of(problem: Problem) -> int:
    """Return the number of classes of a problem.

    Raises:
        AtollError: labels are no classes, so that a method that asks for their number should have declared the need.
    """
    if not problem.num_classes:
        raise AtollError(
            f"The method asks for the number of classes, but labels are {problem.labels}. "
            "Give the method needs=frozenset({Need.CLASSES}) in its traits."
        )
    return problem.num_classes
