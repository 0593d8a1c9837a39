"""The privacy of a run, decided once: gate, mechanism, budget, and the record of them."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..clients.dry_run import dry_run
from ..clients.pool import ClientPool
from ..clients.tasks import ClientTask
from ..core.client import Client
from ..core.method import AnyMethod, contract
from ..core.optim.base import no_training
from ..core.optim.dpsgd import DPSGD
from ..core.payloads import Role
from ..core.schema import constraints_at, constraints_of, field_of, tensors_of
from ..typing import ClientId
from ..utils.secure_random import Normal, secure, seeded
from .budget import Budget, Journal
from .disclosure import Tally, check_fields, check_upload, class_tables, is_marker, rows_of_classes, totals
from .mechanisms import StatisticsMechanism, UpdateMechanism, plain_scalars
from .options import PrivacyOptions
from .setup import budget_of, gate_of, releases_per_exchange

SCOPES = {
    "updates": (
        "client level: the data of any one client against none, for everything it sends in all rounds; noise is added "
        "by the client, so the server need not be trusted; all clients weigh the same"
    ),
    "statistics": (
        "release, extractor fixed: any one row of a client against none, for the statistics that it sends in all "
        "rounds, as if the features had been given beforehand; the extractor is trained on the same rows, so this is "
        "not end to end"
    ),
    "training": (
        "row level, end to end: any one training row of a client against none, for all weights that it sends; the "
        "number of its rows is not hidden"
    ),
}
NOT_COVERED = "accuracies and other measurements in this record are of private rows and have no noise"
SECURE = "secure source of the operating system: a run with it cannot be repeated"
SEEDED = "not private: seeded noise"
OFF = "No privacy mechanism was on: the server reads uploads as methods make them."
GATED = (
    "The gate acted on {covers}: it prevents exact reconstruction from few rows. It gives no formal guarantee; who "
    "knows the distribution can still guess membership from means."
)
AT_SITES = "The server asked for no privacy mechanism; sites hold back what their own rules say."
PASSED = "The gate let {passes} pass unchanged, by the role that the method declares for each; roles are not checked."


class Privacy:
    """The privacy of one run."""

    def __init__(self, config: PrivacyOptions, method: AnyMethod, pool: ClientPool, folder: Path | None = None):
        self.gate, self._config, self._method, self._pool = gate_of(config, method), config, method, pool
        self._declared, self._tally = constraints_of(method), Tally()
        self._covers: list[str] = []  # what the gate changes in uploads
        self._passes: dict[str, str] = {}  # the role of everything else
        self._widths: dict[str, int] = {}  # of covariances, by the architecture of those who send any
        if self.gate.on:
            self._dry_run()
        self.kind: str | None = None
        self.budget: Budget | None = None
        if config.dp is not None:
            optim = getattr(method, "optim", None)
            statistics = "statistics" if method.bounded_statistics else "updates"
            self.kind = "training" if isinstance(optim, DPSGD) else statistics
            self.budget = budget_of(config, method)
        self._journal = Journal(folder if self.budget else None)

    # -- on the way out of a client -----------------------------------------------------------------------------------

    def upload_filter(self, job: ClientTask, client: Client, upload: Any) -> Any:
        """What leaves in place of an upload; run where the client runs."""
        if self.kind == "statistics":
            return self._statistics().release(client, upload, self._declared, self._noise(job))
        if self.kind == "updates" and self.budget:
            mechanism = UpdateMechanism(self._config.dp_clip, self.budget.multiplier)
            return mechanism.release(job.download, upload, self._declared, self._noise(job))
        return self.gate.passed(upload, rows_of_classes(client), self._declared) if self.gate.on else upload

    def _statistics(self) -> StatisticsMechanism:
        assert self.budget is not None
        return StatisticsMechanism(self._config.dp_clip, self.budget.multiplier, self.gate)

    def _noise(self, job: ClientTask) -> Normal:
        seed = self._config.dp_seed
        return secure if seed is None else seeded(seed, job.client, *job.round)

    @property
    def spare_rows(self) -> int:
        """By how much noisy counts may exceed what a client has, but for one case in a million."""
        if self.kind != "statistics":
            return 0
        return int(6 * self._statistics().deviation(True) * self._pool.num_classes)

    # -- the budget ---------------------------------------------------------------------------------------------------

    def affordable(self, exchanges: int | None = None) -> bool:
        """Whether another round, or so many exchanges, may be released."""
        return self.budget is None or self.budget.allows(self._releases(exchanges))

    def reserve(self, t: int, exchanges: int | None = None) -> None:
        """Write down that round ``t``, or so many exchanges of it, is about to be released; only then may it be."""
        if self.budget is None:
            return
        more = self._releases(exchanges)
        assert self.budget.allows(more)
        self._journal.write(more, t + 1, self.budget.after(self.budget.made + more))
        self.budget.made += more

    def _releases(self, exchanges: int | None) -> int:
        each = releases_per_exchange(self._method)
        return each * (self._method.phases if exchanges is None else exchanges)

    def exhausted(self) -> str:
        assert self.budget is not None
        return (
            f"The privacy budget is spent: epsilon {self.budget.spent:.4g} of {self.budget.epsilon:g} after "
            f"{self.budget.made} releases, and another round would exceed it. The run ends here."
        )

    def to_json(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"made": self.budget.made if self.budget else 0, "tally": list(self._tally)}

    def take_over(self, stored: Mapping[str, Any] | None) -> None:
        """What was spent, by the checkpoint or by the journal, whichever says more."""
        stored = stored or {}
        self._tally = Tally(*stored.get("tally", ()))
        if self.budget:
            self.budget.made = max(int(stored.get("made", 0)), self._journal.made())

    # -- the record ---------------------------------------------------------------------------------------------------

    @property
    def on(self) -> bool:
        return self.gate.on or self.budget is not None

    def count(self, senders: Collection[ClientId]) -> None:
        """Add up what the gate kept back from uploads of these clients; sites count for themselves."""
        if not self._pool.remote:
            for i in senders:
                self._tally = self._tally.plus(self.tally(i))

    def tally(self, i: ClientId) -> Tally:
        """What the gate keeps back from an upload of client ``i``; it goes by the client's rows alone."""
        if not (self.gate.on and self._covers and self.kind is None):
            return Tally()
        counts = rows_of_classes(self._pool.client(i))
        return self.gate.tally(counts, self._widths.get(self._pool.models[i].name))

    def progress(self) -> dict[str, Any]:
        """For a line of metrics."""
        spent = {"epsilon": self.budget.spent} if self.budget else {}
        counted = self.gate.on and self.kind is None and not self._pool.remote
        return spent | ({"withheld": self._tally._asdict()} if counted else {})

    def record(self) -> dict[str, Any]:
        """For the summary: what was on, what it did, and what is and is not guaranteed by it."""
        return {"gate": self._gate_record(), "dp": self._dp_record(), "statement": self.statement()}

    def statement(self) -> list[str]:
        said = []
        if self._covers:
            said.append(GATED.format(covers=", ".join(self._covers)))
        if self._passes:
            said.append(PASSED.format(passes=", ".join(f"{name} ({role})" for name, role in self._passes.items())))
        if self.budget and self.kind:
            noise = "" if self._config.dp_seed is None else f"{SEEDED}. "
            said.append(
                f"{noise}Differential privacy, epsilon {self.budget.spent:.4g} and delta {self.budget.delta:g} spent: "
                f"{SCOPES[self.kind]}; {NOT_COVERED}."
            )
        return said or [AT_SITES if self._pool.remote else OFF]

    def _gate_record(self) -> dict[str, Any] | None:
        if not self.gate.on:
            return None
        rule = {"min_class_count": self.gate.least, "cov_source": self.gate.cov_source}
        reach = {"covers": self._covers, "passes": list(self._passes)}
        if self.kind == "statistics":
            return rule | reach | {"by": "noisy counts"}
        return rule | reach | ({"by": "the sites"} if self._pool.remote else self._tally._asdict())

    def _dp_record(self) -> dict[str, Any] | None:
        if self.budget is None or self.kind is None:
            return None
        return {
            "mechanism": self.kind,
            "dp_scope": SCOPES[self.kind],
            "not_covered": NOT_COVERED,
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "spent": self.budget.spent,
            "releases": self.budget.made,
            "planned": self.budget.planned,
            "noise_multiplier": self.budget.multiplier,
            "clip": self._config.dp_clip,
            "noise": SECURE if self._config.dp_seed is None else SEEDED,
        }

    def _dry_run(self) -> None:
        """See what the gate changes and what it lets pass; an upload that does not declare what it holds is refused."""
        covers: set[str] = set()
        passes: dict[str, Role | None] = {}
        with no_training():
            for exchange in dry_run(self._method, self._pool, self._config.seed):
                check_upload(exchange.upload, self._declared, self._pool.num_classes)
                tensors = tensors_of(exchange.upload)
                changed = {*class_tables(tensors, self._declared), *totals(tensors, self._declared)}
                covers |= changed
                seen = [name for name in tensors if name not in changed] + plain_scalars(exchange.upload)
                passes |= {self._declares(name): constraints_at(name, self._declared).role for name in seen}
                sigma = [v for name, v in tensors.items() if name in self._declared and self._declared[name].psd]
                if sigma:
                    self._widths[self._pool.models[exchange.client].name] = sigma[0].shape[-1]
        check_fields(contract(self._method).upload, self._declared)
        passes |= {name: role for name, role in self._unguarded() if name not in covers}
        self._covers = sorted(covers)
        self._passes = {name: role.value if role else "no role" for name, role in sorted(passes.items())}

    def _declares(self, name: str) -> str:
        """Return the name that a role is declared for: that of the tensor itself, or of its field."""
        own = self._declared.get(name)
        return name if own and own.role else field_of(name)

    def _unguarded(self) -> Iterator[tuple[str, Role]]:
        """Yield what declares that it does not go by class: some of it may leave in later rounds only."""
        for name, marks in self._declared.items():
            if marks.role and not marks.by_class and not is_marker(name, self._declared):
                yield name, marks.role
