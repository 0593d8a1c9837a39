"""A run directory opened again: the models of its latest checkpoint, to predict with and to take away."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .assemble import Setup, assemble
from .checkpoint import Checkpoints
from .config import from_dict, read_yaml
from .core import BUFFERS, Client, ClientId, Method, Predictor, Round, contract
from .data.dataset import Array
from .data.transforms import preset
from .errors import AtollError, unknown
from .key import key
from .payload import Params
from .rounds import Desks
from .store import MemoryStore


@dataclass(frozen=True)
class Saved:
    """What every client would predict by, once it has received the server's last message."""

    path: Path
    setup: Setup
    round: int  # rounds completed
    server: Any
    states: dict[ClientId, str]
    desks: dict[ClientId, str]

    @property
    def clients(self) -> tuple[ClientId, ...]:
        return self.setup.fleet.ids

    def personal(self, i: ClientId) -> Predictor:
        """Inputs, prepared as for training, to logits."""
        return self.setup.method.personal(*self._moment(i))

    def params(self, i: ClientId) -> Params:
        """The weights of the client's own model."""
        return self.setup.method.own(*self._moment(i))

    def module(self, i: ClientId) -> nn.Module:
        """The client's own model as an ordinary module, in evaluation mode."""
        method = self.setup.method
        if type(method).personal is not Method.personal:
            raise AtollError(
                f"A client of {type(method).__name__} does not predict by its own model alone, so there is no single "
                "model to take away. `atoll predict` does what the method does."
            )
        net = copy.deepcopy(self.setup.fleet.models[i].net).eval()
        net.load_state_dict({name.removeprefix(BUFFERS): v for name, v in self.params(i).items()})
        return net

    def generic(self) -> Predictor | None:
        """The server's model, if the method has one."""
        return self.setup.method.generic(self.server, self.setup.fleet.task())

    def prepared(self, rows: Array) -> Tensor:
        """Raw rows (images as bytes, numbers of a table, words as numbers) as the models take them."""
        data = self.setup.federation.dataset
        if tuple(rows.shape[1:]) != tuple(data.shape):
            raise AtollError(f"The rows have shape {tuple(rows.shape[1:])}, but {data.name!r} has {tuple(data.shape)}.")
        return preset(self.setup.config.transform, data.name, data.shape).prepare(rows)

    def _moment(self, i: ClientId) -> tuple[Any, None, Any, Client]:
        if i not in self.clients:
            raise unknown("client", i, self.clients)
        method, fleet, seed = self.setup.method, self.setup.fleet, self.setup.config.seed
        kept, own = _checkpoints(self.path, self.setup), MemoryStore()
        if i in self.desks:
            own.put(i, kept.get_desk(self.desks[i]))
        client = fleet.client(i)
        with torch.no_grad():
            state = (
                kept.get_state(self.states[i]) if i in self.states else method.init_client(client, key(seed, "init", i))
            )
            download = Desks(method, fleet.task(), seed, own).download(self.server, i, Round(self.round))
        return download, None, state, client


def open_run(path: Path | str) -> Saved:
    """The latest good checkpoint of a run; its data set has to be where the run found it."""
    folder = Path(path)
    if not (folder / "config.yaml").exists():
        raise AtollError(f"{str(folder)!r} holds no run: there is no config.yaml. Give the directory of a run.")
    setup = assemble(from_dict(read_yaml(folder / "config.yaml"), str(folder / "config.yaml")))
    found = _checkpoints(folder, setup).load(lambda note: None)
    if found is None:
        raise AtollError(f"The run in {str(folder)!r} has no checkpoint yet. Wait for one, or finish it with --resume.")
    return Saved(folder, setup, found.round, found.server, found.states, found.desks)


def _checkpoints(folder: Path, setup: Setup) -> Checkpoints:
    return Checkpoints(folder, contract(setup.method), setup.config.identity())
