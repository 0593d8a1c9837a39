"""Define the client that a method sees: its rows, model and batches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from . import vmap
from .batch import Batch
from .batch_order import count_batches, draw_batches
from .losses import Loss, Term, objective
from .memory_layout import take_rows
from .model import Model, Predictor
from .payloads import Params
from .prng import Key
from .problems import Problem, classes_of
from .vmap import is_batched

Augment = Callable[[Tensor, Key], Tensor]


@dataclass(frozen=True)
class Client:
    """The data and models that a method may use on a client. Only uploads leave the client.

    Attributes:
        x: training rows [N, ...], padded where clients are batched.
        y: labels [N], or [N, ...] for several labels, numbers and tokens.
        n: number of real rows; later rows are padding.
        model: the client's own architecture.
        problem: what the labels are, with the loss of the data.
        proxy: architecture that is exchanged in place of the client's own model, if the method has one.
        public: rows that all parties have, if the method needs public data.
        augment: function of images and a key; None for no augmentation.
        bound: largest norm of a row's features in statistics that are uploaded; None for no bound.
        terms: makes the regularisers of the run, which ``objective`` adds to the loss.
    """

    x: Tensor
    y: Tensor
    n: Tensor
    model: Model
    problem: Problem
    proxy: Model | None = None
    public: Tensor | None = None
    augment: Augment | None = None
    bound: float | None = None
    terms: Callable[[], Sequence[Term]] = tuple

    def features(self, params: Params) -> Tensor:
        """Return the features of the client's rows, clipped to norm ``bound``, for statistics that are uploaded."""
        z = self.model.features(params, self.x)
        if self.bound is None:
            return z
        norms: Tensor = z.norm(dim=1, keepdim=True)
        return z * (self.bound / norms.clamp(min=self.bound))

    def objective(self, *terms: Term, model: Model | None = None) -> Loss:
        """Return the loss of local training: that of the data, the terms of the method, the regularisers of the run.

        Args:
            terms: terms of the method.
            model: the model that is trained; the client's own by default.
        """
        return objective(model or self.model, *terms, *self.terms(), data_loss=self.problem.loss)

    def predictor(self, params: Params) -> Predictor:
        """Return the predictor of the client's own model with these params."""
        return lambda x: self.model(params, x)

    def batches(self, k: Key, epochs: float, size: int, steps: int | None = None) -> Iterator[Batch]:
        """Yield shuffled, augmented batches, whose order is a function of the key alone.

        Args:
            k: key of the order, of dropout and of augmentation.
            epochs: passes over the rows. A fraction is a share of the client's own batches, rounded up.
            size: rows of a batch; the last one of an epoch may be shorter.
            steps: number of batches in place of ``epochs``, however many rows there are: epoch follows upon epoch.
        """
        sizes = self._sizes(size)
        if is_batched():
            return vmap.ClientBatches(self, k, epochs, sizes, steps)
        return self._own_batches(k, sizes, count_batches(epochs, len(sizes)) if steps is None else steps)

    def _own_batches(self, k: Key, sizes: list[int], count: int) -> Iterator[Batch]:
        """Yield the first ``count`` batches of a single client."""
        full = float(self.n) == len(self.x)
        for rows, w, k_dropout, k_augment in draw_batches(k, self.n, sizes, count):
            x, y = take_rows(self.x, rows), take_rows(self.y, rows)
            x = x if self.augment is None else self.augment(x, k_augment)
            yield Batch(x, y, w, k_dropout, {}, full=full)

    def _sizes(self, size: int) -> list[int]:
        """Return the sizes of an epoch's batches; the last one may be shorter.

        With batch statistics no batch has a single row, which would have no variance.
        """
        n = len(self.x)
        sizes = [min(size, n - start) for start in range(0, n, size)]
        if self.has_batch_statistics and size > 1 and n > 1 and sizes[-1] == 1:
            sizes[-2:] = [size - 1, 2] if size > 2 else [size + 1]
        return sizes

    @property
    def has_batch_statistics(self) -> bool:
        """Return True if the client's model or its proxy mixes the rows of a batch, as BatchNorm does."""
        return any(m is not None and (m.has_buffers or bool(m.batch_norms)) for m in (self.model, self.proxy))

    @property
    def num_classes(self) -> int:
        """Number of classes, for methods with ``Need.CLASSES``."""
        return classes_of(self.problem)

    def members(self) -> Tensor:
        """Return one-hot labels [N, C]; padding rows are zero."""
        real = torch.arange(len(self.y), device=self.y.device) < self.n
        classes = torch.arange(self.num_classes, device=self.y.device)
        return ((self.y[:, None] == classes) & real[:, None]).float()
