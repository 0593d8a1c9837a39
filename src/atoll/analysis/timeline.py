"""Compute when each client trains, sends and waits, in simulated time."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ..config import from_dict, read_yaml
from ..core.schema import constraints_of
from ..engine.setup import build_faults, build_setup
from ..simulation.clock import Clock, Times
from ..simulation.costs import count_operations
from ..simulation.timing import RoundTimer
from ..storage.run_reader import load
from ..typing import ClientId
from ..utils.runtime import one_thread

WAYS = {"compute and wait": False, "wait-free": True}  # whether personal training overlaps with communication


class Piece(NamedTuple):
    """One activity of a client."""

    client: ClientId
    what: str
    start: float  # seconds since the run began
    end: float


class Course(NamedTuple):
    """All activities of several rounds, and the end of each round's aggregation."""

    pieces: list[Piece]
    ends: list[float]


def course(times: Mapping[ClientId, Times], aggregation: float, rounds: int, overlap: bool) -> Course:
    """Simulate several rounds with the same clients, by the rules of the simulated clock."""
    clock, pieces, ends = Clock(overlap), list[Piece](), list[float]()
    for _ in range(rounds):
        for i, t in times.items():
            start, sent = clock.start(i, t), clock.arrival(i, t)
            trained = start + t.local
            pieces += [
                Piece(i, "waiting", max(clock.free.get(i, 0.0), _last_sent(pieces, i)), clock.server),
                Piece(i, "download", clock.server, clock.server + t.download),
                Piece(i, "generic training", start, trained),
                Piece(i, "personal training", trained, trained + t.personal),
                Piece(i, "upload", sent - t.upload, sent),
            ]
        ends.append(clock.round(times, aggregation).generic)
    return Course([p for p in pieces if p.end > p.start], ends)


def _last_sent(pieces: list[Piece], i: ClientId) -> float:
    return max((p.end for p in pieces if p.client == i and p.what == "upload"), default=0.0)


def of_run(path: Path, clients: int = 4, rounds: int = 3) -> dict[str, Course]:
    """Simulate the first clients of a run with its work and bytes, with and without waiting."""
    run = load(path)
    setup = build_setup(from_dict(read_yaml(path / "config.yaml"), str(path / "config.yaml")))
    config, pool = setup.config, setup.pool
    with one_thread():
        costs = count_operations(setup.method, pool, config.seed, max(1, round(config.rate * len(pool.ids))))
    timer = RoundTimer(
        setup.devices,
        pool,
        build_faults(config, pool.ids),
        seed=config.seed,
        deadline=config.deadline,
        constraints=constraints_of(setup.method),
    )
    sent = run.summary["bytes"]["per_client_round"]
    times = {i: timer.of(0, i, costs, round(sent["up"]), round(sent["down"])) for i in pool.ids[:clients]}
    aggregation = setup.devices.aggregation(costs.server)
    return {way: course(times, aggregation, rounds, overlap) for way, overlap in WAYS.items()}
