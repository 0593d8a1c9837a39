"""A whole run: rounds, evaluation, metrics, checkpoints, summary."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any

import torch

from . import __version__
from .assemble import Setup
from .backends.inprocess import Loop, Vmap
from .checkpoint import Checkpoints, Snapshot
from .core import ClientId, Round, contract
from .errors import AtollError
from .evaluate import DETAILS, Score, accuracy, measure, population, predict, reached, select
from .flops import Flops, count
from .key import key
from .result import Result
from .run import Log, play, sample
from .rundir import RunDir, from_parquet, to_parquet
from .settings import split_variant
from .store import DiskStore, MemoryStore, Store
from .wire import digest

Line = dict[str, Any]  # one line of metrics.jsonl
Watch = Callable[[int, Line | None], None]  # told of every round, and of its line if it was evaluated


@dataclass
class Totals:
    up: int = 0
    down: int = 0
    client_flops: float = 0.0
    server_flops: float = 0.0
    seconds: float = 0.0
    participations: int = 0


@dataclass
class Ledger:
    """What has come of a run so far; with the server and the clients' states it is all that a checkpoint holds."""

    round: int = 0  # rounds completed
    status: str = "running"
    totals: Totals = field(default_factory=Totals)
    before: dict[ClientId, Score] = field(default_factory=dict)  # latest scores of every client examined so far
    after: dict[ClientId, Score] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)


def conduct(setup: Setup, run_dir: RunDir | None = None, watch: Watch | None = None) -> Result:
    """Run to the end, from the latest checkpoint if the directory has one."""
    with _one_thread():
        return Experiment(setup, run_dir).run(watch or (lambda t, line: None))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums are split by thread, so the number of threads would show in the last bits of every result."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Experiment:
    """One run in progress."""

    def __init__(self, setup: Setup, run_dir: RunDir | None):
        self.config, self.method, self.fleet = setup.config, setup.method, setup.fleet
        self.setup, self.run_dir, self.task = setup, run_dir, setup.fleet.task()
        self.types = contract(self.method)
        self.store = self._open_store()
        self.backend = (Vmap if self.config.backend == "vmap" else Loop)(self.fleet, self.store)
        self.server = self._first_server()
        self.ledger, self.notes = Ledger(), list[str]()
        self._objects: dict[ClientId, str] = {}  # what the last checkpoint holds of each client
        self._changed: set[ClientId] = set()
        self._saved = 0  # the round of the last checkpoint

    def run(self, watch: Watch) -> Result:
        if self.run_dir:
            self._resume()
            self.run_dir.write_config(self.config)
            self.run_dir.write_json("holdings.json", self._holdings())
            self.run_dir.write_metrics(self.ledger.lines)
            self.run_dir.remove("summary.json")  # it is the mark of a run that has ended
        flops = count(self.method, self.fleet, self.config.seed, len(self._cohort(0)))
        while self.ledger.round < self.config.rounds and self.ledger.status == "running":
            watch(*self._round(flops))
        if self.ledger.status == "running":
            self.ledger.status = "finished"
        return self._finish()

    # -- one round ----------------------------------------------------------------------------------------------------

    def _round(self, flops: Flops) -> tuple[int, Line | None]:
        t, started, config = self.ledger.round, time.perf_counter(), self.config
        self.server, log = play(
            self.method, self.task, self.backend, self.server, t, config.seed, config.rate, self._examinees(t)
        )
        self._count(log, flops)
        if not log.accepted:
            self.ledger.status = "diverged"
        line = self._evaluate(log) if self._evaluated(t) or self.ledger.status == "diverged" else None
        self.ledger.totals.seconds += time.perf_counter() - started
        if line is not None:
            self._record(line)
        self.ledger.round = t + 1
        if self.run_dir and (self.ledger.round % config.checkpoint_every == 0):
            self._checkpoint()
        return t + 1, line

    def _count(self, log: Log, flops: Flops) -> None:
        totals = self.ledger.totals
        totals.up += log.up
        totals.down += log.down
        totals.participations += len(log.cohort)
        totals.client_flops += flops.of(self.fleet, log.cohort)
        totals.server_flops += flops.server
        self.ledger.before |= log.before
        self.ledger.after |= log.after
        self._changed |= set(log.accepted)

    def _cohort(self, t: int) -> list[ClientId]:
        return sample(self.fleet.ids, self.config.rate, self.config.seed, t)

    def _evaluated(self, t: int) -> bool:
        return (t + 1) % self.config.eval_every == 0 or t + 1 == self.config.rounds

    def _examinees(self, t: int) -> set[ClientId]:
        """Clients whose model after round ``t`` is the one that the next evaluation reports."""
        examinees, later = set(self._cohort(t)), t
        while not self._evaluated(later):
            later += 1
            examinees -= set(self._cohort(later))
        return examinees

    # -- evaluation ---------------------------------------------------------------------------------------------------

    def _evaluate(self, log: Log) -> Line:
        self._assess_newcomers()
        totals = self.ledger.totals
        return {
            "round": log.t + 1,
            "personal": {"post": self._over_clients(self.ledger.after), "pre": self._over_clients(self.ledger.before)},
            "generic": self._generic(),
            "bytes": {"up": totals.up, "down": totals.down},
            "flops": {"clients": totals.client_flops, "server": totals.server_flops},
            "participants": log.cohort,
            "rejected": [r._asdict() for r in log.rejected],
        }

    def _over_clients(self, scores: dict[ClientId, Score]) -> Score:
        """In one order of clients: that in which they were examined would show in the last digit of a mean."""
        return population({i: scores[i] for i in self.fleet.ids})

    def _assess_newcomers(self) -> None:
        """Clients that have not taken part yet are measured with the model they start from.

        Those whose upload was refused when their examination came up are measured as they are now.
        """
        new = [i for i in self.fleet.ids if i not in self.ledger.after]
        first = self._first_server() if new else None
        for i in new:
            server = self.server if i in self._changed or i in self._objects else first
            score = self.backend.assess(self.method, self.config.seed, i, self._download(server, i))
            self.ledger.after[i] = score
            self.ledger.before.setdefault(i, {name: v for name, v in score.items() if name not in DETAILS})

    def _generic(self) -> dict[str, Any] | None:
        predictor = self.method.generic(self.server, self.task)
        if predictor is None:
            self._generic_scores: dict[ClientId, Score] = {}
            return None
        test, val = self.fleet.test, self.fleet.val
        logits, checks = predict(predictor, test.all.x), predict(predictor, val.all.x) if len(val.all.y) else None
        on_all = measure(logits, test.all.y)
        on_all["val"] = accuracy(checks, val.all.y) if checks is not None else float("nan")
        pieces = logits.split([test.size(at) for at in range(len(self.fleet.ids))])
        self._generic_scores = {
            i: {"n": float(len(piece)), "accuracy": accuracy(piece, test[at].y)}
            for at, (i, piece) in enumerate(zip(self.fleet.ids, pieces, strict=True))
        }
        return {"global": on_all, "local": population(self._generic_scores)}

    def _record(self, line: Line) -> None:
        line["seconds"] = self.ledger.totals.seconds
        self.ledger.lines.append(line)
        self.ledger.rows += [self._row(line["round"], i) for i in self.fleet.ids]
        if self.run_dir:
            self.run_dir.append_metrics(line)

    def _row(self, t: int, i: ClientId) -> dict[str, Any]:
        after, at = self.ledger.after[i], self.fleet.position(i)
        generic = self._generic_scores.get(i)
        return {
            "round": t,
            "client": i,
            "model": self.fleet.models[i].name,
            "n_train": self.fleet.train.size(at),
            "n_test": self.fleet.test.size(at),
            "accuracy": after["accuracy"],
            "val": after["val"],
            "pre_accuracy": self.ledger.before[i]["accuracy"],
            "generic_accuracy": generic["accuracy"] if generic else None,
            **{name: after[name] for name in DETAILS},
        }

    # -- beginning and end --------------------------------------------------------------------------------------------

    def _first_server(self) -> Any:
        with torch.no_grad():
            return self.method.init_server(self.task, key(self.config.seed, "init", "server"))

    def _download(self, server: Any, i: ClientId) -> Any:
        return self.method.broadcast(server, i, self.task, Round(0))

    def _open_store(self) -> Store:
        if self.config.store == "memory" or self.run_dir is None:
            return MemoryStore()
        return DiskStore(self.run_dir.path / "states", self.types.state, self.config.cache)

    def _resume(self) -> None:
        found = self._checkpoints().load(self.notes.append)
        if found is not None:
            self._check_resumable(found.round, found.progress["federation"])
        self.store.clear()  # on disk it may hold states of rounds that no checkpoint knows of
        if found is not None:
            self._take_over(found)

    def _take_over(self, found: Snapshot) -> None:
        progress = found.progress
        self.server, self._objects, self._saved = found.server, found.states, found.round
        for i, name in found.states.items():
            self.store.put(i, self._checkpoints().get_state(name))
        self.ledger = Ledger(
            found.round, progress["status"], Totals(**progress["totals"]), _scores(progress["before"]),
            _scores(progress["after"]), [_line(stored) for stored in progress["lines"]], from_parquet(found.rows),
        )  # fmt: skip
        if self.ledger.status != "diverged":  # more rounds may have been asked for
            self.ledger.status = "running"
            self._drop_early_end()

    def _check_resumable(self, done: int, federation: str) -> None:
        assert self.run_dir is not None
        where = str(self.run_dir.path)
        if done > self.config.rounds:
            raise AtollError(f"The run in {where!r} has done {done} rounds already. Give --rounds {done} or more.")
        if federation != self.setup.federation.name:
            raise AtollError(
                f"Cannot resume {where!r}: the data are not what they were when it began. "
                "Bring them back, or start again with --force, which replaces the run."
            )

    def _drop_early_end(self) -> None:
        """What was evaluated only because it used to be the last round."""
        kept = {line["round"] for line in self.ledger.lines if self._evaluated(line["round"] - 1)}
        self.ledger.lines = [line for line in self.ledger.lines if line["round"] in kept]
        self.ledger.rows = [row for row in self.ledger.rows if row["round"] in kept]

    def _checkpoints(self) -> Checkpoints:
        assert self.run_dir is not None
        return Checkpoints(self.run_dir.path, self.types)

    def _checkpoint(self) -> None:
        checkpoints, ledger = self._checkpoints(), self.ledger
        self._objects |= {i: checkpoints.put_state(self.store.get(i)) for i in sorted(self._changed)}
        self._changed.clear()
        progress = {
            "status": ledger.status,
            "totals": asdict(ledger.totals),
            "before": ledger.before,
            "after": ledger.after,
            "lines": ledger.lines,
            "federation": self.setup.federation.name,
        }
        checkpoints.save(Snapshot(ledger.round, self.server, dict(self._objects), progress, to_parquet(ledger.rows)))
        self._saved = ledger.round

    def _finish(self) -> Result:
        summary = self._summary()
        if self.run_dir:
            if self._saved < self.ledger.round:
                self._checkpoint()
            self.run_dir.write_bytes("clients.parquet", to_parquet(self.ledger.rows))
            self.run_dir.write_json("summary.json", summary)
        return Result(self.setup, summary, self.ledger.lines, self.ledger.rows, self.server, self.backend, self.notes)

    def _summary(self) -> dict[str, Any]:
        config, totals, lines = self.config, self.ledger.totals, self.ledger.lines
        base, variant = split_variant(config.method)
        generic = [(line["round"], line["generic"]["global"]) for line in lines if line["generic"]]
        each = max(1, totals.participations)
        return {
            "method": base,
            "variant": variant,
            "label": config.label,
            "data": config.data,
            "partition": config.partition,
            "split": config.split,
            "models": list(config.models),
            "clients": len(self.fleet.ids),
            "rounds": self.ledger.round,
            "seed": config.seed,
            "backend": config.backend,
            "status": self.ledger.status,
            "personal": select([(line["round"], line["personal"]["post"]) for line in lines]),
            "personal_pre": select([(line["round"], line["personal"]["pre"]) for line in lines]),
            "generic": select(generic) if generic else None,
            "bytes": {
                "up": totals.up,
                "down": totals.down,
                "per_client_round": {"up": totals.up / each, "down": totals.down / each},
            },
            "flops": {"clients": totals.client_flops, "server": totals.server_flops},
            "target": config.target and {"accuracy": config.target, "reached": reached(lines, config.target)},
            "seconds": totals.seconds,
            "digest": self._digest(),
            "version": __version__,
        }

    def _digest(self) -> str:
        """SHA-256 over the server's state and every client's state."""
        whole = sha256(f"server {digest(self.server)}\n".encode())
        for i in self.store:
            whole.update(f"client {i} {digest(self.store.get(i))}\n".encode())
        return whole.hexdigest()

    def _holdings(self) -> dict[str, Any]:
        federation = self.setup.federation
        return {
            "name": federation.name,
            "clients": list(federation.clients),
            "classes": list(federation.dataset.classes),
            **{part: federation.counts(part).tolist() for part in ("train", "val", "test")},
            "notes": list(federation.notes),
        }


def _scores(stored: dict[ClientId, dict[str, float | None]]) -> dict[ClientId, Score]:
    """Scores as JSON keeps them: an undefined number is null there."""
    return {i: {k: float("nan") if v is None else v for k, v in score.items()} for i, score in stored.items()}


def _line(stored: Line) -> Line:
    """A line as JSON keeps it."""
    return {
        **stored,
        "personal": _scores(stored["personal"]),
        "generic": stored["generic"] and _scores(stored["generic"]),
    }
