"""Open the personalised model of a site after a run."""

from pathlib import Path
from typing import NamedTuple

from ...clients.kept_rounds import KeptRounds
from ...clients.measured_model import ModelSource
from ...core.hooks import PredictsOtherwise
from ...core.model import Model, Predictor
from ...core.payloads import Params
from ...core.serialization import OWN, decode
from ...data.transforms import preset
from ...errors import AtollError
from ...inference.models import TrainedModels
from ...typing import ClientId
from ...utils.parsing import Json
from ..transport.protocol import Refusal, unpack
from .config import SiteConfig, read_site
from .exchange_store import ExchangeStore, StateRef, StoredExchange
from .participation import Participation


class Personal(NamedTuple):
    """The personalised model of a round."""

    model: Model
    params: Params
    metadata: dict[str, object]


def runs(folder: Path) -> list[str]:
    """Return the runs of a site, the latest last."""
    places = (folder / "state" / "runs").glob("*/begin.json")
    return [place.parent.name for place in sorted(places, key=lambda place: place.stat().st_mtime)]


def personal_model(folder: Path, run: str | None = None, which: str | int = "best") -> Personal:
    """Return the site's model and params; the parameters are those of :func:`open_site`."""
    found = open_site(folder, run, which)
    if isinstance(found.method, PredictsOtherwise):
        raise AtollError(f"{found.config.label} predicts by more than one model. Use predictor() for its predictions.")
    model = found.pool.models[found.name]
    return Personal(model, found.params(found.name), found.metadata())


def predictor(folder: Path, run: str | None = None, which: str | int = "best") -> Predictor:
    """Return the predictor of the site, prepared rows to logits; the parameters are those of :func:`open_site`."""
    found = open_site(folder, run, which)
    return found.personal(found.name)


class SiteModels(TrainedModels):
    """The model of a site, in the form of the models of a run."""

    def __init__(self, part: Participation, entry: StoredExchange, model_round: int | None = None):
        self.name = part.site.name
        self.run = part.run
        self.config = part.config
        self.method = part.method
        self.pool = part.pool
        self.federation = part.federation
        self.preparations = part.preparations
        self._part = part
        self._entry = entry
        self.transform = preset(self.config.transform, self.config.data, self.data.shape)
        self.round = unpack(entry.read("request.frame")).head["round"] + 1
        self.model_round = model_round or self.round

    def source(self, i: ClientId) -> ModelSource:
        """Return the download, upload and state that the model follows from."""
        client, types, entry = self.pool.client(self.client(i)), self._part.types, self._entry
        request = unpack(entry.read("request.frame"))
        messages = types.exchanges[request.head["exchange"]]
        download = decode(messages.download, request.body)
        made = decode(messages.upload, entry.read("made.safetensors"), OWN)
        return ModelSource(download, made, decode(types.state, entry.read("state.safetensors"), OWN), client)

    def metadata(self) -> dict[str, object]:
        """Return the facts about run, data and model that go with an exported model."""
        data, config = self.data, self.config
        return {
            "site": self.name,
            "run": self.run,
            "method": config.label,
            "model": self.pool.models[self.name].name,
            "round": self.model_round,
            "kind": data.kind,
            "shape": list(data.shape),
            "classes": list(data.classes),
            "data": config.data,
            "transform": config.transform,
            "scores": self._entry.notes()["after"],
        }


def open_site(folder: Path, run: str | None = None, which: str | int = "best") -> SiteModels:
    """Open the model of a site.

    Args:
        folder: folder of the site.
        run: name of the run; by default the latest.
        which: ``best`` for the round that validation chose, ``last``, or the number of one of these rounds. A run that
            goes on has its latest model only.

    Raises:
        AtollError: there is no such model.
    """
    site, found = read_site(folder), runs(folder)
    if run is None and not found:
        raise AtollError(f"Site {site.name!r} has not taken part in a run yet: there is no model in {str(folder)!r}.")
    try:
        exchanges = ExchangeStore(site.state, run or found[-1])
        document = exchanges.document()
        model_round, last = _choose(document.get("measured") or {}, which, document.get("last"))
        return SiteModels(Participation(site, document), _entry(exchanges, last, site), model_round)
    except Refusal as reason:
        raise AtollError(f"Cannot read the model of run {run or found[-1]} in {str(folder)!r}: {reason}") from reason


def _choose(
    measured: Json, which: str | int, last: tuple[int, int, str] | None
) -> tuple[int | None, tuple[int, int, str] | None]:
    """Return the round of a model, and the reference to its state."""
    if not measured:
        return None, last
    rounds = KeptRounds(measured["last"][0], measured["best"][0], measured["best"][0])
    number = rounds.number(which)
    return number, measured["last" if number == rounds.last else "best"][1]


def _entry(exchanges: ExchangeStore, last: tuple[int, int, str] | None, site: SiteConfig) -> StoredExchange:
    """Return the exchange that the server named at the end; for a running run, the latest."""
    if last is not None:
        return exchanges.find(StateRef(*last))
    done = [entry for _, _, entry in exchanges.entries() if entry.concluded and entry.answered]
    if not done:
        raise AtollError(f"Site {site.name!r} has no model of that run yet.")
    return done[-1]
