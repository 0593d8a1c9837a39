"""Fill in a reproducibility checklist from the files of runs."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ..storage.environment_file import read_sessions
from ..storage.run_reader import Run
from ..utils.parsing import Json
from .groups import groups
from .wording import count

UNKNOWN = "not recorded"


def reproducibility_checklist(runs: Sequence[Run]) -> str:
    """Return the questions that conferences ask about experiments, answered from the runs, as Markdown.

    Answers that only the authors can give are marked.
    """
    parts = [
        "# Reproducibility checklist",
        "Filled in from the files of the runs. Lines that begin with [ ] are for the authors.",
        "## Models and algorithms",
        _list(_methods(runs)),
        "## Data",
        _list(_data(runs)),
        "## Code and commands",
        _list(_code(runs)),
        "## Results",
        _list(_results(runs)),
    ]
    return "\n\n".join(parts) + "\n"


def _list(lines: Sequence[str]) -> str:
    return "\n".join(line if line.startswith(" ") else f"- {line}" for line in lines)


def _methods(runs: Sequence[Run]) -> list[str]:
    models = dict.fromkeys(str(model) for run in runs for model in run.summary["models"])
    return [
        f"[x] Methods: {', '.join(group.name for group in groups(runs))}.",
        f"[x] Architectures: {', '.join(models)}.",
        "[x] Hyper-parameters, all of them, of each method:",
        *(f"    - {group.name}: {_settings(group.runs[0])}" for group in groups(runs)),
        "[ ] How hyper-parameters were chosen, with the ranges that were searched (`atoll sweep` leaves sweep.csv).",
    ]


def _settings(run: Run) -> str:
    sessions = read_sessions(run.path)
    settings = sessions[-1].get("settings", {}) if sessions else {}
    return ", ".join(f"{name} = {value}" for name, value in settings.items()) or UNKNOWN


def _data(runs: Sequence[Run]) -> list[str]:
    lines = []
    for run in {str(run.summary["data"]): run for run in runs}.values():
        held = run.holdings
        rows = {part: _rows(held.get(part)) for part in ("train", "val", "test")}
        split = run.summary["split"]
        lines += [
            f"[x] {Path(str(run.summary['data'])).name}: {count(int(run.summary['clients']), 'client')} by partition "
            f"{run.summary['partition']}, split {split}; samples to train, validate and test: "
            f"{rows['train']}, {rows['val']}, {rows['test']}.",
            f"[x] Digest of the data: {run.config.get('data_digest') or UNKNOWN}.",
            f"[x] Preparation: transform {run.config.get('transform', UNKNOWN)}, fitted on training samples alone.",
            "[x] Rounds are chosen by validation samples; test samples are used for the reported scores only.",
        ]
    return [*lines, "[ ] Where the data come from, their licence, and the consent of the people in them."]


def _rows(counts: Any) -> str:
    try:
        return str(sum(sum(row) for row in counts))
    except TypeError:  # Sites may keep their counts to themselves.
        return UNKNOWN


def _code(runs: Sequence[Run]) -> list[str]:
    sessions = [session for run in runs for session in read_sessions(run.path)]
    machines = dict.fromkeys(_machine(session) for session in sessions)
    commands = dict.fromkeys(str(session.get("command", UNKNOWN)) for session in sessions)
    return [
        *(f"[x] Software and processor: {machine}." for machine in machines or [UNKNOWN]),
        *(f"[x] Command: `{command}`" for command in commands or [UNKNOWN]),
        f"[x] Seeds: {', '.join(map(str, sorted({run.seed for run in runs})))}.",
        f"[x] Time: {sum(float(run.summary['seconds']) for run in runs):.0f} s of running time in all.",
    ]


def _machine(session: Json) -> str:
    machine = session.get("machine", {})
    return ", ".join(f"{name} {value}" for name, value in machine.items() if value)


def _results(runs: Sequence[Run]) -> list[str]:
    lines = []
    for group in groups(runs):
        scores = [run.summary["personal"]["best_by_val"] for run in group.runs]
        known = [score for score in scores if score is not None]
        mean = group.criterion.format(fmean(known)) if known else UNKNOWN
        lines.append(f"[x] {group.name}: {mean} over {count(len(known), 'seed')}, round chosen by validation.")
    several = len({run.seed for run in runs}) > 1
    mark = "x" if several else " "
    return [*lines, f"[{mark}] Spread over seeds{'' if several else ': run several seeds (`--seeds 0,1,2`)'}."]
