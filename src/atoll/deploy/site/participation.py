"""A site's part in one run: the method on its own rows, and what leaves it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256
from math import isfinite
from typing import Any

from ..._version import __version__
from ...backends.loop import LoopBackend
from ...clients.evaluation import Score
from ...clients.pool import ClientPool, build_pool
from ...clients.state_store import MemoryStore
from ...clients.tasks import ClientTask
from ...clients.validation.checks import find_type_error
from ...config import Config, from_dict
from ...core.client import Client
from ...core.contract import contract
from ...core.hooks import TrainsAfterUpload, has_bias_free_heads
from ...core.method import AnyMethod, traits_of
from ...core.schema import is_finite
from ...core.serialization import OWN, WireError, decode, encode
from ...core.task import Round
from ...core.traits import Need
from ...data.transforms import preset
from ...engine.model_factory import ModelFactory
from ...engine.setup import apply_privacy, build_method, build_row_splits
from ...errors import AtollError
from ...privacy.disclosure import Undeclared
from ...privacy.policy import Privacy
from ..fingerprints import method_digest, models_digest, rows_digest
from ..transport.protocol import VERSION, Frame, Refusal, answers, pack, unpack
from .config import SiteConfig
from .exchange_store import ExchangeStore, StateRef, StoredExchange

Afterwards = Callable[[], None]


def config_of(document: Mapping[str, Any]) -> Config:
    try:
        return from_dict(document["config"])
    except (AtollError, KeyError, TypeError) as reason:
        raise Refusal("request", str(reason)) from reason


def check_version(document: Mapping[str, Any]) -> None:
    """Whether server and site mean the same by what they say."""
    if (document.get("version"), document.get("protocol")) != (__version__, VERSION):
        raise Refusal("version", f"The server has atoll {document.get('version')}, this site {__version__}.")


def check_rules(site: SiteConfig, config: Config) -> None:
    """Whether the site's own rules let it take part at all."""
    site.privacy.check(config, _method(config, site))


class Flawed(AtollError):
    """An upload that does not leave: it holds what the method does not declare, or NaN."""


class Participation:
    """Built from what the server says of a run; refuses what the site does not have or would do otherwise."""

    def __init__(self, site: SiteConfig, document: dict[str, Any]):
        try:
            self.run, self.roster, self._expected = str(document["run"]), dict(document["models"]), document["expect"]
        except (KeyError, TypeError, ValueError) as reason:
            raise Refusal("request") from reason
        self.site, self.config = site, config_of(document)
        self.exchanges = ExchangeStore(site.state, self.run)
        method = _method(self.config, site)
        self.config, self.method, self.pool = apply_privacy(self.config, method, self._pool(method))
        self.types = contract(self.method)
        rules = site.privacy.combined(self.config, self.method)
        try:
            self.privacy = Privacy(rules, self.method, self.pool, self.exchanges.folder)
        except Undeclared as reason:
            raise Refusal("roles", str(reason)) from reason
        self.privacy.take_over(None)  # what the journal says of the budget

    def _pool(self, method: AnyMethod) -> ClientPool:
        """The site alone. All architectures are needed only to find the smallest, where that one travels."""
        site, config = self.site, self.config
        data, name = site.rows.data, site.name
        transform = preset(config.transform, config.data, data.shape)
        rows = build_row_splits(site.federation(config), transform)
        shared = Need.SHARED_MODEL in traits_of(method).needs and not config.shared_model
        roster = self.roster if shared else {name: site.architecture}
        networks = ModelFactory(replace(config, models=tuple(roster.values())), data, tuple(rows.train.all.x.shape[1:]))
        return build_pool(
            method,
            networks,
            networks.assign(tuple(roster), not has_bias_free_heads(method)),
            rows,
            data.num_classes,
            ids=(name,),
            public=None if site.public_rows is None else transform.prepare(site.public_rows),
            augment=transform.augmentation,
        )

    def compare(self) -> None:
        """What the server takes for granted about this site has to be so."""
        site, expected = self.site, self._expected
        site.privacy.check(self.config, self.method)
        found = {
            "contract": method_digest(self.method),
            "model": models_digest([self.pool.models[site.name], self.pool.proxy]),
            "data": site.card(self.config)["rows"],
            "public": rows_digest(site.public_rows) if Need.PUBLIC_DATA in traits_of(self.method).needs else None,
        }
        for code, value in found.items():
            if value != expected.get(code):
                raise Refusal(code, f"The server expects another {code}: {expected.get(code)}, not {value}.")

    # -- what the server may ask --------------------------------------------------------------------------------------

    def exchange(self, request: Frame, data: bytes) -> tuple[Frame, bool, Afterwards | None]:
        """The client's part in an exchange: the reply, whether it was given before, and what goes on afterwards.

        The same request is carried out once. A new one comes with the states that the server may still go back to;
        all others are dropped.
        """
        head, waiting = request.head, isinstance(self.method, TrainsAfterUpload)
        entry, base = self._entry(request), _state_ref(head["base"])
        if entry.answered and (waiting or entry.concluded):
            rest = None if entry.concluded else partial(self._conclude_again, entry)
            return unpack(entry.read("reply.frame")), True, rest
        reply, afterwards = self._carry_out(request, data, entry, base)
        needed = {state_ref for state_ref in (base, *map(_state_ref, head["keep"])) if state_ref is not None}
        self.exchanges.tidy(needed, round=head["round"])
        return reply, False, afterwards

    def finish(self, request: Frame) -> Frame:
        """What came of the personal training that went on after an upload."""
        entry = self._entry(request)
        if not entry.answered:
            raise Refusal("state", "There is no such exchange to finish.")
        if not entry.concluded:
            self._conclude_again(entry)
        return Frame("rest", _rest(entry))

    def assess(self, request: Frame) -> Frame:
        """Measure the personal model as it is."""
        loop = self._loop(_state_ref(request.head["base"]), [])
        download = decode(self.types.exchanges[0].download, request.body)
        return Frame("score", {"score": _plain(loop.assess(self.method, self.config.seed, self.site.name, download))})

    def end(self, request: Frame) -> Frame:
        """The run is over: what the site holds now is the result."""
        last = _state_ref(request.head["base"])
        if last is not None:
            self.exchanges.find(last)
            self.exchanges.tidy({last})
        self.exchanges.begin(self.exchanges.document() | {"last": last})
        return Frame("ended", {})

    def account(self) -> dict[str, Any]:
        """What the gate and the budget say of an upload: for the site's own book, and for nobody else."""
        gate, budget = self.privacy.gate, self.privacy.budget
        rules = {"min_class_count": gate.least, "cov_source": gate.cov_source}
        spent = {"epsilon": budget.spent} if budget else {}
        return rules | self.privacy.tally(self.site.name)._asdict() | spent

    # -- how ----------------------------------------------------------------------------------------------------------

    def _entry(self, request: Frame) -> StoredExchange:
        """Where an exchange is kept: named after everything that decides what comes of it."""
        head = request.head
        try:
            round, phase, base = int(head["round"]), int(head["phase"]), _state_ref(head["base"])
            download = str(head["download"])
        except (KeyError, TypeError, ValueError) as reason:
            raise Refusal("request") from reason
        if request.body and sha256(request.body).hexdigest() != download:
            raise Refusal("request", "A message is not what its digest says.")
        key = sha256(f"{base} {download} {bool(head['examine'])}".encode()).hexdigest()
        return self.exchanges.entry(round, phase, key)

    def _carry_out(
        self, request: Frame, data: bytes, entry: StoredExchange, base: StateRef | None
    ) -> tuple[Frame, Afterwards | None]:
        if not self.privacy.can_afford(exchanges=1):
            raise Refusal("budget", self.privacy.exhausted())
        made: list[Any] = []
        loop = self._loop(base, made)
        self.privacy.reserve(request.head["round"], exchanges=1)
        (outcome,) = loop.train(self.method, self.config.seed, [self._job(request)])
        if fault := find_type_error(outcome.upload, self.types.exchanges[request.head["phase"]].upload):
            raise Flawed(f"The upload is not what the method declares: {fault.field} {fault.reason}.")
        entry.begin(data, encode(made[0]))
        asked = answers(self.run, self.site.name, request.head["round"], request.head["phase"])
        head: dict[str, Any] = asked | {"before": _plain(outcome.before)}
        conclude = partial(self._conclude, loop, entry)
        if not isinstance(self.method, TrainsAfterUpload):
            conclude()
            head |= _rest(entry)
        reply = Frame("upload", head, encode(outcome.upload))
        entry.answer(pack(reply))
        return reply, conclude if isinstance(self.method, TrainsAfterUpload) else None

    def _conclude(self, loop: LoopBackend, entry: StoredExchange) -> None:
        if not entry.concluded:
            (rest,) = loop.results()
            entry.conclude(encode(rest.state), {"after": _plain(rest.after), "spoilt": not is_finite(rest.state)})

    def _conclude_again(self, entry: StoredExchange) -> None:
        """After a crash between upload and personal training: everything follows from the request."""
        request = unpack(entry.read("request.frame"))
        loop = self._loop(_state_ref(request.head["base"]), [])
        for _ in loop.train(self.method, self.config.seed, [self._job(request)]):
            pass
        self._conclude(loop, entry)

    def _loop(self, base: StateRef | None, made: list[Any]) -> LoopBackend:
        """The client with the state that the server names; ``made`` gets the upload before it passes the way out."""

        def way_out(job: ClientTask, client: Client, upload: Any) -> Any:
            made.append(upload)
            return self.privacy.upload_filter(job, client, upload)

        store = MemoryStore()
        if base is not None:
            store.put(self.site.name, self.state(base))
        return LoopBackend(self.pool, store, way_out)

    def state(self, state_ref: StateRef) -> Any:
        return decode(self.types.state, self.exchanges.find(state_ref).read("state.safetensors"), OWN)

    def _job(self, request: Frame) -> ClientTask:
        head = request.head
        try:
            download = decode(self.types.exchanges[head["phase"]].download, request.body)
        except WireError as reason:
            raise Refusal("request", str(reason)) from reason
        return ClientTask(self.site.name, Round(head["round"], head["phase"]), download, bool(head["examine"]))


def _method(config: Config, site: SiteConfig) -> AnyMethod:
    """The method by its name, or from the site's own copy of a file: code never comes from the server."""
    name, _, variant = config.method.partition(":")
    if name.endswith(".py"):
        own = site.method_file(name)
        if own is None:
            raise Refusal("method", f"The server asks for {name}, which site.yaml does not list under 'methods'.")
        config = replace(config, method=f"{own}:{variant}" if variant else str(own))
    try:
        return build_method(config)
    except AtollError as reason:
        raise Refusal("method", str(reason)) from reason


def _rest(entry: StoredExchange) -> dict[str, Any]:
    """What the server learns of a state that stays here."""
    notes = entry.notes()
    return {"state": entry.digest(), "after": notes["after"], "spoilt": notes["spoilt"]}


def _state_ref(value: Any) -> StateRef | None:
    try:
        return None if value is None else StateRef(int(value[0]), int(value[1]), str(value[2]))
    except (TypeError, ValueError, IndexError) as reason:
        raise Refusal("request") from reason


def _plain(score: Score | None) -> dict[str, float | None] | None:
    """As JSON can hold it: an undefined number is null."""
    return None if score is None else {name: v if isfinite(v) else None for name, v in score.items()}
