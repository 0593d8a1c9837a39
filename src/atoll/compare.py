"""Several runs: methods by seeds, on the same clients, one after the other or in worker processes."""

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

from . import registry
from .api import run_config
from .assemble import assemble, check_fit
from .config import Config, from_dict, read_yaml
from .data.dataset import Dataset
from .data.datasets import load
from .errors import AtollError, unknown
from .experiment import Watch
from .ledger import Line
from .rundir import check_free
from .settings import make, settings_of, split_variant

LONGEST = 60  # characters of a name that goes into the name of a directory
PATIENCE = 3.0  # seconds that workers have to make a last checkpoint
PUBLIC_PER_CLASS, PUBLIC_SHARE = 100, 0.1  # at most, where all methods are compared and nothing else was asked for


def configs(names: Sequence[str], values: Mapping[str, Any], seeds: Sequence[int] = ()) -> list[Config]:
    """One configuration for each method and seed; ``values`` hold what they share."""
    shared = from_dict(values)
    chosen = list(names)
    if chosen == ["all"]:
        data = load(shared.data, shared.data_dir)
        shared = _with_public_rows(shared, data)
        chosen = _fitting(shared, data)
    entries = [entry(name, shared) for name in chosen]
    _check_settings_used(entries, shared.settings)
    return [replace(config, seed=seed) for config in entries for seed in seeds or [shared.seed]]


def _fitting(shared: Config, data: Dataset) -> list[str]:
    """The methods that can run on these clients."""
    plain = replace(shared, method="local", terms=(), settings={}, wait_free=False, robust=None)
    fleet = assemble(plain, data).fleet

    def fits(name: str) -> bool:
        try:
            check_fit(entry(name, shared), fleet)
        except AtollError:
            return False
        return True

    return [name for name in registry.methods() if fits(name)]


def _with_public_rows(shared: Config, data: Dataset) -> Config:
    """Some methods need public rows; all methods then do without these, so that they are compared on the same ones."""
    if shared.public:
        return shared
    rows = len(data.y_train) if shared.rows is None else min(shared.rows, len(data.y_train))
    return replace(shared, public=min(PUBLIC_PER_CLASS * data.num_classes, int(PUBLIC_SHARE * rows)))


def entry(name: str, shared: Config) -> Config:
    """``"fedavg+dw:mu=0.1"`` is a method with a regulariser of its own; shared settings go to those that have them."""
    method, *terms = name.split("+")
    settings = {path: shared.settings[key] for key, path in _own(method, shared.settings).items()}
    return replace(shared, method=method, terms=(*shared.terms, *terms), settings=settings)


def _own(method: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """The settings that concern a method, and what it calls them: ``ditto.lam`` is ``lam`` for ditto alone."""
    prefix, fields = split_variant(method)[0] + ".", _fields(method)
    named = {key: key[len(prefix) :] for key in settings if key.startswith(prefix)}
    return {key: key for key in settings if key.partition(".")[0] in fields} | named


def _fields(method: str) -> set[str]:
    return {s.name for s in settings_of(make(method)) if "." not in s.name}


def _check_settings_used(entries: Sequence[Config], settings: Mapping[str, Any]) -> None:
    used = {key for config in entries for key in _own(config.method, settings)}
    for key in settings:
        if key not in used:
            names = ", ".join(dict.fromkeys(config.method for config in entries))
            raise unknown(f"setting of {names}", key, {f for config in entries for f in _fields(config.method)})


def place(configs: Sequence[Config], root: Path) -> list[Config]:
    """Give every run its own directory below ``root``."""
    names = [f"{safe(c.label)}-seed{c.seed}" for c in configs]
    for name in names:
        if names.count(name) > 1:
            raise AtollError(f"The run {name!r} is asked for twice. Name each method and each seed once.")
    return [replace(c, out=str(root / name)) for c, name in zip(configs, names, strict=True)]


def safe(text: str) -> str:
    """``text`` as part of a file name."""
    return "".join(c if c.isalnum() or c in "-_.+" else "-" for c in Path(text).name)[:LONGEST]


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
    fleet = assemble(configs[0], data).fleet
    for c in configs[1:]:
        check_fit(c, fleet)
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
    def watch(done: int, line: Line | None) -> None:
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
    return kept.rounds == config.rounds and kept.identity() == assemble(config, data).config.identity()


@lru_cache(maxsize=1)  # runs on the same data follow one another
def _load_once(name: str, data_dir: str | None) -> Dataset:
    return load(name, data_dir)


def _relay(events: Any, watches: Sequence[Watch]) -> None:
    while (event := events.get()) is not None:
        at, done, line = event
        watches[at](done, line)
