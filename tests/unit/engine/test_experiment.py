"""Whole runs: what is evaluated, what is counted, what a broken client does, and that the same comes out again."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from support.disk_crashes import crash_points
from support.toy_data import toy_data
from torch import Tensor

from atoll import run
from atoll.backends import vmap
from atoll.backends.loop import LoopBackend
from atoll.clients.group_evaluation import evaluate_models
from atoll.clients.pool import ClientPool
from atoll.clients.score_table import ClientModel
from atoll.config import Config
from atoll.core.client import Client
from atoll.core.exchange import Exchange
from atoll.core.method import Method
from atoll.core.model import Predictor
from atoll.core.optim.sgd import SGD
from atoll.core.payloads import Nothing, Params, Payload, about, equal, payload
from atoll.core.prng import Key, key, normal
from atoll.core.scores import accuracy
from atoll.core.task import Reply, Round, Task
from atoll.engine import cohort
from atoll.engine.build import run_experiment
from atoll.engine.cohort import sample_cohort
from atoll.engine.result import Result
from atoll.engine.setup import Setup, build_setup
from atoll.errors import AtollError
from atoll.methods.ditto import Ditto
from atoll.methods.fedavg import FedAvg, Global, Update
from atoll.storage.run_dir import RunDir
from atoll.typing import ClientId

pytestmark = pytest.mark.usefixtures("without_report")
SMALL: dict[str, Any] = {"rows": 400, "clients": 4, "rounds": 3, "epochs": 1, "batch_size": 32}


def rows_at(result: Result, *rounds: int) -> list[dict[str, Any]]:
    return [dict(row) for row in result.clients if row["round"] in rounds]


def without_seconds(lines: Iterable[dict[str, Any]]) -> str:
    """Lines as text, so that undefined numbers are equal to each other."""
    return json.dumps([{k: v for k, v in line.items() if k != "seconds"} for line in lines])


# -- the same again ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_the_same_configuration_gives_the_same_run(backend: str) -> None:
    a, b = (run("ditto", **SMALL, rate=0.5, backend=backend) for _ in range(2))
    assert a.summary["digest"] == b.summary["digest"]
    assert without_seconds(a.history) == without_seconds(b.history)


def test_another_seed_gives_another_run() -> None:
    assert run(**SMALL).summary["digest"] != run(**SMALL, seed=1).summary["digest"]


def test_the_digest_covers_server_and_clients() -> None:
    a, b = run("ditto", **SMALL), run("ditto", **SMALL, settings={"lam": 2.0})
    assert equal(a.server, b.server)  # only the personal models differ
    assert a.summary["digest"] != b.summary["digest"]


def test_states_on_disk_give_the_same_run(tmp_path: Path) -> None:
    memory = run("ditto", **SMALL, rate=0.5)
    disk = run("ditto", **SMALL, rate=0.5, store="disk", cache=1, out=tmp_path / "run")
    assert memory.summary["digest"] == disk.summary["digest"]
    assert without_seconds(memory.history) == without_seconds(disk.history)


def test_watching_shows_every_round_and_the_lines_of_evaluated_ones() -> None:
    seen: list[tuple[int, bool]] = []
    run(**SMALL, eval_every=2, watch=lambda done, line: seen.append((done, line is not None)))
    assert seen == [(1, False), (2, True), (3, True)]  # the last round is always evaluated


# -- evaluation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedproto"])
def test_evaluating_less_often_gives_the_same_scores(method: str) -> None:
    """Half of the clients take part in a round, so most scores are some rounds old when they are reported."""
    options = {**SMALL, "clients": 6, "rounds": 7, "rate": 0.5}
    often, seldom = run(method, **options), run(method, **options, eval_every=3)
    assert [line["round"] for line in seldom.history] == [3, 6, 7]
    assert json.dumps(rows_at(often, 3, 6, 7)) == json.dumps(rows_at(seldom, 3, 6, 7))
    shared = [line for line in often.history if line["round"] in (3, 6, 7)]
    assert without_seconds(shared) == without_seconds(seldom.history)
    assert often.summary["digest"] == seldom.summary["digest"]


def first_accuracy(result: Result, i: ClientId) -> float:
    """Of the model that client ``i`` starts from."""
    test, model = result.pool.test[result.pool.position(i)], result.pool.models[i]
    return accuracy(model(model.init(), test.x), test.y)


@pytest.mark.parametrize("eval_every", [1, 2])
def test_clients_that_never_took_part_are_scored_with_the_model_they_start_from(eval_every: int) -> None:
    result = run(clients=4, rounds=2, epochs=5, rate=0.25, partition="iid", eval_every=eval_every)
    took_part = {i for t in range(2) for i in sample_cohort(result.pool.ids, 0.25, 0, t)}
    absent = [row for row in rows_at(result, 2) if row["client"] not in took_part]
    assert absent
    for row in absent:
        assert row["accuracy"] == row["pre_accuracy"] == first_accuracy(result, row["client"])
        assert row["generic_accuracy"] > row["accuracy"] + 0.2  # the server has learnt meanwhile


def test_only_reported_models_are_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four clients in each of three rounds, evaluated after the last: once before and once after for each client."""
    exams: list[ClientId] = []
    evaluate_all = LoopBackend.evaluate_all

    def counted(self: LoopBackend, method: Any, sources: Mapping[ClientId, Any], *more: Any, **options: Any) -> Any:
        exams.extend(sources)
        return evaluate_all(self, method, sources, *more, **options)

    def counted_later(pool: ClientPool, models: Sequence[ClientModel], **options: Any) -> Any:
        exams.extend(model.client for model in models)
        return evaluate_models(pool, models, **options)

    monkeypatch.setattr(LoopBackend, "evaluate_all", counted)
    monkeypatch.setattr(vmap, "evaluate_models", counted_later)
    result = run(**SMALL, eval_every=3, backend="vmap")
    assert sorted(exams) == sorted(2 * result.pool.ids)


def test_a_personal_score_is_that_of_the_model_after_local_training() -> None:
    """FedAvg in one round: after training it is w_k, before it w_0; the generic one is the mean of the w_k."""
    result = run(**{**SMALL, "rounds": 1}, backend="loop")
    pool, generic = result.pool, result.generic()
    assert generic is not None
    for row in rows_at(result, 1):
        at, client = pool.position(row["client"]), pool.client(row["client"])
        test, first = pool.test[at], client.model.init()
        k = key(0, "local", 0, row["client"])
        with torch.no_grad():
            up, _ = result.setup.method.client_update(Global(first, {}), Nothing(), client, Round(0), k)
        assert row["accuracy"] == accuracy(client.model(up.params, test.x), test.y)
        assert row["pre_accuracy"] == accuracy(client.model(first, test.x), test.y)
        assert row["generic_accuracy"] == accuracy(generic(test.x), test.y)


def test_populations_are_means_of_the_rows() -> None:
    result = run(**SMALL)
    line, rows = result.history[-1], rows_at(result, 3)
    right = sum(row["accuracy"] * row["n_test"] for row in rows)
    post = line["personal"]["post"]
    assert post["accuracy"] == pytest.approx(np.mean([row["accuracy"] for row in rows]))
    assert post["weighted"] == pytest.approx(right / sum(row["n_test"] for row in rows))
    assert line["personal"]["pre"]["accuracy"] == pytest.approx(np.mean([row["pre_accuracy"] for row in rows]))
    assert line["generic"]["local"]["accuracy"] == pytest.approx(np.mean([row["generic_accuracy"] for row in rows]))
    assert line["generic"]["local"]["weighted"] == pytest.approx(line["generic"]["global"]["accuracy"])


def test_without_a_server_model_the_average_of_the_personal_ones_is_the_generic_model() -> None:
    """By rows: sum_i n_i w_i / sum_i n_i, tested once on all test rows (SCD, Remark 4.1)."""
    result = run("local", **SMALL)
    pool, states = result.pool, {i: result.backend.store.get(i).params for i in result.pool.ids}
    n = {i: float(pool.client(i).n) for i in pool.ids}
    by_hand = {
        name: sum(n[i] * states[i][name].double() for i in pool.ids) / sum(n.values()) for name in states[pool.ids[0]]
    }
    logits = pool.task().model({name: v.float() for name, v in by_hand.items()}, pool.test.all.x)
    line = result.history[-1]["generic"]
    assert line["source"] == result.summary["generic"]["source"] == "average"
    assert line["global"]["accuracy"] == accuracy(logits, pool.test.all.y)
    assert result.generic() is None
    assert run("fedavg", **SMALL).summary["generic"]["source"] == "server"


def test_heterogeneous_models_have_no_average_model() -> None:
    result = run("local", **SMALL, models=("mlp:hidden=8", "mlp:hidden=16"))
    assert result.summary["generic"] is None
    assert result.history[-1]["generic"] is None


def test_wait_free_run_has_same_scores_at_earlier_simulated_time() -> None:
    waiting, free = (run("ditto", **SMALL, wait_free=flag) for flag in (False, True))
    assert waiting.summary["digest"] == free.summary["digest"]
    assert free.summary["clock"]["seconds"] == waiting.summary["clock"]["wait_free"]
    assert waiting.summary["clock"]["seconds"] == waiting.summary["clock"]["waiting"]
    assert free.summary["clock"]["seconds"] < waiting.summary["clock"]["seconds"]


def test_wait_free_without_personal_training_is_refused() -> None:
    with pytest.raises(AtollError, match=r"fedavg trains no personal model .* one of: .*scd"):
        run("fedavg", **SMALL, wait_free=True)


def test_measured_clock_advances() -> None:
    clock = run("ditto", **SMALL, clock="compute=measured,communication=fixed,seconds=0").summary["clock"]
    assert 0 < clock["wait_free"] <= clock["waiting"] < 60


def test_public_rows_of_another_data_set(tmp_path: Path) -> None:
    """Coloured images of 6 by 5 pixels become grey ones of 8 by 8; no row of the clients is set aside."""
    images = np.full((20, 3, 6, 5), 90, dtype=np.uint8)
    images[:, 0] = 120  # grey: (120 + 90 + 90) / 3 = 100
    np.savez(tmp_path / "other.npz", x=images, y=np.arange(20) % 4)
    made = build_setup(Config(**SMALL, public=8, public_data=str(tmp_path / "other.npz"), transform="none"))
    assert made.pool.public is not None
    assert made.pool.public.shape == (8, 1, 8, 8)
    assert torch.allclose(made.pool.public, torch.tensor(100 / 255))
    assert len(made.federation.public) == 0


def test_another_data_set_needs_a_number_of_rows_and_a_shape_that_fits(tmp_path: Path) -> None:
    with pytest.raises(AtollError, match="needs a number of samples"):
        build_setup(Config(**SMALL, public_data="digits"))
    (tmp_path / "table.csv").write_text("a,label\n" + "1,0\n2,1\n" * 20)
    with pytest.raises(AtollError, match="have shape"):
        build_setup(Config(**SMALL, public=4, public_data=f"{tmp_path}/table.csv?label=label"))
    with pytest.raises(AtollError, match="1 to 1442"):
        build_setup(Config(**SMALL, public=4000, public_data="digits"))


def test_rows_leave_every_test_row_in_place() -> None:
    whole, fewer = (build_setup(Config(**SMALL | {"rows": rows})).federation for rows in (None, 200))

    assert sum(map(len, fewer.train)) + sum(map(len, fewer.val)) == 200
    assert all(np.array_equal(a, b) for a, b in zip(whole.test, fewer.test, strict=True))


def test_global_test_scores_personal_models_on_all_test_rows() -> None:
    result = run("local", **{**SMALL, "rounds": 1}, global_test=True)
    pool = result.pool
    by_hand = [accuracy(result.personal(i)(pool.test.all.x), pool.test.all.y) for i in pool.ids]
    assert result.history[0]["personal"]["post"]["global"] == pytest.approx(np.mean(by_hand))


def test_speedup_of_overlap_is_that_of_later_rounds_and_unknown_after_one() -> None:
    """Local and personal training of one epoch each, communication as long as the latter: 3 units against 2."""
    options = {**SMALL, "partition": "iid", "epochs": 1, "clock": "communication=equal_to_personal"}
    clock = run("ditto", **{**options, "rounds": 3}).summary["clock"]
    assert clock["speedup"] == pytest.approx(1.5, abs=0.02)
    assert run("ditto", **{**options, "rounds": 1}).summary["clock"]["speedup"] is None


def test_local_seconds_are_the_work_before_the_upload() -> None:
    """FedAvg works only before its uploads: operations over speed, for each participation."""
    summary = run("fedavg", **SMALL, clock="speed=1e6").summary
    participations = summary["bytes"]["up"] / summary["bytes"]["per_client_round"]["up"]
    assert summary["clock"]["local"] == pytest.approx(summary["flops"]["clients"] / 1e6 / participations)


def test_target_reports_round_and_bytes_when_reached() -> None:
    result = run(**SMALL | {"lr": 0.1}, target=0.3)
    first = next(line for line in result.history if line["personal"]["post"]["accuracy"] >= 0.3)
    reached = result.summary["target"]["reached"]
    both = sum(first["bytes"].values())
    assert (reached["round"], reached["bytes"]) == (first["round"], first["bytes"] | {"both": both})
    assert run(**SMALL, target=1.0).summary["target"] == {"accuracy": 1.0, "of": "personal", "reached": None}


# -- bytes and operations ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_the_bytes_of_fedavg_by_hand(backend: str) -> None:
    """A perceptron of 64 inputs, 64 hidden units and 10 classes has 64 * 64 + 64 + 64 * 10 + 10 = 4810 weights.

    Down: 4810 floats. Up: the same and one float for n_k. Two of four clients take part in each of three rounds.
    """
    result = run(**SMALL, rate=0.5, models="mlp", backend=backend)
    assert result.summary["bytes"]["down"] == 3 * 2 * 4 * 4810
    assert result.summary["bytes"]["up"] == 3 * 2 * 4 * (4810 + 1)
    assert result.summary["bytes"]["per_client_round"] == {"up": 4 * 4811, "down": 4 * 4810}
    assert [line["bytes"]["down"] for line in result.history] == [38480, 76960, 115440]


def test_the_operations_of_one_round_by_hand() -> None:
    """Logistic regression of 64 inputs and 10 classes: 2 * 64 * 10 operations forward for a row, as many backward.

    (The input needs no gradient.) Every client passes its training rows twice; averaging has no products.
    """
    result = run(**{**SMALL, "rounds": 1, "epochs": 2}, models="linear")
    rows = sum(row["n_train"] for row in result.clients)
    assert result.summary["flops"] == {"clients": rows * 2 * 2 * (2 * 64 * 10), "server": 0}


def test_operations_are_counted_for_participants_only() -> None:
    result = run(**{**SMALL, "rounds": 1}, rate=0.5, models="linear")
    (line,) = result.history
    rows = sum(row["n_train"] for row in result.clients if row["client"] in line["participants"])
    assert len(line["participants"]) == 2
    assert line["flops"]["clients"] == rows * 2 * (2 * 64 * 10)


# -- broken clients ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Poisoned(FedAvg):
    """FedAvg in which clients with a certain number of rows, or all, send NaN."""

    bad: float = 0.0
    everybody: bool = False

    def client_update(self, down: Global, state: Nothing, client: Client, r: Round, k: Key) -> tuple[Update, Nothing]:
        up, state = super().client_update(down, state, client, r, k)
        hit = (client.n == self.bad) | self.everybody
        params = {name: torch.where(hit, math.nan, v) for name, v in up.params.items()}
        return replace(up, params=params), state


OPTIM = SGD(epochs=1)


def victim(setup: Setup) -> tuple[ClientId, float]:
    """A client that can be told from the others by its number of rows."""
    pool = setup.pool
    sizes = [pool.train.size(at) for at in range(len(pool.ids))]
    assert len(set(sizes)) == len(sizes)
    return pool.ids[1], float(sizes[1])


@pytest.mark.parametrize("backend", ["loop", "vmap"])
@pytest.mark.parametrize("rate", [1.0, 0.75])
def test_client_that_always_uploads_nan_equals_absent_client(
    backend: str, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"clients": 4, "rounds": 4, "rate": rate, "backend": backend}
    k, rows = victim(build_setup(Config(clients=4)))
    broken = run(Poisoned(OPTIM, bad=rows), **options)

    def others(*args: Any) -> list[ClientId]:
        return [i for i in sample_cohort(*args) if i != k]

    monkeypatch.setattr(cohort, "sample_cohort", others)
    absent = run(Poisoned(OPTIM, bad=rows), **options)
    assert broken.summary["digest"] == absent.summary["digest"]
    assert json.dumps(broken.clients) == json.dumps(absent.clients)
    assert json.dumps(broken.summary["personal"]) == json.dumps(absent.summary["personal"])
    assert broken.summary["bytes"]["up"] == absent.summary["bytes"]["up"]
    rejected = [r for line in broken.history for r in line["rejected"]]
    assert {r["client"] for r in rejected} == {k}
    assert {r["reason"] for r in rejected} == {"holds NaN or infinity"}
    assert rejected[0]["field"].startswith("params/")


@pytest.mark.parametrize("eval_every", [1, 3])
def test_a_run_without_a_single_good_upload_ends_as_diverged(eval_every: int, tmp_path: Path) -> None:
    result = run(Poisoned(OPTIM, everybody=True), clients=3, rounds=4, eval_every=eval_every, out=tmp_path / "run")
    assert result.summary["status"] == "diverged"
    assert result.summary["rounds"] == 1
    stored = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert stored["status"] == "diverged"
    assert stored["personal"]["final"] == result.history[-1]["personal"]["pre"]["accuracy"]
    assert equal(result.server, Global(result.pool.task().model.init(), {}))
    again = run(
        Poisoned(OPTIM, everybody=True), clients=3, rounds=4, eval_every=eval_every, out=tmp_path / "run", resume=True
    )
    assert json.dumps(again.summary) == json.dumps(result.summary)


def test_rejections_of_unevaluated_rounds_are_in_the_next_metrics_line(tmp_path: Path) -> None:
    k, rows = victim(build_setup(Config(clients=4)))
    options: dict[str, Any] = {"clients": 4, "eval_every": 3, "strikes": 0}
    long = run(Poisoned(OPTIM, bad=rows), rounds=6, **options)
    assert [[(r["client"], r["round"]) for r in line["rejected"]] for line in long.history] == [
        [(k, 1), (k, 2), (k, 3)], [(k, 4), (k, 5), (k, 6)]
    ]  # fmt: skip
    run(Poisoned(OPTIM, bad=rows), rounds=4, **options, out=tmp_path)
    resumed = run(Poisoned(OPTIM, bad=rows), rounds=6, **options, out=tmp_path, resume=True)
    assert without_seconds(resumed.history) == without_seconds(long.history)


def test_client_rejected_in_evaluated_round_is_scored_with_current_server_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was fine in round 1, after which nobody asked; in round 2, which is evaluated, its upload is refused.

    What FedAvg leaves it with is the server's model, not the one everybody started from.
    """
    k, train = "1", LoopBackend.train

    def sabotaged(self: LoopBackend, method: Any, seed: int, jobs: Any) -> Any:
        for job, outcome in zip(jobs, train(self, method, seed, jobs), strict=True):
            bad = job.client == k and job.round.t == 1
            yield outcome._replace(upload=Global(outcome.upload.params, {})) if bad else outcome

    monkeypatch.setattr(LoopBackend, "train", sabotaged)
    result = run(clients=4, rounds=2, epochs=5, partition="iid", eval_every=2, backend="loop")
    assert [(r["client"], r["reason"]) for r in result.history[0]["rejected"]] == [(k, "is a Global, not a Update")]
    (row,) = (row for row in result.clients if row["client"] == k)
    assert row["accuracy"] == row["generic_accuracy"] > first_accuracy(result, k) + 0.2


# -- exchanges, and what follows the upload ---------------------------------------------------------------------------


@payload
class Number:
    v: Tensor = about("a number")


@dataclass(frozen=True)
class TwoExchanges(Method[Number, Number, Number, Number]):
    """The first exchange adds 1, the second doubles: one round makes (1 + 1) * 2 = 4 of 1, the next 10 of 4."""

    bad: float = 0.0  # rows of the clients that send NaN in the first exchange

    def exchanges(self) -> Sequence[Exchange]:
        return (Exchange(self.broadcast, self.client_update, self.aggregate),) * 2

    def init_server(self, task: Task, k: Key) -> Number:
        return Number(torch.ones(()))

    def init_client(self, client: Client, k: Key) -> Number:
        return Number(torch.zeros(()))

    def broadcast(self, server: Number, to: ClientId, task: Task, r: Round, k: Key) -> Number:
        return Number(server.v + 0.5 * r.exchange)

    def client_update(self, down: Number, state: Number, client: Client, r: Round, k: Key) -> tuple[Number, Number]:
        first = down.v == down.v.round()
        up = torch.where(first, down.v + 1, (down.v - 0.5) * 2)
        return Number(torch.where(first & (client.n == self.bad), math.nan, up)), Number(state.v * 10 + 1 + ~first)

    def aggregate(self, server: Number, replies: Iterable[Reply[Number]], task: Task, r: Round, k: Key) -> Number:
        return Number(torch.stack([reply.upload.v for reply in replies]).mean())

    def personal_params(self, down: Payload, up: Payload | None, state: Payload, client: Client) -> Params:
        return {}

    def personal_predictor(self, down: Number, up: Number | None, state: Number, client: Client) -> Predictor:
        return lambda x: torch.zeros(len(x), client.num_classes)


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_round_with_two_exchanges_runs_them_in_order(backend: str) -> None:
    """Each client's state spells the exchanges it saw, as digits."""
    result = run(TwoExchanges(), clients=3, rounds=2, backend=backend)
    assert float(result.server.v) == 10
    assert [float(result.state(i).v) for i in result.pool.ids] == [1212, 1212, 1212]
    assert result.summary["bytes"]["up"] == 2 * 2 * 3 * 4
    assert [len(line["participants"]) for line in result.history] == [3, 3]


def test_a_client_that_fails_in_the_first_exchange_is_absent_from_the_second() -> None:
    k, rows = victim(build_setup(Config(clients=4)))
    result = run(TwoExchanges(rows), clients=4, rounds=1)
    assert float(result.server.v) == 4
    assert float(result.state(k).v) == 0
    assert [r["client"] for r in result.history[0]["rejected"]] == [k]
    assert result.summary["bytes"] == {
        "up": 2 * 3 * 4, "down": (4 + 3) * 4, "per_client_round": {"up": 6.0, "down": 7.0}
    }  # fmt: skip


@dataclass(frozen=True)
class Afterwards(TwoExchanges):
    """What follows the upload sees the upload, the new state and the key of the exchange, and is sent to nobody."""

    def exchanges(self) -> Sequence[Exchange]:
        return (Exchange(self.broadcast, self.client_update, self.aggregate),)

    def after_upload(self, down: Number, up: Number, state: Number, client: Client, r: Round, k: Key) -> Number:
        return Number(state.v * 100 + up.v + 0 * normal(k))


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_after_upload_training_finishes_before_next_round(backend: str) -> None:
    """Round 1: the state is 1, then 1 * 100 + 2. Round 2 begins with 102 * 10 + 1, and the upload is 3."""
    result = run(Afterwards(), clients=2, rounds=2, partition="iid", backend=backend)
    assert float(result.server.v) == 3
    assert [float(result.state(i).v) for i in result.pool.ids] == [1021 * 100 + 3] * 2


# -- run directories, resuming ----------------------------------------------------------------------------------------


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def outcome(folder: Path) -> tuple[Any, ...]:
    """Everything a run directory reports, apart from times."""
    summary = json.loads((folder / "summary.json").read_text())
    summary.pop("seconds")
    return summary, without_seconds(lines_of(folder)), pq.read_table(folder / "clients.parquet").to_pylist()


@pytest.mark.parametrize(
    ("method", "store", "checkpoint_every"), [("fedavg", "memory", 2), ("fedproto", "memory", 1), ("ditto", "disk", 5)]
)
def test_more_rounds_on_resume_equal_a_longer_run(
    method: str, store: str, checkpoint_every: int, tmp_path: Path
) -> None:
    """Evaluated every 3 rounds: the short run evaluates round 4 because it is its last, the long one does not."""
    options = {**SMALL, "rate": 0.5, "eval_every": 3, "store": store, "checkpoint_every": checkpoint_every}
    options.pop("rounds")
    run(method, **options, rounds=7, out=tmp_path / "long")
    run(method, **options, rounds=4, out=tmp_path / "short")
    assert [line["round"] for line in lines_of(tmp_path / "short")] == [3, 4]
    run(method, **options, rounds=7, out=tmp_path / "short", resume=True)
    assert [line["round"] for line in lines_of(tmp_path / "short")] == [3, 6, 7]
    assert repr(outcome(tmp_path / "short")) == repr(outcome(tmp_path / "long"))


class Killed(BaseException):
    """As if the process ended here."""


@pytest.mark.parametrize(("store", "after"), [("memory", 3), ("disk", 1), ("disk", 4)])
def test_a_run_that_stops_between_checkpoints_resumes_to_the_same_end(store: str, after: int, tmp_path: Path) -> None:
    """Checkpoints every two rounds. With half of the clients in each, some take part for the first time after one."""
    options = {**SMALL, "clients": 5, "rounds": 5, "rate": 0.4, "checkpoint_every": 2, "store": store}

    def stop(done: int, line: Any) -> None:
        if done == after:
            raise Killed

    run("ditto", **options, out=tmp_path / "whole")
    with pytest.raises(Killed):
        run("ditto", **options, out=tmp_path / "broken", watch=stop)
    assert not (tmp_path / "broken" / "summary.json").exists()
    run("ditto", **options, out=tmp_path / "broken", resume=True)
    assert repr(outcome(tmp_path / "broken")) == repr(outcome(tmp_path / "whole"))


def test_resuming_without_validation_rows(tmp_path: Path) -> None:
    """Undefined scores are null in JSON, and undefined again after it."""
    options = {**SMALL, "split": "client_82", "target": 0.5}
    whole = run(**{**options, "rounds": 4})
    run(**options, out=tmp_path)
    resumed = run(**{**options, "rounds": 4}, out=tmp_path, resume=True)
    assert json.dumps(resumed.summary["personal"]) == json.dumps(whole.summary["personal"])
    assert without_seconds(resumed.history) == without_seconds(whole.history)


def test_resume_of_finished_run_changes_no_file(tmp_path: Path) -> None:
    run("ditto", **SMALL, out=tmp_path)
    before = outcome(tmp_path)
    run("ditto", **SMALL, out=tmp_path, resume=True)
    assert repr(outcome(tmp_path)) == repr(before)


def test_a_resumed_run_has_no_summary_until_it_ends(tmp_path: Path) -> None:
    def stop(done: int, line: Any) -> None:
        raise Killed

    run(**SMALL, out=tmp_path)
    with pytest.raises(Killed):
        run(**{**SMALL, "rounds": 9}, out=tmp_path, resume=True, watch=stop)
    assert not (tmp_path / "summary.json").exists()


def test_damaged_metrics_are_restored_from_the_checkpoint(tmp_path: Path) -> None:
    run(**SMALL, out=tmp_path)
    good = (tmp_path / "metrics.jsonl").read_text()
    (tmp_path / "metrics.jsonl").write_text(good[:50])
    run(**SMALL, out=tmp_path, resume=True)
    assert (tmp_path / "metrics.jsonl").read_text() == good


def test_fewer_rounds_than_were_done_are_refused(tmp_path: Path) -> None:
    run(**SMALL, out=tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(AtollError, match="has done 3 rounds already"):
        run(**{**SMALL, "rounds": 2}, out=tmp_path, resume=True)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_a_run_is_not_resumed_on_other_data(tmp_path: Path) -> None:
    options: dict[str, Any] = {"clients": 2, "partition": "iid", "epochs": 1, "out": tmp_path}
    run("local", toy_data(), rounds=1, **options)
    with pytest.raises(AtollError, match="data are not what they were"):
        run("local", toy_data(0.1), rounds=2, resume=True, **options)
    run("local", toy_data(), rounds=2, resume=True, **options)


def test_a_crash_at_any_step_that_touches_the_disk_resumes_to_the_same_end(tmp_path: Path) -> None:
    """Two clients, three rounds, a checkpoint after each; states on disk as well."""
    config = Config("ditto", clients=2, partition="iid", epochs=1, rounds=3, checkpoint_every=1, models=("linear",),
                    rate=0.5, store="disk", cache=1, backend="loop")  # fmt: skip
    setup = build_setup(config, toy_data(), method=Ditto(SGD(epochs=1, batch_size=64)))
    place = {"at": tmp_path / "whole"}

    def act(resume: bool = False) -> None:
        with RunDir(place["at"]) as folder:
            folder.start(setup.config, resume=resume, force=False)
            run_experiment(setup, folder)

    def prepare() -> None:
        place["at"] = tmp_path / str(len(list(tmp_path.iterdir())))

    act()
    whole = repr(outcome(place["at"]))
    points = []
    for step in crash_points(act, prepare, stride=17):  # all of them: in the tests marked chaos
        act(resume=True)
        assert repr(outcome(place["at"])) == whole, f"crashed at step {step}"
        points.append(step)
    assert points[-1] > 60
