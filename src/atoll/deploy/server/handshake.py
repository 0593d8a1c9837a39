"""Who is there: the server hears what sites say of themselves, and builds everything it needs without a single row.

The fleet is hollow. Numbers of rows are those the sites told; the rows themselves are zeros that take no memory. They
serve to rehearse methods and to check uploads, and nothing is ever trained or tested on them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, NamedTuple, get_args

import numpy as np
import torch

from ..._version import __version__
from ...clients.pool import ClientPool, ClientRows
from ...config import Config, flag
from ...core.method import Need
from ...data.dataset import Array, Dataset, Kind
from ...data.federated_dataset import FederatedDataset
from ...data.transforms import preset
from ...engine import compatibility
from ...engine.model_factory import ModelFactory
from ...engine.setup import Setup, method_of
from ...errors import AtollError
from ...methods._factory import filled
from ...privacy import setup as privacy
from ...simulation.clock import Devices
from ...typing import ClientId
from ...utils.files import to_json
from ..fingerprints import method_digest, models_digest, rows_digest
from ..transport.protocol import VERSION, Frame

MOST_ROWS = 10**12
SIMULATED = ("drop", "slow", "stragglers", "deadline", "poison")
_COMMON = {  # what all sites must have alike, and what to do if they do not
    "kind": "Give all sites data of one kind.",
    "shape": "Give all sites rows of one shape.",
    "dtype": "Store the rows of all sites in one type.",
    "classes": "List all classes at every site, such as 'rows.csv?classes=a,b,c'.",
    "labels": "Name the classes alike and in one order at every site, such as 'rows.csv?classes=a,b,c'.",
}


class SiteDescription(NamedTuple):
    """What a site says of itself."""

    site: ClientId
    version: str
    protocol: int
    kind: str
    shape: list[int]
    dtype: str
    classes: int
    labels: str
    model: str
    public: str | None
    rows: list[int]  # for training, validation and test


def hello(config: Config) -> Frame:
    return Frame("hello", {"version": __version__, "protocol": VERSION, "config": config.to_dict()})


def read_description(site: ClientId, values: Mapping[str, Any]) -> SiteDescription:
    """A site's answer to hello, if it can be what it should be: sites are not trusted to be well."""
    try:
        card = SiteDescription(**values)
        sound = (
            card.kind in get_args(Kind)
            and all(type(v) is str for v in (card.site, card.version, card.dtype, card.labels, card.model))
            and all(type(n) is int and 0 < n < 2**16 for n in card.shape)
            and type(card.classes) is int
            and 0 < card.classes < 2**16
            and len(card.rows) == 3
            and all(type(n) is int and 0 <= n < MOST_ROWS for n in card.rows)
            and card.rows[0] > 0
            and np.dtype(card.dtype).kind in "uif"
        )
    except TypeError:
        sound = False
    if not sound:
        raise AtollError(f"Site {site!r} describes itself in a way that cannot be. Install the same version there.")
    if card.site != site:
        raise AtollError(
            f"The site that should be {site!r} calls itself {card.site!r}. Correct 'name' in its site.yaml."
        )
    return card


def compare(cards: Sequence[SiteDescription]) -> None:
    """Raise what keeps these sites from learning together."""
    first = cards[0]
    for card in cards:
        if card.version != __version__:
            raise AtollError(
                f"Site {card.site!r} has atoll {card.version}, the server {__version__}. Install the same version."
            )
        for name, remedy in _COMMON.items():
            a, b = getattr(first, name), getattr(card, name)
            if a != b:
                raise AtollError(f"Sites {first.site!r} and {card.site!r} differ in {name}: {a} and {b}. {remedy}")


def build_remote_setup(config: Config, cards: Sequence[SiteDescription], public: Array | None) -> Setup:
    """A run that is ready to start, as far as the server goes."""
    compare(cards)
    _check_options(config)
    config = replace(config, models=tuple(card.model for card in cards), clients=len(cards), backend="loop")
    method, ids = method_of(config), tuple(card.site for card in cards)
    _check_public(cards, public, Need.PUBLIC_DATA in method.needs)
    data = _blank(config.data, cards[0])
    transform = preset(config.transform, config.data, data.shape)
    row = transform.prepare(data.x_train)
    networks = ModelFactory(config, data, tuple(row.shape[1:]))
    dealt = networks.dealt(ids, not method.bias_free())
    train, val, test = (_placeholder_rows(row, [card.rows[part] for card in cards]) for part in range(3))
    fleet = ClientPool(
        ids=ids,
        models=dealt,
        num_classes=data.num_classes,
        train=train,
        val=val,
        test=test,
        proxy=networks.travelling(method.needs, dealt),
        tutors=networks.tutors(method.needs, dealt),
        public=None if public is None else transform.prepare(public),
        augment=transform.augment if transform.augments else None,
        remote=True,
    )
    compatibility.check(method, fleet, config.method, config.backend, config.robust, config.sums)
    config, method, fleet = privacy.prepare(config, method, fleet)
    federation = FederatedDataset(data, ids, (), (), (), np.arange(0), (), _name(cards))
    return Setup(config, method, federation, fleet, filled(Devices(), config.clock, "--clock"))


def _check_options(config: Config) -> None:
    """Refuse what only a simulation can do."""
    if config.global_test:
        raise AtollError("--global-test needs everybody's test rows in one place, and here they stay at the sites.")
    for name in SIMULATED:
        if getattr(config, name) is not None:
            raise AtollError(f"{flag(name)} is for simulations: sites fail by themselves. Leave it out.")


def introduction(setup: Setup, run: str, public: Array | None) -> dict[ClientId, Frame]:
    """What tells each site of the run, and what it must find there."""
    fleet, method = setup.fleet, setup.method
    common = {
        "version": __version__,
        "protocol": VERSION,
        "run": run,
        "config": setup.config.to_dict(),
        "models": {i: model.name for i, model in fleet.models.items()},
    }
    contract, shown = method_digest(method), rows_digest(public) if Need.PUBLIC_DATA in method.needs else None
    return {
        i: Frame(
            "begin",
            common
            | {
                "expect": {
                    "contract": contract,
                    "model": models_digest([fleet.models[i], fleet.proxy]),
                    "data": [part.size(at) for part in (fleet.train, fleet.val, fleet.test)],
                    "public": shown,
                }
            },
        )
        for at, i in enumerate(fleet.ids)
    }


def holdings(setup: Setup) -> dict[str, Any]:
    """Numbers of rows: of which classes they are, sites do not tell."""
    fleet = setup.fleet
    parts = {"train": fleet.train, "val": fleet.val, "test": fleet.test}
    return {
        "name": setup.federation.name,
        "clients": list(fleet.ids),
        "classes": ["all classes"],
        **{name: [[part.size(at)] for at in range(len(fleet.ids))] for name, part in parts.items()},
        "notes": ["Rows stay at the sites: models were tested there, and only scores travelled."],
    }


def _check_public(cards: Sequence[SiteDescription], public: Array | None, needed: bool) -> None:
    if not needed:
        return
    own = rows_digest(public)
    if own is None:
        raise AtollError("This method distils on public rows, and the server has none. Give their file with --public.")
    for card in cards:
        if card.public != own:
            raise AtollError(
                f"Site {card.site!r} has {'other' if card.public else 'no'} public rows. "
                "Copy the server's file there and name it under 'public' in its site.yaml."
            )


def _blank(name: str, card: SiteDescription) -> Dataset:
    """A data set of one empty row that has the form of the sites' rows."""
    x, y = np.zeros((1, *card.shape), card.dtype), np.zeros(1, np.int64)
    kind: Any = card.kind
    return Dataset(name, kind, x, y, x[:0], y[:0], tuple(str(c) for c in range(card.classes)))


def _placeholder_rows(row: torch.Tensor, sizes: Sequence[int]) -> ClientRows:
    """So many rows for each client that take no memory."""
    total = sum(sizes)
    x, y = torch.zeros_like(row), torch.zeros(1, dtype=torch.long)
    return ClientRows(x.expand(total, *row.shape[1:]), y.expand(total), sizes)


def _name(cards: Sequence[SiteDescription]) -> str:
    """A short hash of what the sites said: a run can go on only with the sites it began with."""
    return sha256(to_json([card._asdict() for card in cards]).encode()).hexdigest()[:12]
