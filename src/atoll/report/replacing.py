"""Decide whether a file may be replaced by a report or a table: only by what the same command would make again."""

import json
import re
from collections.abc import Sequence
from html import unescape
from pathlib import Path

from ..errors import AtollError
from .sheets import FORMS, Sheet

_TITLE = "Atoll report</title>"
_RUNS = re.compile(r'<meta name="atoll-runs" content="([^"]*)">')


def runs_as_text(folders: Sequence[str]) -> str:
    """Return the directories of the runs of a report as the page holds them, relative to its own directory."""
    return json.dumps(sorted(folders))


def check_report(path: Path, folders: Sequence[Path]) -> None:
    """Refuse to replace a file that is no report, or the report of other runs that are still there.

    Args:
        path: the file that the report goes to.
        folders: directories of the runs of the report.

    Raises:
        AtollError: the file would be lost.
    """
    if not path.exists():
        return
    text = path.read_bytes().decode(errors="replace")
    if _TITLE not in text:
        raise AtollError(f"{str(path)!r} exists and is no report. Add --force to replace it, or choose another --out.")
    found = _RUNS.search(text)
    shown = [path.parent / folder for folder in json.loads(unescape(found[1]))] if found else []
    kept = {folder.resolve() for folder in folders}
    lost = [folder.resolve().name for folder in shown if folder.exists() and folder.resolve() not in kept]
    if lost:
        raise AtollError(
            f"{str(path)!r} is the report of other runs ({', '.join(lost[:3])}{', ...' if len(lost) > 3 else ''}). "
            "Add --force to replace it, or choose another --out."
        )


def check_table(path: Path, sheet: Sheet) -> None:
    """Refuse to replace a file that does not begin as the table does, such as the user's own text.

    Raises:
        AtollError: the file would be lost.
    """
    if not path.exists():
        return
    heading = FORMS[path.suffix](sheet).partition("\n")[0]
    if path.read_bytes().decode(errors="replace").partition("\n")[0].rstrip("\r") != heading:
        raise AtollError(
            f"{str(path)!r} exists and is not such a table. Add --force to replace it, or choose another name."
        )
