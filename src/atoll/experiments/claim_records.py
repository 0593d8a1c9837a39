"""Define the record that a run of a declared experiment leaves: a small JSON file with its scores by round."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from .._version import __version__
from ..config import Config
from ..errors import AtollError
from ..storage.run_reader import Run, value
from ..utils.files import to_json, write_whole
from .claims import Claim
from .planning import to_file_name
from .search import Point

SEARCH, TABLE = "search", "table"


@dataclass(frozen=True)
class Record:
    """One finished run."""

    part: str  # search or table
    method: str
    point: Point
    seed: int
    test: float  # the measure of the claim, a share
    validation: float
    curve: list[list[float]]  # round and the measured model's test score
    seconds: float
    digest: str
    version: str


@dataclass(frozen=True)
class ClaimRun:
    """A planned run: what it is for, its configuration, and the file of its record."""

    part: str
    method: str
    point: Point
    config: Config
    file_name: str


def record_name(claim: Claim, part: str, method: str, point: Point, seed: int) -> str:
    """Return the file name of a record.

    The name changes with everything that the declaration says about the run. It does not change with defaults of
    options that the declaration leaves open, so that records stay valid when an option is added.
    """
    declared = claim.methods[method]
    decisive = (claim.options, declared.run, declared.options, point, claim.measures(method), seed)
    digest = sha256(json.dumps(decisive, sort_keys=True, default=str).encode()).hexdigest()[:8]
    return f"{part}-{to_file_name(method.replace('/', '-'))}-seed{seed}-{digest}.json"


def record_of(claim: Claim, planned: ClaimRun, run: Run) -> Record:
    """Make the record of a finished run.

    Raises:
        AtollError: the run has no such measure.
    """
    entries = claim.measures(planned.method)
    test, validation = (value(run.summary, entry) for entry in entries)
    if test is None or validation is None:
        raise AtollError(f"{run.path}: the run has no {' or no '.join(entries)}.")
    return Record(
        planned.part,
        planned.method,
        planned.point,
        run.seed,
        test,
        validation,
        [
            [line["round"], round(score, 6)]
            for line in run.metrics
            if (score := _score(line, entries[0], run)) is not None
        ],
        round(float(run.summary["seconds"]), 1),
        str(run.summary["digest"]),
        code_version(),
    )


def _score(line: Mapping[str, object], measure: str, run: Run) -> float | None:
    """Return the score of the measured model in one round."""
    name = "global" if measure.endswith(".global") else run.criterion.name
    return value(line, f"personal.post.{name}" if measure.startswith("personal") else f"generic.global.{name}")


def write_record(record: Record, path: Path) -> None:
    """Write a record."""
    write_whole(path, (to_json(asdict(record)) + "\n").encode())


def read_record(path: Path) -> Record:
    """Read a record.

    Raises:
        AtollError: the file is no record.
    """
    try:
        return Record(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as reason:
        raise AtollError(f"{path} is no record of a run: {reason}. Delete it to run again.") from reason


def code_version() -> str:
    """Return the version of Atoll and, in a clone, the commit."""
    try:
        words = ("git", "-C", str(Path(__file__).parent), "rev-parse", "--short=9", "HEAD")
        commit = subprocess.run(words, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return __version__
    return f"{__version__}+{commit}"
