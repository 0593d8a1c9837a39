"""Check that backend, order of clients, store and interruptions do not change what a method computes."""

from dataclasses import replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ...backends.loop import LoopBackend
from ...clients import method_calls
from ...clients.server_side import ClientServers, ServerSideStates
from ...clients.state_store import DiskStore, MemoryStore, Store
from ...clients.tasks import ClientTask
from ...core.contract import contract, exchanges_of
from ...core.limits import why_star
from ...core.method import traits_of
from ...core.payloads import Payload, equal
from ...core.prng import key
from ...core.replies import Replies
from ...core.task import Reply, Round
from ...engine.build import run_experiment
from ...engine.cohort import sample_cohort
from ...engine.round import run_round
from ...engine.setup import Setup
from ...engine.vmap_trial import find_vmap_problem
from ...errors import AtollError
from ...simulation.topology import read_topology
from ...storage.run_dir import RunDir
from .trial import BrokenLaw, NotApplicable, Trial


def finishes(trial: Trial) -> str:
    """Check that a run finishes, and that the server accepts every upload of an honest client."""
    result = trial.run()
    if result.summary["status"] != "finished":
        raise BrokenLaw(f"The run ended as {result.summary['status']!r}. Check the values that it computes.")
    for line in result.history:
        if rejected := line.get("rejected"):
            first = rejected[0]
            raise BrokenLaw(
                f"The server rejected an honest upload of client {first['client']!r}: {first['field']} "
                f"{first['reason']}. Correct the upload, or what about() declares of the field."
            )
    return f"{result.summary['rounds']} rounds on {len(result.pool.ids)} clients"


def processes_equal_loop(trial: Trial) -> str:
    """Check that worker processes give the digest of the loop."""
    if trial.run(backend="processes", workers=2).summary["digest"] != trial.run().summary["digest"]:
        raise BrokenLaw(
            "Worker processes give other bits than the loop. Take random numbers only from keys, and keep nothing "
            "outside of states: neither globals nor attributes."
        )
    return "same digest"


def vmap_equals_loop(trial: Trial) -> str:
    """Check that batched clients give the numbers of the loop, up to rounding."""
    setup = trial.setup()
    if traits_of(setup.method).vmap is False:
        raise NotApplicable("The method declares Traits(vmap=False).")
    if problem := find_vmap_problem(setup.method, setup.pool):
        raise BrokenLaw(problem)
    return "agrees up to rounding"


def order_changes_nothing(trial: Trial) -> str:
    """Check that the order in which clients train changes no bit of uploads and states."""
    setup = trial.setup()
    forwards, backwards = (_outcomes(setup, step) for step in (1, -1))
    if not all(equal(a, b) for a, b in zip(forwards, backwards, strict=True)):
        raise BrokenLaw(
            "The order of clients changes numbers. Keep nothing between calls outside of states: neither globals nor "
            "attributes nor a shared random generator."
        )
    return "same bits"


def _outcomes(setup: Setup, step: int) -> list[Payload]:
    """Return uploads and states of the first round, in the order of the pool, for clients that train in another."""
    method, task, ids = setup.method, setup.pool.task(), setup.pool.ids
    backend, server = LoopBackend(setup.pool, MemoryStore()), method_calls.init_server(method, task, key(0))
    server_side, found = ServerSideStates(method, task, 0, MemoryStore()), list[Payload]()
    for r in (Round(0, at) for at in range(len(exchanges_of(method)))):
        jobs = [ClientTask(i, r, server_side.download(server, i, r)) for i in ids[::step]]
        uploads = {done.sender: done.upload for done in backend.train(method, 0, jobs)}
        for result in backend.results():
            backend.commit(result)
        replies = server_side.serve_replies(server, (Reply(i, uploads[i]) for i in ids), r)
        with torch.no_grad():
            server = method_calls.aggregate(method, server, Replies(replies), task, r, key(0))
        found += [uploads[i] for i in ids]
    return [*found, server, *(backend.state(method, 0, i) for i in ids)]


def store_changes_nothing(trial: Trial) -> str:
    """Check that states on disk, with one of them in memory, give the bits of states in memory."""
    setup = trial.setup()
    types = contract(setup.method)
    with TemporaryDirectory() as folder:
        on_disk = [
            DiskStore(Path(folder, name), kind, cache=1)
            for name, kind in (("clients", types.state), ("server", types.per_client))
        ]
        in_memory = [MemoryStore(), MemoryStore()]
        kept = [_states_after_two_rounds(setup, *stores) for stores in (on_disk, in_memory)]
    if not all(equal(a, b) for a, b in zip(*kept, strict=True)):
        raise BrokenLaw("States on disk give other bits than states in memory. Change no tensor of a state in place.")
    return "same bits"


def _states_after_two_rounds(setup: Setup, states: Store, per_client_states: Store) -> list[Payload]:
    method, task, backend = setup.method, setup.pool.task(), LoopBackend(setup.pool, states)
    server: Any = method_calls.init_server(method, task, key(0))
    for t in range(2):
        cohort = sample_cohort(task.clients, 0.6, 0, t)
        server, _ = run_round(
            method, task, backend, server, t=t, seed=0, cohort=cohort, per_client_states=per_client_states
        )
    return [server, *all_states(setup, backend, per_client_states)]


def all_states(setup: Setup, backend: LoopBackend, per_client_states: Store) -> list[Payload]:
    """Return the state of every client, and the server's states for its clients."""
    clients = (backend.state(setup.method, 0, i) for i in setup.pool.ids)
    return list(chain(clients, (per_client_states.get(i) for i in per_client_states)))


def resume_equals_whole_run(trial: Trial) -> str:
    """Check that a run that ends after one round and is resumed has the digest of a run without a break."""
    setup = trial.setup(rate=0.6)
    whole = trial.run(rate=0.6)
    short = replace(setup, config=replace(setup.config, rounds=1, checkpoint_every=1))
    with TemporaryDirectory() as folder, RunDir(Path(folder)) as run_dir:
        run_dir.start(short.config, resume=False, force=False)
        run_experiment(short, run_dir)
        resumed = run_experiment(setup, run_dir)
    if resumed.summary["digest"] != whole.summary["digest"]:
        raise BrokenLaw(
            "A resumed run has another digest. Keep all that later rounds need in the states of server and clients."
        )
    return "same digest"


def complete_graph_equals_star(trial: Trial) -> str:
    """Check that without a server, on a complete graph, every client gets the state that the server would have."""
    setup = trial.setup()
    method, task = setup.method, setup.pool.task()
    if reason := why_star(method):
        raise NotApplicable(reason)
    neighbours = read_topology("complete", setup.pool.ids) or {}
    star: Any = method_calls.init_server(method, task, key(0))
    graph: Any = ClientServers(dict.fromkeys(task.clients, star), neighbours)
    backends = [LoopBackend(setup.pool, MemoryStore()) for _ in range(2)]
    for t in range(2):
        cohort = sample_cohort(task.clients, 0.6, 0, t)
        star, _ = run_round(method, task, backends[0], star, t=t, seed=0, cohort=cohort)
        graph, _ = run_round(method, task, backends[1], graph, t=t, seed=0, cohort=cohort)
    clients = [equal(*(backend.state(method, 0, i) for backend in backends)) for i in task.clients]
    if not all(clients) or not all(equal(state, star) for state in graph.states.values()):
        raise BrokenLaw(
            "Without a server, on a complete graph, clients get other states than from a server. Take random numbers "
            "of the server from its key alone, or declare in Traits(star_only=...) why there must be one server."
        )
    return "same bits without a server, on a complete graph"


def takes_mixed_models(trial: Trial) -> str:
    """Check that a run with heterogeneous models finishes, or that the method declares why it cannot."""
    mixed = {"models": ("mlp:hidden=32", "mlp:hidden=64"), "width": 24}
    try:
        result = trial.run(**mixed)
    except AtollError as reason:
        raise NotApplicable(str(reason).partition(" Methods for heterogeneous models")[0]) from None
    if result.summary["status"] != "finished":
        raise BrokenLaw(
            f"With heterogeneous models the run ended as {result.summary['status']!r}. Declare "
            "Need.SAME_ARCHITECTURE, or correct it."
        )
    return "two architectures in one run"
