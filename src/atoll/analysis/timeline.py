"""Compute when each client trains, sends and waits, in simulated time."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ..config import from_dict, read_yaml
from ..core.schema import constraints_of
from ..engine.setup import build_faults, build_setup
from ..simulation.clock import Clock, Times
from ..simulation.costs import TURNS, count_operations
from ..simulation.timing import RoundTimer
from ..storage.run_reader import load
from ..typing import ClientId
from ..utils.runtime import one_thread

WAYS = {"compute and wait": False, "wait-free": True}  # whether personal training overlaps with communication


class Activity(NamedTuple):
    """One activity of a client."""

    client: ClientId
    what: str
    start: float  # seconds since the run began
    end: float


class Schedule(NamedTuple):
    """All activities of several rounds, and the end of each round's aggregation."""

    activities: list[Activity]
    ends: list[float]


def simulate_schedule(times: Mapping[ClientId, Times], aggregation: float, rounds: int, overlap: bool) -> Schedule:
    """Simulate several rounds with the same clients, by the rules of the simulated clock."""
    clock, activities, ends = Clock(overlap), list[Activity](), list[float]()
    for _ in range(rounds):
        for i, t in times.items():
            start, sent = clock.start(i, t), clock.arrival(i, t)
            trained = start + t.local
            activities += [
                Activity(i, "waiting", max(clock.free.get(i, 0.0), _last_sent(activities, i)), clock.server),
                Activity(i, "download", clock.server, clock.server + t.download),
                Activity(i, "generic training", start, trained),
                Activity(i, "personal training", trained, trained + t.personal),
                Activity(i, "upload", sent - t.upload, sent),
            ]
        ends.append(clock.round(times, aggregation).generic)
    return Schedule([p for p in activities if p.end > p.start], ends)


def _last_sent(activities: list[Activity], i: ClientId) -> float:
    return max((p.end for p in activities if p.client == i and p.what == "upload"), default=0.0)


def simulate_run(path: Path, clients: int = 4, rounds: int = 3) -> dict[str, Schedule]:
    """Simulate the first clients of a run with its work and bytes, with and without waiting."""
    run = load(path)
    setup = build_setup(from_dict(read_yaml(path / "config.yaml"), str(path / "config.yaml")))
    config, pool = setup.config, setup.pool
    with one_thread():
        costs = count_operations(setup.method, pool, config.seed, max(1, round(config.rate * len(pool.ids))))
    costs = costs._replace(done=dict.fromkeys(pool.ids, TURNS))  # the work of later rounds, which all are alike
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
    return {way: simulate_schedule(times, aggregation, rounds, overlap) for way, overlap in WAYS.items()}
