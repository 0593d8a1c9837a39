"""Group runs that differ only in their seeds, and name the groups."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..config import LENGTH, NEUTRAL
from ..core.criterion import Criterion
from ..errors import AtollError
from ..storage.run_reader import Document, Run, problem_of, value
from ..utils.stats import Stat, spread

# Entries of a configuration that leave the numbers alone, or change them by chance only.
INCIDENTAL = (NEUTRAL - LENGTH) | {"seed", "backend"}
SETTING = ("data", "partition", "split", "clients")  # scores under different ones are not comparable
LONGEST = 24  # characters of a value in a name


@dataclass(frozen=True)
class Group:
    """The runs of one method in one configuration, one for each seed."""

    name: str
    runs: tuple[Run, ...]  # by seed

    @property
    def criterion(self) -> Criterion:
        """The score that ranks methods; all runs of a group have the same."""
        return self.runs[0].criterion

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.seed for run in self.runs)

    def stat(self, dotted: str) -> Stat | None:
        """Return mean and deviation of a summary entry; None unless every seed has it: a mean over some misleads."""
        values = [value(run.summary, dotted) for run in self.runs]
        known = [v for v in values if v is not None]
        return spread(known) if len(known) == len(values) else None


def groups(runs: Iterable[Run]) -> list[Group]:
    """Group runs that differ only in the seed, the best personal score first."""
    alike: dict[tuple[str, str, int], list[Run]] = defaultdict(list)
    repeats: dict[tuple[str, str, int], int] = defaultdict(int)
    for run in sorted(runs, key=lambda r: (r.seed, str(r.path))):
        identity = identify(run)
        repeat = repeats[run.label, identity, run.seed]  # the same seed again is no further seed
        repeats[run.label, identity, run.seed] += 1
        alike[run.label, identity, repeat].append(run)
    named = _named([tuple(members) for members in alike.values()])
    return sorted(named, key=_rank)


def settings(runs: Iterable[Run]) -> list[tuple[Run, ...]]:
    """Split runs into sets whose scores may be compared."""
    apart: dict[tuple[str, ...], list[Run]] = defaultdict(list)
    for run in runs:
        apart[(run.problem.task, *(str(run.summary[field]) for field in SETTING))].append(run)
    return [tuple(members) for members in apart.values()]


def split_by_problem(runs: Iterable[Run]) -> list[list[Run]]:
    """Split runs by problem, because a table has scores of one kind."""
    apart: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        apart[run.problem.task].append(run)
    return list(apart.values())


def criterion_of(runs: Iterable[Run]) -> Criterion:
    """Return the score that ranks these runs.

    Raises:
        AtollError: the runs are of different problems, such as classes and numbers.
    """
    tasks = list(dict.fromkeys(run.problem.task for run in runs))
    if len(tasks) > 1:
        raise AtollError(f"These runs cannot be compared: their tasks are {', '.join(tasks)}. Give one at a time.")
    return problem_of(tasks[0] if tasks else None).criterion


def _rank(group: Group) -> tuple[bool, float, str]:
    stat = group.stat("personal.best_by_val") or group.stat("personal.final")
    return stat is None, group.criterion.rank(stat.mean) if stat else 0.0, group.name


def identify(run: Run) -> str:
    """Return a text that is the same for runs that differ in their seeds alone."""
    return json.dumps([run.label, _identity(run)], sort_keys=True, default=str)


def _identity(run: Run) -> dict[str, object]:
    """Return everything that identifies a run except its seed, as a flat mapping."""
    identity = {field: run.summary[field] for field in (*SETTING, "models")}
    return identity | dict(_flat({k: v for k, v in run.config.items() if k not in INCIDENTAL}))


def _flat(document: Document, prefix: str = "") -> Iterable[tuple[str, object]]:
    for name, entry in document.items():
        if isinstance(entry, Mapping):
            yield from _flat(entry, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", entry


def _named(members: Sequence[tuple[Run, ...]]) -> list[Group]:
    namesakes: dict[str, list[tuple[Run, ...]]] = defaultdict(list)
    for runs in members:
        namesakes[runs[0].label].append(runs)
    return [
        Group(name, runs)
        for label, peers in namesakes.items()
        for name, runs in zip(_names(label, peers), peers, strict=True)
    ]


def _names(label: str, peers: Sequence[tuple[Run, ...]]) -> list[str]:
    """Return a name for each group: the label if it is unique, otherwise with the differences or the directory."""
    if len(peers) == 1:
        return [label]
    flat = [_identity(runs[0]) for runs in peers]
    keys = [key for key in dict.fromkeys(k for f in flat for k in f) if len({str(f.get(key)) for f in flat}) > 1]
    names = [f"{label} ({', '.join(_differences(f, keys))})" if keys else label for f in flat]
    if len(set(names)) == len(names):
        return names
    folders = [_folder(runs) for runs in peers]
    if len(set(zip(names, folders, strict=True))) < len(names):
        folders = [runs[0].path.name for runs in peers]
    return [f"{name} [{folder}]" for name, folder in zip(names, folders, strict=True)]


def _folder(runs: Sequence[Run]) -> str:
    """Return the name of the directory of a run, or of the one that holds the runs of several seeds."""
    return (runs[0].path if len(runs) == 1 else runs[0].path.resolve().parent).name


def _differences(flat: Document, keys: Iterable[str]) -> list[str]:
    """Return `leaf=value` for each key without repetitions: summary and configuration often agree."""
    return list(dict.fromkeys(f"{key.rsplit('.', 1)[-1]}={_shown(flat, key)}" for key in keys))


def _shown(flat: Document, key: str) -> str:
    entry = flat.get(key, "–")
    text = "+".join(map(str, entry)) if isinstance(entry, list) else str(entry)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
