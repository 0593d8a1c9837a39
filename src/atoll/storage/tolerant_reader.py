"""Read a run that may be unfinished or damaged, and report what could not be read."""

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import pyarrow
import pyarrow.parquet

from ..clients.evaluation import select_rounds
from ..config import label_of
from ..core.criterion import Criterion
from ..core.problems import Classes
from ..errors import AtollError
from ..utils.files import read_ordinary
from ..utils.parsing import from_json, from_yaml
from .run_dir import holder
from .run_reader import (
    HOLDINGS,
    PARTS,
    SUMMARY,
    Document,
    Run,
    checked,
    client_columns,
    metrics_form,
    problem_of,
    value,
)

T = TypeVar("T")

LARGEST = 2**28  # bytes of a file, far more than any valid file has
EMPTY: Document = {}
NOWHERE: Document = {"name": "", "clients": [], "classes": [], **{part: [] for part in PARTS}, "notes": []}


class Stamp(NamedTuple):
    """A value that changes whenever a file of a run changes."""

    files: tuple[tuple[str, int, int, int], ...]  # name, inode, size, time of change
    process: int | None  # the process that uses the run


@dataclass(frozen=True)
class PartialRun:
    """The readable part of a run directory at one moment."""

    run: Run
    problems: tuple[str, ...]

    @property
    def status(self) -> str:
        """Return the status of the run, or ``damaged``."""
        return "damaged" if self.problems else self.run.status


def stamp(path: Path) -> Stamp:
    """Return the stamp of a run directory. No file is opened but the lock."""
    names = (
        "config.yaml",
        "metrics.jsonl",
        "summary.json",
        "holdings.json",
        "clients.parquet",
        "checkpoints",
        "export",
    )
    found = []
    for name in names:
        try:
            at = (path / name).lstat()
        except OSError:
            continue
        found.append((name, at.st_ino, at.st_size, at.st_mtime_ns))
    return Stamp(tuple(found), holder(path))


def look(path: Path, process: int | None) -> PartialRun:
    """Read everything that tables and curves need. ``process`` is the process that uses the run, if any."""
    problems: list[str] = []
    config = _part(problems, path / "config.yaml", _config, EMPTY)
    criterion = problem_of(config.get("task")).criterion
    metrics = _metrics(path / "metrics.jsonl", criterion.name, problems)
    holdings = _part(problems, path / "holdings.json", _holdings, NOWHERE)
    summary = _part(problems, path / "summary.json", _summary, None)
    if summary is None:
        summary = so_far(config, metrics, len(holdings["clients"]), "running" if process else "interrupted")
    read_clients = partial(_clients, criterion.name)
    clients = _part(problems, clients_file(path), read_clients, _no_clients(criterion.name))
    if not config and not problems and not metrics:
        problems.append(f"{path} holds no readable file of a run.")
    return PartialRun(Run(path, summary, metrics, clients, holdings, config), tuple(problems))


def _part(problems: list[str], file: Path, read: Callable[[Path], T], otherwise: T) -> T:
    """Read one file: a missing one is no problem, an unreadable one is reported."""
    try:
        return read(file)
    except FileNotFoundError:
        return otherwise
    except OSError as reason:
        problems.append(f"{file} cannot be read: {reason.strerror}.")
    except AtollError as reason:
        problems.append(str(reason))
    except (ValueError, ArithmeticError, TypeError, AttributeError) as reason:
        problems.append(f"{file} is damaged: {reason}.")
    return otherwise


def text(file: Path) -> str:
    """Return the text of a file that an untrusted party may have placed."""
    return read_ordinary(file, LARGEST).decode("utf-8")


def _config(file: Path) -> Document:
    return checked(from_yaml(text(file)), {"method": (str, dict)}, file)


def _summary(file: Path) -> Document:
    return checked(from_json(text(file)), SUMMARY, file)


def _holdings(file: Path) -> Document:
    document = checked(from_json(text(file)), HOLDINGS, file)
    rows, columns = len(document["clients"]), len(document["classes"])
    for part in PARTS:
        if len(document[part]) != rows or any(not _is_counts(row, columns) for row in document[part]):
            raise AtollError(f"{file} is damaged: {part!r} is not a table of {rows} clients by {columns} classes.")
    return document


def _is_counts(row: object, columns: int) -> bool:
    return isinstance(row, list) and len(row) == columns and all(type(n) is int and 0 <= n < 2**53 for n in row)


def _metrics(file: Path, score: str, problems: list[str]) -> tuple[Document, ...]:
    """Read the complete lines; an incomplete last line is left for the next time."""
    whole = _part(problems, file, text, "")
    read = list[Document]()
    for i, line in enumerate(whole[: whole.rfind("\n") + 1].splitlines(), start=1):
        if found := _part(problems, file, partial(_line, i, line, score), EMPTY):
            read.append(found)
    return tuple(sorted(read, key=lambda line: int(line["round"])))


def _line(number: int, line: str, score: str, file: Path) -> Document:
    where = f"{file}, line {number},"
    try:
        document = from_json(line)
    except ValueError as reason:
        raise AtollError(f"{where} is damaged: it is not JSON ({reason}).") from None
    return checked(document, metrics_form(score), file, where)


def clients_file(path: Path) -> Path:
    """Return the path of the table of clients; for a running run, that of its latest checkpoint."""
    final, latest = path / "clients.parquet", checkpoints(path)
    return final if final.exists() or not latest else latest[-1] / "clients.parquet"


def checkpoints(path: Path) -> list[Path]:
    """Return the checkpoints of a run, the latest last."""
    folder = path / "checkpoints"
    if folder.is_symlink():
        return []
    return sorted((c for c in folder.glob("round-*") if not c.is_symlink()), key=lambda c: (len(c.name), c.name))


def _clients(score: str, file: Path) -> pyarrow.Table:
    try:
        table = pyarrow.parquet.read_table(io.BytesIO(read_ordinary(file, LARGEST)))
    except pyarrow.ArrowException as reason:
        raise AtollError(f"{file} is damaged: it is not a Parquet table ({reason}).") from None
    if table.num_columns == 0:  # a checkpoint before the first evaluation
        return _no_clients(score)
    if lost := [name for name in client_columns(score) if name not in table.column_names]:
        raise AtollError(f"{file} is damaged: it has no column {lost[0]!r}.")
    return table


def _no_clients(score: str) -> pyarrow.Table:
    return pyarrow.table({name: [] for name in client_columns(score)})


# -- a summary of an unfinished run ---------------------------------------------------------------------------------


def so_far(config: Document, metrics: Sequence[Document], clients: int, status: str) -> Document:
    """Return the parts of summary.json that are known before the run ends."""
    last: Document = metrics[-1] if metrics else {}
    problem = problem_of(config.get("task"))
    return {
        "label": label_of(str(config.get("method", "unknown")), [str(term) for term in config.get("terms") or ()]),
        "data": str(config.get("data", "")),
        **({} if problem is Classes else {"task": problem.task}),
        "partition": str(config.get("partition", "")),
        "split": str(config.get("split", "")),
        "models": list(config.get("models") or ()),
        "clients": clients or int(value(config, "clients") or 0),
        "rounds": int(last.get("round", 0)),
        "seed": int(value(config, "seed") or 0),
        "status": status,
        "personal": _selected([(line["round"], line["personal"]["post"]) for line in metrics], problem.criterion),
        "generic": _generic(metrics, problem.criterion),
        "bytes": _traffic(last),
        "flops": {"clients": value(last, "flops.clients"), "server": value(last, "flops.server")},
        "seconds": value(last, "seconds") or 0.0,
        "digest": "",
        "version": "",
    }


def _generic(metrics: Sequence[Document], criterion: Criterion) -> Document | None:
    known = [line for line in metrics if isinstance((line["generic"] or {}).get("global"), Mapping)]
    if not known:
        return None
    source = known[-1]["generic"].get("source")
    return {"source": source, **_selected([(line["round"], line["generic"]["global"]) for line in known], criterion)}


def _selected(history: Sequence[tuple[int, Document]], criterion: Criterion) -> Document:
    """Return a selection in the form of a summary; without rounds, one without values."""
    numbers = [(t, {k: math.nan if v is None else v for k, v in score.items()}) for t, score in history]
    if not numbers:
        return {"final": None, "best": None, "best_by_val": None, "last10": None, "worst_decile": None}
    return select_rounds(numbers, criterion)


def _traffic(last: Document) -> Document:
    up, down = (value(last, f"bytes.{way}") or 0.0 for way in ("up", "down"))
    served = max(1, len(last.get("participants") or ())) * max(1, int(last.get("round", 1)))
    return {"up": up, "down": down, "per_client_round": {"up": up / served, "down": down / served}}
