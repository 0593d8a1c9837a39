"""Record the conditions of a run in environment.json: software, processor, data, settings, command line, date."""

import json
import time
from collections.abc import Mapping
from pathlib import Path

from ..errors import AtollError
from ..utils.files import read_ordinary
from ..utils.machine import command_line, describe_machine, find_differences
from ..utils.parsing import Json

NAME = "environment.json"
LARGEST = 2**24  # bytes, far more than any valid file has


def describe_session(data: Mapping[str, object], settings: Mapping[str, object], first_round: int) -> Json:
    """Describe the conditions under which this process works on a run.

    Args:
        data: digests of the data and of their partition.
        settings: all settings of the method, with their values.
        first_round: the first round of this process, counted from 1.
    """
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": command_line(),
        "first_round": first_round,
        "machine": describe_machine(),
        "data": dict(data),
        "settings": {name: value if isinstance(value, str | int | float | None) else str(value)
                     for name, value in settings.items()},
    }  # fmt: skip


def read_sessions(folder: Path) -> list[Json]:
    """Return the sessions of a run, the first one first; none if the file is missing or damaged."""
    try:
        return [dict(session) for session in json.loads(read_ordinary(folder / NAME, LARGEST))["sessions"]]
    except (AtollError, OSError, ValueError, KeyError, TypeError, RecursionError):
        return []


def describe_changes(folder: Path, verb: str) -> list[str]:
    """Return a sentence if the run in a folder was computed under other conditions than those of this process.

    Args:
        folder: a run directory.
        verb: what this process does with the run, such as ``"continued"``.
    """
    sessions = read_sessions(folder)
    differ = find_differences(sessions[-1].get("machine", {}), describe_machine()) if sessions else []
    if not differ:
        return []
    return [
        f"The run in {str(folder)!r} is {verb} under other conditions ({'; '.join(differ)}). "
        "Its results may differ in their last digits from those of one machine alone."
    ]
