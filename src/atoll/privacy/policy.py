"""Combine the privacy mechanisms of a run: gate, noise, budget, and their record in the summary."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TypedDict

from ..clients.dry_run import dry_run
from ..clients.pool import ClientPool
from ..clients.tasks import ClientTask
from ..core.client import Client
from ..core.contract import contract, exchanges_of
from ..core.method import AnyMethod
from ..core.optim.base import no_training
from ..core.payloads import Role
from ..core.schema import constraints_at, constraints_of, field_of, tensors_of
from ..typing import ClientId
from ..utils.secure_random import Normal, secure, seeded
from . import statements
from .budget import Budget, Journal
from .disclosure import (
    P,
    Tally,
    check_fields,
    check_upload,
    class_tables,
    count_by_class,
    find_plain_scalars,
    is_marker,
    totals,
)
from .options import PrivacyOptions
from .setup import build_budget, build_gate, mechanism_of, releases_per_exchange
from .statistics_mechanism import StatisticsMechanism
from .update_mechanism import UpdateMechanism


class PrivacyState(TypedDict):
    """The part of a checkpoint that privacy keeps: number of releases, and the tally of the gate."""

    made: int
    tally: list[int]


class Privacy:
    """Privacy of one run: filters uploads, keeps the budget, and records both.

    Args:
        config: the privacy options of the run.
        method: the method of the run.
        pool: the clients.
        folder: folder of the journal of releases; None records nothing.
    """

    def __init__(self, config: PrivacyOptions, method: AnyMethod, pool: ClientPool, folder: Path | None = None):
        self.gate = build_gate(config, method)
        self._config = config
        self._method = method
        self._pool = pool
        self._declared = constraints_of(method)
        self._tally = Tally()
        self._covers: list[str] = []  # tensors that the gate changes
        self._passes: dict[str, str] = {}  # roles of all other tensors
        self._widths: dict[str, int] = {}  # widths of covariances, by architecture
        if self.gate.on:
            self._dry_run()
        self.kind: str | None = None
        self.budget: Budget | None = None
        if config.dp is not None:
            self.kind = mechanism_of(method)
            self.budget = build_budget(config, method, pool.first_releases)
        self._journal = Journal(folder if self.budget else None)

    # -- uploads ------------------------------------------------------------------------------------------------------

    def upload_filter(self, job: ClientTask, client: Client, upload: P) -> P:
        """Return the private form of an upload. Runs at the client."""
        if self.kind == "statistics":
            return self._statistics().release(client, upload, self._declared, self._noise(job))
        if self.kind == "updates" and self.budget:
            mechanism = UpdateMechanism(self._config.dp_clip, self.budget.multiplier)
            return mechanism.release(job.download, upload, self._declared, self._noise(job))
        return self.gate.filter_upload(upload, count_by_class(client), self._declared) if self.gate.on else upload

    def _statistics(self) -> StatisticsMechanism:
        assert self.budget is not None
        return StatisticsMechanism(self._config.dp_clip, self.budget.multiplier, self.gate)

    def _noise(self, job: ClientTask) -> Normal:
        seed = self._config.dp_seed
        return secure if seed is None else seeded(seed, job.client, *job.round)

    @property
    def spare_rows(self) -> int:
        """Return a bound on the rows that noise adds to counts, exceeded in less than one of a million cases."""
        if self.kind != "statistics":
            return 0
        return int(6 * self._statistics().deviation(True) * self._pool.problem.num_classes)

    # -- the budget ---------------------------------------------------------------------------------------------------

    def can_afford(self, exchanges: int | None = None) -> bool:
        """Return True if the budget allows another round, or a number of exchanges."""
        return self.budget is None or self.budget.allows(self._releases(exchanges))

    def reserve(self, t: int, exchanges: int | None = None) -> None:
        """Record the releases of round ``t``, or of some of its exchanges. Must be called before the round."""
        if self.budget is None:
            return
        more = self._releases(exchanges)
        assert self.budget.allows(more)
        self._journal.write(more, t + 1, self.budget.after(self.budget.made + more))
        self.budget.made += more

    def _releases(self, exchanges: int | None) -> int:
        each = releases_per_exchange(self._method)
        return each * (len(exchanges_of(self._method)) if exchanges is None else exchanges)

    def exhausted(self) -> str:
        """Return the note for a run that ends because its budget is spent."""
        assert self.budget is not None
        return (
            f"The privacy budget is spent: epsilon {self.budget.spent:.4g} of {self.budget.epsilon:g} after "
            f"{self.budget.made} releases, and another round would exceed it. The run ends here."
        )

    def to_json(self) -> PrivacyState:
        """Return releases and tally, for a checkpoint."""
        return {"made": self.budget.made if self.budget else 0, "tally": list(self._tally)}

    def take_over(self, stored: PrivacyState | None) -> None:
        """Restore releases and tally; the releases are the larger number of checkpoint and journal."""
        if stored:
            self._tally = Tally(*stored["tally"])
        if self.budget:
            recorded = self._pool.first_releases + self._journal.made()
            self.budget.made = max(stored["made"] if stored else 0, recorded)

    # -- the record ---------------------------------------------------------------------------------------------------

    @property
    def on(self) -> bool:
        """Return True if any mechanism is on."""
        return self.gate.on or self.budget is not None

    def count(self, senders: Collection[ClientId]) -> None:
        """Add what the gate withheld from uploads of these clients; remote sites count for themselves."""
        if self._withholds and not self._pool.remote:
            for i in senders:
                self._tally = self._tally.plus(self.tally(i))

    @property
    def _withholds(self) -> bool:
        """Return True if the gate may withhold anything from an upload of the method."""
        return self.gate.on and bool(self._covers) and self.kind is None

    def tally(self, i: ClientId) -> Tally:
        """Count what the gate withholds from an upload of client ``i``, which depends on the client's rows alone."""
        if not self._withholds:
            return Tally()
        counts = count_by_class(self._pool.client(i))
        return self.gate.tally(counts, self._widths.get(self._pool.models[i].name))

    def progress(self) -> dict[str, object]:
        """Return the entry of a line of metrics: epsilon spent, and the tally of the gate."""
        spent = {"epsilon": self.budget.spent} if self.budget else {}
        counted = self.gate.on and self.kind is None and not self._pool.remote
        return spent | ({"withheld": self._tally._asdict()} if counted else {})

    def record(self) -> dict[str, object]:
        """Return the entry of the summary: mechanisms, their effect, and their guarantees and limits."""
        return {"gate": self._gate_record(), "dp": self._dp_record(), "statement": self.statement()}

    def statement(self) -> list[str]:
        """Return sentences on what is and is not guaranteed."""
        sentences = []
        if self._covers:
            sentences.append(statements.GATED.format(covers=", ".join(self._covers)))
        if self._passes:
            sentences.append(
                statements.PASSED.format(passes=", ".join(f"{name} ({role})" for name, role in self._passes.items()))
            )
        if self.budget and self.kind:
            noise = "" if self._config.dp_seed is None else f"{statements.SEEDED}. "
            sentences.append(
                f"{noise}Differential privacy, epsilon {self.budget.spent:.4g} and delta {self.budget.delta:g} spent: "
                f"{statements.SCOPES[self.kind]}; {statements.NOT_COVERED}."
            )
            if self._pool.first_releases:
                sentences.append(statements.TABLES)
        return sentences or [statements.AT_SITES if self._pool.remote else statements.OFF]

    def _gate_record(self) -> dict[str, object] | None:
        if not self.gate.on:
            return None
        rule = {"min_class_count": self.gate.least, "cov_source": self.gate.cov_source}
        reach = {"covers": self._covers, "passes": list(self._passes)}
        if self.kind == "statistics":
            return rule | reach | {"by": "noisy counts"}
        return rule | reach | ({"by": "the sites"} if self._pool.remote else self._tally._asdict())

    def _dp_record(self) -> dict[str, object] | None:
        if self.budget is None or self.kind is None:
            return None
        return {
            "mechanism": self.kind,
            "dp_scope": statements.SCOPES[self.kind],
            "not_covered": statements.NOT_COVERED,
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "spent": self.budget.spent,
            "releases": self.budget.made,
            "of_tables": self._pool.first_releases,
            "planned": self.budget.planned,
            "noise_multiplier": self.budget.multiplier,
            "clip": self._config.dp_clip,
            "noise": statements.SECURE if self._config.dp_seed is None else statements.SEEDED,
        }

    def _dry_run(self) -> None:
        """Find the tensors that the gate changes and those that pass. Raises Undeclared for tensors without a role."""
        covers: set[str] = set()
        passes: dict[str, Role | None] = {}
        with no_training():
            for exchange in dry_run(self._method, self._pool, self._config.seed):
                check_upload(exchange.upload, self._declared, self._pool.problem.num_classes)
                tensors = tensors_of(exchange.upload)
                changed = {*class_tables(tensors, self._declared), *totals(tensors, self._declared)}
                covers |= changed
                seen = [name for name in tensors if name not in changed] + find_plain_scalars(exchange.upload)
                passes |= {self._declares(name): constraints_at(name, self._declared).role for name in seen}
                sigma = [v for name, v in tensors.items() if constraints_at(name, self._declared).covariance]
                if sigma:
                    self._widths[self._pool.models[exchange.client].name] = sigma[0].shape[-2]
        for messages in contract(self._method).exchanges:
            check_fields(messages.upload, self._declared)
        passes |= {name: role for name, role in self._unguarded() if name not in covers}
        self._covers = sorted(covers)
        self._passes = {name: role.value if role else "no role" for name, role in sorted(passes.items())}

    def _declares(self, name: str) -> str:
        """Return the name that a role is declared for: that of the tensor itself, or of its field."""
        own = self._declared.get(name)
        return name if own and own.role else field_of(name)

    def _unguarded(self) -> Iterator[tuple[str, Role]]:
        """Yield fields with a role other than class tables, some of which may be uploaded in later rounds only."""
        for name, marks in self._declared.items():
            if marks.role and not marks.by_class and not is_marker(name, self._declared):
                yield name, marks.role
