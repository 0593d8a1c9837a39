"""Collect the descriptions of sites, and build the setup of a run from them, without any rows.

Numbers of rows are those that sites report; the rows are zeros that take no memory. These placeholders serve for the
dry run of a method and for the checks of uploads. No model is trained or tested on them.
"""

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from typing import NamedTuple, cast, get_args

import numpy as np
import torch

from ..._version import __version__
from ...clients.pool import ClientRows, RowSplits, build_pool
from ...config import Config, flag
from ...core.hooks import has_bias_free_heads
from ...core.method import traits_of
from ...core.problems import PROBLEMS, Classes, Problem
from ...core.traits import Need
from ...data.dataset import Dataset, Kind
from ...data.federated_dataset import FederatedDataset
from ...data.tables.agreed_labels import class_names, target_unit
from ...data.tables.columns import read_bounds
from ...data.tables.preparation import Preparation
from ...data.tables.preparations import Preparations
from ...data.tables.statistics import SITE, TableOptions
from ...data.transforms import preset
from ...engine import compatibility
from ...engine.model_factory import ModelFactory
from ...engine.round_options import check_stopping
from ...engine.setup import Setup, apply_privacy, build_method
from ...errors import AtollError
from ...methods._factory import fill_from_option
from ...simulation.clock import Devices
from ...simulation.schedule import read_schedule
from ...simulation.topology import STAR
from ...typing import ClientId
from ...utils.files import to_json
from ...utils.parsing import Json
from ..fingerprints import method_digest, models_digest
from ..received_names import ForeignName, check_name
from ..site.config import TASKS, PublicRows, public_digest
from ..table_agreement import TableAgreement, columns_from_json, prepare_public
from ..transport.protocol import VERSION, Frame

MOST_ROWS = 10**12
MOST_WEIGHTS = 10**9  # of a model that a site names
DTYPES = frozenset(f"{kind}{size}" for kind in ("int", "uint") for size in (8, 16, 32, 64)) | {
    "float16",
    "float32",
    "float64",
}
SIMULATED = {
    **dict.fromkeys(("drop", "slow", "stragglers", "deadline", "poison"), "sites fail by themselves"),
    "shift": "samples of sites are as they are",
    "dp_seed": "sites draw their noise themselves, and do not tell how",
}
_COMMON = {  # entries that must be equal at all sites, and the remedy if they differ
    "kind": "Give all sites data of one kind.",
    "shape": "Give all sites samples of one shape.",
    "dtype": "Store the samples of all sites in one type.",
    "task": "Say what the labels are alike at every site, by 'task' in site.yaml.",
    "classes": "List all classes at every site, such as 'rows.csv?classes=a,b,c'.",
    "labels": "Name the classes alike and in one order at every site, such as 'rows.csv?classes=a,b,c'.",
    "target_bounds": "Declare the same bounds of numbers to predict in the schema file of every site.",
}


class SiteDescription(NamedTuple):
    """The description that a site sends of itself."""

    site: ClientId
    version: str
    protocol: int
    kind: str
    shape: list[int]
    dtype: str
    task: str  # what the labels are
    classes: int  # their number, or that of label columns
    labels: str
    open_classes: bool  # whether the classes are those of the site's rows, so that sites may agree on the names of all
    model: str
    public: str | None
    columns: list[list[object]]  # name, kind and declared levels of each column of a raw table
    gaps: bool  # whether a column of numbers has empty cells
    target_bounds: list[list[float] | None]  # declared bounds of numbers to predict
    has: list[str]  # names of the columns that the site has, under --columns own
    rows: list[int]  # for training, validation and test


def hello(config: Config) -> Frame:
    """Return the first request to a site, which asks for its description."""
    return Frame("hello", {"version": __version__, "protocol": VERSION, "config": config.to_dict()})


def read_description(site: ClientId, values: Json) -> SiteDescription:
    """Check the description that a site sent.

    Raises:
        AtollError: if a value is impossible, or the site has another name.
    """
    try:
        description = SiteDescription(**values)
        sound = (
            description.kind in get_args(Kind)
            and all(
                type(v) is str
                for v in (
                    description.site,
                    description.version,
                    description.dtype,
                    description.task,
                    description.labels,
                    description.model,
                )
            )
            and all(type(n) is int and 0 < n < 2**16 for n in description.shape)
            and type(description.classes) is int
            and 0 < description.classes < 2**16
            and len(description.rows) == 3
            and all(type(n) is int and 0 <= n < MOST_ROWS for n in description.rows)
            and description.rows[0] > 0
            and description.dtype in DTYPES
            and description.task in TASKS
            and type(description.gaps) is bool
            and type(description.open_classes) is bool
            and all(type(name) is str for name in description.has)
            and len([read_bounds(each) for each in description.target_bounds]) in (0, description.classes)
            and len(columns_from_json(description.columns)) in (0, 1, *description.shape[:1])
        )
    except (TypeError, ValueError):
        sound = False
    if not sound:
        raise AtollError(
            f"Site {site!r} sent a description with impossible values. Install the same version of atoll there."
        )
    if description.site != site:
        raise AtollError(
            f"The site that should be {site!r} calls itself {description.site!r}. Correct 'name' in its site.yaml."
        )
    return description


def compare(descriptions: Sequence[SiteDescription]) -> None:
    """Raise AtollError if the sites have different versions, or data of different forms."""
    first = descriptions[0]
    for description in descriptions:
        if description.version != __version__:
            raise AtollError(
                f"Site {description.site!r} has atoll {description.version}, the server {__version__}. "
                "Install the same version."
            )
        for name, remedy in _COMMON.items():
            if name == "shape" and first.columns and description.columns:
                continue  # Columns are compared by their names.
            if name in ("classes", "labels") and first.open_classes and description.open_classes:
                continue  # Sites agree on the names of all classes.
            a, b = getattr(first, name), getattr(description, name)
            if a != b:
                raise AtollError(
                    f"Sites {first.site!r} and {description.site!r} differ in {name}: {a} and {b}. {remedy}"
                )


def check_models(config: Config, descriptions: Sequence[SiteDescription]) -> None:
    """Raise AtollError for a site whose model is neither a registered name nor one that ``--models`` lists.

    The name comes from another machine: a file or a package that it names would be code of that machine's choice.
    """
    for description in descriptions:
        try:
            check_name("model", description.model, config.models)
        except ForeignName as reason:
            raise AtollError(
                f"Site {description.site!r} names the model {description.model[:200]!r}, which is no registered one. "
                "If you have the same code here and trust it, list this very text in --models."
            ) from reason


def build_remote_setup(
    config: Config,
    descriptions: Sequence[SiteDescription],
    public: PublicRows | None,
    tables: TableAgreement | None = None,
) -> Setup:
    """Build the server's setup of a run from the descriptions of its sites, and what they agreed on."""
    compare(descriptions)
    check_models(config, descriptions)
    trusted = config.models
    _check_options(config)
    _check_task(config, descriptions[0])
    config = replace(
        config,
        task=None if descriptions[0].task == Classes.task else descriptions[0].task,
        models=tuple(description.model for description in descriptions),
        clients=len(descriptions),
        backend="loop",
    )
    method, ids = build_method(config), tuple(description.site for description in descriptions)
    _check_public(descriptions, public, Need.PUBLIC_DATA in traits_of(method).needs)
    options = config.table_options
    own = _site_preparations(descriptions, tables, options)
    preparation = next(iter(own.values()), None)
    data = _blank(config.data, descriptions[0], tables)
    transform = preset(config.transform, config.data, data.shape)
    row = transform.prepare(data.x_train if preparation is None else preparation.apply(data.x_train))
    networks = ModelFactory(
        config,
        data,
        tuple(row.shape[1:]),
        code=trusted,
        most_weights=MOST_WEIGHTS,
        inputs=Preparations(own, own_columns=options.own_columns).own_inputs,
    )
    rows = RowSplits(
        *(
            _placeholder_rows(row, data.problem, [description.rows[part] for description in descriptions])
            for part in range(3)
        )
    )
    pool = build_pool(
        method,
        networks,
        networks.assign(ids, not has_bias_free_heads(method)),
        rows,
        data.problem,
        public=None if public is None else transform.prepare(prepare_public(public.x, public.columns, preparation)),
        augment=transform.augmentation,
        remote=True,
        first_releases=int(config.dp is not None and tables is not None and tables.agreed is not None),
    )
    compatibility.check(method, pool, config.method, config.backend, config.robust, config.sums)
    check_stopping(config, pool)
    config, method, pool = apply_privacy(config, method, pool)
    federation = FederatedDataset(data, ids, (), (), (), np.arange(0), (), _name(descriptions))
    known = SITE not in (options.standardise, options.missing)
    devices = fill_from_option(Devices(), config.clock, "--clock")
    return Setup(config, method, federation, pool, devices, preparations=Preparations(own if known else {}))


def _site_preparations(
    descriptions: Sequence[SiteDescription], tables: TableAgreement | None, options: TableOptions
) -> dict[ClientId, Preparation]:
    """Return the preparation of each site, as far as the server knows it; empty if rows are no raw tables."""
    if tables is None or not tables.columns:
        return {}
    own = options.own_columns
    return {d.site: tables.preparation(options, d.has if own else None) for d in descriptions}


def _check_options(config: Config) -> None:
    """Raise AtollError for options that work in simulations only."""
    if config.global_test:
        raise AtollError(
            "--global-test needs the test samples of all clients in one place, and here they stay at the sites. "
            "Leave it out."
        )
    if read_schedule(config.schedule).buffer is not None:
        raise AtollError(
            f"--schedule {config.schedule} is for simulations: it follows a simulated clock, and the server of a "
            "deployed federation waits for its sites. Leave it out."
        )
    if config.topology != STAR:
        raise AtollError(
            f"--topology {config.topology} is for simulations: a deployed federation is a star, with its server in the "
            "middle. Leave it out."
        )
    if config.until_download:
        raise AtollError("--until-download is for simulations: it follows a simulated clock. Leave it out.")
    for name, why in SIMULATED.items():
        if getattr(config, name) is not None:
            raise AtollError(f"{flag(name)} is for simulations: {why}. Leave it out.")


def _check_task(config: Config, description: SiteDescription) -> None:
    """Raise AtollError if ``--task`` is another one than that of the sites."""
    if config.task not in (None, description.task):
        raise AtollError(
            f"--task {config.task}, but the labels of site {description.site!r} are of the task {description.task}. "
            "Leave --task out, or set 'task' in the site.yaml of every site."
        )


def announcement(
    setup: Setup, run: str, public: PublicRows | None, tables: TableAgreement | None = None
) -> dict[ClientId, Frame]:
    """Return the announcement of a run for each site, with digests of what the server expects there."""
    pool, method = setup.pool, setup.method
    common = {
        "version": __version__,
        "protocol": VERSION,
        "run": run,
        "config": setup.config.to_dict(),
        "models": {i: model.architecture for i, model in pool.models.items()},
        "tables": None if tables is None else tables.to_json(),
    }
    contract, shown = (
        method_digest(method),
        public_digest(public) if Need.PUBLIC_DATA in traits_of(method).needs else None,
    )
    return {
        i: Frame(
            "begin",
            common
            | {
                "expect": {
                    "contract": contract,
                    "model": models_digest([pool.models[i], pool.proxy]),
                    "data": [part.size(at) for part in (pool.train, pool.val, pool.test)],
                    "public": shown,
                }
            },
        )
        for at, i in enumerate(pool.ids)
    }


def holdings(setup: Setup) -> dict[str, object]:
    """Return the numbers of rows of each site. Sites do not reveal their numbers by class."""
    pool = setup.pool
    parts = {"train": pool.train, "val": pool.val, "test": pool.test}
    return {
        "name": setup.federation.name,
        "clients": list(pool.ids),
        "classes": ["all classes"],
        **{name: [[part.size(at)] for at in range(len(pool.ids))] for name, part in parts.items()},
        "notes": ["Samples stay at the sites: models were tested there, and only scores were sent."],
    }


def _check_public(descriptions: Sequence[SiteDescription], public: PublicRows | None, needed: bool) -> None:
    if not needed:
        return
    own = public_digest(public)
    if own is None:
        raise AtollError(
            "This method distils on public samples, and the server has none. Give their file with --public."
        )
    for description in descriptions:
        if description.public != own:
            raise AtollError(
                f"Site {description.site!r} has {'other' if description.public else 'no'} public samples. "
                "Copy the server's file there and name it under 'public' in its site.yaml."
            )


def _blank(name: str, description: SiteDescription, tables: TableAgreement | None) -> Dataset:
    """Return a data set of one row of zeros with the form of the sites' rows."""
    raw = tables is not None and tables.columns and description.kind == "table"
    shape = (len(tables.columns),) if tables is not None and raw else tuple(description.shape)
    agreed = None if tables is None else tables.agreed
    names = () if agreed is None else class_names(agreed)
    names = names or tuple(str(c) for c in range(description.classes))
    problem = PROBLEMS[description.task](len(names))  # type: ignore[call-arg]
    if agreed is not None and agreed.target_total is not None:
        problem = target_unit(agreed)
    x, y = np.zeros((1, *shape), description.dtype), np.zeros_like(problem.blank_labels(1).numpy())
    return Dataset(name, cast(Kind, description.kind), x, y, x[:0], y[:0], names, problem=problem)


def _placeholder_rows(row: torch.Tensor, problem: Problem, sizes: Sequence[int]) -> ClientRows:
    """Return ``sizes`` rows of zeros for each client, all views of one row."""
    total = sum(sizes)
    x, y = torch.zeros_like(row), torch.zeros_like(problem.blank_labels(1))
    return ClientRows(x.expand(total, *row.shape[1:]), y.expand(total, *y.shape[1:]), sizes)


def _name(descriptions: Sequence[SiteDescription]) -> str:
    """Return a short hash of the descriptions. A run can continue only with the sites that it began with."""
    return sha256(to_json([description._asdict() for description in descriptions]).encode()).hexdigest()[:12]
