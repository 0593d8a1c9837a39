"""Checkpoints between rounds: what is saved when, and what a round that breaks off leaves behind."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from atoll.clients.model_store import ModelStore
from atoll.clients.run_stores import RunStores
from atoll.clients.state_store import MemoryStore
from atoll.core.contract import Contract, Messages
from atoll.core.payloads import Nothing, about, payload
from atoll.engine.checkpoint_schedule import CheckpointSchedule
from atoll.engine.resume import Checkpointing, Progress
from atoll.engine.run_state import RunState
from atoll.errors import AtollError
from atoll.storage.checkpoint import Checkpoints


@payload
class Number:
    v: Tensor = about("a number")


def number(v: float) -> Number:
    return Number(torch.tensor(v))


class Counter:
    """Counts rounds, and continues where a checkpoint says."""

    def __init__(self) -> None:
        self.count = 0

    def to_json(self) -> Any:
        return self.count

    def take_over(self, stored: Any) -> None:
        self.count = stored or 0


class Parts:
    """A run of one client whose state, and the server's, is the number of the round."""

    def __init__(self, folder: Path | None, every: int = 1, federation: str = "data"):
        types = Contract((Messages(Number, Number),), state=Number, server=Number, per_client=Nothing)
        states, self.counter, self.saves = MemoryStore(), Counter(), list[int]()
        self.stores = RunStores(states, MemoryStore(), ModelStore(states, types))
        self.progress = Progress(number(0))
        self.made = Checkpointing(
            self.stores,
            {"counter": self.counter},
            checkpoints=None if folder is None else Checkpoints(folder, types),
            federation=federation,
            schedule=CheckpointSchedule(every),
            before_save=lambda: self.saves.append(self.progress.run_state.round),
        )

    def half_a_round(self) -> None:
        self.made.open_round(self.progress)
        done = self.progress.run_state.round + 1
        self.progress.server = number(done)
        self.progress.changed.add("a")
        self.progress.run_state.totals.up += 1
        self.stores.clients.put("a", number(done))
        self.counter.count += 1

    def round(self) -> None:
        self.half_a_round()
        self.made.close_round(self.progress)

    def load(self, rounds: int = 9) -> Progress | None:
        return self.made.load(rounds, warn=lambda text: None)


def test_checkpoint_is_saved_after_every_second_round(tmp_path: Path) -> None:
    parts = Parts(tmp_path, every=2)
    for _ in range(5):
        parts.round()

    assert parts.saves == [2, 4]
    parts.made.finish(parts.progress)
    assert parts.saves == [2, 4, 5]


def test_resumed_run_has_states_totals_and_extras_of_the_last_checkpoint(tmp_path: Path) -> None:
    first = Parts(tmp_path)
    for _ in range(3):
        first.round()
    heir = Parts(tmp_path)
    found = heir.load()

    assert found is not None
    assert (found.run_state.round, found.run_state.totals.up) == (3, 3)
    assert float(found.server.v) == float(heir.stores.clients.get("a").v) == 3  # type: ignore[union-attr]
    assert heir.counter.count == 3


def test_round_that_breaks_off_is_forgotten_and_the_last_whole_one_saved(tmp_path: Path) -> None:
    parts = Parts(tmp_path, every=9)
    parts.round()
    parts.half_a_round()
    progress = parts.made.roll_back(parts.progress)

    assert (progress.run_state.round, progress.run_state.totals.up, float(progress.server.v)) == (1, 1, 1)
    heir = Parts(tmp_path)
    found = heir.load()
    assert found is not None
    assert float(heir.stores.clients.get("a").v) == 1  # type: ignore[union-attr]
    assert heir.counter.count == 1


def test_run_in_memory_saves_nothing() -> None:
    parts = Parts(None)
    parts.round()
    parts.made.finish(parts.progress)

    assert parts.saves == []
    assert parts.load() is None


def test_run_with_more_rounds_than_asked_for_is_refused(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    for _ in range(3):
        parts.round()
    with pytest.raises(AtollError, match=r"has done 3 rounds already. Give --rounds 3 or more"):
        Parts(tmp_path).load(rounds=2)


def test_run_on_other_data_is_refused(tmp_path: Path) -> None:
    Parts(tmp_path).round()
    with pytest.raises(AtollError, match="the data are not what they were"):
        Parts(tmp_path, federation="others").load()


def test_early_end_is_dropped_and_its_rejections_go_to_the_next_line() -> None:
    lines: list[Any] = [{"round": 2, "rejected": ["x"]}, {"round": 3, "rejected": ["y"], "dropped": ["z"]}]
    run_state = RunState(round=3, lines=lines, rejected=["w"])
    run_state.drop_early_end(lambda t: (t + 1) % 2 == 0)

    assert [line["round"] for line in run_state.lines] == [2]
    assert run_state.rejected == ["y", "w"]
    assert run_state.dropped == ["z"]
