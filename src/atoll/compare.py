"""Several runs: methods by seeds, on the same clients, one after the other or in worker processes."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import Manager, get_context
from pathlib import Path
from threading import Thread
from typing import Any

from . import compat, registry
from .api import run_config
from .assemble import assemble
from .config import Config, from_dict
from .errors import unknown
from .experiment import Line, Watch
from .settings import make, settings_of


def configs(names: Sequence[str], values: Mapping[str, Any], seeds: Sequence[int]) -> list[Config]:
    """One configuration for each method and seed; ``values`` hold what they share."""
    chosen = list(registry.methods()) if list(names) == ["all"] else list(names)
    entries = [entry(name, values) for name in chosen]
    _check_settings_used(entries, values.get("settings", {}))
    return [replace(config, seed=seed) for config in entries for seed in seeds]


def entry(name: str, values: Mapping[str, Any]) -> Config:
    """``"fedavg+dw:mu=0.1"`` is a method with a regulariser of its own; shared settings go to those that have them."""
    method, *terms = name.split("+")
    fields, own = _fields(method), {}
    for key, value in values.get("settings", {}).items():
        first, _, rest = key.partition(".")
        if first == method.partition(":")[0] and rest:
            own[rest] = value
        elif first in fields:
            own.setdefault(key, value)
    both = [*values.get("terms", ()), *terms]
    return from_dict({**values, "method": method, "terms": both, "settings": own})


def _fields(method: str) -> set[str]:
    return {s.name for s in settings_of(make(method)) if "." not in s.name}


def _check_settings_used(entries: Sequence[Config], settings: Mapping[str, Any]) -> None:
    used = {name for config in entries for name in config.settings}
    for key in settings:
        if key not in used and key.partition(".")[2] not in used:
            names = ", ".join(dict.fromkeys(config.method for config in entries))
            raise unknown(f"setting of {names}", key, {f for config in entries for f in _fields(config.method)})


def place(configs: Sequence[Config], root: Path) -> list[Config]:
    """Give every run its own directory below ``root``."""
    return [replace(c, out=str(root / f"{safe(c.label)}-seed{c.seed}")) for c in configs]


def safe(text: str) -> str:
    """``text`` as part of a file name."""
    return "".join(c if c.isalnum() or c in "-_.+" else "-" for c in Path(text).name)


def run_all(
    configs: Sequence[Config], watches: Sequence[Watch], resume: bool = False, force: bool = False, workers: int = 1
) -> list[str]:
    """Run all of them, ``workers`` at a time; returns what there is to note. Refusals come before anything runs."""
    _check(configs)
    if workers == 1 or len(configs) == 1:
        pairs = zip(configs, watches, strict=True)
        return [n for c, watch in pairs for n in run_config(c, resume=resume, force=force, watch=watch).notes]
    return _in_processes(configs, watches, resume, force, workers)


def _check(configs: Sequence[Config]) -> None:
    """All runs of a comparison have like clients, so the first one's can tell whether every method fits."""
    fleet = assemble(configs[0]).fleet
    for c in configs[1:]:
        method = make(c.method, c.settings, c.terms, c.optimiser_options)
        compat.check(method, fleet, c.method, c.backend)


def _in_processes(
    configs: Sequence[Config], watches: Sequence[Watch], resume: bool, force: bool, workers: int
) -> list[str]:
    context = get_context("spawn")
    with Manager() as manager, ProcessPoolExecutor(workers, mp_context=context) as pool:
        events = manager.Queue()
        reader = Thread(target=_relay, args=(events, watches), daemon=True)
        reader.start()
        futures = [pool.submit(_one, at, c, resume, force, events) for at, c in enumerate(configs)]
        try:
            notes = [note for future in as_completed(futures) for note in future.result()]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        events.put(None)
        reader.join()
    return notes


def _one(at: int, config: Config, resume: bool, force: bool, events: Any) -> list[str]:
    def watch(done: int, line: Line | None) -> None:
        events.put((at, done, line))

    return list(run_config(config, resume=resume, force=force, watch=watch).notes)


def _relay(events: Any, watches: Sequence[Watch]) -> None:
    while (event := events.get()) is not None:
        at, done, line = event
        watches[at](done, line)
