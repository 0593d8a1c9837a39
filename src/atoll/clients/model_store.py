"""Keep the personal models behind the scores of a run: of its last round and of the round that validation chose.

A model that the client's state holds takes no space of its own: it is copied when a later round replaces the state. Any
other model is kept whole, in memory up to a number of bytes and beyond that on disk.
"""

import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import Any
from weakref import finalize

import torch

from ..core.contract import Contract
from ..core.hooks import PredictsOtherwise
from ..core.method import AnyMethod
from ..core.payloads import Params, Payload
from ..core.schema import tensors_of
from ..core.serialization import OWN, decode, encode
from ..typing import ClientId
from ..utils.files import write
from ..utils.parsing import Json
from .kept_rounds import KeptRounds
from .measured_model import MeasuredModel, ModelSource, describe_model
from .state_store import Store

ROOM = 2**29  # memory for measured models, in bytes
ReadObject = Callable[[type[Payload], str], Payload]
Holders = Mapping[int, list[ClientId]]  # clients of a model, by the id of the model


class ModelStore:
    """The measured models of all clients of a run. Changes of a round last from :meth:`commit` on.

    Args:
        states: states of the clients.
        types: payload classes of the method.
        on: False keeps no models.
        room: bytes of models in memory.
        folder: folder for models beyond ``room``; None for a temporary folder.
        read_object: reads an object of the run directory.
    """

    def __init__(
        self,
        states: Store,
        types: Contract,
        *,
        on: bool = True,
        room: int = ROOM,
        folder: Path | None = None,
        read_object: ReadObject | None = None,
    ):
        self.on = on
        self.rounds = KeptRounds()
        self._states = states
        self._types = types
        self._room = room
        self._folder = folder
        self._read_object = read_object
        self._file_numbers = count()
        self._used = 0  # bytes in memory, those of models included that were dropped since the last commit
        self._admitted: list[MeasuredModel] = []  # models of the current round
        # The last model without training of each form, and its tensors, until the next commit.
        self._untrained: dict[tuple[Any, ...], tuple[MeasuredModel, Params]] = {}
        self._last: dict[ClientId, MeasuredModel] = {}
        # The models of the round that validation chose, where they are not the last ones; None for no model.
        self._best: dict[ClientId, MeasuredModel | None] = {}
        self._uses: dict[int, int] = {}  # places in ``_last`` and ``_best`` that hold each model, by its id
        self._drafts: dict[ClientId, MeasuredModel] = {}
        self._before: KeptRounds | None = None  # until the next commit
        self._chooses_drafts = False  # whether the next commit makes the last models the best ones

    # -- while a run computes -----------------------------------------------------------------------------------------

    def describe(self, method: AnyMethod, source: ModelSource) -> MeasuredModel | None:
        """Describe the model that was just scored; None if no models are kept."""
        return self.admit(describe_model(method, source)) if self.on else None

    def admit(self, model: MeasuredModel) -> MeasuredModel:
        """Return a model, after moving it to disk if there is no room in memory."""
        self._admitted.append(model)
        self._used += model.size
        self._make_room([model])
        return model

    def put(self, i: ClientId, model: MeasuredModel | None) -> None:
        """Take the model of client ``i``. To be called before the client's state is replaced.

        Args:
            i: the client.
            model: the model with the new state; None if it was not scored.
        """
        before = self._drafts.get(i, self._last.get(i))
        if before is not None and before.is_in_store and (model is None or self._find_best(i) is before):
            self._copy_state(before, self._states.get(i))
        if model is not None:
            self._drafts[i] = model

    def put_untrained(self, method: AnyMethod, sources: Mapping[ClientId, ModelSource]) -> None:
        """Take the models of clients that were scored without a round. Clients with the same one share it."""
        if not self.on:
            return
        same: dict[tuple[int, ...], MeasuredModel] = {}  # models of clients without a state, by their tensors
        for i, source in sources.items():
            tensors = _identity(method, source) if self._states.get(i) is None else ()
            if not tensors:
                self._drafts[i] = self._share_untrained(i, method, source)
                continue
            if tensors not in same:
                same[tensors] = self._share_untrained(i, method, source)
            self._drafts[i] = same[tensors]

    def _share_untrained(self, i: ClientId, method: AnyMethod, source: ModelSource) -> MeasuredModel:
        """Return the model of client ``i``, the same as for an earlier client if their numbers are equal."""
        model = describe_model(method, source)
        if model.is_in_store and self._states.get(i) is None:
            model.payloads = (source.state,)
        tensors = _tensors(model)
        form = (model.kind, *((name, v.shape) for name, v in tensors.items()))
        shared, others = self._untrained.get(form, (model, {}))
        if not tensors or not others or not all(torch.equal(v, others[name]) for name, v in tensors.items()):
            shared = self.admit(model)
            self._untrained[form] = model, tensors
        return shared

    def end_evaluation(self, done: int, chosen: int | None, is_regular: bool) -> None:
        """Note that the latest models are those of an evaluation.

        Args:
            done: the round, counted from 1.
            chosen: the round that validation chooses so far; None without validation rows.
            is_regular: whether a run with more rounds evaluates this round too.
        """
        if not self.on:
            return
        self._before = self.rounds
        if chosen == done and is_regular:
            self._chooses_drafts = True
            self.rounds = KeptRounds(done, done, done)
        else:
            self.rounds = KeptRounds(done, self.rounds.kept, chosen)

    def drop_irregular_evaluation(self) -> None:
        """Forget an evaluation that took place only because the run used to end there."""
        self.rounds = self.rounds._replace(best=self.rounds.kept)

    def commit(self) -> None:
        """Make the models of the current round permanent."""
        is_kept = self.rounds.kept is not None and not self._chooses_drafts
        for i, model in self._drafts.items():
            before = self._last.get(i)
            self._last[i] = model
            self._hold(model)
            if is_kept and i not in self._best:
                self._best[i] = before
            elif before is not None:
                self._release(before)
        if self._chooses_drafts:
            for old in filter(None, self._best.values()):
                self._release(old)
            self._best = {}
        self._end_round()
        self._make_room(chain(filter(None, self._best.values()), self._last.values()))

    def rollback(self) -> None:
        """Discard the models of the current round."""
        if self._before is not None:
            self.rounds = self._before
        self._end_round()

    def _end_round(self) -> None:
        self._used -= sum(model.size for model in self._admitted if id(model) not in self._uses)
        self._admitted = []
        self._drafts = {}
        self._untrained = {}
        self._before = None
        self._chooses_drafts = False

    def clear(self) -> None:
        """Remove all models."""
        self._last = {}
        self._best = {}
        self._uses = {}
        self._admitted = []
        self._used = 0
        self.rounds = KeptRounds()
        self._end_round()

    def _find_best(self, i: ClientId) -> MeasuredModel | None:
        """Return the model of client ``i`` in the round that validation chose, if it had one."""
        if self.rounds.kept is None:
            return None
        return self._best[i] if i in self._best else self._last.get(i)

    def _hold(self, model: MeasuredModel) -> None:
        self._uses[id(model)] = self._uses.get(id(model), 0) + 1

    def _release(self, model: MeasuredModel) -> None:
        self._uses[id(model)] -= 1
        if self._uses[id(model)] == 0:
            del self._uses[id(model)]
            self._used -= model.size

    def _copy_state(self, model: MeasuredModel, state: Payload) -> None:
        model.payloads = (state,)
        self._used += model.size
        self._make_room([model])

    def _make_room(self, models: Iterable[MeasuredModel]) -> None:
        """Drop payloads from memory, of the first models first, until the rest fits."""
        for model in models:
            if self._used <= self._room:
                return
            if model.payloads is not None:
                self._used -= model.size
                if model.objects is None and model.files is None:
                    self._write(model, model.payloads)
                model.payloads = None

    def _write(self, model: MeasuredModel, payloads: tuple[Any, ...]) -> None:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="atoll-models-"))
            finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        files = [None if part is None else self._folder / str(next(self._file_numbers)) for part in payloads]
        for part, path in zip(payloads, files, strict=True):
            if path is not None:
                write(path, encode(part), os.O_TRUNC)
        model.files = tuple(files)
        finalize(model, _remove, model.files)

    # -- use of models ------------------------------------------------------------------------------------------------

    def find(self, i: ClientId, which: str | int = "best") -> tuple[MeasuredModel, tuple[Any, ...]] | None:
        """Return the measured model of client ``i`` with its payloads, None if it is not kept.

        Args:
            i: the client.
            which: ``best`` for the round that validation chose, ``last``, or the number of a round.

        Raises:
            AtollError: models are kept, but not those of that round.
        """
        if not self._last:
            return None
        # Between two evaluations, the latest models are newer than those of the last evaluation.
        model = self._find_best(i) if self.rounds.number(which) == self.rounds.kept else self._last.get(i)
        return None if model is None else (model, self._load(i, model))

    def _load(self, i: ClientId, model: MeasuredModel) -> tuple[Any, ...]:
        if model.payloads is not None:
            return model.payloads
        classes, read = model.classes(self._types), self._read_object
        if model.objects is not None:
            assert read is not None
            return tuple(n if n is None else read(kind, n) for kind, n in zip(classes, model.objects, strict=True))
        if model.files is not None:
            places = zip(classes, model.files, strict=True)
            return tuple(path if path is None else decode(kind, path.read_bytes(), OWN) for kind, path in places)
        return (self._states.get(i),)

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def to_json(self, put: Callable[[Payload], str], states: Mapping[ClientId, str]) -> Json:
        """Store all models as objects, and return their names.

        Args:
            put: stores an object and returns its name.
            states: the object that holds the current state of each client.
        """
        layouts: list[Mapping[str, str]] = []
        shared: dict[int, str] = {}  # the objects of payloads in memory, such as a download of many clients

        def put_once(part: Payload) -> str:
            if id(part) not in shared:
                shared[id(part)] = put(part)
            return shared[id(part)]

        def entry(model: MeasuredModel, last: list[ClientId], best: list[ClientId]) -> Json:
            if model.objects is None:
                i = (last or best)[0]
                parts = None if model.is_in_store else self._load(i, model)
                store = put if model.payloads is None else put_once
                model.objects = (
                    (states[i],) if parts is None else tuple(None if part is None else store(part) for part in parts)
                )
                _remove(model.files or ())
                model.files = None
            if model.layout not in layouts:
                layouts.append(model.layout)
            layout = layouts.index(model.layout)
            return {"kind": model.kind, "objects": model.objects, "layout": layout, "last": last, "best": best}

        models, last, best = self._holders()
        entries = [entry(model, last.get(at, []), best.get(at, [])) for at, model in models.items()]
        if self._folder is not None:
            with suppress(OSError):
                self._folder.rmdir()  # if it is empty
        new = [i for i, best in self._best.items() if best is None]
        return {"rounds": self.rounds._asdict(), "layouts": layouts, "models": entries, "new": new}

    def _holders(self) -> tuple[dict[int, MeasuredModel], Holders, Holders]:
        """Return all models by id, and the clients that have each one as their last and as their best model."""
        last, best = defaultdict[int, list[ClientId]](list), defaultdict[int, list[ClientId]](list)
        for i, model in self._last.items():
            last[id(model)].append(i)
        for i, chosen in self._best.items():
            if chosen is not None:
                best[id(chosen)].append(i)
        every = chain(self._last.values(), filter(None, self._best.values()))
        return {id(model): model for model in every}, last, best

    def take_over(self, stored: Json) -> None:
        """Continue with the models of a checkpoint."""
        self.clear()
        if not self.on or not stored:
            return
        self.rounds = KeptRounds(**stored["rounds"])
        self._best = dict.fromkeys(stored["new"])
        for entry in stored["models"]:
            model = MeasuredModel(entry["kind"], stored["layouts"][entry["layout"]], objects=tuple(entry["objects"]))
            self._last |= dict.fromkeys(entry["last"], model)
            self._best |= dict.fromkeys(entry["best"], model)
        for held in chain(self._last.values(), filter(None, self._best.values())):
            self._hold(held)


def objects_of(stored: Json) -> set[str]:
    """Return the objects that the models of a checkpoint need."""
    return {name for entry in stored.get("models", ()) for name in entry["objects"] if name is not None}


def owned_objects_of(stored: Json) -> set[tuple[ClientId, str]]:
    """Return the objects that the models of a checkpoint need, each with its clients."""
    return {
        (i, name)
        for entry in stored.get("models", ())
        for name in entry["objects"]
        if name is not None
        for i in (*entry["last"], *entry["best"])
    }


def _identity(method: AnyMethod, source: ModelSource) -> tuple[int, ...]:
    """Return the identities of the tensors of a model; none if it predicts by more than these."""
    return () if isinstance(method, PredictsOtherwise) else tuple(map(id, method.personal_params(*source).values()))


def _tensors(model: MeasuredModel) -> Params:
    parts = enumerate(model.payloads or ())
    return {f"{at} {name}": v for at, part in parts if part is not None for name, v in tensors_of(part).items()}


def _remove(files: Iterable[Path | None]) -> None:
    for path in files:
        if path is not None:
            path.unlink(missing_ok=True)
