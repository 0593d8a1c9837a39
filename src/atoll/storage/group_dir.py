"""The directory of several runs, such as a comparison: its plan, from which it resumes, and who may write to it."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import yaml

from ..config import Config, from_dict, read_yaml
from ..config.paths import with_absolute_paths
from ..errors import AtollError
from ..utils.files import write_whole
from .run_dir import CONFIG, holds_run

PLAN = "plan.yaml"
RESULTS = "results.json"  # of a recipe
REPORT = "report.html"


def check_free_for_group(root: Path, replacing: bool) -> None:
    """Raise an AtollError if a comparison or a sweep in ``root`` would overwrite what another command made.

    Args:
        root: directory of the runs.
        replacing: whether the user asked to resume or to replace the runs.
    """
    if holds_run(root):
        raise AtollError(
            f"{str(root)!r} holds a single run, and the report of several would replace its report. "
            "Choose another --out."
        )
    if not replacing and (root / REPORT).exists():
        raise AtollError(
            f"{str(root)!r} already holds runs with their report. "
            "Add --resume to continue them, --force to replace them, or choose another --out."
        )


def check_keeps_runs(root: Path, configs: Iterable[Config]) -> None:
    """Raise an AtollError if the report of the runs to resume would lose runs that were planned in ``root``."""
    if not (root / PLAN).exists():
        return
    planned = {Path(str(c.out)) for c in configs}
    lost = [Path(str(c.out)).name for c in read_plan(root, {}) if Path(str(c.out)) not in planned]
    if lost:
        raise AtollError(
            f"{str(root)!r} also holds {', '.join(lost[:3])}{', ...' if len(lost) > 3 else ''}, which this command "
            "does not run, so the report would lose them. Name all methods and seeds that are there, add --force in "
            "place of --resume to replace them, or choose another --out."
        )


def check_free_for_recipe(root: Path, recipe: str) -> None:
    """Raise an AtollError if the results of a recipe would replace what another command wrote into ``root``."""
    results = root / RESULTS
    other = json.loads(results.read_bytes()).get("recipe") if results.exists() else None
    if holds_run(root) or (root / PLAN).exists() or (other or recipe) != recipe:
        what = f"the results of {other}" if other else "the runs of another command"
        raise AtollError(f"{str(root)!r} holds {what}, and {recipe} would replace the report. Choose another --out.")


def write_plan(root: Path, configs: Sequence[Config]) -> None:
    """Write what :func:`read_plan` reads: the configurations of all runs, those that have not begun included."""
    root.mkdir(parents=True, exist_ok=True)
    entries = [{**with_absolute_paths(c.to_dict()), "out": str(Path(str(c.out)).relative_to(root))} for c in configs]
    write_whole(root / PLAN, str(yaml.safe_dump({"runs": entries}, sort_keys=False)).encode())


def read_plan(root: Path, changes: dict[str, object]) -> list[Config]:
    """Read the configurations of the runs in a directory, wherever the directory is now.

    Args:
        root: directory of the runs.
        changes: entries that replace those of all runs.

    Raises:
        AtollError: the directory has no plan, or the plan is damaged.
    """
    if not (root / PLAN).exists():
        raise AtollError(
            f"{str(root)!r} has neither {CONFIG}, as a run has, nor {PLAN}, as several runs have: there is nothing to "
            "resume. Check the path."
        )
    entries = read_yaml(root / PLAN).get("runs")
    if not isinstance(entries, list) or not all(isinstance(e, dict) and isinstance(e.get("out"), str) for e in entries):
        raise AtollError(f"{str(root / PLAN)!r} is damaged: it lists no runs. Repeat the command with another --out.")
    return [from_dict({**e, **changes, "out": str(root / e["out"])}, str(root / PLAN)) for e in entries]
