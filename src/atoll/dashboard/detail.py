"""Collect everything about one run as plain data for the page."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypedDict, TypeVar

import numpy as np
import yaml

from ..storage.run_reader import PARTS, Document, Run, value
from ..storage.tolerant_reader import PartialRun
from .listing import criterion

MOST = 150  # clients, classes or rounds that a chart can show apart
LISTED = 500  # incidents that are listed; the latest
T = TypeVar("T")
SCORES = {
    "personal": "personal.post",
    "before": "personal.pre",
    "generic": "generic.global",
    "honest": "personal.honest",
    "training": "training",
}


class Curves(TypedDict):
    """A value for each evaluated round, by measure and kind of model; None where a round has no value."""

    rounds: list[int]
    measures: dict[str, dict[str, list[float | None]]]


def detail(row: Mapping[str, object], seen: PartialRun) -> dict[str, object]:
    """Return all data of the page of one run; ``row`` is its line in the list."""
    run = seen.run
    return {
        "row": dict(row),
        "facts": _facts(run),
        "curves": curves(run),
        "clients": _clients(run),
        "traffic": _traffic(run.metrics),
        "incidents": _incidents(run.metrics),
        "privacy": _privacy(run),
        "holdings": {"group": run.problem.group, **_holdings(run.holdings)},
        "config": yaml.safe_dump(dict(run.config), sort_keys=False, allow_unicode=True) if run.config else "",
    }


def _facts(run: Run) -> dict[str, object]:
    """Return the numbers shown at the top."""
    last: Document = run.metrics[-1] if run.metrics else {}
    return {
        "now": value(last, f"personal.post.{run.criterion.name}"),
        "final": value(run.summary, "personal.final"),
        "best": value(run.summary, "personal.best"),
        "chosen": value(run.summary, "personal.best_by_val"),
        "chosen_round": value(run.summary, "personal.best_by_val_round"),
        "worst_decile": value(run.summary, "personal.worst_decile"),
        "generic": value(run.summary, "generic.best_by_val"),
        "averaged": run.averaged,
        "each_up": value(run.summary, "bytes.per_client_round.up"),
        "each_down": value(run.summary, "bytes.per_client_round.down"),
        "flops": value(run.summary, "flops.clients"),
        "digest": str(run.summary["digest"]),
        "version": str(run.summary["version"]),
    }


# -- by round -------------------------------------------------------------------------------------------------------


def curves(run: Run) -> Curves:
    """Return curves: for each measure and kind of model, a value for each evaluated round."""
    found: dict[str, dict[str, list[float | None]]] = {}
    for kind, where in SCORES.items():
        for measure in _measures(run.metrics, where):
            values = [value(line, f"{where}.{measure}") for line in run.metrics]
            if any(v is not None for v in values):
                found.setdefault(measure, {})[kind] = values
    return {"rounds": [int(line["round"]) for line in run.metrics], "measures": found}


def _measures(metrics: Sequence[Document], where: str) -> list[str]:
    """Return the names of all measures in the order of first appearance, without the number of rows."""
    scores = (_entry(line, where) for line in metrics)
    names = dict.fromkeys(name for score in scores if isinstance(score, Mapping) for name in score)
    return [str(name) for name in names if name != "n" and "." not in str(name)]


def _entry(line: Document, where: str) -> object:
    """Return the entry of a line of metrics at a dotted path; None if a part of the path is missing."""
    found: object = line
    for name in where.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _traffic(metrics: Sequence[Document]) -> dict[str, object]:
    """Return the bytes between consecutive lines."""
    made: dict[str, object] = {"rounds": [int(line["round"]) for line in metrics]}
    for way in ("up", "down"):
        totals = [value(line, f"bytes.{way}") or 0.0 for line in metrics]
        made[way] = [now - before for before, now in zip([0.0, *totals], totals, strict=False)]
    return made


def _incidents(metrics: Sequence[Document]) -> dict[str, object]:
    """Return the number of rejected, dropped and other failed uploads, and the latest of them."""
    found = [entry for line in metrics for entry in _incidents_of_line(line)]
    counts = {kind: sum(entry["kind"] == kind for entry in found) for kind in ("rejected", "dropped", "not_finite")}
    excluded = metrics[-1].get("excluded") or [] if metrics else []
    return {"counts": counts, "latest": found[-LISTED:][::-1], "excluded": [str(client) for client in excluded]}


def _incidents_of_line(line: Document) -> Iterator[dict[str, object]]:
    for kind in ("rejected", "dropped", "not_finite"):
        entries = line.get(kind) or []
        for entry in entries if isinstance(entries, list) else []:
            known = entry if isinstance(entry, Mapping) else {"client": entry}
            why = ": ".join(str(known[name]) for name in ("field", "reason", "why") if known.get(name))
            yield {
                "kind": kind,
                "round": known.get("round", line["round"]),
                "client": str(known.get("client", "")),
                "why": why or ("its state held NaN or infinity" if kind == "not_finite" else ""),
            }


def _privacy(run: Run) -> dict[str, object] | None:
    """Return the privacy budget and its use by round; None without a privacy mechanism."""
    spent = [[int(line["round"]), value(line, "privacy.epsilon")] for line in run.metrics]
    spent = [point for point in spent if point[1] is not None]
    stated = run.summary.get("privacy")
    statement = stated.get("statement") if isinstance(stated, Mapping) else None
    guarded = isinstance(stated, Mapping) and bool(stated.get("gate") or stated.get("dp"))
    if not (spent or guarded or run.config.get("dp")):
        return None
    return {
        "allowed": str(run.config.get("dp") or ""),
        "spent": spent,
        "statement": [str(sentence) for sentence in statement] if isinstance(statement, list) else [],
    }


# -- by client ------------------------------------------------------------------------------------------------------


def _clients(run: Run) -> dict[str, object]:
    """Return the latest score of every client, and the curves of an even choice of clients."""
    table = run.clients
    rounds, names = table["round"].to_pylist(), [str(name) for name in table["client"].to_pylist()]
    scores = table[run.criterion.name].to_pylist()
    at: dict[str, dict[int, float | None]] = {}
    for t, name, score in zip(rounds, names, scores, strict=True):
        at.setdefault(name, {})[int(t)] = value({"v": score}, "v")
    shown, over = even(sorted(at, key=_natural)), even(sorted({int(t) for t in rounds}))
    last = max(map(int, rounds), default=0)
    return {
        "round": last,
        "criterion": criterion(run),
        "latest": [[name, at[name].get(last)] for name in sorted(at, key=_natural)],
        "names": shown,
        "rounds": over,
        "table": [[at[name].get(t) for t in over] for name in shown],
    }


def _natural(name: str) -> tuple[int, int, str]:
    """Return a sort key that puts client 10 after client 9."""
    return (0, int(name), name) if name.isdecimal() else (1, 0, name)


def _holdings(holdings: Document) -> dict[str, object]:
    """Return the rows of each client and class, or of an even choice of many clients."""
    clients, classes = [str(c) for c in holdings["clients"]], [str(c) for c in holdings["classes"]]
    some, few = even(range(len(clients))), even(range(len(classes)))
    return {
        "clients": [clients[i] for i in some],
        "classes": [classes[j] for j in few],
        "all": {"clients": len(clients), "classes": len(classes)},
        "train": [[holdings["train"][i][j] for j in few] for i in some],
        "totals": {part: sum(map(sum, holdings[part])) for part in PARTS},
        "notes": [str(note) for note in holdings["notes"]],
    }


def even(things: Sequence[T]) -> list[T]:
    """Return all items, or an even choice of as many as a chart can show, with the first and the last."""
    if len(things) <= MOST:
        return list(things)
    return [things[int(i)] for i in np.linspace(0, len(things) - 1, MOST).round()]
