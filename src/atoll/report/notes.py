"""Write notes on runs: unfinished runs, rejected uploads, corrected partitions, privacy."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..storage.run_reader import Run
from .figures.base import title
from .groups import settings
from .majority import warn_of_single_classes
from .partitions import group_by_partition, partition_title
from .wording import count

LISTED = 5  # rejected uploads named in a note before the rest is only counted


class Note(NamedTuple):
    """A note on runs: which runs, and one sentence or more."""

    subject: str
    text: str


def group_notes(notes: Iterable[Note]) -> dict[str, list[str]]:
    """Return the texts of notes by their subject, in the order of the subjects."""
    grouped: dict[str, list[str]] = {}
    for subject, text in notes:
        grouped.setdefault(subject, []).append(text)
    return grouped


def run_notes(runs: Sequence[Run]) -> list[Note]:
    """Return all notes on runs."""
    return [
        *_unfinished(runs),
        *_rejected(runs),
        *_partition_notes(runs),
        *(
            Note(title(members[0].summary), note)
            for members in settings(runs)
            for note in warn_of_single_classes(members)
        ),
        *_privacy_statements(runs),
    ]


def _unfinished(runs: Sequence[Run]) -> list[Note]:
    return [
        Note(
            _subject(run),
            run.status
            + (f" after round {run.metrics[-1]['round']}" if run.metrics else " before the first evaluation")
            + f" of {run.planned}. Its numbers are those of the rounds it reached.",
        )
        for run in runs
        if run.status != "finished"
    ]


def _rejected(runs: Sequence[Run]) -> list[Note]:
    notes = []
    for run in runs:
        rejected = [f"round {m['round']}: {_describe(entry)}" for m in run.metrics for entry in m["rejected"]]
        if rejected:
            more = f"; and {len(rejected) - LISTED} more" if len(rejected) > LISTED else ""
            listed = "; ".join(rejected[:LISTED])
            notes.append(Note(_subject(run), f"{count(len(rejected), 'upload')} rejected ({listed}{more})."))
    return notes


def _partition_notes(runs: Sequence[Run]) -> list[Note]:
    """Return the notes on data and partitions, each once, with the seeds for which it holds."""
    found: dict[tuple[str, str], list[Run]] = {}
    for members in group_by_partition(runs):
        for note in members[0].holdings["notes"]:
            found.setdefault((title(members[0].summary), note), []).extend(members)
    return [Note(partition_title(members), note) for (_, note), members in found.items()]


def _privacy_statements(runs: Sequence[Run]) -> list[Note]:
    """Return the guarantees and their limits for runs with a privacy mechanism."""
    stated = ((run, run.summary.get("privacy") or {}) for run in runs)
    return [
        Note(_subject(run), " ".join(privacy["statement"]))
        for run, privacy in stated
        if privacy.get("gate") or privacy.get("dp")
    ]


def _subject(run: Run) -> str:
    return f"{run.label}, seed {run.seed}"


def _describe(entry: object) -> str:
    """Describe a rejected upload: the client and, if known, the reason."""
    if not isinstance(entry, dict):
        return f"client {entry}"
    why = ": ".join(str(entry[name]) for name in ("field", "reason") if entry.get(name))
    return f"client {entry.get('client')} ({why})" if why else f"client {entry.get('client')}"
