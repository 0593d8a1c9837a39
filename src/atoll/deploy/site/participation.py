"""Carry out a site's part of a run: exchanges on the site's own rows, and the filter of its uploads."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256

from ...backends.loop import LoopBackend
from ...clients.evaluation import Score
from ...clients.pool import ClientPool, build_pool
from ...clients.score_table import settled, to_scores
from ...clients.state_store import MemoryStore
from ...clients.tasks import ClientTask
from ...clients.validation.checks import find_type_error
from ...core.client import Client
from ...core.contract import contract
from ...core.hooks import TrainsAfterUpload, has_bias_free_heads
from ...core.method import AnyMethod, traits_of
from ...core.payloads import Payload
from ...core.schema import is_finite
from ...core.serialization import OWN, WireError, decode, encode
from ...core.task import Round
from ...core.traits import Need
from ...data.dataset import Array
from ...data.federated_dataset import FederatedDataset
from ...data.tables.agreed_labels import UnnamedClass, with_class_names, with_target_unit
from ...data.tables.preparation import fit
from ...data.tables.preparations import Preparations
from ...data.tables.statistics import measure
from ...data.transforms import preset
from ...engine.model_factory import ModelFactory, NotAdmitted
from ...engine.rows import build_row_splits
from ...engine.setup import apply_privacy
from ...errors import AtollError
from ...privacy.disclosure import Undeclared
from ...privacy.policy import Privacy
from ...privacy.setup import releases_per_exchange
from ...privacy.site_budget import SiteBudget, cost_of
from ...utils.parsing import Json
from ..fingerprints import method_digest, models_digest
from ..table_agreement import prepare_public, read_agreement, with_agreed_columns
from ..transport.protocol import Frame, Refusal, answers, pack, unpack
from .config import PublicRows, SiteConfig, public_digest
from .exchange_store import ExchangeStore, StateRef, StoredExchange
from .run_checks import check_rules, config_of, load_method
from .score_release import Released, release_score

# A resumed run may repeat a round with another model, because other sites were absent. More often than this, a server
# tries out models.
MOST_REPEATS = 3
MOST_KEPT = 8  # states of earlier rounds that a server may return to; it keeps two checkpoints
Afterwards = Callable[[], None]  # personal training that goes on after an upload


class Flawed(AtollError):
    """Raised for an upload that does not leave the site, because it is not of the type that the method declares."""


class Participation:
    """The part of a site in one run.

    Args:
        site: the site.
        document: the server's announcement of the run.

    Raises:
        Refusal: if the announcement is malformed, or the site lacks the method or may not send its uploads.
    """

    def __init__(self, site: SiteConfig, document: Json):
        try:
            self.run = str(document["run"])
            self.roster = {str(i): str(name) for i, name in dict(document["models"]).items()}
            self._expected = dict(document["expect"])
            tables = document.get("tables")
            self._agreement = None if tables is None else read_agreement(tables)
            self.roster[site.name]
        except (KeyError, TypeError, ValueError, AtollError) as reason:
            raise Refusal("request") from reason
        self.site = site
        self.config = config_of(document, site)
        self.exchanges = ExchangeStore(site.state, self.run)
        method = load_method(self.config, site)
        try:
            self.config, self.method, self.pool = apply_privacy(self.config, method, self._pool(method))
        except NotAdmitted as reason:
            raise Refusal("rules", str(reason)) from reason
        self.types = contract(self.method)
        rules = site.privacy.combined(self.config, self.method)
        try:
            self.privacy = Privacy(rules, self.method, self.pool, self.exchanges.folder)
        except Undeclared as reason:
            raise Refusal("roles", str(reason)) from reason
        self.privacy.take_over(None)  # Restores the spent budget from the journal.
        self.site_budget = SiteBudget(site.privacy.dp, site.state) if site.privacy.dp else None

    def _pool(self, method: AnyMethod) -> ClientPool:
        """Build the pool with this site alone. A method that shares the smallest model needs all architectures."""
        site, config, agreement = self.site, self.config, self._agreement
        name = site.name
        self.federation, self.preparations = self._prepared(self._labelled(site.federation(config)))
        data = self.federation.dataset
        transform = preset(config.transform, config.data, site.rows.data.shape)
        rows = build_row_splits(self.federation, transform, preparations=self.preparations)
        shared = Need.SHARED_MODEL in traits_of(method).needs and not config.shared_model
        roster = self.roster if shared else {name: site.architecture}
        networks = ModelFactory(
            replace(config, models=tuple(roster.values()), adapter=config.adapter if shared else self._adapter()),
            data,
            tuple(rows.train.all.x.shape[1:]),
            code=(*site.allow.code, site.architecture),
            most_weights=site.allow.weights,
            inputs=self.preparations.own_inputs,
        )
        return build_pool(
            method,
            networks,
            networks.assign(tuple(roster), not has_bias_free_heads(method)),
            rows,
            data.problem,
            ids=(name,),
            public=None if site.public_rows is None else transform.prepare(self._public_rows(site.public_rows)),
            augment=transform.augmentation,
            first_releases=int(config.dp is not None and agreement is not None and agreement.agreed is not None),
        )

    def _labelled(self, federation: FederatedDataset) -> FederatedDataset:
        """Return the site's rows with the classes and the unit of targets that sites agreed on."""
        agreed = None if self._agreement is None else self._agreement.agreed
        try:
            return with_target_unit(with_class_names(federation, agreed), agreed)
        except UnnamedClass as reason:
            raise Refusal("classes", str(reason)) from reason
        except AtollError as reason:
            raise Refusal("request", str(reason)) from reason

    def _prepared(self, federation: FederatedDataset) -> tuple[FederatedDataset, Preparations]:
        """Return the site's rows with the columns that sites agreed on, and their preparation."""
        if not federation.dataset.columns:
            return federation, Preparations()
        agreement = self._agreement
        if agreement is None:
            raise Refusal("data", "The site has a raw table, and the server announces no columns.")
        try:
            options = self.site.privacy.table_options(self.config)
            own = with_agreed_columns(federation, agreement.columns, options)
            statistics = measure(own.rows(own.train[0]), own.dataset.columns)
            made = fit(own.dataset.columns, agreement.agreed, statistics, options)
        except AtollError as reason:
            raise Refusal("data", str(reason)) from reason
        by_client = {self.site.name: made}
        return own, Preparations(by_client, agreed=agreement.agreed, own_columns=options.own_columns)

    def _public_rows(self, public: PublicRows) -> Array:
        preparation = self.preparations.by_client.get(self.site.name)
        return prepare_public(public.x, public.columns, preparation)

    def _adapter(self) -> tuple[str, ...]:
        """Return the adapter of this site: adapters are assigned to sites in turn, in the order of the roster."""
        if not self.config.adapter:
            return ()
        position = list(self.roster).index(self.site.name)
        return (self.config.adapter[position % len(self.config.adapter)],)

    def compare(self) -> None:
        """Raise Refusal unless method, model and rows are those that the server expects."""
        site, expected = self.site, self._expected
        check_rules(site, self.config, self.method)
        self._check_site_budget()
        found = {
            "contract": method_digest(self.method),
            "model": models_digest([self.pool.models[site.name], self.pool.proxy]),
            "data": site.card(self.config)["rows"],
            "public": public_digest(site.public_rows) if Need.PUBLIC_DATA in traits_of(self.method).needs else None,
        }
        for code, value in found.items():
            if value != expected.get(code):
                raise Refusal(code, f"The server expects another {code}: {expected.get(code)}, not {value}.")

    def _check_site_budget(self) -> None:
        """Raise Refusal if the releases that this run has left exceed what all runs of the site may spend."""
        budget = self.privacy.budget
        if self.site_budget is None or budget is None:
            return
        if not self.site_budget.allows(cost_of(budget, max(0, budget.planned - budget.made))):
            raise Refusal(
                "rules",
                f"The server asks for epsilon {budget.epsilon:g}, and of the site's epsilon "
                f"{self.site_budget.rule.epsilon:g} for all runs {self.site_budget.spent:.4g} is spent.",
            )

    # -- requests of the server --------------------------------------------------------------------------------------

    def exchange(self, request: Frame, data: bytes) -> tuple[Frame, bool, Afterwards | None]:
        """Carry out the client's part of an exchange. The same request is carried out once.

        A new request names the states that the server may still return to; all others are deleted.

        Returns:
            The reply, whether it was sent before, and the personal training that remains, if any.
        """
        head, waiting = request.head, isinstance(self.method, TrainsAfterUpload)
        entry, base = self._entry(request), _state_ref(head["base"])
        if entry.answered and (waiting or entry.concluded):
            rest = None if entry.concluded else partial(self._conclude_again, entry)
            return unpack(entry.read("reply.frame")), True, rest
        reply, afterwards = self._carry_out(request, data, entry, base)
        kept = list(head["keep"])[:MOST_KEPT]
        needed = {state_ref for state_ref in (base, *map(_state_ref, kept)) if state_ref is not None}
        self.exchanges.tidy(needed, round=head["round"])
        return reply, False, afterwards

    def finish(self, request: Frame) -> Frame:
        """Return the result of the personal training after an upload."""
        entry = self._entry(request)
        if not entry.answered:
            raise Refusal("state", "There is no such exchange to finish.")
        if not entry.concluded:
            self._conclude_again(entry)
        return Frame("rest", _rest(entry))

    def assess(self, request: Frame) -> Frame:
        """Evaluate the personal model without training."""
        base = _state_ref(request.head.get("base"))
        self.exchanges.count_request("assess", str(base), sha256(request.body).hexdigest(), most=1)
        loop = self._loop(base, [])
        download = decode(self.types.exchanges[0].download, request.body)
        [score] = to_scores(loop.assess(self.method, self.config.seed, {self.site.name: download}))
        return Frame("score", {"score": self._released(score)})

    def end(self, request: Frame) -> Frame:
        """End the run: keep the states that the server names as the result and as measured, and delete all others."""
        last, models = _state_ref(request.head["base"]), _measured(request.head.get("models"))
        kept = {ref for _, ref in models.values()} | ({last} if last is not None else set())
        for ref in kept:
            self.exchanges.find(ref)
        if kept:
            self.exchanges.tidy(kept)
        self.exchanges.begin(self.exchanges.document() | {"last": last, "measured": models})
        return Frame("ended", {})

    def account(self) -> dict[str, object]:
        """Return the effect of the gate and the budget on an upload, for the site's own log only."""
        gate, budget = self.privacy.gate, self.privacy.budget
        rules = {"min_class_count": gate.least, "cov_source": gate.cov_source}
        spent = {"epsilon": budget.spent} if budget else {}
        return rules | self.privacy.tally(self.site.name)._asdict() | spent

    # -- training -----------------------------------------------------------------------------------------------------

    def _entry(self, request: Frame) -> StoredExchange:
        """Return the stored exchange of a request, by a key of everything that decides its result."""
        head = request.head
        try:
            round, exchange, base = int(head["round"]), int(head["exchange"]), _state_ref(head["base"])
            download = str(head["download"])
        except (KeyError, TypeError, ValueError) as reason:
            raise Refusal("request") from reason
        if request.body and sha256(request.body).hexdigest() != download:
            raise Refusal("request", "The digest of a message does not match its content.")
        if round < 0 or not 0 <= exchange < len(self.types.exchanges):
            raise Refusal("rules", f"There is no exchange {exchange} of round {round + 1} in this run.")
        if round >= self.config.rounds:
            # A run that was extended is announced again, and the rules decide about its new length.
            raise Refusal("run", f"The run was announced with {self.config.rounds} rounds.")
        key = sha256(f"{base} {download} {bool(head['evaluate'])}".encode()).hexdigest()
        self.exchanges.count_request("exchange", f"{round}-{exchange}", key, most=MOST_REPEATS)
        return self.exchanges.entry(round, exchange, key)

    def _carry_out(
        self, request: Frame, data: bytes, entry: StoredExchange, base: StateRef | None
    ) -> tuple[Frame, Afterwards | None]:
        if not self.privacy.can_afford(exchanges=1):
            raise Refusal("budget", self.privacy.exhausted())
        made: list[Payload] = []
        loop = self._loop(base, made)
        self._reserve(request.head["round"])
        (outcome,) = loop.train(self.method, self.config.seed, [self._job(request)])
        if fault := find_type_error(outcome.upload, self.types.exchanges[request.head["exchange"]].upload):
            raise Flawed(f"The upload is not what the method declares: {fault.field} {fault.reason}.")
        entry.begin(data, encode(made[0]))
        asked = answers(self.run, self.site.name, request.head["round"], request.head["exchange"])
        head: Json = asked | {"before": self._released(settled(outcome.before))}
        conclude = partial(self._conclude, loop, entry)
        if not isinstance(self.method, TrainsAfterUpload):
            conclude()
            head |= _rest(entry)
        reply = Frame("upload", head, encode(outcome.upload))
        entry.answer(pack(reply))
        return reply, conclude if isinstance(self.method, TrainsAfterUpload) else None

    def _reserve(self, round: int) -> None:
        """Count an exchange in the budgets of the run and of the site, before anything of it can leave."""
        if self.site_budget is not None and self.privacy.budget is not None:
            cost = cost_of(self.privacy.budget, releases_per_exchange(self.method))
            if not self.site_budget.allows(cost):
                raise Refusal("budget", self.site_budget.sentence())
            self.site_budget.write(self.run, cost)
        self.privacy.reserve(round, exchanges=1)

    def _conclude(self, loop: LoopBackend, entry: StoredExchange) -> None:
        if not entry.concluded:
            (rest,) = loop.results()
            notes = {"after": self._released(settled(rest.after)), "not_finite": not is_finite(rest.state)}
            entry.conclude(encode(rest.state), notes)

    def _released(self, score: Score | None) -> Released | None:
        """Return the form of a score that may leave the site."""
        return release_score(score, self.site.allow.scores, self.pool.val.size(0))

    def _conclude_again(self, entry: StoredExchange) -> None:
        """Repeat an exchange after a crash between upload and personal training, from the stored request."""
        request = unpack(entry.read("request.frame"))
        loop = self._loop(_state_ref(request.head["base"]), [])
        for _ in loop.train(self.method, self.config.seed, [self._job(request)]):
            pass
        self._conclude(loop, entry)

    def _loop(self, base: StateRef | None, made: list[Payload]) -> LoopBackend:
        """Return a backend with the client in the state that the server names.

        Uploads are added to ``made`` before the privacy filter changes them.
        """

        def filter_upload(job: ClientTask, client: Client, upload: Payload) -> Payload:
            made.append(upload)
            return self.privacy.upload_filter(job, client, upload)

        store = MemoryStore()
        if base is not None:
            store.put(self.site.name, self.state(base))
        return LoopBackend(self.pool, store, filter_upload)

    def state(self, state_ref: StateRef) -> Payload:
        """Return a stored state of the client."""
        state: Payload = decode(self.types.state, self.exchanges.find(state_ref).read("state.safetensors"), OWN)
        return state

    def _job(self, request: Frame) -> ClientTask:
        head = request.head
        try:
            download = decode(self.types.exchanges[head["exchange"]].download, request.body)
        except WireError as reason:
            raise Refusal("request", str(reason)) from reason
        return ClientTask(self.site.name, Round(head["round"], head["exchange"]), download, bool(head["evaluate"]))


def _rest(entry: StoredExchange) -> Json:
    """Return what the server learns about a state that stays at the site: its digest and its scores."""
    notes = entry.notes()
    return {"state": entry.digest(), "after": notes["after"], "not_finite": notes["not_finite"]}


def _measured(value: object) -> dict[str, tuple[int, StateRef]]:
    """Return the rounds and states of the measured models that the server names, ``best`` and ``last``."""
    try:
        named = {which: (int(round), _state_ref(ref)) for which, (round, ref) in dict(value or {}).items()}  # type: ignore[call-overload]
    except (TypeError, ValueError) as reason:
        raise Refusal("request") from reason
    found = {which: (round, ref) for which, (round, ref) in named.items() if ref is not None}
    return found if found.keys() == {"best", "last"} else {}


def _state_ref(value: Sequence[int | str] | None) -> StateRef | None:
    try:
        return None if value is None else StateRef(int(value[0]), int(value[1]), str(value[2]))
    except (TypeError, ValueError, IndexError) as reason:
        raise Refusal("request") from reason
