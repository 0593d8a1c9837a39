"""Carry out planned runs, in this process or in several."""

import os
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import lru_cache
from multiprocessing import active_children, get_context
from multiprocessing.managers import SyncManager
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread
from typing import Any

from ..api import run_config
from ..config import Config, from_dict, read_yaml
from ..data.dataset import Dataset
from ..data.loading import load
from ..engine.experiment import Watch
from ..engine.setup import build_setup, check_fit
from ..errors import AtollError
from ..storage.metrics import RoundMetrics
from ..storage.run_dir import check_free

PATIENCE = 3.0  # seconds that workers have to make a last checkpoint


def run_all(
    configs: Sequence[Config], watches: Sequence[Watch], resume: bool = False, force: bool = False, workers: int = 1
) -> list[str]:
    """Run all of them; returns what there is to note. Refusals come before anything runs.

    With several ``workers`` and several runs, each worker takes whole runs; otherwise a run uses its own for clients.
    """
    data = load(configs[0].data, configs[0].data_dir)
    _check(configs, data, resume or force)
    if workers == 1 or len(configs) == 1:
        pairs = zip(configs, watches, strict=True)
        return [note for c, watch in pairs for note in _carry_out(c, resume, force, watch, data)]
    return _in_processes([replace(c, workers=1) for c in configs], watches, resume, force, workers)


def run_cases(cases: Mapping[str, Sequence[Config]], watch: Callable[[Config], Watch], workers: int = 1) -> list[str]:
    """Several comparisons, each on clients of its own, in one queue; what is finished is not run again.

    All of them are checked before anything runs, and an error names the case.
    """
    for case, configs in cases.items():
        try:
            _check(configs, load(configs[0].data, configs[0].data_dir), replacing=True)
        except AtollError as reason:
            raise AtollError(f"{case}: {reason}") from reason
    planned = [c for configs in cases.values() for c in configs]
    watches = [watch(c) for c in planned]
    if workers > 1 and len(planned) > 1:
        return _in_processes(
            [replace(c, workers=1) for c in planned], watches, resume=True, force=False, workers=workers
        )
    notes = []
    for c, told in zip(planned, watches, strict=True):
        notes += _carry_out(c, True, False, told, _load_once(c.data, c.data_dir))
    return notes


def _check(configs: Sequence[Config], data: Dataset, replacing: bool) -> None:
    """All runs of a comparison have like clients, so the first one's can tell whether every method fits."""
    pool = build_setup(configs[0], data).pool
    for c in configs[1:]:
        check_fit(c, pool)
    for c in configs:
        if not replacing:
            check_free(Path(str(c.out)))


def _in_processes(
    configs: Sequence[Config], watches: Sequence[Watch], resume: bool, force: bool, workers: int
) -> list[str]:
    with (
        _manager() as manager,
        ProcessPoolExecutor(
            workers, mp_context=get_context("spawn"), initializer=_begin_work, initargs=(os.getpid(),)
        ) as pool,
    ):
        others, events = set(active_children()), manager.Queue()
        reader = Thread(target=_relay, args=(events, watches), daemon=True)
        reader.start()
        futures = [pool.submit(_one, at, c, resume, force, events) for at, c in enumerate(configs)]
        try:
            return [note for future in as_completed(futures) for note in future.result()]
        except BrokenProcessPool:
            raise AtollError(
                "A worker process was ended from outside, perhaps for want of memory. "
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
    """The process that carries news; it outlives the workers, and ends with this process at the latest."""
    manager = SyncManager()
    manager.start(_begin_news, (os.getpid(),))
    return manager


def _stop(workers: Collection[BaseProcess]) -> None:
    """Each of them makes a checkpoint of its last whole round; who takes too long has an older one."""
    for worker in workers:
        worker.terminate()
    give_up = time.monotonic() + PATIENCE
    for worker in workers:
        worker.join(max(0.0, give_up - time.monotonic()))
        if worker.is_alive():
            worker.kill()
            worker.join()


def _begin_work(parent: int) -> None:
    """A terminal interrupts the whole group of processes; the first one decides what becomes of the others.

    If it is gone without a word, nobody wants what they do any more.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with, args=(parent,), daemon=True).start()


def _begin_news(parent: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _begin_work(parent)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _one(at: int, config: Config, resume: bool, force: bool, events: Any) -> list[str]:
    def watch(done: int, line: RoundMetrics | None) -> None:
        events.put((at, done, line))

    try:
        return _carry_out(config, resume, force, watch, _load_once(config.data, config.data_dir))
    except KeyboardInterrupt:
        os._exit(1)  # or the pool would give this process the next run


def _carry_out(config: Config, resume: bool, force: bool, watch: Watch, data: Dataset) -> list[str]:
    """One run, unless it is to be resumed and has nothing left to do; returns what there is to note."""
    if resume and _is_done(config, data):
        watch(config.rounds, None)
        return []
    return list(run_config(config, resume=resume, force=force, watch=watch, dataset=data).notes)


def _is_done(config: Config, data: Dataset) -> bool:
    """Whether the directory holds this very run, finished, with its report."""
    path = Path(str(config.out))
    if not all((path / name).exists() for name in ("summary.json", "config.yaml", "report.html")):
        return False
    try:
        kept = from_dict(read_yaml(path / "config.yaml"))
    except AtollError:  # resuming will say what is wrong with it
        return False
    return kept.rounds == config.rounds and kept.identity() == build_setup(config, data).config.identity()


@lru_cache(maxsize=1)  # runs on the same data follow one another
def _load_once(name: str, data_dir: str | None) -> Dataset:
    return load(name, data_dir)


def _relay(events: Any, watches: Sequence[Watch]) -> None:
    while (event := events.get()) is not None:
        at, done, line = event
        watches[at](done, line)
