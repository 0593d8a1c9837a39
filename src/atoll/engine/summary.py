"""Summarise a run: the content of summary.json, the digest of its state, and notes on incidents."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

from .._version import __version__
from ..clients.evaluation import find_target_round, select_rounds
from ..clients.run_stores import RunStores
from ..clients.server_side import ClientServers
from ..clients.state_store import state_digest
from ..config import Config
from ..core import serialization
from ..core.criterion import Criterion
from ..core.payloads import Payload
from ..core.problems import Problem
from ..methods._factory import split_variant
from ..storage.metrics import GenericScores, RoundMetrics
from ..typing import ClientId
from .run_state import RunState

NAMED = 5  # largest number of clients in a sentence


def summarise(
    config: Config,
    run_state: RunState,
    problem: Problem,
    clients: int,
    digest: str,
    poisoned: Sequence[ClientId] = (),
) -> dict[str, Any]:
    """Make the content of summary.json.

    Args:
        config: configuration of the run.
        run_state: totals, scores and lines of metrics.
        problem: what the labels are.
        clients: number of clients.
        digest: digest of the final state.
        poisoned: byzantine clients.
    """
    lines, totals, criterion = run_state.lines, run_state.totals, problem.criterion
    base, variant = split_variant(config.method)
    generic = [(line["round"], scores) for line in lines if (scores := line["generic"])]
    each = max(1, totals.participations)
    return {
        "method": base,
        "variant": variant,
        "label": config.label,
        "data": config.data,
        **({} if problem.num_classes else {"task": problem.task}),
        "partition": config.partition,
        "split": config.split,
        "models": list(config.models),
        "clients": clients,
        "rounds": run_state.round,
        "seed": config.seed,
        "backend": config.backend,
        "status": run_state.status,
        "personal": select_rounds([(line["round"], line["personal"]["post"]) for line in lines], criterion),
        "personal_pre": select_rounds([(line["round"], line["personal"]["pre"]) for line in lines], criterion),
        "personal_honest": select_rounds([(line["round"], line["personal"]["honest"]) for line in lines], criterion)
        if poisoned
        else None,
        "poisoned": list(poisoned),
        "dropped": totals.dropped,
        "empty_rounds": totals.empty,
        "generic": _generic(generic, criterion) if generic else None,
        "bytes": {
            "up": totals.up,
            "down": totals.down,
            "per_client_round": {"up": totals.up / each, "down": totals.down / each},
        },
        "flops": {"clients": totals.client_flops, "server": totals.server_flops},
        "clock": _clock(lines, config.wait_free) | {"local": totals.local_seconds / each},
        "target": config.target
        and {
            criterion.name: config.target,
            "of": config.target_of,
            "reached": find_target_round(lines, config.target, criterion, config.target_of),
        },
        "seconds": totals.seconds,
        "digest": digest,
        "version": __version__,
    }


def _generic(history: Sequence[tuple[int, GenericScores]], criterion: Criterion) -> dict[str, Any]:
    """Return the source and the selected scores of the generic model on all test rows."""
    selected = select_rounds([(t, scores["global"]) for t, scores in history], criterion)
    return {"source": history[-1][1]["source"], **selected}


def _clock(lines: Sequence[RoundMetrics], overlap: bool) -> dict[str, Any]:
    """Return the simulated seconds until the last personal model was trained, and the speedup by overlap.

    In the first round nobody has waited yet, so the time of a round is measured from the first evaluated round to the
    last one. With a single evaluated round it is not known, nor is the speedup.
    """
    first, last = lines[0], lines[-1]
    ends = {name: last["clock"][name]["personal"] for name in ("waiting", "wait_free")}
    rounds = last["round"] - first["round"]
    times = {name: (end - first["clock"][name]["personal"]) / rounds for name, end in ends.items()} if rounds else None
    return {
        "seconds": ends["wait_free" if overlap else "waiting"],
        **ends,
        "round_time": times,
        "speedup": times["waiting"] / times["wait_free"] if times and times["wait_free"] else None,
    }


def run_digest(server: Payload | ClientServers, stores: RunStores) -> str:
    """Return the SHA-256 over the server's state, every client's state, and the server's state for each client."""
    states = server.states if isinstance(server, ClientServers) else {"": server}
    whole = sha256()
    for i, state in states.items():
        whole.update(f"server {i}{' ' if i else ''}{serialization.digest(state)}\n".encode())
    for what, store in (("client", stores.clients), ("per client", stores.server_side)):
        for i in store:
            whole.update(f"{what} {i} {state_digest(store.get(i))}\n".encode())
    return whole.hexdigest()


def describe_incidents(run_state: RunState, strikes: int) -> Iterator[str]:
    """Yield sentences on rejected uploads, discarded states, excluded clients and empty rounds of a run."""
    rejected = [entry for line in run_state.lines for entry in line["rejected"]]
    not_finite = [entry for line in run_state.lines for entry in line.get("not_finite", [])]
    if rejected:
        yield f"Rejected uploads: {_listed(rejected)}. These clients kept their last good states."
    if not_finite:
        yield f"States that held NaN or infinity: {_listed(not_finite)}. These clients kept their last good states."
    for i in run_state.excluded(strikes):
        yield f"Client {i!r} was excluded after {run_state.strikes[i]} rejected uploads."
    if run_state.totals.empty:
        yield (
            f"No client answered in {run_state.totals.empty} of {run_state.round} rounds; these rounds changed nothing."
        )


def _listed(entries: Sequence[Mapping[str, Any]]) -> str:
    """List the number of entries of each client and the reason of the first; only the first few of many clients."""
    counts, first = Counter(entry["client"] for entry in entries), dict[str, str]()
    for entry in entries:
        why = f": {entry['field']} {entry['reason']}" if "reason" in entry else ""
        first.setdefault(entry["client"], f"in round {entry['round']}{why}")
    listed = [f"{n} of client {i!r} (first {first[i]})" for i, n in list(counts.items())[:NAMED]]
    more = [f"and those of {len(counts) - NAMED} more clients"] if len(counts) > NAMED else []
    return ", ".join(listed + more)
