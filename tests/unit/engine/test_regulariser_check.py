"""Regularisers that a method was given and does not use: refused before the run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from atoll import run
from atoll.config import Config
from atoll.core import Round
from atoll.core.batch import Step
from atoll.core.client import Client
from atoll.core.losses import Term, objective
from atoll.core.payloads import Nothing, Params
from atoll.core.prng import Key
from atoll.core.regularisers import Regulariser, Regularisers
from atoll.engine.setup import build_setup
from atoll.errors import AtollError
from atoll.methods import _registry
from atoll.methods.fedavg import FedAvg, Global, Update
from atoll.methods.feddw import DW
from atoll.methods.fedprox import Proximal

HOSTS = sorted(name for name, cls in _registry.methods().items() if hasattr(cls, "regularisers"))
SMALL: dict[str, Any] = {"clients": 3, "rows": 200, "partition": "iid"}
QUICK: dict[str, Any] = {**SMALL, "rounds": 2}

DEAF = """
from dataclasses import dataclass

from atoll.core import Client
from atoll.core import Key, Round
from atoll.methods.fedavg import FedAvg, Global, Update
from atoll.core import Nothing
from atoll.core.losses import objective


@dataclass(frozen=True)
class Deaf(FedAvg):
    def client_update(
        self, down: Global, state: Nothing, client: Client, r: Round, k: Key
    ) -> tuple[Update, Nothing]:
        params = self.optim.fit(objective(client.model), down.params, client, k)
        return Update(params, client.n, {}), state
"""


@pytest.mark.parametrize("term", ["proximal:mu=100", "dw"])
def test_overridden_client_update_without_regularisers_is_refused(term: str, tmp_path: Path) -> None:
    (tmp_path / "deaf.py").write_text(DEAF)
    name = term.partition(":")[0]

    with pytest.raises(AtollError) as caught:
        build_setup(Config(str(tmp_path / "deaf.py"), terms=(term,), **SMALL))

    said = f"Deaf does not use the regulariser {name}: its client_update() never calls bind()"
    assert str(caught.value).startswith(said)
    assert str(caught.value).endswith(f"leave out --with {name}.")
    build_setup(Config(str(tmp_path / "deaf.py"), **SMALL))  # the remedy works


@dataclass(frozen=True)
class Binding(FedAvg):
    """Binds each term by itself, and reports nothing."""

    def client_update(self, down: Global, state: Nothing, client: Client, r: Round, k: Key) -> tuple[Update, Nothing]:
        terms = [term.bind({"omega": torch.eye(client.num_classes)}, down.params, client) for term in self.terms()]
        return Update(self.optim.fit(objective(client.model, *terms), down.params, client, k), client.n, {}), state


def test_terms_that_are_bound_one_by_one_are_used() -> None:
    run(Binding(regularisers=Regularisers([Proximal(1.0)])), **QUICK)


def test_a_term_whose_report_is_forgotten_is_refused() -> None:
    with pytest.raises(AtollError, match=r"does not use the regulariser dw: its client_update\(\) never calls report"):
        run(Binding(regularisers=Regularisers([Proximal(1.0), DW(1.0)])), **QUICK)


@dataclass(frozen=True)
class OwnTerms(FedAvg):
    """Trains with a term of its own in place of those given."""

    def terms(self) -> Regularisers:
        return Regularisers([Proximal(1.0)])


def test_own_regulariser_of_a_method_does_not_replace_a_given_one() -> None:
    with pytest.raises(AtollError, match="OwnTerms does not use the regulariser lengths"):
        run(OwnTerms(regularisers=Regularisers([Lengths()])), **QUICK)


class Lengths(Regulariser):
    """No dataclass, and not hashable."""

    __hash__ = None  # type: ignore[assignment]

    def bind(self, sent: Params, anchor: Params, client: Client) -> Term:
        def term(s: Step) -> Tensor:
            return s.features.square().mean()

        return term


def test_any_class_of_regularisers_can_be_watched() -> None:
    run(FedAvg(regularisers=Regularisers([Lengths(), DW(0.5)])), **QUICK)


@pytest.mark.parametrize("name", HOSTS)
def test_methods_of_the_package_use_the_regularisers_they_take(name: str) -> None:
    own = {"fedprox": "proximal", "feduv": "uv", "feddw": "dw", "feddistill": "softlabels"}.get(name)
    terms = tuple(term for term in _registry.regularisers() if term != own)

    build_setup(Config(name, terms=terms, **SMALL))
