"""Plan the runs of a comparison: one configuration for each method and seed, each with a directory."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..config import Config, from_dict
from ..data.dataset import Dataset
from ..data.loading import load
from ..engine.setup import build_setup, check_fit
from ..errors import AtollError, unknown
from ..methods import _registry
from ..methods._factory import make, settings_of, split_variant

LONGEST = 60  # characters of a name that goes into the name of a directory
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
    pool = build_setup(plain, data).pool

    def fits(name: str) -> bool:
        try:
            check_fit(entry(name, shared), pool)
        except AtollError:
            return False
        return True

    return [name for name in _registry.methods() if fits(name)]


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
