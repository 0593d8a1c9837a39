"""Run planned configurations, in this process or in several."""

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from multiprocessing import active_children, get_context
from multiprocessing.managers import SyncManager
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import NamedTuple

from ..api import run_setup
from ..config import LENGTH, Config, from_dict, read_yaml
from ..data.dataset import Dataset
from ..data.loading import load
from ..data.tables.statistics import OWN
from ..engine.experiment import Watch
from ..engine.problem_options import load_data
from ..engine.python_parts import PythonParts
from ..engine.setup import Setup, build_setup, check_fit
from ..errors import AtollError
from ..storage import run_reader
from ..storage.group_dir import write_plan
from ..storage.metrics import RoundMetrics
from ..storage.run_dir import check_free
from ..storage.run_reader import Run

STOP_TIMEOUT = 3.0  # Seconds that workers have to write a last checkpoint.

# Items are the position of a run, its rounds done and its metrics; None ends the queue.
Events = Queue[tuple[int, int, RoundMetrics | None] | None]


class Outcome(NamedTuple):
    """Finished runs in the order of their configurations, and notes on them."""

    runs: list[Run]
    notes: list[str]


def run_one(config: Config, watch: Watch, resume: bool = False, force: bool = False) -> Outcome:
    """Run one configuration in its directory ``config.out``; with ``resume`` a finished run is only read."""
    return _run_or_read(build_setup(config), watch, resume, force)


def run_all(
    configs: Sequence[Config],
    watches: Sequence[Watch],
    resume: bool = False,
    force: bool = False,
    workers: int = 1,
    plan_in: Path | None = None,
    parts: PythonParts = PythonParts(),
) -> Outcome:
    """Run configurations that differ in method and seed, each in its own directory.

    Args:
        configs: runs with the same clients.
        watches: one for each run; called with the number of rounds done.
        resume: continue runs that were interrupted; finished ones are only read.
        force: replace runs that are in the directories.
        workers: processes. With several and several runs, each process takes whole runs; otherwise a run uses its own
            processes for clients.
        plan_in: directory that gets a plan of the runs once they are checked, so that it can be resumed.
        parts: what was given as objects. Such runs follow one another, because processes get configurations alone.

    Raises:
        AtollError: before anything runs, if a method does not fit or a directory holds a run.
    """
    given = bool(parts)
    if parts.dataset is None:
        parts = replace(parts, dataset=load_data(configs[0]))
    first = _check(configs, parts, resume or force)
    if plan_in is not None and not given:  # Objects cannot be read back from a file.
        write_plan(plan_in, configs)
    if workers > 1 and len(configs) > 1 and not given:
        return _in_processes([replace(c, workers=1) for c in configs], watches, resume, force, workers)
    ready = [first]
    del first  # The list holds the only reference, so that memory is freed once the run has ended.
    return _in_turn(configs, watches, resume, force, parts.build, ready)


def run_cases(cases: Mapping[str, Sequence[Config]], watch: Callable[[Config], Watch], workers: int = 1) -> Outcome:
    """Run several comparisons, each on clients of its own, in one queue; finished runs are only read.

    All of them are checked before anything runs, and an error names the case. The setups of the checks are not kept:
    the data of all cases together may not fit in memory.
    """
    for case, configs in cases.items():
        try:
            _check(configs, PythonParts(load_data(configs[0])), replacing=True)
        except AtollError as reason:
            raise AtollError(f"{case}: {reason}") from reason
    planned = [c for configs in cases.values() for c in configs]
    watches = [watch(c) for c in planned]
    if workers > 1 and len(planned) > 1:
        return _in_processes(
            [replace(c, workers=1) for c in planned], watches, resume=True, force=False, workers=workers
        )
    return _in_turn(planned, watches, True, False, _build_with_kept_data, [])


def _check(configs: Sequence[Config], parts: PythonParts, replacing: bool) -> Setup:
    """Raise an AtollError if a run cannot be carried out; return the setup of the first run.

    All runs of a comparison have the same clients, so the setup of the first shows whether every method fits.
    """
    setup = parts.build(configs[0])
    for c in configs[1:]:
        check_fit(c, setup.pool, parts.method(c))
    for c in configs:
        if not replacing:
            check_free(Path(str(c.out)))
    return setup


def _in_turn(
    configs: Sequence[Config],
    watches: Sequence[Watch],
    resume: bool,
    force: bool,
    build: Callable[[Config], Setup],
    ready: list[Setup],
) -> Outcome:
    """Run one after the other; ``ready`` holds the setup of the first if there is one, others are built in turn."""
    return _merge_outcomes(
        _run_or_read(ready.pop() if ready else build(config), watch, resume, force)
        for config, watch in zip(configs, watches, strict=True)
    )


def _merge_outcomes(outcomes: Iterable[Outcome]) -> Outcome:
    """Put the runs and notes of several outcomes together."""
    runs, notes = zip(*outcomes, strict=True)
    return Outcome(list(chain(*runs)), list(chain(*notes)))


def _in_processes(
    configs: Sequence[Config], watches: Sequence[Watch], resume: bool, force: bool, workers: int
) -> Outcome:
    with (
        _manager() as manager,
        ProcessPoolExecutor(
            workers, mp_context=get_context("spawn"), initializer=_init_worker, initargs=(os.getpid(),)
        ) as pool,
    ):
        others, events = set(active_children()), manager.Queue()
        reader = Thread(target=_relay, args=(events, watches), daemon=True)
        reader.start()
        futures = [pool.submit(_run_in_worker, at, c, resume, force, events) for at, c in enumerate(configs)]
        try:
            for future in as_completed(futures):
                future.result()  # The first failure ends all runs.
            return _merge_outcomes(future.result() for future in futures)
        except BrokenProcessPool:
            raise AtollError(
                "A worker process was killed, perhaps because memory ran out. "
                "Continue with --resume and fewer --workers."
            ) from None
        except KeyboardInterrupt:
            _stop(set(active_children()) - others)
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            events.put(None)
            reader.join()


def _manager() -> SyncManager:
    """Start the process that relays progress; it outlives the workers, and ends with this process at the latest."""
    manager = SyncManager()
    manager.start(_init_manager, (os.getpid(),))
    return manager


def _stop(workers: Collection[BaseProcess]) -> None:
    """End worker processes; each writes a checkpoint of its last whole round unless that takes too long."""
    for worker in workers:
        worker.terminate()
    give_up = time.monotonic() + STOP_TIMEOUT
    for worker in workers:
        worker.join(max(0.0, give_up - time.monotonic()))
        if worker.is_alive():
            worker.kill()
            worker.join()


def _init_worker(parent: int) -> None:
    """Let the parent process alone decide when a worker ends.

    A terminal interrupts the whole group of processes, so interrupts are ignored here; and a worker whose parent is
    gone ends by itself.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with, args=(parent,), daemon=True).start()


def _init_manager(parent: int) -> None:
    """Let the process that relays progress ignore SIGTERM, so that it outlives the workers."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _init_worker(parent)


def _end_with(parent: int) -> None:
    """End this process once its parent is gone."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _run_in_worker(at: int, config: Config, resume: bool, force: bool, events: Events) -> Outcome:
    """Run one configuration in a worker process."""

    def watch(done: int, line: RoundMetrics | None) -> None:
        events.put((at, done, line))

    try:
        return _run_or_read(_build_with_kept_data(config), watch, resume, force)
    except KeyboardInterrupt:
        os._exit(1)  # Otherwise the pool would give this process the next run.


def _run_or_read(setup: Setup, watch: Watch, resume: bool, force: bool) -> Outcome:
    """Run a setup; with ``resume`` a finished run is only read."""
    config = setup.config
    if resume and _is_done(config):
        watch(config.rounds, None)
        return Outcome([run_reader.load(Path(str(config.out)))], [])
    result, run = run_setup(setup, resume=resume, force=force, watch=watch)
    assert run is not None  # Planned runs have directories.
    return Outcome([run], list(result.notes))


def _is_done(config: Config) -> bool:
    """Return True if the directory holds the run of this configuration, finished, with its report."""
    path = Path(str(config.out))
    if not all((path / name).exists() for name in ("summary.json", "config.yaml", "report.html")):
        return False
    try:
        kept = from_dict(read_yaml(path / "config.yaml"))
    except AtollError:  # Resuming reports what is wrong with the file.
        return False
    same_length = all(getattr(kept, name) == getattr(config, name) for name in LENGTH)
    return same_length and kept.identity() == config.identity()


def _build_with_kept_data(config: Config) -> Setup:
    """Build a setup with the data set of the run before, if both have the same."""
    return build_setup(config, _load_once(config.data, config.data_dir, config.task, config.columns == OWN))


@lru_cache(maxsize=1)  # Runs on the same data follow one another.
def _load_once(name: str, data_dir: str | None, task: str | None, own_columns: bool) -> Dataset:
    """Load a data set and keep it until another one is loaded."""
    return load(name, data_dir, task, own_columns=own_columns)


def _relay(events: Events, watches: Sequence[Watch]) -> None:
    """Call the watches of this process with the progress of the workers."""
    while (event := events.get()) is not None:
        at, done, line = event
        watches[at](done, line)
