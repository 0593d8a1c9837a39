"""Take parts of runs that are given as objects in Python, in place of names: data, networks, methods and metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from torch import nn

from ..clients.metrics import Metric, check_name, load_metrics
from ..config import Config, split_terms
from ..core.contract import check_functions
from ..core.method import AnyMethod, Method
from ..data.dataset import Dataset
from ..data.objects import make_dataset
from ..errors import AtollError, unknown
from ..methods._factory import make, setting_value, settings_of, with_settings
from .setup import Setup, build_setup

Methods = Sequence[str | AnyMethod] | Mapping[str, AnyMethod]
Networks = str | nn.Module | Sequence[str | nn.Module]
Metrics = str | Metric | Sequence[str | Metric]

# Options that a method given as an object would ignore.
_OF_METHODS = ("settings", "terms", "optimiser", "lr", "lr_schedule", "epochs", "steps", "batch_size")
# Options of the command line that have another name in Python, where `with` is a word of the language.
# The command line says --set and --with; in Python, "with" is a keyword and "set" a type.
_OTHER_NAMES = {
    **dict.fromkeys(("set", "set_"), "settings={'lam': 0.5}"),
    **dict.fromkeys(("with", "with_", "regularisers"), "terms=['dw:mu=0.1']"),
    **dict.fromkeys(("learning_rate", "local_lr"), "lr=0.01"),
}


@dataclass(frozen=True)
class PythonParts:
    """The parts of runs that were given as objects.

    Args:
        dataset: used in place of the data set that a configuration names.
        networks: used in place of the models that a configuration names.
        methods: used in place of the method that a configuration names, by that name.
        metrics: used in place of the metrics that a configuration names.
    """

    dataset: Dataset | None = None
    networks: tuple[nn.Module, ...] = ()
    methods: Mapping[str, AnyMethod] = field(default_factory=dict)
    metrics: Mapping[str, Metric] | None = None

    def __bool__(self) -> bool:
        return self.dataset is not None or bool(self.networks or self.methods) or self.metrics is not None

    def method(self, config: Config) -> AnyMethod | None:
        """Return the method of a configuration with its settings; None if a configuration names a known method."""
        given = self.methods.get(config.method)
        if given is None:
            return None
        now = {s.name: s.default for s in settings_of(given)}
        changed = {path: value for path, value in config.settings.items() if path not in now or now[path] != value}
        return with_settings(given, changed, config.method)

    def build(self, config: Config) -> Setup:
        """Build the setup of a configuration with these parts."""
        return build_setup(config, self.dataset, self.networks, self.method(config), self.metrics)


class NamedParts(NamedTuple):
    """Parts as objects, and the entries of a configuration that name them.

    Args:
        parts: the objects.
        methods: a name for each method.
        entries: data, models and metrics by name.
    """

    parts: PythonParts
    methods: list[str]
    entries: dict[str, Any]


def read_parts(
    methods: Methods, data: Any, models: Networks, metric: Metrics, options: Mapping[str, Any]
) -> NamedParts:
    """Sort what a user gave into names and objects.

    Args:
        methods: names or objects, or a mapping from names of the user's choice to objects.
        data: a name, or anything that :func:`make_dataset` takes.
        models: names of architectures, or networks.
        metric: names of metrics, or functions of logits and labels.
        options: the other options.

    Raises:
        AtollError: an option would be ignored, or two methods have the same name.
    """
    names, objects = _read_methods(methods)
    _check_options(options, names, objects)
    for option in _OF_METHODS:
        if objects and option in options:
            kind = type(next(iter(objects.values()))).__name__
            raise AtollError(f"{option} would change nothing: set it in {kind}(...) instead.")
    given = [models] if isinstance(models, str | nn.Module) else list(models)
    networks = tuple(m for m in given if isinstance(m, nn.Module))
    if networks and len(networks) < len(given):
        raise AtollError("Give models by name or as modules, not both in one run.")
    measures: list[Any] = [metric] if isinstance(metric, str) or callable(metric) else list(metric)
    dataset = None if isinstance(data, str) else make_dataset(data, task=options.get("task"))
    entries = {
        "data": data if dataset is None else dataset.name,
        "models": [] if networks else given,
        "metric": [m if isinstance(m, str) else m.__name__ for m in measures],
    }
    return NamedParts(PythonParts(dataset, networks, objects, _read_metrics(measures)), names, entries)


def _check_options(options: Mapping[str, Any], names: Sequence[str], objects: Mapping[str, AnyMethod]) -> None:
    """Refuse unknown options; of a setting, say where settings are given."""
    known = {f.name for f in fields(Config)}
    for option in options.keys() - known:
        if option in _OTHER_NAMES:
            raise AtollError(f"Unknown option {option!r}. In Python, write {_OTHER_NAMES[option]}.")
        for name in names:
            method = objects.get(name) or make(split_terms(name)[0]) if name != "all" else None
            if method is not None and option in {s.name for s in settings_of(method)}:
                wanted = f"settings={{{option!r}: {options[option]!r}}}"
                raise AtollError(f"{option!r} is a setting of {name}, not an option of runs: write {wanted}.")
        raise unknown("option", option, known)


def all_settings(method: AnyMethod) -> dict[str, Any]:
    """Return all settings of a method given as an object, so that a resumed run can tell whether it is the same."""
    return {s.name: setting_value(method, s.name) for s in settings_of(method)}


def _read_methods(methods: Methods) -> tuple[list[str], dict[str, AnyMethod]]:
    pairs = (
        list(methods.items())
        if isinstance(methods, Mapping)
        else [(m if isinstance(m, str) else type(m).__name__.lower(), m) for m in methods]
    )
    objects: dict[str, AnyMethod] = {}
    for name, method in pairs:
        if isinstance(method, type):
            raise AtollError(f"{method.__name__} is a class. Give an object of it: {method.__name__}(...).")
        if isinstance(method, str):
            continue
        if not isinstance(method, Method):
            raise AtollError(f"{method!r} is no method. Give a name such as 'fedavg', or an object such as FedAvg().")
        check_functions(type(method), type(method).__name__)
        if name in objects:
            raise AtollError(
                f"Two methods are called {name!r}. Give them names of your own: {{'one': {type(method).__name__}(...), "
                f"'other': {type(method).__name__}(...)}}."
            )
        objects[name] = method
    return [name if not isinstance(method, str) else method for name, method in pairs], objects


def _read_metrics(given: Sequence[str | Metric]) -> dict[str, Metric] | None:
    """Return metrics by name if some are objects, else None."""
    found: dict[str, Metric] = {}
    for metric in given:
        if isinstance(metric, str):
            found |= load_metrics([metric], tuple(found))
        else:
            check_name(metric.__name__, tuple(found))
            found[metric.__name__] = metric
    return found if any(not isinstance(metric, str) for metric in given) else None
