"""FedDistill+. Zhu et al., ICML 2021, as a baseline. https://arxiv.org/abs/2105.10056

client:  w_k = argmin CE + gamma / |B| sum_i KL(Omega[y_i] || p(x_i)), from w_t;  p: predictions
         up: w_k;  for each class the sum of its predictions (soft labels), and its samples
server:  w_{t+1} = sum_k n_k w_k / sum_k n_k;  Omega[c] = mean soft label of class c over clients

It is FD (Jeong et al., 2018) with shared models. Knowledge is what FedDW keeps, as in the comparisons of that paper:
means of predictions, weighted by samples, from the identity on; the paper above averages logits, equally over clients,
and FD leaves a client's own contribution out of its target. With a DW term beside it, each keeps an Omega of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

import torch
from torch import Tensor

from ..core import (
    Client,
    Need,
    Params,
    Regulariser,
    Regularisers,
    Step,
    Task,
    Term,
    Traits,
    one_of,
    setting,
    within,
    wmean,
)
from .fedavg import FedAvg
from .feddw import DW


@dataclass(frozen=True)
class Distillation:
    """Settings that SoftLabels and FedDistill share."""

    gamma: float = setting(1.0, "strength of the pull of predictions to soft labels", "public code of FedDW")
    sl_memory: str = setting("round", "soft labels count for one round, or for all", "chosen here; all in that code")
    sl_ema: float = setting(0.0, "share of the old Omega that is kept", "chosen here; 0.5 in that code")
    absent_row: str = setting(
        "keep", "row of a class without samples in a round: keep, eye or mask", "chosen here; eye in that code"
    )

    def __post_init__(self) -> None:
        within(self, 0, "gamma")
        within(self, 0, "sl_ema", high=1)
        one_of(self, "sl_memory", ("round", "all"))
        one_of(self, "absent_row", ("keep", "eye", "mask"))

    def table(self) -> DW:
        """Return the DW regulariser that maintains Omega; its own term is not used."""
        return DW(0.0, sl_memory=self.sl_memory, sl_ema=self.sl_ema, absent_row=self.absent_row)


@dataclass(frozen=True)
class SoftLabels(Distillation, Regulariser):
    """gamma / |B| sum_i KL(Omega[y_i] || p(x_i)); down: Omega; up: sums of soft labels and counts."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.CLASSES})
    marks = DW.marks

    def start(self, task: Task) -> Params:
        return self.table().start(task)

    def send(self, kept: Params) -> Params:
        return self.table().send(kept)

    def bind(self, sent: Params, anchor: Params, client: Client) -> Term:
        def term(s: Step) -> Tensor:
            target = sent["omega"][s.batch.y]
            gap = torch.xlogy(target, target) - target * s.logits.log_softmax(1)
            return self.gamma * wmean(gap.sum(1), s.batch.w)

        return term

    def report(self, params: Params, client: Client) -> Params:
        return self.table().report(params, client)

    def merge(self, kept: Params, reports: Sequence[Params]) -> Params:
        return self.table().merge(kept, reports)


@dataclass(frozen=True)
class FedDistill(Distillation, FedAvg):
    traits: ClassVar[Traits] = FedAvg.traits._replace(
        needs=frozenset({Need.CLASSES, Need.SAME_ARCHITECTURE}), private_training=False
    )

    def terms(self) -> Regularisers:
        own = SoftLabels(**{f.name: getattr(self, f.name) for f in fields(Distillation)})
        return Regularisers((*self.regularisers, own))

    def reduces_to(self) -> str | None:
        return "With gamma = 0 this is FedAvg." if self.gamma == 0 else None
