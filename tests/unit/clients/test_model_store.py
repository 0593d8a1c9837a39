"""The store of measured models: which rounds are kept, and what is written."""

from pathlib import Path
from typing import Any

import pytest
from support import small_runs

from atoll.clients.kept_rounds import KeptRounds
from atoll.clients.model_store import ModelStore
from atoll.engine.build import run_experiment
from atoll.errors import AtollError
from atoll.storage.run_dir import RunDir


@pytest.mark.parametrize(
    ("rounds", "which", "number"),
    [
        (KeptRounds(9, 4, 4), "best", 4),
        (KeptRounds(9, 4, 4), "last", 9),
        (KeptRounds(9, 4, 4), 4, 4),
        (KeptRounds(9, 4, 4), "9", 9),
        (KeptRounds(9, 4, 9), "best", 9),  # The last round is the best one, and the copy is that of the best before it.
        (KeptRounds(9), "best", 9),  # There are no validation rows.
    ],
)
def test_words_and_numbers_stand_for_kept_rounds(rounds: KeptRounds, which: str | int, number: int) -> None:
    assert rounds.number(which) == number


@pytest.mark.parametrize(("which", "said"), [(5, "round 9 .last. and 4 .best by validation."), ("x", "must be best")])
def test_other_rounds_are_refused(which: str | int, said: str) -> None:
    with pytest.raises(AtollError, match=said):
        KeptRounds(9, 4, 4).number(which)


@pytest.mark.parametrize(("method", "most"), [("ditto", 6), ("fedavg", 7), ("fedproto", 7)])
def test_models_on_disk_are_written_once_for_trained_clients_and_shared_by_the_others(
    method: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """30 clients, of which 2 take part in each of 3 rounds: at most 6 trained models, and one for all others."""
    written: list[Any] = []
    real = ModelStore._write
    monkeypatch.setattr(ModelStore, "_write", lambda self, *model: written.append(model) or real(self, *model))
    made = small_runs.setup(
        method, clients=30, partition="iid", rate=0.067, rounds=3, eval_every=1, store="disk", checkpoint_every=99
    )
    with RunDir(tmp_path) as folder:
        run_experiment(made, folder)
    assert 1 <= len(written) <= most
    assert not (tmp_path / "models").exists()


def test_models_in_memory_never_exceed_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 clients that all train, with room for 5 of their models of 3 rounds: what is in memory is looked at after
    every model that comes in."""
    room, most = 5 * 4 * (64 * 64 + 64 + 64 * 10 + 10), list[int]()
    monkeypatch.setattr("atoll.engine.build.ROOM", room)
    real = ModelStore.put

    def watched(self: ModelStore, i: str, model: Any) -> None:
        real(self, i, model)
        held = {id(m): m for m in (*self._best.values(), *self._last.values(), *self._drafts.values())}
        most.append(sum(m.size for m in held.values() if m.payloads is not None))

    monkeypatch.setattr(ModelStore, "put", watched)
    made = small_runs.setup("fedavg", clients=40, partition="iid", rounds=3, eval_every=1, models=("mlp:hidden=64",))

    run_experiment(made)

    assert len(most) == 40 * 3
    assert 0 < max(most) <= room
