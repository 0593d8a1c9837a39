"""Clients that drop out, dawdle or diverge: who, when, what it costs, and that a run goes on."""

import json
import math
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from conftest import Atoll
from support.small_runs import resumed, run, setup

from atoll import api
from atoll.backends.loop import LoopBackend
from atoll.clients import method_calls
from atoll.clients.server_side import ServerSideStates
from atoll.clients.state_store import MemoryStore
from atoll.clients.tasks import LATE, NO_FAULTS, SILENT, UNREACHED, RoundLog
from atoll.config import Config
from atoll.core.payloads import equal, nbytes
from atoll.core.prng import key
from atoll.core.schema import is_finite
from atoll.core.serialization import digest
from atoll.core.task import Round
from atoll.engine.accounting import Accounting
from atoll.engine.build import build_experiment, run_experiment
from atoll.engine.result import Result
from atoll.engine.resume import Progress
from atoll.engine.round import RoundPolicy, run_round
from atoll.engine.run_state import RunState, Totals, from_json
from atoll.engine.setup import Setup, build_setup
from atoll.errors import AtollError
from atoll.methods import _registry
from atoll.simulation.clock import Clock, Stamp, Times
from atoll.simulation.costs import count_operations
from atoll.simulation.faults import Drop, Faults, Lag, Poison, read_drop, read_lag, read_poison
from atoll.storage.run_dir import RunDir
from atoll.typing import ClientId

TWENTY = tuple(str(i) for i in range(20))
QUICK: dict[str, Any] = {"rounds": 4, "eval_every": 1, "rows": 500}
TROUBLE: dict[str, Any] = {  # on the clock of digits, an mlp takes about 0.1 s in a round
    "drop": "0.3", "slow": "0.4:4", "stragglers": "0.2:50", "deadline": 1.0, "rounds": 5, "rows": 500,
}  # fmt: skip


# -- what users write -------------------------------------------------------------------------------------------------


def test_fault_options_are_parsed() -> None:
    assert read_drop("0.3") == read_drop("0.3:after") == Drop(0.3, SILENT)
    assert read_drop("0.3:before") == Drop(0.3, UNREACHED)
    assert read_drop("client:3,b") == Drop(always=("3", "b"))
    assert read_lag("--slow", "0.2:4") == Lag(0.2, 4)
    assert read_poison("0.2:swap") == Poison(0.2, "swap")


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"drop": "1.1"}, "--drop cannot be '1.1': SHARE must be a number from 0 to 1. Write SHARE, such as 0.3"),
        ({"drop": "-0.1"}, "--drop cannot be"),
        ({"drop": "nan"}, "--drop cannot be"),
        ({"drop": "often"}, "--drop cannot be"),
        ({"drop": "0.3:during"}, "--drop cannot be '0.3:during': WHEN must be before or after."),
        ({"drop": "client:"}, "--drop cannot be 'client:': NAME is missing."),
        ({"slow": "0.3"}, "--slow cannot be '0.3': FACTOR is missing. Write SHARE:FACTOR"),
        ({"slow": "0.3:0.5"}, "at least 1"),
        ({"stragglers": "2:3"}, "--stragglers cannot be"),
        ({"stragglers": "0.1:inf"}, "--stragglers cannot be"),
        ({"deadline": 0.0}, "--deadline must be above 0"),
        ({"poison": "0.2"}, "--poison cannot be '0.2': KIND is missing. Write SHARE:KIND"),
        ({"poison": "5:swap"}, "--poison cannot be"),
        ({"poison": "0.2:signflap"}, "Did you mean 'signflip'?"),
    ],
)
def test_malformed_fault_option_error_shows_the_syntax(option: dict[str, Any], said: str) -> None:
    with pytest.raises(AtollError) as caught:
        Config(**option)
    assert said in str(caught.value)


def test_share_may_be_given_as_number() -> None:
    """As YAML reads it."""
    assert Config(drop=0.3).drop == "0.3"  # type: ignore[arg-type]


def test_faults_are_part_of_the_identity_of_a_run() -> None:
    plain = Config().identity()
    for name, value in {
        "drop": "0.3",
        "slow": "0.4:4",
        "stragglers": "0.2:50",
        "deadline": 1.0,
        "poison": "0.2:swap",
    }.items():
        assert Config(**{name: value}).identity() != plain


def test_unknown_client_for_drop_is_refused() -> None:
    with pytest.raises(AtollError, match="Unknown client '77' for --drop"):
        setup("fedavg", drop="client:77")


def test_deadline_with_measured_seconds_is_refused() -> None:
    with pytest.raises(AtollError, match="--deadline needs counted operations"):
        setup("fedavg", deadline=1.0, clock="compute=measured")


# -- who and when -----------------------------------------------------------------------------------------------------


def test_drops_are_drawn_for_each_round_and_client() -> None:
    faults = Faults(TWENTY, 7, Drop(0.3))
    drawn = [[faults.absence(t, i) is not None for i in TWENTY] for t in range(40)]
    assert 0.25 < fmean(map(fmean, drawn)) < 0.35
    assert all(0.05 < fmean(client) < 0.6 for client in zip(*drawn, strict=True))
    assert drawn == [[Faults(TWENTY, 7, Drop(0.3)).absence(t, i) is not None for i in TWENTY] for t in range(40)]
    assert drawn != [[Faults(TWENTY, 8, Drop(0.3)).absence(t, i) is not None for i in TWENTY] for t in range(40)]


def test_drop_share_of_one_drops_all_and_zero_none() -> None:
    assert {Faults(TWENTY, 0, Drop(1.0)).absence(t, i) for t in range(9) for i in TWENTY} == {SILENT}
    assert {Faults(TWENTY, 0).absence(t, i) for t in range(9) for i in TWENTY} == {None}


def test_slow_and_byzantine_clients_are_the_same_in_all_rounds() -> None:
    faults = Faults(TWENTY, 3, slow=Lag(0.25, 4.0), poison=Poison(0.2, "swap"))
    assert (len(faults.slow_clients), len(faults.poisoned)) == (5, 4)
    assert faults.slow_clients != Faults(TWENTY, 4, slow=Lag(0.25, 4.0)).slow_clients


def test_slow_devices_compute_slowly_and_stragglers_take_long_for_everything() -> None:
    """4 times: of local 1 and personal 2. 10 times: of all four. Both: 40 times and 10 times."""
    times = Times(1, 2, 3, 5)
    slow, late = Lag(1.0, 4.0), Lag(1.0, 10.0)
    assert Faults(TWENTY, 0, slow=slow).delay(times, 0, "0") == (4, 8, 3, 5)
    assert Faults(TWENTY, 0, stragglers=late).delay(times, 0, "0") == (10, 20, 30, 50)
    assert Faults(TWENTY, 0, slow=slow, stragglers=late).delay(times, 0, "0") == (40, 80, 30, 50)
    assert Faults(TWENTY, 0).delay(times, 0, "0") == times


def test_stragglers_change_from_round_to_round() -> None:
    faults = Faults(TWENTY, 0, stragglers=Lag(0.2, 10.0))
    slow = [{i for i in TWENTY if faults.delay(Times(1, 0, 0, 0), t, i).local > 1} for t in range(50)]
    assert 0.16 < fmean(len(s) / 20 for s in slow) < 0.24
    assert slow[0] != slow[1]


# -- one round --------------------------------------------------------------------------------------------------------


def played(made: Setup, gone: dict[ClientId, str], **more: Any) -> tuple[Any, RoundLog, MemoryStore]:
    """The first round, in which some clients are gone."""
    store, task = MemoryStore(), made.pool.task()
    server = made.method.init_server(task, key(0))
    faults = NO_FAULTS._replace(absence=gone.get)
    after, log = run_round(
        made.method,
        task,
        LoopBackend(made.pool, store),
        server,
        t=0,
        seed=0,
        cohort=task.clients,
        policy=RoundPolicy(faults=faults, **more),
    )
    return after, log, store


@pytest.mark.parametrize("name", ["fedavg", "fedproto", "fd", "fedmd"])
@pytest.mark.parametrize("why", [SILENT, UNREACHED])
def test_a_dropped_client_counts_as_absent(name: str, why: str) -> None:
    """All that is left of it are the bytes it received, if any, and its name."""
    made = setup(name)
    a, b = made.pool.ids[1], made.pool.ids[3]
    server, log, store = played(made, {a: why, b: why})
    without, calm, left = played(made, {}, excluded=[a, b])
    assert equal(server, without)
    assert [digest(store.get(i)) for i in store] == [digest(left.get(i)) for i in left]
    assert log.up == calm.up
    assert {i: n for i, n in log.down.items() if i not in (a, b)} == calm.down
    assert (a in log.down) == (why == SILENT)
    assert [(d.client, d.round, d.why) for d in log.dropped] == [(a, 1, why), (b, 1, why)]
    assert log.rejected == []


def test_lost_download_costs_the_bytes_of_one_exchange() -> None:
    """FedMD has two in a round; a client that is gone does not ask for the second."""
    made = setup("fedmd")
    i = made.pool.ids[0]
    task = made.pool.task()
    server_side = ServerSideStates(made.method, task, 0, MemoryStore())
    first = server_side.download(made.method.init_server(task, key(0)), i, Round(0))
    _, log, _ = played(made, {i: SILENT})
    assert log.down[i] == nbytes(first)
    assert log.down[made.pool.ids[1]] > log.down[i]


@pytest.mark.parametrize("name", ["fedavg", "fedproto", "fedmd", "fedkd", "fd"])
def test_round_without_answers_changes_no_state(name: str) -> None:
    made = setup(name)
    server, log, store = played(made, dict.fromkeys(made.pool.ids, SILENT))
    assert equal(server, made.method.init_server(made.pool.task(), key(0)))
    assert list(store) == []
    assert log.is_empty


# -- whole runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["loop", "processes", "vmap"])
@pytest.mark.parametrize("name", ["fedavg", "fedproto"])
def test_run_without_any_answer_finishes(name: str, backend: str) -> None:
    """FedProto's generic model is the average of the clients of the round, of whom there are none."""
    result = run(name, **QUICK, drop="1", backend=backend, workers=2)
    assert result.summary["status"] == "finished"
    assert result.summary["rounds"] == result.summary["empty_rounds"] == 4
    assert result.summary["dropped"] == {SILENT: 20}
    assert result.summary["bytes"]["up"] == 0
    assert (result.summary["bytes"]["down"] > 0) == (name == "fedavg")  # there are no prototypes to send yet
    assert result.summary["flops"] == {"clients": 0, "server": 0}
    assert result.notes == ["No client answered in 4 of 4 rounds; these rounds changed nothing."]
    assert equal(result.server, result.setup.method.init_server(result.pool.task(), key(0, "init", "server")))


def test_run_continues_after_a_round_without_answers() -> None:
    """Of the seeds tried, 0 has such a round among three clients, and not the last."""
    result = run("fedproto", clients=3, drop="0.6", rounds=6, eval_every=1, rows=500)
    empty = [line["generic"] is None for line in result.history]
    assert 0 < sum(empty) == result.summary["empty_rounds"] < 6
    assert result.summary["status"] == "finished"
    assert result.summary["generic"]["source"] == "average"


def test_drops_are_listed_and_counted() -> None:
    plain, result = run("fedavg", **QUICK), run("fedavg", **QUICK, drop="0.3")
    faults = Faults(result.pool.ids, 0, Drop(0.3))
    wanted = [[i for i in result.pool.ids if faults.absence(t, i)] for t in range(4)]
    assert [[d["client"] for d in line.get("dropped", [])] for line in result.history] == wanted
    lost = sum(map(len, wanted))
    assert 0 < lost < 20
    assert result.summary["dropped"] == {SILENT: lost}
    assert result.summary["bytes"]["down"] == plain.summary["bytes"]["down"]
    assert result.summary["bytes"]["up"] == plain.summary["bytes"]["up"] * (20 - lost) // 20
    assert "dropped" not in plain.history[0]
    assert plain.summary["dropped"] == {}
    assert all(line["rejected"] == [] for line in result.history)  # no strike


def test_drop_before_or_after_the_download_differs_in_bytes_only() -> None:
    after, before = run("fedavg", **QUICK, drop="0.3"), run("fedavg", **QUICK, drop="0.3:before")
    assert after.summary["digest"] == before.summary["digest"]
    assert after.summary["bytes"]["down"] > before.summary["bytes"]["down"]
    assert before.summary["dropped"] == {UNREACHED: after.summary["dropped"][SILENT]}


def test_client_that_never_answers_has_no_effect_on_others() -> None:
    made = setup("ditto", **QUICK, drop="client:2")
    result = run_experiment(made)
    store = result.backend.store
    assert result.summary["dropped"] == {SILENT: 4}
    assert list(store) == ["0", "1", "3", "4"]
    assert result.summary["status"] == "finished"


def stripped(result: Result) -> str:
    """All that is said of a run but for how long it took here."""
    lines = [{k: v for k, v in line.items() if k != "seconds"} for line in result.history]
    left = {k: v for k, v in result.summary.items() if k not in ("seconds", "backend", "rounds_asked", "audit")}
    return json.dumps([lines, left, result.clients])


@pytest.mark.parametrize("poison", ["0.4:signflip", "0.4:alie"])
def test_faults_are_the_same_on_all_backends(poison: str) -> None:
    """Bits of the loop in worker processes; under vmap, whose sums differ in the last digit, the same clients."""
    loop, workers, batched = (
        run("fedavg", **TROUBLE, poison=poison, backend=backend, workers=2) for backend in ("loop", "processes", "vmap")
    )
    assert loop.summary["dropped"].keys() == {SILENT, LATE}
    assert stripped(loop) == stripped(workers)
    assert [line.get("dropped") for line in loop.history] == [line.get("dropped") for line in batched.history]
    assert loop.summary["poisoned"] == batched.summary["poisoned"] != []


@pytest.mark.parametrize("done", [1, 2, 4])
def test_faults_survive_a_resume(done: int, tmp_path: Path) -> None:
    """Some lines are written after two rounds, and what was dropped in between is in the checkpoint."""
    options = {**TROUBLE, "drop": "0.7", "poison": "0.4:random", "eval_every": 2}
    made, whole = setup("ditto", **options), run("ditto", **options)
    again = resumed(made, tmp_path, done)
    assert stripped(again) == stripped(whole)
    assert again.notes == whole.notes


def test_state_before_a_round_shares_only_tables_that_can_be_undone() -> None:
    """Totals and clocks are records of the run state, so the containers in them count as well."""
    run_state = RunState(totals=Totals(dropped={SILENT: 1}))

    def containers(record: Any, at: str = "") -> dict[str, Any]:
        found: dict[str, Any] = {}
        inner = record if isinstance(record, dict) else {f.name: getattr(record, f.name) for f in fields(record)}
        for name, value in inner.items():
            if isinstance(value, dict | list):
                found[f"{at}{name}"] = value
            if isinstance(value, dict) or is_dataclass(value):
                found |= containers(value, f"{at}{name}.")
        return found

    own, copied = containers(run_state), containers(run_state.begin_round())

    assert {"rejected", "dropped", "not_finite", "totals.dropped", "clocks", "clocks.waiting.free"} <= own.keys()
    assert copied == own
    shared = [name for name, value in own.items() if copied[name] is value]
    assert shared == ["clocks.waiting.free", "clocks.wait_free.free", "participations"]


def test_undone_round_leaves_scores_participations_and_clocks_as_they_were() -> None:
    run_state = RunState()
    run_state.after.update({"a": {"n": 2.0, "accuracy": 0.5}})
    run_state.count_participations(["a"])
    run_state.clocks["waiting"].free["a"] = 3.0
    before = run_state.begin_round()

    run_state.after.update({"b": {"n": 1.0, "accuracy": 1.0}, "a": {"n": 2.0, "accuracy": 0.0, "f1": 0.1}})
    run_state.count_participations(["a", "b"])
    run_state.clocks["waiting"].free["b"] = 9.0
    before.undo_round()

    assert before.participations == {"a": 1}
    assert before.clocks["waiting"].free == {"a": 3.0}
    assert "b" not in before.after
    assert before.after["a"]["accuracy"] == 0.5
    assert math.isnan(before.after["a"]["f1"])


def test_round_interrupted_after_counting_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients drop out in every round; the second of four is stopped when it has been counted, but not evaluated."""
    made = setup("fedavg", drop="0.6", rounds=4, eval_every=2, rows=500, checkpoint_every=99)
    count, calls = Accounting.count, list[int]()

    def interrupted(accounting: Accounting, log: RoundLog, progress: Progress) -> dict[str, Stamp]:
        stamps = count(accounting, log, progress)
        calls.append(log.t)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return stamps

    def conducted(folder: Path) -> tuple[Any, list[Any]]:
        with RunDir(folder) as run_dir:
            run_experiment(made, run_dir)
        summary = json.loads((folder / "summary.json").read_text())
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return {**summary, "seconds": None}, [{**line, "seconds": None} for line in lines]

    whole = conducted(tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(Accounting, "count", interrupted)
        with pytest.raises(KeyboardInterrupt):
            conducted(tmp_path / "run")
    again = conducted(tmp_path / "run")

    assert sum(whole[0]["dropped"].values()) == sum(len(line["dropped"]) for line in whole[1]) > 4
    assert again == whole


def test_run_state_of_older_version_has_no_faults() -> None:
    stored = RunState().to_json()
    for entries, names in ((stored, ("dropped", "not_finite")), (stored["totals"], ("dropped", "empty"))):
        for name in names:
            del entries[name]
    old = from_json(0, stored, {}, RunState().table())
    assert (old.dropped, old.not_finite, old.totals.dropped, old.totals.empty) == ([], [], {}, 0)


@pytest.mark.parametrize("faults", [{"drop": "0.4"}, {"stragglers": "0.4:50", "deadline": 1.0}])
def test_evaluating_less_often_gives_the_same_scores(faults: dict[str, Any]) -> None:
    """A client that misses the round of an evaluation is reported as its last answer left it."""
    often, seldom = (run("ditto", rounds=6, eval_every=n, rows=500, **faults) for n in (1, 3))
    assert often.summary["dropped"]

    def at(result: Result) -> list[dict[str, Any]]:
        return [row for row in result.clients if row["round"] in (3, 6)]

    assert json.dumps(at(often)) == json.dumps(at(seldom))


# -- time -------------------------------------------------------------------------------------------------------------


def test_server_with_a_deadline_waits_for_missing_clients_until_then() -> None:
    """a answers after 1 + 2 + 3 + 4 = 10 s. Without missing clients: 10 s. With one: 25 s, and 3 s to aggregate."""
    times = {"a": Times(local=2, personal=3, upload=4, download=1)}
    assert Clock(overlap=False).arrival("a", times["a"]) == 10
    assert Clock(overlap=True).arrival("a", times["a"]) == 7
    assert Clock(overlap=False).round(times, 0.0).generic == 10
    assert Clock(overlap=False).round(times, 3.0, limit=25.0).generic == 28
    clock = Clock(overlap=False, server=100.0)
    assert clock.round({}, 0.0, limit=25.0) == (125, 125)


def test_late_answers_are_dropped_and_server_waits_no_longer_than_deadline() -> None:
    free = run("fedavg", **QUICK, slow="0.4:1e6")
    tight = run("fedavg", **QUICK, slow="0.4:1e6", deadline=0.5)
    slow = Faults(tight.pool.ids, 0, slow=Lag(0.4, 1e6)).slow_clients
    assert {d["client"] for line in tight.history for d in line["dropped"]} == slow
    assert tight.summary["dropped"] == {LATE: 8}
    ends = [0.0] + [line["clock"]["waiting"]["generic"] for line in tight.history]
    assert all(b - a == pytest.approx(0.5, rel=0.05) for a, b in pairwise(ends))
    assert free.summary["clock"]["seconds"] > 10 * tight.summary["clock"]["seconds"]
    assert free.summary["dropped"] == {}


def test_a_late_client_counts_as_absent() -> None:
    """Its state stays; it has worked for nothing, which counts."""
    late = run("ditto", **QUICK, slow="0.4:1e6", deadline=0.5)
    slow = sorted(Faults(late.pool.ids, 0, slow=Lag(0.4, 1e6)).slow_clients)
    gone = run("ditto", **QUICK, drop="client:" + ",".join(slow))
    assert late.summary["digest"] == gone.summary["digest"]
    assert late.summary["flops"]["clients"] > gone.summary["flops"]["clients"]


def test_without_overlap_personal_training_counts_and_with_it_does_not() -> None:
    """A deadline sees the clock that the run follows."""
    made = setup("ditto", **QUICK)
    experiment = build_experiment(made)
    costs = count_operations(made.method, made.pool, 0, 5)
    times = experiment.rounds.timer.of(0, "0", costs, 10_000, 10_000)
    waiting, overlapping = (clock.arrival("0", times) for clock in experiment.progress.run_state.clocks.values())
    assert waiting - overlapping == pytest.approx(times.personal)


# -- divergence -------------------------------------------------------------------------------------------------------


def broken(name: str, *clients: int, **options: Any) -> Setup:
    """A federation in which training diverges on some clients: their rows are not numbers."""
    made = build_setup(setup(name, **options).config)
    for at in clients:
        made.pool.train[at].x.fill_(float("nan"))
    return made


@pytest.mark.parametrize("backend", ["loop", "processes", "vmap"])
def test_a_client_that_diverges_is_skipped_with_a_warning(backend: str) -> None:
    made = broken("ditto", 1, **QUICK, backend=backend, workers=2, strikes=0)
    result = run_experiment(made)
    assert result.summary["status"] == "finished"
    assert [[r["client"] for r in line["rejected"]] for line in result.history] == [["1"]] * 4
    (note,) = result.notes
    assert note.startswith("Rejected uploads: 4 of client '1' (first in round 1: params/")
    assert "holds NaN or infinity" in note
    assert note.endswith("These clients kept their last good states.")
    assert "1" not in list(result.backend.store)
    assert is_finite(result.server)


def test_a_state_that_diverges_is_not_kept() -> None:
    """Ditto's personal training diverges at a huge rate; what it uploads does not hang on it."""
    settings = {"personal_optim.epochs": 5, "personal_optim.lr": 1e30}
    plain, result = (
        run("ditto", **QUICK),
        run_experiment(build_setup(replace(setup("ditto", **QUICK).config, settings=settings))),
    )
    assert equal(result.server, plain.server)
    assert list(result.backend.store) == []
    assert [entry["client"] for entry in result.history[0]["not_finite"]] == list(result.pool.ids)
    assert result.notes[0].startswith("States that held NaN or infinity: 4 of client '0' (first in round 1), ")
    assert all(score == score for score in result.table["accuracy"].to_pylist())


def test_warning_names_a_few_of_many_diverged_clients() -> None:
    result = run_experiment(broken("fedavg", *range(7), clients=9, rounds=1, eval_every=1, rows=500))
    assert result.notes[0].count("of client") == 5
    assert "and those of 2 more clients" in result.notes[0]


@pytest.mark.parametrize("name", ["fedavg", "fedproto"])
def test_a_run_in_which_all_diverge_stops(name: str) -> None:
    made = broken(name, *range(5), **QUICK)
    result = run_experiment(made)
    assert (result.summary["status"], result.summary["rounds"]) == ("diverged", 1)


def test_a_run_may_diverge_after_rounds_that_went_well() -> None:
    """FedProto's generic model, an average of clients, is then missing from the last line alone."""
    made = broken("fedproto", **QUICK)
    experiment = build_experiment(made)

    def spoil(done: int, line: Any) -> None:
        made.pool.train.all.x.fill_(float("nan"))

    result = experiment.run(spoil)
    assert (result.summary["status"], result.summary["rounds"]) == ("diverged", 2)
    assert result.summary["generic"] is not None


@pytest.mark.usefixtures("without_report")
def test_diverged_run_has_an_exit_code_and_keeps_its_files(atoll: Atoll, tmp_path: Path) -> None:
    words = ("run", "fedavg", "--clients", 3, "--rounds", 3, "--epochs", 1, "--lr", "1e20", "--quiet", "--out", "o")
    result = atoll(*words, code=3)
    assert "Diverged: fedavg with seed 0. In round 1 no client sent a usable upload" in result.stderr
    assert "Try a smaller --lr than 1e+20." in result.stderr
    assert json.loads((tmp_path / "o" / "summary.json").read_text())["status"] == "diverged"
    assert (tmp_path / "o" / "checkpoints" / "round-000001").is_dir()
    assert atoll("run", "--resume", "o", "--quiet", code=3).stderr.count("Diverged:") == 1


@pytest.mark.usefixtures("without_report")
def test_a_comparison_fails_only_if_all_diverge(atoll: Atoll) -> None:
    words = ("compare", "local", "fedavg", "--clients", 3, "--rounds", 2, "--epochs", 1, "--quiet")
    assert "Diverged" not in atoll(*words, "--out", "a").stderr
    assert atoll(*words, "--lr", "1e20", "--out", "b").stderr.count("Diverged: fedavg") == 1


def test_no_method_starts_with_a_state_that_is_not_finite() -> None:
    for name in _registry.methods():
        made = setup(name)
        i = made.pool.ids[0]
        assert is_finite(method_calls.init_client(made.method, made.pool.client(i), key(0))), name


# -- what missing clients cost ----------------------------------------------------------------------------------------

REFERENCE: dict[str, Any] = {"data": "digits", "clients": 20, "partition": "dirichlet:0.5", "backend": "vmap"}


def lost(method: str, seeds: range, **options: Any) -> float:
    """Points of accuracy that 30 % missing answers cost, over seeds; every run must finish."""
    losses = []
    for seed in seeds:
        pair = [
            api.run(method, **REFERENCE, **options, eval_every=options["rounds"], seed=seed, drop=drop).summary
            for drop in (None, "0.3")
        ]
        assert [summary["status"] for summary in pair] == ["finished", "finished"]
        losses.append(100 * (pair[0]["personal"]["final"] - pair[1]["personal"]["final"]))
    return fmean(losses)


def test_dropping_a_third_of_answers_costs_little_accuracy() -> None:
    """Few rounds, and few seeds: the chance of two points is that of a few test rows."""
    assert lost("fedavg", range(2), rounds=10, epochs=2, lr=0.1) <= 2


@pytest.mark.chaos
@pytest.mark.parametrize(("method", "rounds"), [("fedavg", 20), ("fedproto", 60)])
def test_twenty_seeds_with_missing_answers_finish_and_lose_at_most_a_point(method: str, rounds: int) -> None:
    """FedProto's models learn at home, so who misses rounds is behind: after 20 rounds it loses 1.8 points."""
    assert lost(method, range(20), rounds=rounds) <= 1
