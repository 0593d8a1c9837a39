"""Save checkpoints of a run, resume from the latest one, and roll back an interrupted round."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from ..clients.run_stores import RunStores
from ..clients.server_side import ClientServers
from ..core.payloads import Payload
from ..errors import AtollError
from ..simulation.topology import Neighbours
from ..storage.checkpoint import Checkpoints, Snapshot
from ..storage.run_dir import from_parquet, to_parquet
from ..typing import ClientId
from ..utils.signals import uninterrupted
from .checkpoint_schedule import CheckpointSchedule
from .generic_model import KeptServer, kept_round
from .run_state import RunState, from_json


class Resumable(Protocol):
    """A part of a run with a state of its own, which is an entry of every checkpoint."""

    def to_json(self) -> Any:
        """Return the state as JSON values. Called after every round, so the state should be small."""
        ...

    def take_over(self, stored: Any) -> None:
        """Continue from a stored state; None without a checkpoint, or if the checkpoint has no such entry."""
        ...


@dataclass
class Progress:
    """The state of a run after a round, apart from the states in the stores.

    Args:
        server: the server's state, or the ``ClientServers`` of a run without a server.
        run_state: totals, scores and lines of metrics.
        changed: clients with states that are newer than the last checkpoint.
        versions: earlier states of the server, by the number of aggregations done, that clients at work started from.
        generic: the state of the server whose model was best by validation, if that is to be kept.
    """

    server: Any
    run_state: RunState = field(default_factory=RunState)
    changed: set[ClientId] = field(default_factory=set)
    versions: dict[int, Payload] = field(default_factory=dict)
    generic: KeptServer | None = None

    def begin_round(self) -> "Progress":
        """Return the progress as it is now, to go back to by :meth:`undo_round`."""
        return Progress(self.server, self.run_state.begin_round(), set(self.changed), dict(self.versions), self.generic)

    def undo_round(self) -> None:
        """Make this the progress again that :meth:`begin_round` returned."""
        self.run_state.undo_round()


class Checkpointing:
    """Saves a run after whole rounds, and restores it to the end of a whole round.

    Args:
        stores: states of the clients.
        extras: further parts with a state of their own, by the names of their entries in checkpoints.
        checkpoints: writes and reads checkpoints; None for a run in memory.
        federation: name of the data of the run; a checkpoint of other data is refused.
        schedule: decides after which rounds a checkpoint is written.
        neighbours: neighbours of each client in a run without a server.
        before_save: called before a checkpoint is written, to flush the files that the checkpoint refers to.
    """

    def __init__(
        self,
        stores: RunStores,
        extras: Mapping[str, Resumable],
        *,
        checkpoints: Checkpoints | None = None,
        federation: str = "",
        schedule: CheckpointSchedule | None = None,
        neighbours: Neighbours | None = None,
        before_save: Callable[[], None] = lambda: None,
    ):
        self.extras = dict(extras)
        self._stores = stores
        self._checkpoints = checkpoints
        self._federation = federation
        self._schedule = schedule or CheckpointSchedule(1)
        self._neighbours = neighbours
        self._before_save = before_save
        self._entries: dict[str, Any] = {}  # of the extras, after the last whole round
        self._objects: dict[ClientId, str] = {}  # name of each client's state in the last checkpoint
        self._per_client_objects: dict[ClientId, str] = {}
        self._saved = 0  # the round of the last checkpoint
        self._encoded: tuple[list[pa.Table], bytes] | None = None  # tables of clients, and their bytes
        self._open: Progress | None = None  # progress before the current round; None between rounds

    def load(self, rounds: int, warn: Callable[[str], None]) -> Progress | None:
        """Restore the latest checkpoint, including stores and extras.

        Args:
            rounds: number of rounds of the run.
            warn: receives a sentence on each damaged checkpoint that is skipped.

        Returns:
            The progress at the checkpoint, or None if there is none.

        Raises:
            AtollError: the run has more rounds already, or its data have changed.
        """
        if self._checkpoints is None:
            return None
        found = self._checkpoints.load(warn)
        if found is not None:
            self._check_resumable(found, rounds)
            self._entries = found.progress["entries"]
        for name, extra in self.extras.items():
            extra.take_over(self._entries.get(name))
        self._stores.clear()  # The disk may hold states of rounds after the last checkpoint.
        return None if found is None else self._restore(self._checkpoints, found)

    def _check_resumable(self, found: Snapshot, rounds: int) -> None:
        assert self._checkpoints is not None
        where = str(self._checkpoints.run_dir)
        if found.round > rounds:
            raise AtollError(
                f"The run in {where!r} has done {found.round} rounds already. Give --rounds {found.round} or more."
            )
        if found.progress["federation"] != self._federation:
            raise AtollError(
                f"Cannot resume {where!r}: the data are not what they were when it began. "
                "Bring them back, or start again with --force, which replaces the run."
            )

    def _restore(self, checkpoints: Checkpoints, found: Snapshot) -> Progress:
        self._saved = found.round
        self._schedule.restart(found.round)
        self._objects = found.states
        self._per_client_objects = found.per_client_states
        for i, name in found.states.items():
            self._stores.clients.put(i, checkpoints.get_state(name))
        for i, name in found.per_client_states.items():
            self._stores.server_side.put(i, checkpoints.get_per_client(name))
        self._stores.commit()
        self._stores.models.take_over(found.models)
        run_state = from_json(found.round, found.progress["run_state"], found.scores, from_parquet(found.rows))
        further = {name: checkpoints.get_server(held) for name, held in found.servers.items()}
        if self._neighbours is not None:
            return Progress(ClientServers(further, self._neighbours), run_state)
        rounds = {name: kept_round(name) for name in further}
        kept = next((KeptServer(round, further[name]) for name, round in rounds.items() if round is not None), None)
        versions = {int(name): further[name] for name, round in rounds.items() if round is None}
        return Progress(found.server, run_state, versions=versions, generic=kept)

    def open_round(self, progress: Progress) -> None:
        """Remember the progress before a round, for a rollback."""
        self._open = progress.begin_round()

    def close_round(self, progress: Progress) -> None:
        """Commit the current round, and save a checkpoint if one is due."""
        with uninterrupted():
            progress.run_state.round += 1
            self._open = None
            self._entries = {name: extra.to_json() for name, extra in self.extras.items()}
            self._stores.commit()
            if self._schedule.is_due(progress.run_state.round):
                self._save(progress)

    def roll_back(self, progress: Progress) -> Progress:
        """Discard the current round, save the last whole one, and return the progress after it."""
        with uninterrupted():
            if self._open is not None:
                progress = self._open
                progress.undo_round()
                self._stores.rollback()
            if self._saved < progress.run_state.round:
                self._save(progress)
        return progress

    def finish(self, progress: Progress) -> None:
        """Save the end of a run, or remove leftovers of an earlier process if the end is saved already."""
        if self._saved < progress.run_state.round:
            self._save(progress)
        elif self._checkpoints is not None:
            self._checkpoints.tidy(progress.run_state.round)

    def _save(self, progress: Progress) -> None:
        if self._checkpoints is None:
            progress.changed.clear()
            return
        for store, objects in (
            (self._stores.clients, self._objects),
            (self._stores.server_side, self._per_client_objects),
        ):
            changed = ((i, store.get(i)) for i in sorted(progress.changed))
            objects |= {i: self._checkpoints.put_state(state) for i, state in changed if state is not None}
        progress.changed.clear()
        run_state, server = progress.run_state, progress.server
        further = {str(version): state for version, state in progress.versions.items()}
        if progress.generic is not None:
            further[progress.generic.name] = progress.generic.state
        if isinstance(server, ClientServers):
            further = dict(server.states)
            server = next(iter(further.values()))
        self._before_save()
        self._checkpoints.save(
            Snapshot(
                round=run_state.round,
                server=server,
                states=dict(self._objects),
                progress={
                    "run_state": run_state.to_json(),
                    "federation": self._federation,
                    "entries": self._entries,
                },
                rows=self._encode_rows(run_state),
                scores={name: table.columns() for name, table in run_state.score_tables().items()},
                per_client_states=dict(self._per_client_objects),
                servers={name: self._checkpoints.put_state(state) for name, state in further.items()},
                models=self._stores.models.to_json(self._checkpoints.put_state, self._objects),
            )
        )
        self._saved = run_state.round
        self._schedule.restart(run_state.round)

    def _encode_rows(self, run_state: RunState) -> bytes:
        """Return the table of clients as Parquet, from the last checkpoint if no evaluation came since."""
        tables = [id(rows) for rows in run_state.rows]
        if self._encoded is None or [id(rows) for rows in self._encoded[0]] != tables:
            self._encoded = list(run_state.rows), to_parquet(run_state.table())
        return self._encoded[1]
