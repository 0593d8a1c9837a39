"""Define the points of a sweep: their configurations, their directories, and their scores over seeds."""

import math
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from pathlib import Path

from ..config import NEUTRAL, Config
from ..core.criterion import ACCURACY, Criterion
from ..errors import AtollError
from ..storage.run_reader import Run, value
from .planning import to_file_name
from .search import Point


def config_at(config: Config, point: Point) -> Config:
    """Return the configuration at a point, which names options of the command line or settings of the method."""
    options = {f.name for f in fields(Config)} - NEUTRAL - {"settings", "terms", "method", "seed"}
    plain = {name: v for name, v in point.items() if name in options}
    settings = config.settings | {name: v for name, v in point.items() if name not in options}
    return replace(config, **plain, settings=settings)  # type: ignore[arg-type]


def run_directory(root: Path, point: Point, seed: int) -> Path:
    """Return the directory of a run; long names are cut, and a digest keeps them apart."""
    words = ",".join(f"{name}={v}" for name, v in point.items())
    return root / f"{to_file_name(words)}-{sha256(words.encode()).hexdigest()[:6]}-seed{seed}"


@dataclass(frozen=True)
class Trial:
    """The scores of a point: means over seeds, with their standard deviations; shares are from 0 to 1."""

    point: Mapping[str, object]
    val: float
    test: float
    val_std: float
    test_std: float
    finished: bool
    criterion: Criterion = ACCURACY

    def scores(self) -> dict[str, object]:
        """Return validation and test scores and whether all runs finished, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("point", "criterion")}

    def to_json(self) -> dict[str, object]:
        """Return the entry of the point in sweep.json."""
        return {"point": self.point} | self.scores()


def trial_of(point: Point, runs: Sequence[Run], model: str) -> Trial:
    """Average the runs of a point, each at the round with the best validation score; NaN where a run has none."""
    val = [_score(run, f"{model}.metrics.best_by_val.val") for run in runs]
    test = [_score(run, f"{model}.best_by_val") for run in runs]
    done = all(run.status == "finished" for run in runs)
    means = statistics.fmean(val), statistics.fmean(test)
    values = {name: _plain(text) for name, text in point.items()}
    return Trial(values, *means, _spread(val), _spread(test), done, runs[0].criterion)


def _score(run: Run, dotted: str) -> float:
    number = value(run.summary, dotted)
    return math.nan if number is None else number


def _plain(text: str) -> object:
    """Return a number if a value of a setting is written as one."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _spread(numbers: Sequence[float]) -> float:
    return statistics.stdev(numbers) if len(numbers) > 1 else math.nan


def best_trial(results: Sequence[Trial]) -> Trial:
    """Return the point with the best validation score among finished runs; the first one wins a tie."""
    judged = [t for t in results if t.finished and not math.isnan(t.val)]
    if not judged:
        raise AtollError(
            "No point can be chosen: no run finished with a validation accuracy. "
            "Choose a --split with validation samples, such as client_811."
        )
    return judged[0].criterion.best(judged, lambda t: t.val)


def is_matrix(points: Sequence[Mapping[str, object]]) -> bool:
    """Return True if the points are all combinations of two settings, so that a matrix shows them best."""
    names = list(points[0])
    if len(names) != 2:
        return False
    sides = [len({p[name] for p in points}) for name in names]
    return min(sides) > 1 and sides[0] * sides[1] == len(points)


def document(results: Sequence[Trial], model: str) -> dict[str, object]:
    """Return the contents of sweep.json."""
    entries = {"best": best_trial(results).to_json(), "tried": [t.to_json() for t in results]}
    return {"by": f"validation {results[0].criterion.title}, {model}", **entries}
