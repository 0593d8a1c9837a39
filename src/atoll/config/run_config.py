"""Define the configuration of a run, which the command line, YAML files and Python calls all fill in."""

from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import get_type_hints

import yaml

from ..aggregation.fixed_point import SUMS
from ..aggregation.robust_rules import parse as parse_rule
from ..clients.evaluation import TARGET_MEASURES
from ..core.adapted_model import parse_adapter
from ..core.problems import TASKS
from ..data.feature_shift import read_shift
from ..data.partition.specs import AUTO, DEFAULT
from ..data.split import AUTO as SPLIT_AUTO
from ..data.tables.statistics import ALL, COLUMNS, COMMON, MISSING, SITE, STANDARDISE, TableOptions
from ..errors import AtollError
from ..methods._factory import OPTIMISERS
from ..privacy.disclosure import COV_SOURCES
from ..privacy.options import parse_target
from ..simulation.faults import read_drop, read_lag, read_poison
from ..simulation.schedule import read_schedule
from .labels import label_of
from .options import (
    DATA,
    EVALUATION,
    EXECUTION,
    FAULTS,
    METHOD,
    MODELS,
    NEUTRAL,
    PRIVACY,
    ROBUSTNESS,
    ROUNDS,
    check_value,
    option,
    read_value,
)
from .paths import with_absolute_paths


@dataclass(frozen=True)
class Config:
    """All options of a run. Values are converted and checked on construction.

    Raises:
        AtollError: if a value has the wrong type or is out of range.

    Example:
        >>> Config(method="ditto", rounds=5).label
        'ditto'
    """

    method: str = option(
        "fedavg", "method, method:variant or method:setting=value, or a Python file that defines one", group=METHOD
    )
    data: str = option("digits", "data set: a name, a path, or hf:owner/name", group=DATA)
    data_dir: str | None = option(None, "folder with data sets; default: ATOLL_DATA or a cache folder", group=DATA)
    data_digest: str | None = option(
        None, "digest that the data must have; the config.yaml of a run has that of its data", group=DATA
    )
    task: str | None = option(
        None,
        "what the labels are; default: classes, and the next token for plain text",
        choices=TASKS,
        group=DATA,
    )
    rows: int | None = option(
        None,
        "use N training samples in all, validation samples included, of every client in proportion; default: all. "
        "Test samples stay",
        group=DATA,
        least=1,
    )
    test_rows: int | None = option(
        None, "use N test samples in all, of every client in proportion; default: all", group=DATA, least=1
    )
    clients: int | None = option(
        None, "number of clients; default: 10, or all clients that the partition names", group=DATA, least=1
    )
    new_clients: int = option(
        0, "number of clients, the last ones, that stay out of the run, for `atoll adapt`", group=DATA, least=0
    )
    partition: str = option(
        AUTO,
        "partition of the samples among clients: iid, quantity:BETA, pathological:K, shards:K, dirichlet:BETA, "
        "classes:K:BETA, natural, or file:PATH; auto: natural "
        f"if the data name owners, otherwise {DEFAULT}",
        group=DATA,
    )
    shift: str | None = option(
        None,
        "feature shift between clients: rotate:DEGREES turns the images of each client by an angle of its own, "
        "noise:DEVIATION adds noise of a level of its own; default: none",
        check=read_shift,
        group=DATA,
    )
    split: str = option(
        SPLIT_AUTO,
        "split of a client's samples into training, validation and test samples: client_811, client_82 or official; "
        "auto: official if a table says which rows are for testing, otherwise client_811, about 8 : 1 : 1",
        group=DATA,
    )
    public: int = option(
        0, "number of samples set aside as public data, which all clients and the server see", group=DATA, least=0
    )
    public_data: str | None = option(
        None, "data set that the public samples come from; default: that of the clients", group=DATA
    )
    transform: str = option("plain", "preset for normalisation and augmentation of images", group=DATA)
    standardise: str = option(
        "all",
        "training samples whose mean and deviation standardise columns of tables: those of all clients together, or of "
        "each site; no: columns stay as they are",
        choices=STANDARDISE,
        group=DATA,
    )
    missing: str | None = option(
        None,
        "what fills empty cells of tables: the mean over all clients, or over the site; indicator: the mean over all, "
        "and a further input that marks the cell; default: all, with --standardise site the site",
        choices=MISSING,
        group=DATA,
    )
    columns: str = option(
        COMMON,
        "columns of tables that models read: common, the same for all clients; own, an input layer for the columns "
        "that the client has, with values in half of its training samples that are not all the same",
        choices=COLUMNS,
        group=DATA,
    )
    models: tuple[str, ...] = option(
        (), "architectures, assigned to clients in turn; default: one that suits the data", group=MODELS
    )
    width: int | None = option(
        None, "project the features of all models to this width with a linear layer", group=MODELS, least=1
    )
    adapter: tuple[str, ...] = option(
        (),
        "train low-rank adapters in place of whole models: lora:RANK or lora:RANK:ALPHA, assigned to clients in turn",
        group=MODELS,
        check=lambda adapters: [parse_adapter(text) for text in adapters],
    )
    proxy: str = option("8", "proxy extractor: hidden filters, such as 8 or 8-16:kernel=5&activation=elu", group=MODELS)
    shared_model: str | None = option(
        None, "model that all clients share besides their own; default: the smallest", group=MODELS
    )
    server_model: str | None = option(
        None,
        "architecture of the models that the server trains for each client, if a method has such models",
        group=MODELS,
    )
    init: str = option(
        "shared",
        "initial weights: the same for all clients of one architecture, or drawn per client",
        choices=("shared", "per_client"),
        group=MODELS,
    )
    rounds: int = option(20, "communication rounds", group=ROUNDS, least=1)
    wait_free: bool = option(
        False, "upload before personal training, so that clients train while they wait", group=METHOD
    )
    until_download: bool = option(
        False,
        "with --wait-free: train personal models until the next download arrives, by the simulated clock, in place of "
        "whole epochs",
        group=METHOD,
    )
    rate: float = option(1.0, "share of the clients sampled in each round", group=ROUNDS, above=0, most=1)
    schedule: str = option(
        "synchronous",
        "when the server aggregates: synchronous, when the whole cohort has answered; buffered:K, after K uploads "
        "(FedBuff); asynchronous:ALPHA, after each (FedAsync); with :constant or :polynomial:A for stale uploads",
        check=read_schedule,
        group=ROUNDS,
    )
    topology: str = option(
        "star",
        "who exchanges uploads: star, all with a server; without a server, clients with their neighbours: ring, "
        "complete, or a file of edges",
        group=ROUNDS,
    )
    strikes: int = option(
        3, "number of rejected uploads after which a client is excluded; 0: never", group=ROBUSTNESS, least=0
    )
    max_norm: float | None = option(
        None, "largest accepted norm of an upload; default: no limit", group=ROBUSTNESS, above=0
    )
    robust: str | None = option(
        None,
        "robust aggregation: median, trimmed:SHARE, geometric, krum:F or clip:NORM; default: means",
        check=parse_rule,
        group=ROBUSTNESS,
    )
    sums: str = option(
        "float",
        "arithmetic of sums on the server: floating point, or exact fixed point, the same in any order",
        choices=SUMS,
        group=ROBUSTNESS,
    )
    drop: str | None = option(
        None,
        "share of client-rounds that end without an answer, such as 0.3 or 0.3:before; or client:NAME, always",
        check=read_drop,
        group=FAULTS,
    )
    slow: str | None = option(
        None,
        "SHARE:FACTOR of slow devices: this share of clients takes FACTOR times as long in every round",
        check=partial(read_lag, "--slow"),
        group=FAULTS,
    )
    stragglers: str | None = option(
        None,
        "SHARE:FACTOR of stragglers: this share of client-rounds takes FACTOR times as long",
        check=partial(read_lag, "--stragglers"),
        group=FAULTS,
    )
    deadline: float | None = option(
        None, "simulated seconds after which a round ends; later answers are dropped", group=FAULTS, above=0
    )
    poison: str | None = option(
        None, "SHARE:KIND of Byzantine clients: signflip, scale, random, swap or alie", check=read_poison, group=FAULTS
    )
    min_class_count: int = option(
        0,
        "smallest number of samples of a class whose statistics may leave a client; 0: no limit",
        group=PRIVACY,
        least=0,
    )
    cov_source: str | None = option(
        None,
        "covariances of fewer than 2(width + 1) samples: sent as they are, as a diagonal, or not at all; means: never "
        "sent, the server estimates them from means; default: client, with --min-class-count means or none",
        choices=COV_SOURCES,
        group=PRIVACY,
    )
    dp: str | None = option(
        None,
        "differential privacy of uploads: EPSILON or EPSILON:DELTA; default: off",
        check=parse_target,
        group=PRIVACY,
    )
    dp_clip: float = option(
        1.0,
        "with --dp: clipping norm of an update, of a sample's features or of a sample's gradient",
        group=PRIVACY,
        above=0,
    )
    dp_rounds: int | None = option(
        None, "with --dp: number of rounds that the privacy budget covers; default: --rounds", group=PRIVACY, least=1
    )
    dp_seed: int | None = option(
        None,
        "with --dp: seed of the noise, for tests only; a run with a known seed is not private",
        group=PRIVACY,
        least=0,
    )
    optimiser: str | None = option(
        None, "local optimiser; default: the method's own, sgd for most", choices=tuple(OPTIMISERS), group=METHOD
    )
    lr: float | None = option(
        None,
        "learning rate of all local training: also of personal models, heads, proxies and fine-tuning; default: the "
        "method's own, 0.01 for most",
        group=METHOD,
        above=0,
    )
    lr_schedule: str | None = option(
        None,
        "learning rate by rounds: step:EVERY:FACTOR, exponential:FACTOR, cosine:ROUNDS or warmup:ROUNDS, or several of "
        "these joined by commas; default: constant",
        group=METHOD,
    )
    epochs: float | None = option(
        None,
        "local epochs per round; 0.5 is half of the batches of one, rounded up; default: the method's own, 5 for most",
        group=METHOD,
        above=0,
    )
    steps: int | None = option(
        None, "local steps per round in place of --epochs, whatever a client's number of samples", group=METHOD, least=1
    )
    batch_size: int | None = option(
        None, "samples per local step; default: the method's own, 32 for most", group=METHOD, least=1
    )
    settings: dict[str, object] = option(
        {}, "setting of the method, as name=value; may be repeated", flag="set", group=METHOD
    )
    terms: tuple[str, ...] = option(
        (), "regulariser to add, such as dw:mu=0.1; may be repeated", flag="with", group=METHOD
    )
    seed: int = option(
        0, "seed of the partition, the initial weights, client sampling and the order of the data", group=ROUNDS
    )
    backend: str = option(
        "auto",
        "execution of clients: one by one (loop), in processes, batched by vmap, or on a Ray cluster",
        choices=("auto", "loop", "processes", "vmap", "ray"),
        group=EXECUTION,
    )
    device: str = option(
        "auto", "device for computation; auto: CUDA if available", choices=("auto", "cpu", "cuda"), group=EXECUTION
    )
    workers: int | None = option(
        None,
        "number of processes: for runs if there are several (default: 1), otherwise for clients (default: one per "
        "core, fewer if memory is short)",
        group=EXECUTION,
        least=1,
    )
    store: str = option(
        "memory", "storage of client states between rounds", choices=("memory", "disk"), group=EXECUTION
    )
    cache: int = option(32, "number of client states in memory if the store is on disk", group=EXECUTION, least=1)
    clock: str = option("", "devices of the simulated clock, such as speed=1e9,spread=4,up=1e6", group=FAULTS)
    global_test: bool = option(False, "also test personal models on the test samples of all clients", group=EVALUATION)
    metric: tuple[str, ...] = option(
        (), "additional metric: a name, or ./file.py:function; may be repeated", group=EVALUATION
    )
    target: float | None = option(
        None,
        "score, such as an accuracy, for which to report the rounds, bytes, operations and time needed",
        group=EVALUATION,
        above=0,
    )
    target_of: str = option(
        "personal",
        "the score that --target is about: of personal models, as a mean over clients (personal) or over samples "
        "(weighted), or of the generic model",
        choices=TARGET_MEASURES,
        group=EVALUATION,
    )
    patience: int | None = option(
        None,
        "end the run after N evaluations without a better validation score; default: run all rounds",
        group=EVALUATION,
        least=1,
    )
    until: float | None = option(
        None, "end the run when the validation score reaches this value", group=EVALUATION, above=0
    )
    eval_every: int = option(
        1, "rounds between evaluations; the last round is always evaluated", group=EVALUATION, least=1
    )
    checkpoint_every: int | None = option(
        None,
        "rounds between checkpoints; by default 5, but at least a second and at most a minute apart",
        group=EXECUTION,
        least=1,
    )
    keep_models: bool = option(
        True,
        "keep the personal models that were measured, of the last round and of the round that validation chose",
        group=EXECUTION,
    )
    track: tuple[str, ...] = option(
        (), "log to TensorBoard, MLflow or W&B: tensorboard, mlflow or wandb; may be repeated", group=EXECUTION
    )
    out: str | None = option(None, "run directory; default: a new one under runs/", group=EXECUTION)

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for f in fields(self):
            object.__setattr__(self, f.name, read_value(getattr(self, f.name), f, hints[f.name], flag(f.name)))
        for f in fields(self):
            check_value(getattr(self, f.name), f, flag(f.name))
        if self.epochs is not None and self.steps is not None:
            raise AtollError("--epochs and --steps exclude each other: both say how long clients train. Give one.")

    @property
    def optimiser_options(self) -> dict[str, object]:
        """Options of local training that were given, by name."""
        names = ("optimiser", "lr", "epochs", "steps", "batch_size")
        given = {name: getattr(self, name) for name in names} | {"schedule": self.lr_schedule}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def table_options(self) -> TableOptions:
        """Rules for the preparation of tables."""
        missing = self.missing or (SITE if self.standardise == SITE else ALL)
        return TableOptions(self.standardise, missing, self.min_class_count, self.columns, self.dp is not None)

    @property
    def label(self) -> str:
        """Name of the run in tables and directories: the method with its variant, settings and regularisers."""
        return label_of(self.method, self.terms)

    def identity(self) -> dict[str, object]:
        """Return the entries that decide the numbers: equal identities give equal results, round by round."""
        entries = with_absolute_paths(self.to_dict())
        decisive = {name: value for name, value in entries.items() if name not in NEUTRAL}
        same = {  # Equal to the bit; "auto" occurs only in files of runs from versions without a choice of device.
            "backend": "loop" if self.backend in ("processes", "ray") else self.backend,
            "device": "cpu" if self.device == "auto" else self.device,
        }
        return decisive | same

    def to_dict(self) -> dict[str, object]:
        """Return the entries as they appear in YAML and JSON."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    def to_yaml(self) -> str:
        """Return the contents of config.yaml, with absolute paths."""
        return str(yaml.safe_dump(with_absolute_paths(self.to_dict()), sort_keys=False))


def flag(name: str) -> str:
    """Return the command-line option of a field, for messages."""
    option_name = str(Config.__dataclass_fields__[name].metadata.get("flag", name))
    return "--" + option_name.replace("_", "-")
