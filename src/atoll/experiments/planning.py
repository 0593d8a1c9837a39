"""Plan the runs of a comparison: one configuration for each method and seed, each with a directory."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from ..config import Config, from_dict, split_terms
from ..data.dataset import Dataset
from ..engine.problem_options import load_data
from ..engine.python_parts import PythonParts, all_settings
from ..engine.setup import build_setup, check_fit
from ..errors import AtollError
from ..methods import _registry
from ..methods._factory import make, settings_of, split_variant, unknown_setting
from ..methods._names import ALL

MAX_NAME = 60  # Characters of a method or data set in the name of a directory.
DIGITS = 6  # of the digest in a name that is cut
PUBLIC_PER_CLASS, PUBLIC_SHARE = 100, 0.1  # Upper limits of public rows in a comparison of all methods.


def plan_configs(
    names: Sequence[str],
    values: Mapping[str, object],
    seeds: Sequence[int] = (),
    parts: PythonParts = PythonParts(),
) -> list[Config]:
    """Plan one configuration for each method and seed.

    Args:
        names: methods with variants, settings and regularisers, such as ``"fedavg+dw:mu=0.1"``; or ``["all"]``.
        values: entries that all configurations share.
        seeds: seeds of the runs; without any, the seed in ``values``.
        parts: what was given as objects; methods among them by their names.

    Raises:
        AtollError: if an entry is wrong, or a setting belongs to none of the methods.
    """
    shared = from_dict(values)
    chosen = list(names)
    if chosen == [ALL]:
        data = load_data(shared) if parts.dataset is None else parts.dataset
        shared = _with_public_rows(shared, data)
        chosen = _runnable_methods(shared, data)
    entries = [_object_config(name, shared, parts) or method_config(name, shared) for name in chosen]
    _check_settings_used(entries, shared.settings)
    return [replace(config, seed=seed) for config in entries for seed in seeds or [shared.seed]]


def _object_config(name: str, shared: Config, parts: PythonParts) -> Config | None:
    """Return the configuration of a method given as an object, with all of its settings; None for other methods."""
    method = parts.methods.get(name)
    return None if method is None else replace(shared, method=name, settings=all_settings(method))


def _runnable_methods(shared: Config, data: Dataset) -> list[str]:
    """Return the names of the methods that can run on these clients."""
    plain = replace(shared, method="local", terms=(), settings={}, wait_free=False, until_download=False, robust=None)
    pool = build_setup(plain, data).pool

    def fits(name: str) -> bool:
        try:
            check_fit(method_config(name, shared), pool)
        except AtollError:
            return False
        return True

    return [name for name in _registry.methods() if fits(name)]


def _with_public_rows(shared: Config, data: Dataset) -> Config:
    """Set public rows aside if the user did not: some methods need them, and all must train on the same rows."""
    if shared.public:
        return shared
    rows = len(data.y_train) if shared.rows is None else min(shared.rows, len(data.y_train))
    return replace(shared, public=min(PUBLIC_PER_CLASS * len(data.groups), int(PUBLIC_SHARE * rows)))


def method_config(name: str, shared: Config) -> Config:
    """Return the configuration of one method; of the shared settings it gets those that it has.

    ``name`` may carry regularisers: ``"fedavg+dw:mu=0.1"``.
    """
    method, *terms = split_terms(name)
    if split_variant(method)[0] == ALL:
        raise AtollError(f"{ALL!r} stands for every method that can run: give it alone, without further methods.")
    if "" in terms:
        raise AtollError(f"Nothing follows a plus of {name!r}. Write METHOD+REGULARISER, such as fedavg+dw:mu=0.1.")
    settings = {path: shared.settings[key] for key, path in _relevant_settings(method, shared.settings).items()}
    return replace(shared, method=method, terms=(*shared.terms, *terms), settings=settings)


def _relevant_settings(method: str, settings: Mapping[str, object]) -> dict[str, str]:
    """Map the shared settings that a method has to its own names: ``ditto.lam`` is ``lam``, for ditto alone."""
    prefix, fields = split_variant(method)[0] + ".", _setting_names(method)
    named = {key: key[len(prefix) :] for key in settings if key.startswith(prefix)}
    return {key: key for key in settings if key.partition(".")[0] in fields} | named


def _setting_names(method: str) -> set[str]:
    return {s.name for s in settings_of(make(method)) if "." not in s.name}


def _check_settings_used(entries: Sequence[Config], settings: Mapping[str, object]) -> None:
    if not settings:
        return
    used = {key for config in entries for key in _relevant_settings(config.method, settings)}
    for key in settings:
        if key not in used:
            names = ", ".join(dict.fromkeys(config.method for config in entries))
            raise unknown_setting(names, key, [make(config.method) for config in entries])


def assign_directories(configs: Sequence[Config], root: Path) -> list[Config]:
    """Give every run its own directory below ``root``; raise an AtollError if two runs are the same."""
    names = [f"{to_file_name(c.label)}-seed{c.seed}" for c in configs]
    for name in names:
        if names.count(name) > 1:
            raise AtollError(f"The run {name!r} is planned twice. Name each method and each seed once.")
    return [replace(c, out=str(root / name)) for c, name in zip(configs, names, strict=True)]


def to_file_name(text: str) -> str:
    """Turn ``text`` into a part of a file name; a long one is cut, and a digest keeps it apart from others."""
    name = "".join(c if c.isalnum() or c in "-_.+" else "-" for c in Path(text).name)
    if len(name) <= MAX_NAME:
        return name
    digest = sha256(text.encode(errors="surrogatepass")).hexdigest()[:DIGITS]
    return f"{name[: MAX_NAME - DIGITS - 1]}-{digest}"
