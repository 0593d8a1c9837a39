"""Many registered clients, few sampled: a round costs what the sampled ones cost."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support import small_runs

from atoll.backends import loop, vmap
from atoll.backends.loop import LoopBackend
from atoll.clients.group_evaluation import evaluate_models
from atoll.clients.pool import ClientPool, ClientRows
from atoll.clients.score_table import ClientModel
from atoll.clients.state_store import DiskStore, MemoryStore
from atoll.core.model import Predictor
from atoll.core.problems import Classes
from atoll.core.scores import accuracy
from atoll.engine import evaluator
from atoll.engine import experiment as experiment_module
from atoll.engine.build import build_experiment, run_experiment
from atoll.engine.cohort import sample_cohort
from atoll.engine.evaluator import Evaluator
from atoll.engine.experiment import Experiment, Watch
from atoll.engine.result import Result
from atoll.engine.run_state import RunState
from atoll.engine.setup import Setup
from atoll.storage import object_store
from atoll.storage.run_dir import RunDir

pytestmark = pytest.mark.usefixtures("without_report")

REGISTERED, RATE, ROUNDS = 30, 0.1, 4
ALL = 10 * REGISTERED  # a cache with room for everybody


def few_of_many(name: str = "ditto", **changes: Any) -> Setup:
    options: dict[str, Any] = {
        "clients": REGISTERED, "rate": RATE, "rounds": ROUNDS, "partition": "iid", "store": "disk", "eval_every": 1,
        "checkpoint_every": 1,
    }  # fmt: skip
    return small_runs.setup(name, **options | changes)


def conducted(setup: Setup, folder: Path, watch: Watch | None = None) -> Result:
    with RunDir(folder) as run_dir:
        return run_experiment(setup, run_dir, watch)


def cohort(setup: Setup, t: int) -> set[str]:
    return set(sample_cohort(setup.pool.ids, RATE, setup.config.seed, t))


# -- the same numbers, however much memory there is --------------------------------------------------------------------


@pytest.mark.parametrize(("name", "backend"), [("ditto", "loop"), ("ditto", "vmap"), ("fedrep", "loop")])
def test_cache_size_changes_no_digest(name: str, backend: str, tmp_path: Path) -> None:
    places: list[dict[str, Any]] = [{"cache": 1}, {"cache": ALL}, {"store": "memory"}]
    results = [
        conducted(few_of_many(name, backend=backend, eval_every=ROUNDS, **place), tmp_path / str(at))
        for at, place in enumerate(places)
    ]
    assert len({result.summary["digest"] for result in results}) == 1
    assert len({repr(result.clients) for result in results}) == 1


def test_per_client_server_state_is_restored_from_disk(tmp_path: Path) -> None:
    digests = {
        conducted(few_of_many("fedpd", eval_every=ROUNDS, rounds=2, cache=cache), tmp_path / str(cache)).summary[
            "digest"
        ]
        for cache in (1, ALL)
    }
    assert len(digests) == 1


# -- nobody is touched who is not in the round -------------------------------------------------------------------------


class Spy:
    """Whom a round touches: their states, rows, models and examinations."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.touched: set[str] = set()
        self.examined: Counter[str] = Counter()
        self.rounds: list[set[str]] = []
        self.listings = 0
        self._patch = monkeypatch

    def on(self, pool: ClientPool) -> None:
        for cls, name in ((DiskStore, "get"), (DiskStore, "put"), (ClientPool, "client")):
            self._replace(cls, name, lambda args: self.touched.add(args[1]))
        self._replace(ClientRows, "__getitem__", lambda args: self.touched.add(pool.ids[args[1]]))
        self._replace(LoopBackend, "assess", lambda args: self.examined.update(list(args[3])))
        self._replace(DiskStore, "__iter__", self._count_listing)

    def watch(self, t: int, line: Any) -> None:
        self.rounds.append(self.touched)
        self.touched = set()

    def _count_listing(self, args: Any) -> None:
        self.listings += 1

    def _replace(self, cls: type[Any], name: str, tell: Callable[[Any], Any]) -> None:
        real = getattr(cls, name)

        def seen(*args: Any) -> Any:
            tell(args)
            return real(*args)

        self._patch.setattr(cls, name, seen)


@pytest.fixture
def spied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Setup], Spy]:
    def play(setup: Setup) -> Spy:
        spy = Spy(monkeypatch)
        spy.on(setup.pool)
        with RunDir(tmp_path) as run_dir:
            experiment = build_experiment(setup, run_dir)
            experiment.run(_from_the_first_round(spy, experiment, monkeypatch))
        return spy

    return play


def _from_the_first_round(spy: Spy, experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Forget what was touched before the rounds; the digest after them lists everybody who has a state."""
    real, digest = experiment._run_round, experiment_module.run_digest

    def first(*args: Any) -> Any:
        spy.touched = set() if not spy.rounds else spy.touched
        return real(*args)

    def end(*args: Any) -> str:
        assert spy.listings == 0
        return digest(*args)

    monkeypatch.setattr(experiment, "_run_round", first)
    monkeypatch.setattr(experiment_module, "run_digest", end)
    return spy.watch


@pytest.mark.parametrize(("name", "backend"), [("ditto", "loop"), ("ditto", "vmap"), ("fedavg", "loop")])
def test_round_reads_and_writes_states_of_its_cohort_only(
    name: str, backend: str, spied: Callable[[Setup], Spy]
) -> None:
    """Rounds are evaluated and saved, each of them; the first examines everybody else once, the only time."""
    setup = few_of_many(name, backend=backend)
    spy = spied(setup)
    assert spy.rounds[0] == set(setup.pool.ids)
    for t in range(1, ROUNDS):
        assert spy.rounds[t] == cohort(setup, t)
    assert spy.examined == Counter(set(setup.pool.ids) - cohort(setup, 0))


def test_absent_clients_are_not_read_before_the_first_evaluation(spied: Callable[[Setup], Spy]) -> None:
    setup = few_of_many(eval_every=ROUNDS)
    spy = spied(setup)
    for t in range(ROUNDS - 1):
        assert spy.rounds[t] == cohort(setup, t)
    took_part = set().union(*(cohort(setup, t) for t in range(ROUNDS)))
    assert spy.examined == Counter(set(setup.pool.ids) - took_part)


def test_only_participants_have_state_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "SMALL", 0)  # a file for each object
    setup = few_of_many(cache=1)
    conducted(setup, tmp_path)
    took_part = set().union(*(cohort(setup, t) for t in range(ROUNDS)))
    assert {path.stem for path in (tmp_path / "states").iterdir()} == took_part
    initial = 1  # the measured model of all who have not taken part
    best = 1  # the server's state whose model validation chose
    assert (
        len(list((tmp_path / "objects").iterdir())) <= len(took_part) + len(cohort(setup, ROUNDS - 1)) + initial + best
    )


# -- what is kept of idle clients --------------------------------------------------------------------------------------


def test_rows_of_results_share_the_columns_that_never_change() -> None:
    """Thirteen numbers and the round for each client: 14 * 8 = 112 bytes for each evaluation, names and sizes once."""
    pool = few_of_many().pool
    evaluator = Evaluator(few_of_many().method, pool, LoopBackend(pool, MemoryStore()), 0, MemoryStore())
    run_state = RunState()
    evaluator.evaluate_personal(run_state, evaluator.first_server())
    first, second = (evaluator.make_table(t, run_state, [0.5] * REGISTERED) for t in (1, 2))
    same = ("client", "model", "n_train", "n_test")
    for name in same:
        buffers = [[b and b.address for b in table[name].chunk(0).buffers()] for table in (first, second)]
        assert buffers[0] == buffers[1]
    assert second.drop_columns(list(same)).nbytes == 14 * 8 * REGISTERED


def test_scores_of_groups_equal_accuracy_of_each_client() -> None:
    """To the last bit; the third of these clients has no row, so its accuracy is undefined."""
    sizes = [3, 7, 0, 1, 11]
    y = torch.arange(22) % 3
    logits = torch.nn.functional.one_hot(torch.arange(22) * 5 % 7 % 3, 3).float()
    shares = Classes(3).score_each(logits, y, sizes)
    starts = [sum(sizes[:at]) for at in range(5)]
    alone = [accuracy(logits[a : a + n], y[a : a + n]) for a, n in zip(starts, sizes, strict=True)]
    assert repr(shares) == repr(alone)
    assert math.isnan(shares[2])
    assert 0 < shares[4] < 1


def test_rows_of_some_clients_are_padded_with_zeros() -> None:
    """Clients of 2, 3 and 1 rows: the last and the first, up to two rows."""
    rows = ClientRows(torch.arange(1.0, 7.0)[:, None], torch.arange(1, 7), [2, 3, 1])
    x, y = rows.stack_padded([2, 0])
    assert x.tolist() == [[[6.0], [0.0]], [[1.0], [2.0]]]
    assert y.tolist() == [[6, 0], [1, 2]]


def test_unchanged_server_model_is_not_evaluated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made, seen = small_runs.setup("fedavg"), list[int]()
    real = evaluator.predict
    monkeypatch.setattr(evaluator, "predict", lambda f, x: seen.append(len(x)) or real(f, x))
    backend = LoopBackend(made.pool, MemoryStore())
    tester = Evaluator(made.method, made.pool, backend, 0, MemoryStore())
    first, other = tester.first_server(), tester.first_server()
    marks = [tester.evaluate_generic(server, t, ()) for t, server in enumerate((first, first, other))]
    assert marks[0] == marks[1] == marks[2]
    assert len(seen) == 4  # test rows and validation rows, of two servers


def examined(made: Setup, monkeypatch: pytest.MonkeyPatch) -> tuple[Result, list[str]]:
    """A run, and who was examined in it, one entry for each time."""
    seen, one, several = list[str](), LoopBackend.evaluate, LoopBackend.evaluate_all

    def evaluate(self: LoopBackend, predictor: Predictor, i: str, *more: Any, **options: Any) -> Any:
        seen.append(i)
        return one(self, predictor, i, *more, **options)

    def evaluate_all(self: LoopBackend, method: Any, sources: Mapping[str, Any], *more: Any, **options: Any) -> Any:
        seen.extend(sources)
        return several(self, method, sources, *more, **options)

    def evaluate_later(pool: ClientPool, models: Sequence[ClientModel], **options: Any) -> Any:
        seen.extend(model.client for model in models)
        return evaluate_models(pool, models, **options)

    with monkeypatch.context() as patch:
        patch.setattr(LoopBackend, "evaluate", evaluate)
        patch.setattr(LoopBackend, "evaluate_all", evaluate_all)
        patch.setattr(vmap, "evaluate_models", evaluate_later)
        return run_experiment(made), seen


@pytest.mark.parametrize("backend", ["loop", "vmap"])
@pytest.mark.parametrize(("name", "times"), [("ditto", 4), ("local", 4), ("fedavg", 6), ("fedper", 6)])
def test_unchanged_personal_model_is_not_evaluated_again(
    name: str, times: int, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three rounds, each evaluated before and after training: what was kept since the last round is known by then."""
    made = small_runs.setup(name, backend=backend, eval_every=1, clients=3, rows=240)
    result, seen = examined(made, monkeypatch)
    assert Counter(seen) == dict.fromkeys(made.pool.ids, times)
    monkeypatch.setattr(loop, "is_in_state", lambda *a: False)
    anew, seen = examined(made, monkeypatch)
    assert len(seen) == 3 * 6
    assert [line["personal"] for line in anew.history] == [line["personal"] for line in result.history]


def test_client_trained_without_evaluation_is_evaluated_before_it_trains_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluated after rounds 2 and 4: before them the last scores are those of older models."""
    made = small_runs.setup("ditto", eval_every=2, rounds=4, clients=3, rows=240)
    _, seen = examined(made, monkeypatch)
    assert Counter(seen) == dict.fromkeys(made.pool.ids, 4)


def test_whole_numbers_stay_exact_beyond_single_precision() -> None:
    """2**24 + 2 hits: single precision would lose the second client's only one."""
    n = 2**24 + 1
    outputs, y = torch.zeros(1, 1).expand(n + 1, 1), torch.zeros(1, dtype=torch.long).expand(n + 1)
    assert Classes(1).score_each(outputs, y, [n, 1]) == [1.0, 1.0]
