"""Everything a run depends on, in one place: the command line, YAML files and Python calls all fill this in."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from operator import ge, gt, le
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import yaml

from .aggregation.fixed_point import SUMS
from .aggregation.robust import parse
from .errors import AtollError, unknown
from .methods._factory import OPTIMISERS, convert
from .privacy import mechanisms
from .privacy.disclosure import COV_SOURCES
from .simulation.faults import read_drop, read_lag, read_poison
from .utils.parsing import from_yaml

BACKENDS = ("auto", "loop", "processes", "vmap", "ray")
STORES = ("memory", "disk")
DEVICES = ("auto", "cpu", "cuda")
INITS = ("shared", "per_client")

# Where and how fast a run happens does not change what comes out of it.
NEUTRAL = frozenset({"rounds", "target", "data_dir", "out", "store", "cache", "checkpoint_every", "workers", "track"})


# Groups of options, for help texts and editors
DATA = "Data and clients"
MODELS = "Models"
METHOD = "Method and local training"
ROUNDS = "Rounds"
ROBUSTNESS = "Server-side protection"
FAULTS = "Simulated devices, faults and attacks"
PRIVACY = "Privacy"
EVALUATION = "Evaluation"
EXECUTION = "Execution and files"


class Bound(NamedTuple):
    """A kind of limit on a number: its words in messages, and the test that a number has to pass."""

    words: str
    holds: Callable[[float, float], bool]


BOUNDS = {"least": Bound("at least", ge), "above": Bound("above", gt), "most": Bound("at most", le)}


def option(default: Any, about: str, **more: Any) -> Any:
    """Declare a field of the configuration.

    Args:
        default: its value if nothing is given.
        about: the help text.
        more: ``group``; and where there are any ``choices``, bounds (``least``, ``above``, ``most``), and ``flag``, the
            name of the command-line option if that differs from the field's.
    """
    metadata = {"about": about, **more}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Config:
    """Everything that a run depends on."""

    method: str = option("fedavg", "method, or method:variant, or a Python file that defines one", group=METHOD)
    data: str = option("digits", "data set: a name, a path, or hf:owner/name", group=DATA)
    data_dir: str | None = option(None, "folder with data sets; default: ATOLL_DATA or a cache folder", group=DATA)
    rows: int | None = option(
        None, "use only so many rows, drawn from all classes in proportion; default: all", group=DATA, least=1
    )
    clients: int | None = option(
        None, "number of clients; default: 10, or all whom the partition names itself", group=DATA, least=1
    )
    newcomers: int = option(
        0, "how many of the clients, the last ones, stay out of the run, for `atoll adapt`", group=DATA, least=0
    )
    partition: str = option(
        "dirichlet:0.5", "division: iid, pathological:K, dirichlet:BETA, natural, or file:PATH", group=DATA
    )
    split: str = option("client_811", "how a client's rows become train, validation and test rows", group=DATA)
    public: int = option(0, "rows set aside as public data, seen by everybody and owned by nobody", group=DATA, least=0)
    public_data: str | None = option(
        None, "data set that the public rows come from; default: that of the clients", group=DATA
    )
    transform: str = option("plain", "preset for normalisation and augmentation", group=DATA)
    models: tuple[str, ...] = option(
        (), "architectures, dealt out in turn; default: one that suits the data", group=MODELS
    )
    width: int | None = option(
        None, "bring features of different models to one width by a linear layer", group=MODELS, least=1
    )
    proxy: str = option("8", "proxy extractor: hidden filters, such as 8 or 8-16:kernel=5&activation=elu", group=MODELS)
    shared_model: str | None = option(
        None, "the model all clients share besides their own; default: the smallest", group=MODELS
    )
    server_model: str | None = option(
        None, "the server's own model of each client, where a method keeps one", group=MODELS
    )
    init: str = option(
        "shared", "initial weights: shared by all of one architecture, or per client", choices=INITS, group=MODELS
    )
    rounds: int = option(20, "communication rounds", group=ROUNDS, least=1)
    wait_free: bool = option(
        False, "upload before personal training, which then fills the time of waiting", group=METHOD
    )
    rate: float = option(1.0, "share of the clients that take part in a round", group=ROUNDS, above=0, most=1)
    strikes: int = option(
        3, "rejected uploads after which a client is excluded for good; 0: never", group=ROBUSTNESS, least=0
    )
    max_norm: float | None = option(
        None, "largest norm of an upload, over all its numbers; default: no limit", group=ROBUSTNESS, above=0
    )
    robust: str | None = option(
        None,
        "in place of means: median, trimmed:SHARE, geometric, krum:F or clip:NORM; default: means",
        group=ROBUSTNESS,
    )
    sums: str = option(
        "float",
        "how servers add up: in floating point, or exactly, in fixed point, in any order",
        choices=SUMS,
        group=ROBUSTNESS,
    )
    drop: str | None = option(
        None,
        "share of client-rounds that end without an answer, such as 0.3 or 0.3:before; or client:NAME, always",
        group=FAULTS,
    )
    slow: str | None = option(
        None, "SHARE:FACTOR of slow devices: these clients compute so many times as long", group=FAULTS
    )
    stragglers: str | None = option(
        None, "SHARE:FACTOR of client-rounds that take so many times as long, now and then", group=FAULTS
    )
    deadline: float | None = option(
        None, "simulated seconds after which a round ends; later answers are dropped", group=FAULTS, above=0
    )
    poison: str | None = option(
        None, "SHARE:KIND of clients who lie in their uploads: signflip, scale, random, swap or alie", group=FAULTS
    )
    min_class_count: int = option(
        0, "classes of which a client has fewer rows do not leave it; 0: all do", group=PRIVACY, least=0
    )
    cov_source: str | None = option(
        None,
        "covariances of fewer than 2(width + 1) rows: as the client has them, their diagonal, or none; or means: none "
        "leave, the server estimates them from means; default: client, with --min-class-count means or none",
        choices=COV_SOURCES,
        group=PRIVACY,
    )
    dp: str | None = option(
        None, "differential privacy of what leaves clients: EPSILON or EPSILON:DELTA; default: off", group=PRIVACY
    )
    dp_clip: float = option(
        1.0, "with --dp: largest norm of an update, of a row's features or of a row's gradient", group=PRIVACY, above=0
    )
    dp_rounds: int | None = option(
        None, "with --dp: rounds that the budget has to last for; default: --rounds", group=PRIVACY, least=1
    )
    dp_seed: int | None = option(
        None, "with --dp: seed of the noise, for tests; then nothing is private", group=PRIVACY, least=0
    )
    optimiser: str | None = option(None, "local optimiser", choices=tuple(OPTIMISERS), group=METHOD)
    lr: float | None = option(None, "learning rate of local training", group=METHOD, above=0)
    epochs: int | None = option(None, "local epochs per round", group=METHOD, least=1)
    batch_size: int | None = option(None, "rows per local step", group=METHOD, least=1)
    settings: dict[str, Any] = option(
        {}, "a method's own field, as name=value; may be repeated", flag="set", group=METHOD
    )
    terms: tuple[str, ...] = option(
        (), "a regulariser to add, such as dw:mu=0.1; may be repeated", flag="with", group=METHOD
    )
    seed: int = option(
        0, "decides the partition, the initial weights, the samples and the order of the data", group=ROUNDS
    )
    backend: str = option(
        "auto",
        "where clients run: one by one, in processes, small models batched, or on a Ray cluster",
        choices=BACKENDS,
        group=EXECUTION,
    )
    device: str = option(
        "auto", "where arithmetic runs; auto: on CUDA if there is any", choices=DEVICES, group=EXECUTION
    )
    workers: int | None = option(
        None, "processes: runs at the same time if there are several, else clients", group=EXECUTION, least=1
    )
    store: str = option("memory", "where client states live between rounds", choices=STORES, group=EXECUTION)
    cache: int = option(32, "states kept in memory when the store is on disk", group=EXECUTION, least=1)
    clock: str = option("", "devices of the simulated clock, such as speed=1e9,spread=4,up=1e6", group=FAULTS)
    global_test: bool = option(False, "also test personal models on everybody's test rows together", group=EVALUATION)
    metric: tuple[str, ...] = option(
        (), "also measure this: a name, or ./file.py:function; may be repeated", group=EVALUATION
    )
    target: float | None = option(
        None, "accuracy for which rounds, bytes, operations and time are reported", group=EVALUATION, above=0, most=1
    )
    eval_every: int = option(
        1, "rounds between evaluations; the last round is always evaluated", group=EVALUATION, least=1
    )
    checkpoint_every: int = option(5, "rounds between checkpoints", group=EXECUTION, least=1)
    track: tuple[str, ...] = option((), "also tell tensorboard, mlflow or wandb; may be repeated", group=EXECUTION)
    out: str | None = option(None, "run directory; default: a new one under runs/", group=EXECUTION)

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for f in fields(self):
            choices, value = f.metadata.get("choices", ()), getattr(self, f.name)
            if value not in choices:  # the word "none" may be one, and is not the same as nothing then
                value = _read(value, hints[f.name], f.name)
                object.__setattr__(self, f.name, value)
            if choices and value is not None and value not in choices:
                raise unknown(flag(f.name), value, choices)
        self._check_ranges()

    def _check_ranges(self) -> None:
        self._check_faults()
        if self.robust is not None:
            parse(self.robust)
        if self.dp is not None:
            mechanisms.parse(self.dp)
        for f in fields(self):
            value, bounds = getattr(self, f.name), bounds_of(f)
            if value is not None and not all(BOUNDS[name].holds(value, bound) for name, bound in bounds.items()):
                told = " and ".join(f"{BOUNDS[name].words} {bound}" for name, bound in bounds.items())
                # Shares are often given in percent: the meaning of the option says why that is too much.
                meaning = f": {f.metadata['about']}" if "most" in bounds else ""
                raise AtollError(f"{flag(f.name)} must be {told}, not {value}{meaning}.")

    def _check_faults(self) -> None:
        if self.drop is not None:
            read_drop(self.drop)
        for name in ("slow", "stragglers"):
            if (text := getattr(self, name)) is not None:
                read_lag(flag(name), text)
        if self.poison is not None:
            read_poison(self.poison)

    @property
    def optimiser_options(self) -> dict[str, Any]:
        """The options of local training that were given, by name."""
        given = {name: getattr(self, name) for name in ("optimiser", "lr", "epochs", "batch_size")}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def label(self) -> str:
        """The name of the run in tables and directories: the method with its variant and regularisers."""
        return label_of(self.method, self.terms)

    def identity(self) -> dict[str, Any]:
        """Return the entries that decide the numbers: equal identities give equal results, round by round."""
        decisive = {name: value for name, value in self.to_dict().items() if name not in NEUTRAL}
        same = {  # to the bit; "auto" stands only in the files of runs from before there was a choice
            "backend": "loop" if self.backend in ("processes", "ray") else self.backend,
            "device": "cpu" if self.device == "auto" else self.device,
        }
        return decisive | same

    def to_dict(self) -> dict[str, Any]:
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    def to_yaml(self) -> str:
        return str(yaml.safe_dump(self.to_dict(), sort_keys=False))


def _read(value: Any, kind: Any, name: str) -> Any:
    if kind == tuple[str, ...]:
        return _words(value, flag(name), commas=name == "models")
    if kind == dict[str, Any]:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise AtollError(f"{flag(name)} must be name=value pairs, not {value!r}.")
        return dict(value)
    return convert(value, kind, flag(name))


def _words(value: Any, where: str, commas: bool) -> tuple[str, ...]:
    words = value.split(",") if isinstance(value, str) and commas else [value] if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not all(isinstance(w, str) and w for w in words):
        raise AtollError(f"{where} must be a list of names, not {value!r}.")
    return tuple(words)


def bounds_of(f: Any) -> dict[str, float]:
    """Return the bounds of a field by their names in ``BOUNDS``."""
    return {name: f.metadata[name] for name in BOUNDS if name in f.metadata}


def flag(name: str) -> str:
    """Return the command-line option of a field, for messages."""
    option_name = str(Config.__dataclass_fields__[name].metadata.get("flag", name))
    return "--" + option_name.replace("_", "-")


def label_of(method: str, terms: Sequence[str]) -> str:
    base, sign, variant = method.partition(":")
    name = Path(base).stem if base.endswith(".py") else base
    return "+".join([name + sign + variant, *terms])


def from_dict(values: Mapping[str, Any], where: str = "the configuration") -> Config:
    known = {f.name for f in fields(Config)}
    for name in values:
        if name not in known:
            raise unknown(f"entry in {where}", str(name), known)
    return Config(**values)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read the entries of a configuration file, which :class:`Config` checks."""
    try:
        values = from_yaml(path.read_text())
    except FileNotFoundError:
        raise AtollError(f"There is no configuration file {str(path)!r}. Check the path.") from None
    except OSError as reason:
        raise AtollError(f"Cannot read the configuration file {str(path)!r}: {reason.strerror}.") from reason
    except ValueError as reason:
        raise AtollError(f"{str(path)!r} is not readable YAML: {reason}") from reason
    if not isinstance(values, dict):
        raise AtollError(f"{str(path)!r} must hold entries such as 'method: fedavg'.")
    return values
