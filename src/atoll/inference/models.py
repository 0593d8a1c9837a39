"""Open the trained models of a run from its directory."""

import copy
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..clients import method_calls
from ..clients.measured_model import ModelSource, PersonalModel, model_from_source, rebuild_model
from ..clients.model_store import ModelStore
from ..clients.personal_module import to_module
from ..clients.pool import ClientPool
from ..clients.server_side import ClientServers, ServerSideStates
from ..clients.state_store import MemoryStore
from ..config import Config, from_dict, read_yaml
from ..core.contract import contract
from ..core.hooks import PredictsOtherwise
from ..core.method import AnyMethod
from ..core.model import Predictor
from ..core.payloads import Params, Payload
from ..core.prng import key
from ..core.task import Round
from ..data.dataset import Array, Dataset
from ..data.federated_dataset import FederatedDataset
from ..data.tables.columns import recode
from ..data.tables.preparation import Preparation
from ..data.tables.preparations import PREPARATION, Preparations, read_preparations
from ..data.transforms import Transform, preset
from ..engine.generic_model import KeptServer, kept_round, server_of_round
from ..engine.setup import Setup, build_setup
from ..errors import AtollError, unknown
from ..storage.checkpoint import Checkpoints, Snapshot
from ..typing import ClientId
from .raw_rows import check_raw_rows


class TrainedModels(ABC):
    """The trained models of clients.

    Example:
        >>> run = atoll.open_run("runs/fedavg")
        >>> logits = run.personal("0")(run.prepared(rows, "0"))
    """

    config: Config
    method: AnyMethod
    pool: ClientPool
    federation: FederatedDataset  # raw rows of the clients
    transform: Transform  # preparation of images
    preparations: Preparations  # preparation of tables and texts
    round: int  # rounds completed
    model_round: int  # the round whose models these are
    is_measured: bool = True  # whether these are the models whose scores are in the tables

    @abstractmethod
    def source(self, i: ClientId) -> ModelSource:
        """Return the payloads that determine the model of client ``i``."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.config.label}: {len(self.clients)} models of round {self.model_round}>"

    @property
    def data(self) -> Dataset:
        """Return the data set of the clients."""
        return self.federation.dataset

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """Return the names of the clients."""
        return self.pool.ids

    def client(self, name: str | None) -> ClientId:
        """Return the client called ``name``, or the only client if ``name`` is None."""
        if name is None and len(self.clients) == 1:
            return self.clients[0]
        if name is None:
            raise AtollError(f"Choose a client: --client with one of {', '.join(self.clients)}.")
        if name not in self.clients:
            raise unknown("client", name, self.clients)
        return name

    def personal(self, i: ClientId | int) -> nn.Module:
        """Return the personal model of client ``i``: a module from prepared inputs to logits, or to numbers."""
        name = self.client(str(i))
        return to_module(self.method, self.model(name), self.pool.models[name], self.pool.problem)

    def params(self, i: ClientId) -> Params:
        """Return the weights of the personal model of client ``i``."""
        return self.model(i).params

    def model(self, i: ClientId) -> PersonalModel:
        """Return the personal model of client ``i``."""
        return model_from_source(self.method, self.source(i))

    def module(self, i: ClientId) -> nn.Module:
        """Return the personal model of client ``i``, if it is a single network, as other programs need it.

        Raises:
            AtollError: the method does not predict by a single model.
        """
        if isinstance(self.method, PredictsOtherwise):
            raise AtollError(
                f"A client of {type(self.method).__name__} does not predict by its own model alone, so there is no "
                "single model to export. Use `atoll predict`, which predicts as the method does."
            )
        return self.personal(i)

    def preparation(self, i: ClientId) -> Preparation | None:
        """Return the preparation of raw rows of a table or a text for client ``i``; None for other rows."""
        return self.preparations.by_client[self.client(i)] if self.preparations else None

    def prepared(self, rows: Array, i: ClientId | None = None) -> Tensor:
        """Prepare raw rows for the models.

        Args:
            rows: images as bytes, token ids, or rows of a table: numbers in the unit of the file, positions in the
                levels of ``preparation(i)`` for categories, NaN for empty cells.
            i: the client whose model reads them, if clients prepare rows differently.

        Raises:
            AtollError: the rows have another form, type or scale than those that the models were trained on.
        """
        check_raw_rows(rows, self.data, self.preparation(self._prepares_for(i)) if self.preparations else None)
        if self.preparations:
            rows = self.preparations.by_client[self._prepares_for(i)].apply(rows)
        return self.transform.prepare(rows)

    def test_rows(self, i: ClientId) -> tuple[Tensor, Tensor]:
        """Return raw and prepared test rows of a client, or its training rows if it has no test rows."""
        at, preparation = self.pool.position(i), self.preparation(i)
        tested = self.pool.test.size(at) > 0
        raw = self.federation.rows((self.federation.test if tested else self.federation.train)[at])
        if preparation is not None:
            raw = recode(raw, self.data.columns, preparation.raw_columns)
        return torch.from_numpy(raw), (self.pool.test if tested else self.pool.train)[at].x

    def _prepares_for(self, i: ClientId | None) -> ClientId:
        return self.clients[0] if i is None and self.preparations.common is not None else self.client(i)


class SavedRun(TrainedModels):
    """The personal models of a run whose scores are in its tables.

    A run with ``--keep-models no`` has no such models; these are then the models after the last download, before local
    training.

    Args:
        path: the run directory.
        setup: configuration, method, data and clients.
        found: the latest checkpoint.
        which: ``best`` for the round that validation chose, ``last``, or the number of one of these rounds.

    Raises:
        AtollError: the models of that round are not kept.
    """

    def __init__(self, path: Path, setup: Setup, found: Snapshot, which: str | int = "best"):
        self.path = path
        self.setup = setup
        self.federation = setup.federation
        self.config = setup.config
        self.method = setup.method
        self.pool = setup.pool
        self.transform = preset(self.config.transform, self.data.name, self.data.shape)
        self.preparations = _read_preparations(path, setup)
        self.round = found.round
        self.server = found.server
        kept = _checkpoints(path, setup)
        self._which = which
        self._models = ModelStore(MemoryStore(), contract(setup.method), read_object=kept.get)
        self._models.take_over(found.models)
        self.is_measured = self._models.rounds.last > 0
        self.model_round = self._models.rounds.number(which) if self.is_measured else found.round
        if setup.neighbours is not None:
            states = {i: kept.get_server(name) for i, name in found.servers.items()}
            self.server = ClientServers(states, setup.neighbours)
        rounds = {name: kept_round(name) for name in found.servers}
        self._kept_server = next(
            (KeptServer(t, kept.get_server(found.servers[name])) for name, t in rounds.items() if t is not None), None
        )
        self._lines = found.progress["run_state"]["lines"]
        self.states = found.states
        self.per_client_states = found.per_client_states

    def generic(self, round: str | int | None = None) -> Predictor | None:
        """Return the server's model whose score is in the tables, or None if the method has none.

        Args:
            round: ``best`` for the round in which this model had the best validation score, ``last``, or the number of
                one of these rounds; None for ``best`` or ``last``, if the run was opened with one of these, or else
                ``best``.

        Raises:
            AtollError: the server's model of that round is not kept.
        """
        if isinstance(self.server, ClientServers):
            return None
        which = round if round is not None else self._which if self._which == "last" else "best"
        criterion = self.pool.problem.criterion
        server = server_of_round(which, self.round, self.server, self._kept_server, self._lines, criterion)
        predictor = method_calls.generic_predictor(self.method, server, self.pool.task())
        return predictor and self.pool.problem.predictor_in_unit(predictor)

    def received(self) -> "SavedRun":
        """Return the models that clients received last, before local training, in place of the measured ones.

        For methods that average models these are the server's model.
        """
        other = copy.copy(self)
        other._models = ModelStore(MemoryStore(), contract(self.method))
        other.is_measured = False
        other.model_round = self.round
        return other

    def model(self, i: ClientId) -> PersonalModel:
        found = self._models.find(self.client(i), self._which)
        if found is None:
            return super().model(i)
        return rebuild_model(self.method, *found, self.pool.client(i))

    def source(self, i: ClientId) -> ModelSource:
        """Return the last download of client ``i``, and its state."""
        i = self.client(i)
        method, pool, seed = self.method, self.pool, self.config.seed
        kept = _checkpoints(self.path, self.setup)
        server_side = _StoredStates(self.per_client_states, kept.get_per_client)
        client = pool.client(i)
        with torch.no_grad():
            if i in self.states:
                state = kept.get_state(self.states[i])
            else:
                state = method_calls.init_client(method, client, key(seed, "init", i))
            download = ServerSideStates(method, pool.task(), seed, server_side).download(
                self.server, i, Round(self.round)
            )
        return ModelSource(download, None, state, client)


class _StoredStates(MemoryStore):
    """The server's states for its clients in a checkpoint, each read when it is asked for.

    Args:
        names: the object that holds the state of each client.
        read: reads an object.
    """

    def __init__(self, names: Mapping[ClientId, str], read: Callable[[str], Payload]):
        super().__init__()
        self._names = names
        self._read = read

    def get(self, i: ClientId) -> Any:
        return self._read(self._names[i]) if i in self._names else None

    def __iter__(self) -> Iterator[ClientId]:
        return iter(sorted(self._names))


def open_run(path: Path | str, round: str | int = "best") -> SavedRun:
    """Open the models of a run, from its latest intact checkpoint.

    Args:
        path: the run directory. The data of the run must be unchanged.
        round: ``best`` for the round that validation chose, ``last``, or the number of one of these rounds.

    Raises:
        AtollError: the folder holds no run, the run has no checkpoint yet, or the models of that round are not kept.
    """
    folder = Path(path)
    if not (folder / "config.yaml").exists():
        raise AtollError(f"{str(folder)!r} holds no run: there is no config.yaml. Give the directory of a run.")
    config = from_dict(read_yaml(folder / "config.yaml"), str(folder / "config.yaml"))
    setup = build_setup(replace(config, out=str(folder)))  # The folder may have been moved.
    found = _checkpoints(folder, setup).load(lambda note: None)
    if found is None:
        raise AtollError(f"The run in {str(folder)!r} has no checkpoint yet. Wait for one, or finish it with --resume.")
    return SavedRun(folder, setup, found, round)


def _read_preparations(folder: Path, setup: Setup) -> Preparations:
    """Return the preparations that the run has stored."""
    if not setup.preparations:
        return Preparations()
    try:
        stored = json.loads((folder / PREPARATION).read_bytes())
    except (OSError, ValueError) as reason:
        raise AtollError(f"Cannot read {str(folder / PREPARATION)!r}: {reason}. Repeat the run.") from reason
    return read_preparations(stored, setup.pool.ids)


def _checkpoints(folder: Path, setup: Setup) -> Checkpoints:
    return Checkpoints(folder, contract(setup.method), setup.identity())
