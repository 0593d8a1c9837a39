"""FedDW. Liu et al., arXiv 2024, Algorithm 1. https://arxiv.org/abs/2412.04521

client:  theta_k = argmin CE + mu / C^2 ||Omega - A(omega)||_F^2, A = rowsoftmax(omega omega^T)         eqs. (11)-(12)
         up: theta_k;  for each class the sum of its predictions (soft labels), and its samples        eqs. (4)-(6)
server:  theta = sum_k n_k theta_k / sum_k n_k;  Omega[c] = mean soft label of class c over clients    eqs. (7)-(8)

Section IV-B writes the term as ||Omega - A^T A||_F^2, another function (form ata; ata_linear is its eq. (30) around the
A that training starts from); the bound in eq. (18) and the released code agree with eq. (11), the default.
Omega starts as the identity, which the paper leaves open, and a class nobody held keeps its row.
The paper removes the bias of the last layer; its code does not.
The term, a mean over pairs of classes, is less than 1 % of the gradient of CE at mu = 1, and a tenth of that at the
paper's 0.1 (variant paper). Stronger terms lowered accuracy on validation samples (papers/feddw/RESULTS.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..aggregation.fixed_point import total as total_of
from ..aggregation.policy import policy_of
from ..core import (
    Client,
    Need,
    Params,
    Regulariser,
    Regularisers,
    Role,
    Step,
    Task,
    Term,
    Traits,
    one_of,
    setting,
    within,
)
from .fedavg import FedAvg


@dataclass(frozen=True)
class Relation:
    """Settings that DW and FedDW share."""

    mu: float = setting(
        1.0, "strength of the term", "search of papers/feddw/claim.yaml; paper: 0.1 for CIFAR-10, 10 for 100 classes"
    )
    form: str = setting("eq11", "the term: eq11, ata or ata_linear", "paper")
    bias_free_head: bool = setting(True, "the last layer has no bias", "paper; false in the released code")
    sl_memory: str = setting("round", "soft labels count for one round, or for all", "paper; all in the released code")
    sl_ema: float = setting(0.0, "share of the old Omega that is kept", "paper; 0.5 in the released code")
    mu_decay: int = setting(0, "divide mu by 10 every so many rounds; 0: never", "paper; 9 in the released code")
    absent_row: str = setting(
        "keep", "row of a class without samples in a round: keep, eye or mask", "chosen here; eye in the code"
    )

    def __post_init__(self) -> None:
        within(self, 0, "mu", "mu_decay")
        within(self, 0, "sl_ema", high=1)
        one_of(self, "form", ("eq11", "ata", "ata_linear"))
        one_of(self, "sl_memory", ("round", "all"))
        one_of(self, "absent_row", ("keep", "eye", "mask"))


@dataclass(frozen=True)
class DW(Relation, Regulariser):
    """mu / C^2 ||Omega - rowsoftmax(omega omega^T)||_F^2; down: Omega; up: sums of soft labels and counts."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.CLASSES, Need.SEPARATE_HEAD})
    # Rows of soft labels sum to the counts of their classes.
    marks: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "sum": {"role": Role.CLASS_TABLE, "probabilities": "count"},
        "count": {"role": Role.COUNT, "count": True},
    }

    def start(self, task: Task) -> Params:
        c = task.num_classes
        # A row of zeros is no target.
        kept = {"omega": torch.zeros(c, c) if self.absent_row == "mask" else torch.eye(c)}
        if self.sl_memory == "all":
            kept |= {"sum": torch.zeros(c, c), "count": torch.zeros(c)}
        if self.mu_decay:
            kept |= {"round": torch.ones(()), "mu": torch.tensor(self._strength(1))}
        return kept

    def send(self, kept: Params) -> Params:
        return {name: kept[name] for name in ("omega", "mu") if name in kept}

    def bind(self, sent: Params, anchor: Params, client: Client) -> Term:
        omega, mu = sent["omega"], sent.get("mu", self.mu)
        known, a0 = omega.sum(1, keepdim=True) > 0, relation(anchor)

        def term(s: Step) -> Tensor:
            a = relation(s.params)
            if self.form == "eq11":
                return mu * ((omega - a) * known).square().mean()
            square = a.T @ a if self.form == "ata" else a0.T @ a + a.T @ a0 - a0.T @ a0
            return mu * ((omega - square) * known).square().sum()

        return term

    def report(self, params: Params, client: Client) -> Params:
        member = client.members()
        return {"sum": member.T @ client.model(params, client.x).softmax(1), "count": member.sum(0)}

    def merge(self, kept: Params, reports: Sequence[Params]) -> Params:
        total, count = (total_of((r[name] for r in reports), policy_of(reports).fixed) for name in ("sum", "count"))
        merged = dict(kept)
        if self.sl_memory == "all":
            total, count = total + kept["sum"], count + kept["count"]
            merged |= {"sum": total.float(), "count": count.float()}
        merged["omega"] = self._omega(kept["omega"], total, count[:, None])
        if self.mu_decay:
            merged["round"] = kept["round"] + 1
            merged["mu"] = torch.tensor(self._strength(int(merged["round"])))
        return merged

    def _omega(self, old: Tensor, total: Tensor, count: Tensor) -> Tensor:
        absent = {"keep": old, "eye": torch.eye(len(old)), "mask": torch.zeros_like(old)}[self.absent_row]
        fresh = torch.where(count > 0, total / count.clamp(min=1), absent)
        share = self.sl_ema * ((old.sum(1, keepdim=True) > 0) & (fresh.sum(1, keepdim=True) > 0))
        return ((1 - share) * fresh + share * old).float()

    def _strength(self, t: int) -> float:
        """Return mu in round ``t``, counted from 1."""
        return self.mu / 10.0 ** (t // self.mu_decay)


@dataclass(frozen=True)
class FedDW(Relation, FedAvg):
    traits: ClassVar[Traits] = FedAvg.traits._replace(
        needs=frozenset({Need.CLASSES, Need.SAME_ARCHITECTURE, Need.SEPARATE_HEAD}),
        private_training=False,
        variants={"paper": {"mu": 0.1}},
    )

    def terms(self) -> Regularisers:
        own = DW(**{f.name: getattr(self, f.name) for f in fields(Relation)})
        return Regularisers((*self.regularisers, own))

    def reduces_to(self) -> str | None:
        return "With mu = 0 this is FedAvg (with a head without bias)." if self.mu == 0 else None


def relation(params: Params) -> Tensor:
    """Return A(omega), the class-relation matrix of the last layer."""
    omega = params["head.weight"]
    return (omega @ omega.T).softmax(1)
