"""Build one line of the list of runs."""

from hashlib import sha256

from ..report.groups import identify
from ..storage.environment_file import read_sessions
from ..storage.run_reader import Run, value
from ..storage.tolerant_reader import PartialRun


def row(identity: str, name: str, seen: PartialRun) -> dict[str, object]:
    """Return the line of a run as plain values; unknown ones are None."""
    run, summary = seen.run, seen.run.summary
    done, planned = int(summary["rounds"]), max(int(summary["rounds"]), run.planned)
    return {
        "id": identity,
        "name": name,
        "method": run.label,
        "data": summary["data"],
        "partition": summary["partition"],
        "models": [str(model) for model in summary["models"]],
        "clients": summary["clients"],
        "seed": run.seed,
        "alike": sha256(identify(run).encode()).hexdigest()[:16],  # runs that differ in their seeds alone
        "began": began(run),
        "done": done,
        "planned": planned,
        "status": seen.status,
        "problems": list(seen.problems),
        "score": score(run),
        "criterion": criterion(run),
        "generic": value(summary, "generic.best_by_val"),
        "averaged": run.averaged,
        "up": value(summary, "bytes.up"),
        "down": value(summary, "bytes.down"),
        "seconds": value(summary, "seconds"),
        "left": seconds_left(run, done, planned) if seen.status == "running" else None,
    }


def damaged_row(identity: str, name: str, problem: str) -> dict[str, object]:
    """Return the line of a run that could not be read."""
    unknown = (
        "data",
        "partition",
        "clients",
        "seed",
        "alike",
        "began",
        "done",
        "planned",
        "score",
        "criterion",
        "generic",
        "averaged",
        "up",
        "down",
        "seconds",
    )
    known: dict[str, object] = {
        "id": identity,
        "name": name,
        "method": "",
        "models": [],
        "status": "damaged",
        "problems": [problem],
    }
    return known | dict.fromkeys((*unknown, "left"))


def began(run: Run) -> str | None:
    """Return the date of the first session of a run, as ISO 8601 in UTC; None if it was not recorded."""
    sessions = read_sessions(run.path)
    date = sessions[0].get("date") if sessions else None
    return date if isinstance(date, str) else None


def criterion(run: Run) -> dict[str, object]:
    """Return name, direction and format of the score that ranks the run, and which other scores are shares."""
    details = {name: name in run.problem.shares for name in run.problem.details}
    return {**run.criterion._asdict(), "heading": run.criterion.heading, "details": details}


def score(run: Run) -> float | None:
    """Return the score of personal models in the round that validation selected."""
    chosen = value(run.summary, "personal.best_by_val")
    return value(run.summary, "personal.final") if chosen is None else chosen


def seconds_left(run: Run, done: int, planned: int) -> float | None:
    """Estimate the seconds until the end from the mean time of a round."""
    seconds = value(run.summary, "seconds")
    return (planned - done) * seconds / done if seconds is not None and done else None
