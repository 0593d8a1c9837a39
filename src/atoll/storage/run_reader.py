"""Read run directories back: every figure, table and report starts from a `Run`."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.compute as pc
import pyarrow.parquet

from ..core.criterion import Criterion
from ..core.problems import PROBLEMS, Classes, Problem
from ..errors import AtollError
from ..utils.parsing import from_json, from_yaml

Document = Mapping[str, Any]  # an object of a file of a run
Kinds = tuple[type, ...]

FILES = ("summary.json", "metrics.jsonl", "clients.parquet", "holdings.json", "config.yaml")
MARKS = ("config.yaml", "metrics.jsonl", "summary.json")  # any of them makes a directory a run, finished or not
PARTS = ("train", "val", "test")
DEPTH = 2  # levels below a given directory in which runs are searched

NUMBER: Kinds = (int, float)
MAYBE: Kinds = (int, float, type(None))
SELECTIONS: dict[str, Kinds] = {"final": MAYBE, "best": MAYBE, "best_by_val": MAYBE}

# Entries that the report needs, by dotted path. A run may have more.
SUMMARY: dict[str, Kinds] = {
    "label": (str,),
    "data": (str,),
    "partition": (str,),
    "split": (str,),
    "models": (list,),
    "clients": (int,),
    "rounds": (int,),
    "seed": (int,),
    "status": (str,),
    **{f"personal.{name}": kinds for name, kinds in SELECTIONS.items()},
    "personal.worst_decile": MAYBE,
    "generic": (dict, type(None)),
    "bytes.per_client_round.up": MAYBE,
    "bytes.per_client_round.down": MAYBE,
    "flops.clients": MAYBE,
    "seconds": NUMBER,
    "digest": (str,),
    "version": (str,),
}
_METRICS: dict[str, Kinds] = {
    "round": (int,),
    "generic": (dict, type(None)),
    "bytes.up": NUMBER,
    "bytes.down": NUMBER,
    "rejected": (list,),
}
HOLDINGS: dict[str, Kinds] = {
    "name": (str,),
    "clients": (list,),
    "classes": (list,),
    **dict.fromkeys(PARTS, (list,)),
    "notes": (list,),
}


def problem_of(task: object) -> type[Problem]:
    """Return the kind of problem, given the entry ``task`` of summary.json or config.yaml; without one, classes."""
    return PROBLEMS.get(str(task), Classes)


def metrics_form(score: str) -> dict[str, Kinds]:
    """Return the entries of a line of metrics that reports need, given the name of the criterion."""
    return _METRICS | {f"personal.post.{score}": MAYBE}


def client_columns(score: str) -> tuple[str, ...]:
    """Return the columns of clients.parquet that reports need, given the name of the criterion."""
    return ("round", "client", score)


@dataclass(frozen=True)
class Run:
    """A finished run, read from its directory."""

    path: Path
    summary: Document
    metrics: tuple[Document, ...]  # one for each evaluated round, in order
    clients: pyarrow.Table
    holdings: Document
    config: Document

    @property
    def label(self) -> str:
        """Return the name of the run in tables."""
        return str(self.summary["label"])

    @property
    def seed(self) -> int:
        """Return the seed of the run."""
        return int(self.summary["seed"])

    @property
    def status(self) -> str:
        """Return how the run ended, such as ``finished``."""
        return str(self.summary["status"])

    @property
    def problem(self) -> type[Problem]:
        """Return the kind of problem; runs with classes do not name it."""
        return problem_of(self.summary.get("task"))

    @property
    def criterion(self) -> Criterion:
        """Return the score that selects rounds and ranks methods."""
        return self.problem.criterion

    @property
    def averaged(self) -> bool:
        """Return True if the generic model is the average of the personal models, because the server has none."""
        return (self.summary["generic"] or {}).get("source") == "average"

    @property
    def scored_round(self) -> int | None:
        """Return the round whose scores of clients are shown: the one chosen by validation, otherwise the last.

        A run that was interrupted may lack the scores of the chosen round.
        """
        rounds = pc.unique(self.clients["round"]).to_pylist()
        chosen = value(self.summary, "personal.best_by_val_round")
        return int(chosen) if chosen is not None and chosen in rounds else max(rounds, default=None)

    def client_scores(self) -> dict[str, float]:
        """Return the score of each client that has test rows, in ``scored_round``."""
        shown = self.clients.filter(pc.equal(self.clients["round"], self.scored_round))
        pairs = zip(shown["client"].to_pylist(), shown[self.criterion.name].to_pylist(), strict=True)
        return {str(client): score for client, score in pairs if score is not None and math.isfinite(score)}

    @property
    def planned(self) -> int:
        """Return the number of rounds asked for; the summary has the number reached."""
        return int(self.config.get("rounds", self.summary["rounds"]))


def load(run_dir: Path) -> Run:
    """Read one run directory; a missing or damaged file is named in the error."""
    path = Path(run_dir)
    if not path.is_dir():
        raise AtollError(f"{path} is not a directory. Give the directory of a run.")
    if not (path / "summary.json").exists():
        raise AtollError(f"The run in {path} is not finished: it has no summary.json. {_resume(path)}")
    summary = checked(_json(path / "summary.json"), SUMMARY, path / "summary.json")
    score = problem_of(summary.get("task")).criterion.name
    return Run(
        path=path,
        summary=summary,
        metrics=_metrics(path / "metrics.jsonl", score),
        clients=_clients(path / "clients.parquet", score),
        holdings=_holdings(path / "holdings.json"),
        config=_config(path / "config.yaml"),
    )


def find(paths: Iterable[Path]) -> list[Path]:
    """Return the run directories at and below `paths`, each once, in order."""
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        below = _below(path, DEPTH)
        if not below:
            raise AtollError(
                f"No run in {path}. Give the directory of a run (it holds summary.json) or of a comparison "
                f"(its sub-directories are runs)."
            )
        for run_dir in below:
            found.setdefault(run_dir.resolve(), run_dir)
    return list(found.values())


def value(document: Document | None, dotted: str) -> float | None:
    """Return the finite number at a dotted path, or None."""
    here: object = document
    for step in dotted.split("."):
        if not isinstance(here, Mapping) or step not in here:
            return None
        here = here[step]
    try:
        number = float(here) if isinstance(here, int | float) else math.nan
    except OverflowError:  # JSON has whole numbers of any length
        return None
    return number if math.isfinite(number) else None


def _below(path: Path, depth: int) -> list[Path]:
    if any((path / mark).is_file() for mark in MARKS):
        return [path]
    if depth == 0 or not path.is_dir():
        return []
    children = sorted(c for c in path.iterdir() if c.is_dir() and not c.name.startswith("."))
    return [run_dir for child in children for run_dir in _below(child, depth - 1)]


def _resume(path: Path) -> str:
    return f"Finish it with `atoll run --resume {path}`, or leave it out."


def _again(file: Path) -> str:
    return f"Run it again, or leave {file.parent} out."


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise AtollError(f"{file} is missing. {_again(file)}") from None
    except (OSError, UnicodeDecodeError) as e:
        raise AtollError(f"{file} cannot be read ({e}). {_again(file)}") from None


def _json(file: Path) -> object:
    return _parsed(_text(file), str(file), file)


def _parsed(text: str, where: str, file: Path) -> object:
    try:
        return from_json(text)
    except ValueError as e:
        raise AtollError(f"{where} is damaged: it is not JSON ({e}). {_again(file)}") from None


def _metrics(file: Path, score: str) -> tuple[Document, ...]:
    rounds = []
    for i, line in enumerate(_text(file).splitlines(), start=1):
        if line.strip():
            where = f"{file}, line {i},"
            rounds.append(checked(_parsed(line, where, file), metrics_form(score), file, where))
    return tuple(sorted(rounds, key=lambda m: int(m["round"])))


def _holdings(file: Path) -> Document:
    document = checked(_json(file), HOLDINGS, file)
    rows, columns = len(document["clients"]), len(document["classes"])
    for part in PARTS:
        if len(document[part]) != rows or any(not _is_counts(row, columns) for row in document[part]):
            raise AtollError(
                f"{file} is damaged: {part!r} is not a table of {rows} clients by {columns} classes. {_again(file)}"
            )
    return document


def _is_counts(row: object, columns: int) -> bool:
    return isinstance(row, list) and len(row) == columns and all(isinstance(n, int) for n in row)


def _clients(file: Path, score: str) -> pyarrow.Table:
    if not file.exists():
        raise AtollError(f"{file} is missing. {_again(file)}")
    try:
        table = pyarrow.parquet.read_table(file)
        names = table.column_names
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as e:  # the last for the name of a column
        raise AtollError(f"{file} is damaged: it is not a Parquet table ({e}). {_again(file)}") from None
    if lost := [name for name in client_columns(score) if name not in names]:
        raise AtollError(f"{file} is damaged: it has no column {lost[0]!r}. {_again(file)}")
    return table


def _config(file: Path) -> Document:
    try:
        document = from_yaml(_text(file))
    except ValueError as e:
        raise AtollError(f"{file} is damaged: it is not YAML ({e}). {_again(file)}") from None
    return checked(document, {}, file)


def checked(document: object, shape: Mapping[str, Kinds], file: Path, where: str | None = None) -> Document:
    """Return `document` if it has everything in `shape`; otherwise raise an error that names file and entry."""
    where = where or str(file)
    if not isinstance(document, dict):
        raise AtollError(f"{where} is damaged: it does not hold named entries. {_again(file)}")
    for dotted, kinds in shape.items():
        here: object = document
        for step in dotted.split("."):
            if not isinstance(here, dict) or step not in here:
                raise AtollError(f"{where} is damaged: it has no entry {dotted!r}. {_again(file)}")
            here = here[step]
        if not isinstance(here, kinds):
            raise AtollError(f"{where} is damaged: entry {dotted!r} is {here!r}. {_again(file)}")
    return document
