"""Worker processes: the same bits as the loop, whatever happens to a worker."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing import active_children, parent_process
from pathlib import Path
from typing import Any

import pytest
import torch
from support.killable_cli import Victim

from atoll.backends.loop import LoopBackend
from atoll.backends.multiprocess import ProcessBackend
from atoll.clients.state_store import MemoryStore
from atoll.clients.tasks import ClientTask
from atoll.config import Config
from atoll.core.payloads import Nothing, equal
from atoll.core.prng import key
from atoll.core.task import Round
from atoll.engine.build import run_experiment
from atoll.engine.cohort import sample_cohort
from atoll.engine.round import run_round
from atoll.engine.setup import Setup, build_setup
from atoll.errors import AtollError
from atoll.methods.ditto import Ditto
from atoll.methods.fedavg import FedAvg, Global, Update
from atoll.methods.local import State


def setup(method: str = "ditto", **changes: Any) -> Setup:
    options = {"rows": 400, "clients": 5, "epochs": 1, "batch_size": 16, "partition": "dirichlet:0.5"} | changes
    return build_setup(Config(method=method, **options))


def played(made: Setup, backend: LoopBackend, rounds: int = 2) -> list[Any]:
    task = made.pool.task()
    server = made.method.init_server(task, key(0))
    logs = []
    for t in range(rounds):
        server, log = run_round(
            made.method,
            task,
            backend,
            server,
            t=t,
            seed=0,
            cohort=sample_cohort(task.clients, 0.8, 0, t),
            evaluate=set(made.pool.ids),
        )
        logs.append((log.cohort, log.up, log.down, log.before, log.after))
    return [logs, server, *(backend.state(made.method, 0, i) for i in made.pool.ids)]


@pytest.fixture
def backends() -> Iterator[list[ProcessBackend]]:
    opened: list[ProcessBackend] = []
    yield opened
    for backend in opened:
        backend.close()


def alike(a: list[Any], b: list[Any]) -> bool:
    return repr(a[0]) == repr(b[0]) and all(equal(x, y) for x, y in zip(a[1:], b[1:], strict=True))


@pytest.mark.parametrize("method", ["ditto", "dcpfl", "fedavg"])
@pytest.mark.parametrize("workers", [1, 3])
def test_any_number_of_workers_gives_the_same_bits_as_the_loop(method: str, workers: int, backends: Any) -> None:
    made = setup(method)
    backends.append(ProcessBackend(made.pool, MemoryStore(), workers))
    assert alike(played(made, backends[0]), played(made, LoopBackend(made.pool, MemoryStore())))


def test_convolutions_with_batch_statistics_give_the_same_bits_as_the_loop(backends: Any) -> None:
    made = setup("fedavg", models=("feddw_fmnist",))
    backends.append(ProcessBackend(made.pool, MemoryStore(), 2))
    assert alike(played(made, backends[0], 1), played(made, LoopBackend(made.pool, MemoryStore()), 1))


@pytest.mark.parametrize("method", ["perfedavg", "fedala", "pfedes", "dcpfl"])
def test_methods_with_their_own_gradient_steps_give_the_same_bits_as_the_loop(method: str) -> None:
    """Methods that compute or store gradients must not depend on the memory layout in the next round."""
    few = {"models": ("small_cnn",), "clients": 3, "rows": 120, "rounds": 2, "eval_every": 2}
    digests = {
        run_experiment(setup(method, backend=backend, workers=2, **few)).summary["digest"]
        for backend in ("loop", "processes")
    }
    assert len(digests) == 1


def test_common_download_is_sent_once_to_each_worker(backends: Any) -> None:
    made = setup("fedavg")
    backends.append(ProcessBackend(made.pool, MemoryStore(), 2))
    crossed = []
    for worker in backends[0]._workers:
        send = worker.line.send
        worker.line.send = lambda order, send=send: crossed.append(order.data) or send(order)  # type: ignore[method-assign]
    played(made, backends[0])
    for worker in backends[0]._workers:
        del worker.line.send
    assert len(crossed) == 8
    assert sum(data is not None for data in crossed) == 4  # two workers, two rounds


@dataclass(frozen=True)
class Patient(Ditto):
    """Begins its personal training only when a file is there."""

    sign: str = ""

    def after_upload(self, down: Any, up: Any, state: Any, client: Any, r: Round, k: Any) -> Any:
        deadline = time.monotonic() + 60
        while not os.path.exists(self.sign):
            assert time.monotonic() < deadline, "the uploads never came through"
            time.sleep(0.01)
        return super().after_upload(down, up, state, client, r, k)


def test_personal_training_continues_while_the_server_aggregates(backends: Any, tmp_path: Path) -> None:
    """Personal training waits for a file that is written after both uploads arrived, so uploads must come first."""
    made = setup()
    backends.append(ProcessBackend(made.pool, MemoryStore(), 2))
    method, task = Patient(optim=made.method.optim, sign=str(tmp_path / "sign")), made.pool.task()
    server = method.init_server(task, key(0))
    jobs = [ClientTask(i, Round(0), method.broadcast(server, i, task, Round(0), key(0))) for i in made.pool.ids[:2]]
    uploads = list(backends[0].train(method, 0, jobs))
    (tmp_path / "sign").touch()
    states = list(backends[0].results())
    assert [o.sender for o in uploads] == [rest.sender for rest in states] == [job.client for job in jobs]


@dataclass(frozen=True)
class Noted(Ditto):
    """Notes in a file when a client's local part and its personal part begin."""

    log: str = ""

    def client_update(self, down: Global, state: State, client: Any, r: Round, k: Any) -> tuple[Update, State]:
        self._note("local")
        return super().client_update(down, state, client, r, k)

    def after_upload(self, down: Any, up: Any, state: Any, client: Any, r: Round, k: Any) -> Any:
        self._note("personal")
        return super().after_upload(down, up, state, client, r, k)

    def _note(self, what: str) -> None:
        with open(self.log, "a") as log:
            log.write(f"{what}\n")


def test_all_local_parts_of_a_round_come_before_any_personal_part(backends: Any, tmp_path: Path) -> None:
    """One worker, five clients: a worker that finished each client at once would alternate."""
    made, log = setup(), tmp_path / "log"
    method = Noted(optim=made.method.optim, personal_optim=made.method.personal_optim, log=str(log))
    backends.append(ProcessBackend(made.pool, MemoryStore(), 1))

    found = played(replace(made, method=method), backends[0], rounds=1)

    assert log.read_text().split() == ["local"] * 4 + ["personal"] * 4  # a share of 0.8 of five clients
    assert alike(found, played(made, LoopBackend(made.pool, MemoryStore()), rounds=1))


@dataclass(frozen=True)
class Fragile(FedAvg):
    """Kills the worker it runs in: the first time only, or always."""

    flag: str = ""

    def client_update(self, down: Global, state: Nothing, client: Any, r: Round, k: Any) -> tuple[Update, Nothing]:
        if parent_process() and not (self.flag and os.path.exists(self.flag)):
            if self.flag:
                open(self.flag, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().client_update(down, state, client, r, k)


def test_client_is_retried_after_its_worker_dies(backends: Any, tmp_path: Any) -> None:
    made = setup("fedavg")
    fragile = Setup(
        made.config, Fragile(optim=made.method.optim, flag=str(tmp_path / "died")), made.federation, made.pool
    )
    backends.append(ProcessBackend(made.pool, MemoryStore(), 2))
    assert alike(played(fragile, backends[0]), played(made, LoopBackend(made.pool, MemoryStore())))


@dataclass(frozen=True)
class Deadly(Ditto):
    """One client kills every worker that runs it, before its upload or after; clients are told apart by their rows."""

    rows: int = 0
    late: bool = False

    def client_update(self, down: Global, state: State, client: Any, r: Round, k: Any) -> tuple[Update, State]:
        if len(client.x) == self.rows and not self.late:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().client_update(down, state, client, r, k)

    def after_upload(self, down: Any, up: Any, state: Any, client: Any, r: Round, k: Any) -> Any:
        if len(client.x) == self.rows and self.late:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().after_upload(down, up, state, client, r, k)


def deadly(made: Setup, late: bool) -> tuple[Setup, str]:
    """The run with such a client, and who that is: one whose number of rows no other client has."""
    sizes = [made.pool.train.size(at) for at in range(len(made.pool.ids))]
    at = next(at for at, size in enumerate(sizes) if sizes.count(size) == 1)
    method = Deadly(optim=made.method.optim, personal_optim=made.method.personal_optim, rows=sizes[at], late=late)
    return replace(made, method=method), made.pool.ids[at]


def test_client_that_kills_every_worker_counts_as_absent(backends: Any) -> None:
    made, store = setup("ditto"), MemoryStore()
    fatal, who = deadly(made, late=False)
    backends.append(ProcessBackend(made.pool, store, 2))
    task = made.pool.task()
    server, log = run_round(
        fatal.method, task, backends[0], fatal.method.init_server(task, key(0)), t=0, seed=0, cohort=task.clients
    )
    assert [(d.client, d.why) for d in log.dropped] == [(who, "lost")]
    assert "died twice (exit code -9)" in log.lost[who]
    assert store.get(who) is None

    class Absent(LoopBackend):
        def train(self, method: Any, seed: int, jobs: Any) -> Any:
            return super().train(method, seed, [job for job in jobs if job.client != who])

    alone, _ = run_round(
        made.method,
        task,
        Absent(made.pool, MemoryStore()),
        made.method.init_server(task, key(0)),
        t=0,
        seed=0,
        cohort=task.clients,
    )
    assert equal(server, alone)


def test_worker_death_after_upload_leaves_the_client_state_unchanged(backends: Any) -> None:
    """The upload counts. The lost personal training leaves the previous state, here the first one."""
    made, store = setup("ditto"), MemoryStore()
    fatal, who = deadly(made, late=True)
    backends.append(ProcessBackend(made.pool, store, 2))
    task = made.pool.task()
    server = fatal.method.init_server(task, key(0))
    for t in range(2):  # the upload of the second attempt must not come back in the next round
        server, log = run_round(fatal.method, task, backends[0], server, t=t, seed=0, cohort=task.clients)
        assert log.rejected == []
        assert list(log.lost) == [who]
    assert store.get(who) is None
    plain, twice = LoopBackend(made.pool, MemoryStore()), made.method.init_server(task, key(0))
    for t in range(2):
        twice, _ = run_round(made.method, task, plain, twice, t=t, seed=0, cohort=task.clients)
    assert equal(server, twice)  # Ditto's global model does not depend on personal ones


def test_run_continues_without_a_lost_client() -> None:
    made = setup("ditto", rounds=2, eval_every=2, strikes=1, backend="processes", workers=2)
    fatal, who = deadly(made, late=False)
    result = run_experiment(fatal)
    assert [(d["client"], d["round"]) for d in result.history[0]["dropped"]] == [(who, 1), (who, 2)]
    assert "excluded" not in result.history[0]
    assert sum(who in note and "died twice" in note for note in result.notes) == 2


def test_run_fails_with_a_message_if_every_worker_dies() -> None:
    made = setup("fedavg", rounds=1, backend="processes", workers=2)
    with pytest.raises(AtollError, match="Round 1: the work of all clients was lost: its worker process died twice"):
        run_experiment(replace(made, method=Fragile(optim=made.method.optim)))


@dataclass(frozen=True)
class Wrong(FedAvg):
    def client_update(self, down: Global, state: Nothing, client: Any, r: Round, k: Any) -> tuple[Update, Nothing]:
        raise AtollError("this client has a complaint")


def test_error_in_a_worker_is_raised_in_the_parent(backends: Any) -> None:
    made = setup("fedavg")
    backends.append(ProcessBackend(made.pool, MemoryStore(), 2))
    with pytest.raises(AtollError, match="complaint"):
        played(Setup(made.config, Wrong(), made.federation, made.pool), backends[0])


def test_close_ends_all_worker_processes() -> None:
    made = setup("fedavg")
    backend = ProcessBackend(made.pool, MemoryStore(), 2)
    processes = [worker.process for worker in backend._workers]
    assert all(process.is_alive() for process in processes)
    backend.close()
    assert not any(process.is_alive() for process in processes)


def test_workers_end_after_the_parent_is_killed(tmp_path: Path) -> None:
    """The parent prints the ids of its workers and is killed; the workers end within seconds."""

    def act() -> None:
        backend = ProcessBackend(setup().pool, MemoryStore(), 2)
        print(*(worker.process.pid for worker in backend._workers), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    with Victim(act, tmp_path / "log") as parent:
        orphans = [int(word) for word in parent.finish(code=-signal.SIGKILL).split()]
    assert len(orphans) == 2
    deadline = time.monotonic() + 20
    while any(alive(pid) for pid in orphans) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(alive(pid) for pid in orphans)


def test_interrupt_ends_all_workers(tmp_path: Path) -> None:
    """Ctrl-C is sent to the whole process group: the run and its workers stop."""
    before, log = set(active_children()), tmp_path / "log"
    made = setup("fedavg", rounds=10_000, eval_every=10_000, backend="processes", workers=2)

    def act() -> None:
        def watch(t: int, line: Any) -> None:
            print(*(child.pid for child in set(active_children()) - before), flush=True)

        run_experiment(made, watch=watch)

    with Victim(act, log) as run:
        while not log.exists() or "\n" not in log.read_text():
            assert run.ended(0.01) is None, log.read_text()
        workers = [int(word) for word in log.read_text().splitlines()[0].split()]
        os.killpg(run.pid, signal.SIGINT)
        assert "stopped by SIGINT" in run.finish(code=70, seconds=60)
    assert len(workers) == 2
    assert not any(alive(pid) for pid in workers)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_workers_run_after_the_parent_used_many_threads(backends: Any) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.nn.functional.conv2d(torch.randn(64, 3, 32, 32), torch.randn(16, 3, 5, 5))
    torch.randn(800, 800) @ torch.randn(800, 800)
    torch.set_num_threads(threads)
    made = setup("fedavg", models=("small_cnn",))
    backends.append(ProcessBackend(made.pool, MemoryStore(), 2))
    played(made, backends[0], 1)
