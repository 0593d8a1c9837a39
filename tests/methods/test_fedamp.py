"""FedAMP: mixtures of models by hand, the pull of clients, and a server that stores what changed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support import quadratics, small_runs, toy_models
from support.quadratics import w

from atoll.core.payloads import Nothing
from atoll.core.per_client import PerClient
from atoll.core.prng import key
from atoll.core.task import Reply, Round, Task
from atoll.engine.build import run_experiment
from atoll.errors import AtollError
from atoll.inference.models import open_run
from atoll.methods.fedamp import Cloud, FedAMP, Kept, Update
from atoll.methods.local import State
from atoll.storage import object_store
from atoll.storage.run_dir import RunDir

MODEL = quadratics.MODEL  # one weight, from 0
TASK = Task(MODEL, 1, ("a", "b", "c"), models=dict.fromkeys("abc", MODEL))


def one(value: float) -> dict[str, torch.Tensor]:
    return {quadratics.W: torch.tensor([[value]])}


def cloud(method: FedAMP, to: str, **models: float) -> float:
    kept = {i: Kept(one(value)) for i, value in models.items()}
    states = PerClient[Kept](kept.get, lambda: sorted(kept))
    return w(method.broadcast_from_all(Nothing(), states, to, TASK, Round(1), key(0)).params)


def test_mixture_of_two_models_by_hand() -> None:
    """||0 - 2||^2 = 4, sigma = 4: A' = exp(-1) / 4 = 0.091970, times alpha = 2: 0.183940. u_a = 0.367879,
    u_b = (1 - 0.183940) * 2 = 1.632121.
    """
    method = FedAMP(alpha=2.0, sigma=4.0)
    assert cloud(method, "a", a=0.0, b=2.0) == pytest.approx(0.367879, abs=1e-5)
    assert cloud(method, "b", a=0.0, b=2.0) == pytest.approx(1.632121, abs=1e-5)


def test_near_models_count_more_than_far_ones() -> None:
    """From 0, sigma = 4, alpha = 1: models at 1 and 4 have shares exp(-1/4) / 4 = 0.194700 and exp(-4) / 4 = 0.004579:
    u = 0.194700 + 4 * 0.004579 = 0.213016.
    """
    assert cloud(FedAMP(alpha=1.0, sigma=4.0), "a", a=0.0, b=1.0, c=4.0) == pytest.approx(0.213016, abs=1e-5)


def test_shares_that_exceed_one_are_scaled_to_one() -> None:
    """alpha = 100, sigma = 4: shares of far more than 1; models 1 and -1 are equally far from 0, so that u = 0."""
    assert cloud(FedAMP(alpha=100.0, sigma=4.0), "a", a=0.0, b=1.0, c=-1.0) == pytest.approx(0.0)
    assert cloud(FedAMP(alpha=100.0, sigma=4.0), "a", a=0.0, b=1.0) == pytest.approx(1.0)


def test_client_that_was_not_served_yet_counts_as_the_initial_model() -> None:
    """Nobody was served: u is the initial model, 0. With b at 2: as in the first test."""
    assert cloud(FedAMP(alpha=2.0, sigma=4.0), "a") == 0.0
    assert cloud(FedAMP(alpha=2.0, sigma=4.0), "a", b=2.0) == pytest.approx(0.367879, abs=1e-5)


def test_client_is_pulled_to_its_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    """(w - 2)^2 / 2 + lam / (2 alpha) (w - 0.5)^2 with lam = 1, alpha = 2 is least at (2 + 0.5 * 0.5) / 1.5 = 1.5."""
    quadratics.install(monkeypatch)
    method = FedAMP(quadratics.EXACT, lam=1.0, alpha=2.0)

    up, state = toy_models.participate(method, Cloud(one(0.5)), State(one(9.0)), quadratics.client(2.0), key(0))

    assert w(up.params) == pytest.approx(1.5, abs=1e-4)
    assert w(state.params) == w(up.params)


def test_server_keeps_the_model_and_aggregates_nothing() -> None:
    reply = Reply("a", Update(one(3.0)))
    nothing, kept = FedAMP().serve_client(Nothing(), Kept({}), reply, TASK, Round(0), key(0))
    assert type(nothing) is Nothing
    assert w(kept.params) == 3.0


def test_without_pull_it_is_local() -> None:
    assert small_runs.same_models(small_runs.made_with("fedamp", lam=0.0), small_runs.run("local"))
    assert not small_runs.same_models(small_runs.run("fedamp"), small_runs.run("local"))


def test_checkpoints_write_the_states_of_the_clients_of_the_round_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10 clients, of which 2 take part: a checkpoint adds at most 2 states of clients and 2 of the server.

    The first one also has the initial model, which is the measured model of all others.
    """
    monkeypatch.setattr(object_store, "SMALL", 0)  # a file for each object
    made = small_runs.setup("fedamp", clients=10, rate=0.2, rounds=4, checkpoint_every=1)
    seen, added = set[str](), list[int]()
    with RunDir(tmp_path) as run_dir:
        for rounds in range(1, 5):
            config = replace(made.config, rounds=rounds)
            run_dir.start(config, resume=rounds > 1, force=False)
            run_experiment(replace(made, config=config), run_dir)
            now = {path.name for path in (tmp_path / "objects").iterdir()}
            added.append(len(now - seen))
            seen |= now
    assert added[0] <= 5
    assert max(added[1:]) <= 4
    assert added[-1] >= 2


def test_saved_run_mixes_the_models_of_all_clients(tmp_path: Path) -> None:
    """The message for a client after the run, from the files, is that of the run in memory."""
    made = small_runs.setup("fedamp", rate=0.6)
    result = small_runs.resumed(made, tmp_path)
    saved = open_run(tmp_path)
    for i in made.pool.ids:
        x = made.pool.test[made.pool.position(i)].x
        assert torch.equal(saved.personal(i)(x), result.personal(i)(x))
        assert type(saved.source(i).download) is Cloud
        assert saved.source(i).download.params.keys() == made.pool.models[i].init().keys()


@pytest.mark.parametrize(
    ("settings", "said"), [({"lam": -1.0}, "lam is -1"), ({"sigma": 0.0}, "sigma is 0"), ({"alpha": 0.0}, "alpha is 0")]
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(AtollError, match=said):
        FedAMP(**settings)


def test_new_clients_are_told_why_they_cannot_join() -> None:
    assert "has none of a new client" in str(FedAMP().why_closed())
