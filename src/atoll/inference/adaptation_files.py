"""Write the result of an adaptation to a folder, and open its models again."""

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.csv

from ..clients.measured_model import ModelSource
from ..core.contract import contract
from ..core.serialization import OWN, decode, encode
from ..errors import AtollError
from ..storage.run_dir import holds_run, runs_inside
from ..typing import ClientId
from ..utils.files import to_json, write_whole
from .adaptation_result import KINDS, Adaptation, NewClients, Point
from .new_clients import Plan, find_source_run, last_cut, setup_new_clients

NAME = "adapt.json"
MODELS = "models"
PARTS = ("download", "upload", "state")  # payloads that determine a personal model


def check_free_for_adaptation(folder: Path, replacing: bool) -> None:
    """Raise an AtollError if new clients in ``folder`` would mix with runs, or replace others."""
    if holds_run(folder) or runs_inside(folder):
        raise AtollError(
            f"{str(folder)!r} holds runs, and new clients need a folder of their own. Choose another --out."
        )
    if (folder / NAME).exists() and not replacing:
        raise AtollError(
            f"{str(folder)!r} already holds models of new clients. Add --force to replace them, or choose "
            "another --out."
        )


def write_adaptation(made: Adaptation, folder: Path, run: Path | None, federation: str) -> None:
    """Write table and figure, and the models if the run and the data can be opened again by name.

    Args:
        made: the result.
        folder: folder to write to.
        run: directory of the run, or None if the run or the data are only in memory.
        federation: name of the new clients' partition, to notice changed data later.
    """
    from ..report.style import save  # imported here because matplotlib is slow to import

    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / MODELS, ignore_errors=True)
    if run is not None:
        for i in made.models.clients:
            _write_source(made.models.source(i), _model_folder(folder, i))
    figure = made.plot()
    for suffix in ("png", "svg"):
        save(figure, folder / f"adapt.{suffix}")
    with pa.BufferOutputStream() as text:
        pa.csv.write_csv(made.table, text)
        write_whole(folder / "adapt.csv", text.getvalue().to_pybytes())
    write_whole(folder / NAME, (to_json(to_document(made, folder, run, federation), indent=1) + "\n").encode())


def to_document(
    made: Adaptation, folder: Path | None = None, run: Path | None = None, federation: str = ""
) -> dict[str, object]:
    """Return the content of adapt.json. Without ``run`` and ``folder``, the models cannot be opened from it."""
    return {
        "run": None if run is None or folder is None else os.path.relpath(run, folder),
        "label": made.label,
        "round": made.models.round,
        "plan": asdict(made.plan),
        "new_clients": list(made.models.clients),
        "federation": federation,
        "curve": [_as_dict(point) for point in made.curve()],
        "models": made.table.to_pylist(),
        "notes": list(made.notes),
    }


def _as_dict(point: Point) -> dict[str, object]:
    stats = {kind: getattr(point, kind) for kind in KINDS}
    return {"shots": point.name, "rows": point.rows} | {
        kind: None if stat is None else stat._asdict() for kind, stat in stats.items()
    }


def _model_folder(folder: Path, i: ClientId) -> Path:
    return folder / MODELS / quote(i, safe="").replace(".", "%2E")


def _write_source(source: ModelSource, place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        path = place / f"{part}.safetensors"
        path.unlink(missing_ok=True)
        value = getattr(source, part)
        if value is not None:
            write_whole(path, encode(value))


def open_adapted(folder: Path) -> NewClients:
    """Open the models that ``adapt`` wrote to a folder. Run and data must be at their former paths."""
    try:
        stored = json.loads((folder / NAME).read_bytes())
        run, values = stored["run"], stored["plan"]
        plan = Plan(**{**values, "shots": tuple(values["shots"])})
    except (OSError, ValueError, KeyError, TypeError) as reason:
        raise AtollError(f"{str(folder / NAME)!r} is damaged ({reason!r}). Run `atoll adapt` again.") from reason
    if run is None:
        raise AtollError(f"{str(folder)!r} holds no models: the run, or the new clients' data, were only in memory.")
    source_run = find_source_run(folder / run)
    new_clients = setup_new_clients(source_run.setup, plan)
    if new_clients.federation.name != stored["federation"] or source_run.round != stored["round"]:
        raise AtollError(f"The run or the data of {str(folder)!r} have changed. Run `atoll adapt` again.")
    types = contract(new_clients.method)

    def source(i: ClientId) -> ModelSource:
        download, upload, state = (_model_folder(folder, i) / f"{part}.safetensors" for part in PARTS)
        messages = types.exchanges[-1 if upload.exists() else 0]  # Without an upload, only the first download was made.
        return ModelSource(
            decode(messages.download, download.read_bytes(), OWN),
            decode(messages.upload, upload.read_bytes(), OWN) if upload.exists() else None,
            decode(types.state, state.read_bytes(), OWN),
            last_cut(new_clients.pool.client(i), i, plan),
        )

    return NewClients(source_run, new_clients, source)
