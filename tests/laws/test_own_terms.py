"""What a method adds to the loss of the data acts at its defaults."""

import sys
from collections.abc import Iterator, Set
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest
import torch

from atoll.clients.dry_run import Exchange, Meter, dry_run
from atoll.config import Config
from atoll.core.batch import Batch
from atoll.core.losses import Loss, objective
from atoll.core.optim.base import Optimiser, Slope, gradient
from atoll.core.params import weights
from atoll.core.payloads import Nothing, Params
from atoll.core.task import Round
from atoll.engine.setup import Setup, build_setup
from atoll.methods import _registry
from benchmarks.digests import short_options

LEAST = 0.01  # of the gradient of the data's loss
AVERAGES = "clients train by the loss of the data; the server's aggregation is the method's own"
PARTS = (
    "clients train by the loss of the data; which model or part of it they train, and from where, is the method's own"
)
WITHOUT_TERM = {
    "apfl": PARTS, "fedadagrad": AVERAGES, "fedadam": AVERAGES, "fedala": PARTS, "fedavg": AVERAGES, "fedavg_ft": PARTS,
    "fedavgm": AVERAGES, "fedbabu": PARTS, "fedbn": PARTS, "feddf": AVERAGES, "fedgh": PARTS, "fednova": AVERAGES,
    "fedper": PARTS, "fedrep": PARTS, "fedyogi": AVERAGES, "ifca": PARTS, "lgfedavg": PARTS, "local": AVERAGES,
}  # fmt: skip
SMALL = {"feddw": "less than 1 % of the gradient"}  # what the method's own text says
DISTILS = {"fedmd": "digest", "ktpfl": "distil"}  # the optimiser of training on public rows
OFF: dict[str, dict[str, float]] = {  # several models, or parts of one, are trained in turn: settings without the terms
    "fedapen": {"kl_weight": 0.0, "ensemble_weight": 0.0}, "fedkd": {"kl_weight": 0.0, "hidden_weight": 0.0},
    "fedpac": {"lam": 0.0}, "fml": {"alpha": 1.0, "beta": 1.0},
}  # fmt: skip
IN_THE_LOSS = sorted(_registry.methods().keys() - WITHOUT_TERM.keys() - SMALL.keys() - DISTILS.keys() - OFF.keys())


def set_up(name: str) -> Setup:
    """Build a federation of three clients, with the method at its defaults."""
    needed = {option: value for option, value in short_options(name).items() if option != "settings"}
    return build_setup(Config(name, rows=300, clients=3, partition="dirichlet:0.5", backend="loop", **needed))


def play(made: Setup, rounds: int, meter: Meter = lambda r, client, work: nullcontext()) -> list[Exchange]:
    clients = {i: made.pool.client(i) for i in made.pool.ids}
    return list(dry_run(made.method, made.pool, 0, rounds, cohort=3, clients=clients, meter=meter))


def trained_models(made: Setup, t: int) -> list[Params]:
    """Return the models of all clients after round ``t``, from their states or, if they keep none, their uploads."""
    payloads: list[Any] = [
        e.upload if isinstance(e.state, Nothing) else e.state for e in play(made, t + 1) if e.round.t == t
    ]
    return [payload.params for payload in payloads if hasattr(payload, "params")]


def norm(values: Params) -> float:
    return float(torch.stack([v.norm() for v in values.values()]).norm())


def shares(made: Setup, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return |g - g'| / |g'| for every step of clients in three rounds, without steps that have no term.

    g is the gradient that a step follows, g' that of the loss of the data, both of the client's own model.
    """
    found: list[float] = []
    at_work: list[tuple[Loss, Set[str]]] = []
    real, follow = Optimiser._slope, Optimiser._follow

    def watched(self: Optimiser, loss: Loss, params: Params, batch: Batch) -> Slope:
        slope = real(self, loss, params, batch)
        if at_work and batch.y.ndim == 1 and not batch.y.is_floating_point():
            compare(slope.grads, params, batch)
        return slope

    def compare(grads: Params, params: Params, batch: Batch) -> None:
        loss, names = at_work[-1]
        if names <= grads.keys():  # else other weights than all of the client's model are trained
            plain, _ = gradient(loss, params, batch)
            found.append(norm({name: grads[name] - plain[name] for name in names}) / norm({n: plain[n] for n in names}))

    def corrected(self: Optimiser, loss: Loss, params: Params, batches: Any, correct: Any, memory: Any) -> Any:
        def change(grads: Params) -> Params:
            out: Params = correct(grads)
            found.append(norm({name: out[name] - grads[name] for name in grads}) / norm(grads))
            return out

        return follow(self, loss, params, batches, change if correct else None, memory)

    @contextmanager
    def meter(r: Round, client: str | None, work: str) -> Iterator[None]:
        if client is not None:
            held = made.pool.client(client)
            at_work.append((objective(held.model, data_loss=held.problem.loss), weights(held.model.init()).keys()))
        yield
        at_work.clear()

    monkeypatch.setattr(Optimiser, "_slope", watched)
    monkeypatch.setattr(Optimiser, "_follow", corrected)
    play(made, 3, meter)
    return [share for share in found if share > 0]


@pytest.mark.promise(
    "Results", "What a method adds to the loss is over 1 % of the gradient at its defaults, or says why."
)
@pytest.mark.parametrize("name", IN_THE_LOSS)
def test_own_term_is_more_than_a_hundredth_of_the_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fmean(shares(set_up(name), monkeypatch)) > LEAST


@pytest.mark.parametrize("name", sorted(WITHOUT_TERM))
def test_methods_listed_without_a_term_follow_the_loss_of_the_data(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shares(set_up(name), monkeypatch) == []


@pytest.mark.parametrize("name", sorted(SMALL))
def test_terms_listed_as_small_are_small_and_say_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert SMALL[name] in " ".join((sys.modules[_registry.methods()[name].__module__].__doc__ or "").split())
    assert 0.0 < fmean(shares(set_up(name), monkeypatch)) <= LEAST


@pytest.mark.parametrize("name", sorted(DISTILS))
def test_training_on_public_rows_moves_models(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By more than a hundredth of the way of private training, in the last of three rounds."""
    made = set_up(name)
    moved: dict[Optimiser, float] = {}
    follow = Optimiser._follow

    def watched(self: Optimiser, loss: Loss, params: Params, *rest: Any) -> Any:
        trained = follow(self, loss, params, *rest)
        moved[self] = norm({name: trained.params[name] - v for name, v in params.items()})
        return trained

    monkeypatch.setattr(Optimiser, "_follow", watched)
    play(made, 3)

    assert moved[getattr(made.method, DISTILS[name])] > LEAST * moved[made.method.optim]


@pytest.mark.parametrize("name", sorted(OFF))
def test_training_without_the_own_terms_ends_elsewhere(name: str) -> None:
    """By more than a hundredth of the way of the second round, the first in which FedPAC has class means."""
    made = set_up(name)
    without = replace(made, method=replace(made.method, **OFF[name]))

    first, second = (trained_models(without, t) for t in (0, 1))
    acting = trained_models(made, 1)

    for before, plain, own in zip(first, second, acting, strict=True):
        way, change = ({n: x[n] - plain[n] for n in plain} for x in (before, own))
        assert norm(change) > LEAST * norm(way)
