"""What a site has of a run in the end: its own personalised model."""

from pathlib import Path
from typing import Any, NamedTuple

from ..core import Method, Model, Predictor
from ..errors import AtollError
from ..payload import Params
from ..wire import decode
from .engagement import Engagement
from .protocol import Refusal, unpack
from .shelf import Entry, Shelf, Tag
from .site import Site, read_site


class Personal(NamedTuple):
    """The model as it was after the last round that counted."""

    model: Model
    params: Params
    metadata: dict[str, Any]


def runs(folder: Path) -> list[str]:
    """Runs that a site has taken part in, the latest last."""
    places = (folder / "state" / "runs").glob("*/begin.json")
    return [place.parent.name for place in sorted(places, key=lambda place: place.stat().st_mtime)]


def personal_model(folder: Path, run: str | None = None) -> Personal:
    """The site's model and its params, of a run or of the latest one."""
    part, entry = _last(folder, run)
    if type(part.method).own is Method.own:
        raise AtollError(f"{part.config.label} predicts by more than one model. Use predictor() for its predictions.")
    params = part.method.own(*_pieces(part, entry), part.fleet.client(part.site.name))
    model = part.fleet.models[part.site.name]
    return Personal(model, params, _metadata(part, entry))


def predictor(folder: Path, run: str | None = None) -> Predictor:
    """How the site predicts: prepared rows to logits."""
    part, entry = _last(folder, run)
    return part.method.personal(*_pieces(part, entry), part.fleet.client(part.site.name))


def _last(folder: Path, run: str | None) -> tuple[Engagement, Entry]:
    site, found = read_site(folder), runs(folder)
    if run is None and not found:
        raise AtollError(f"Site {site.name!r} has not taken part in a run yet: there is no model in {str(folder)!r}.")
    try:
        shelf = Shelf(site.state, run or found[-1])
        document = shelf.document()
        return Engagement(site, document), _entry(shelf, document.get("last"), site)
    except Refusal as reason:
        raise AtollError(f"Cannot read the model of run {run or found[-1]} in {str(folder)!r}: {reason}") from reason


def _entry(shelf: Shelf, last: Any, site: Site) -> Entry:
    """The exchange that the server named at the end; in a run that goes on, the latest."""
    if last is not None:
        return shelf.find(Tag(*last))
    done = [entry for _, _, entry in shelf.entries() if entry.concluded and entry.answered]
    if not done:
        raise AtollError(f"Site {site.name!r} has no model of that run yet.")
    return done[-1]


def _pieces(part: Engagement, entry: Entry) -> tuple[Any, Any, Any]:
    """The message, the upload and the state that the model follows from."""
    download = decode(part.types.download, unpack(entry.read("request.frame")).body)
    made = decode(part.types.upload, entry.read("made.safetensors"))
    return download, made, decode(part.types.state, entry.read("state.safetensors"))


def _metadata(part: Engagement, entry: Entry) -> dict[str, Any]:
    data, config = part.site.rows.data, part.config
    return {
        "site": part.site.name,
        "run": part.run,
        "method": config.label,
        "model": part.fleet.models[part.site.name].name,
        "round": unpack(entry.read("request.frame")).head["round"] + 1,
        "kind": data.kind,
        "shape": list(data.shape),
        "classes": list(data.classes),
        "data": config.data,
        "transform": config.transform,
        "scores": entry.notes()["after"],
    }
