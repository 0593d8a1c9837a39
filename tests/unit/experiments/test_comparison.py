"""Several runs at once."""

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from atoll.config import Config
from atoll.core.method import traits_of
from atoll.core.traits import Need
from atoll.engine import python_parts
from atoll.engine.setup import Setup, build_setup
from atoll.errors import AtollError
from atoll.experiments import runner
from atoll.experiments.planning import assign_directories, plan_configs, to_file_name
from atoll.experiments.runner import Outcome, run_all, run_one
from atoll.methods import _registry
from atoll.storage import run_reader

pytestmark = pytest.mark.usefixtures("without_report")
SMALL: dict[str, Any] = {"rows": 300, "clients": 3, "rounds": 2, "epochs": 1}


def said(names: list[str], values: dict[str, Any], seeds: Any = (0,)) -> str:
    with pytest.raises(AtollError) as caught:
        plan_configs(names, values, seeds)
    return str(caught.value)


def silent(done: int, line: Any) -> None:
    """A watch that does not look."""


def go(planned: list[Config], **options: Any) -> Outcome:
    return run_all(planned, [silent] * len(planned), **options)


def digests(planned: list[Config]) -> list[str]:
    return [json.loads((Path(str(c.out)) / "summary.json").read_text())["digest"] for c in planned]


# -- what is run ------------------------------------------------------------------------------------------------------


def test_plan_without_seeds_uses_the_shared_seed() -> None:
    assert [c.seed for c in plan_configs(["fedavg", "local"], {**SMALL, "seed": "4"})] == [4, 4]


def test_plan_has_one_run_for_each_method_and_seed() -> None:
    planned = plan_configs(["fedavg", "dcpfl:no-al"], SMALL, [0, 5])
    assert [(c.method, c.seed) for c in planned] == [
        ("fedavg", 0), ("fedavg", 5), ("dcpfl:no-al", 0), ("dcpfl:no-al", 5)
    ]  # fmt: skip
    assert {(c.clients, c.rounds) for c in planned} == {(3, 2)}


def test_plan_reads_regularisers_from_names_and_options() -> None:
    (one,) = plan_configs(["fedavg+dw:mu=0.1+proximal"], SMALL)
    (two,) = plan_configs(["fedavg"], {**SMALL, "terms": ["dw"]})
    assert (one.method, one.terms) == ("fedavg", ("dw:mu=0.1", "proximal"))
    assert (two.method, two.terms) == ("fedavg", ("dw",))


def test_settings_go_to_the_methods_that_have_them() -> None:
    lam = {**SMALL, "settings": {"lam": "0.5", "ditto.lam": "2", "optim.momentum": "0.1"}}
    fedavg, fedproto, ditto = plan_configs(["fedavg", "fedproto", "ditto"], lam, [0])
    assert fedavg.settings == {"optim.momentum": "0.1"}
    assert fedproto.settings == {"lam": "0.5", "optim.momentum": "0.1"}
    assert ditto.settings == {"lam": "2", "optim.momentum": "0.1"}  # its own wins, whatever the order
    turned = {**SMALL, "settings": {"ditto.lam": "2", "lam": "0.5"}}
    assert plan_configs(["ditto"], turned, [0])[0].settings == {"lam": "2"}


def test_settings_of_a_method_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from dataclasses import dataclass\nfrom atoll.methods.fedavg import FedAvg\n"
        "@dataclass(frozen=True)\nclass Mine(FedAvg):\n    lam: float = 1.0\n"
    )
    (config,) = plan_configs([str(path)], {**SMALL, "settings": {"lam": "3"}}, [0])
    assert config.settings == {"lam": "3"}


@pytest.mark.parametrize(
    ("names", "settings", "message"),
    [
        (["fedavg"], {"lam": 1}, "Unknown setting 'lam' of fedavg"),
        (["ditto", "fedproto"], {"lma": 1}, "Unknown setting 'lma' of ditto, fedproto. Did you mean 'lam'?"),
        (["ditto"], {"fedproto.lam": 1}, "Unknown setting 'fedproto.lam' of ditto"),
        (["ditto"], {"lam": 1, "fedproto.lam": 1}, "Unknown setting 'fedproto.lam' of ditto"),
        (["ditto"], {"ditto.lma": 1}, "Unknown setting 'lma' of ditto. Did you mean 'lam'?"),
        (["ditto"], {"optim.lrr": 1}, "Unknown setting 'lrr' of ditto.optim"),
        (["ditto"], {"lam": "x"}, "Setting ditto.lam must be a number"),
    ],
)
def test_setting_that_no_method_has_is_refused(names: list[str], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(AtollError) as caught:
        go(assign_directories(plan_configs(names, {**SMALL, "settings": settings}, [0]), Path("runs")))
    assert message in str(caught.value)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "values",
    [
        {"settings": 3}, {"settings": ["lam=1"]}, {"settings": None}, {"terms": 3}, {"terms": None},
        {"terms": {"a": 1}}, {"seed": "x"}, {"rounds": "x"}, {"ruonds": 3}, {"method": 3, "models": 3},
    ],
)  # fmt: skip
def test_shared_values_of_wrong_types_are_refused(values: dict[str, Any]) -> None:
    said(["fedavg"], values)


def test_single_regulariser_may_be_written_as_text() -> None:
    assert plan_configs(["fedavg"], {"terms": "dw"}, [0])[0].terms == ("dw",)


@pytest.mark.parametrize("names", [["local", "all"], ["all:x"], ["all+dw"]])
def test_all_beside_other_methods_is_refused(names: list[str]) -> None:
    assert "'all' stands for every method that can run: give it alone" in said(names, SMALL)


def test_plus_without_a_regulariser_is_refused() -> None:
    assert "Nothing follows a plus of 'fedavg+dw+'. Write METHOD+REGULARISER" in said(["fedavg+dw+"], SMALL)


def test_named_methods_override_the_method_of_a_file() -> None:
    assert plan_configs(["ditto"], {**SMALL, "method": "fedavg"}, [0])[0].method == "ditto"


# -- where it goes ----------------------------------------------------------------------------------------------------


def test_every_run_has_its_own_directory() -> None:
    planned = assign_directories(
        plan_configs(["fedavg", "fedavg+dw:mu=0.1", "dcpfl:no-al"], SMALL, [0, 1]), Path("root")
    )
    assert [Path(str(c.out)).name for c in planned] == [
        "fedavg-seed0", "fedavg-seed1", "fedavg+dw-mu-0.1-seed0", "fedavg+dw-mu-0.1-seed1", "dcpfl-no-al-seed0",
        "dcpfl-no-al-seed1",
    ]  # fmt: skip
    assert {Path(str(c.out)).parent for c in planned} == {Path("root")}


def test_settings_in_names_keep_labels_and_directories_apart(tmp_path: Path) -> None:
    own = tmp_path / "mine.py"
    own.write_text("from atoll.methods.fedprox import FedProx\n\n\nclass Mine(FedProx): pass\n")

    names = ["fedprox:mu=0.1", "fedprox:mu=1e+0+dw:mu=1e+2", f"{own}:mu=2"]
    planned = assign_directories(plan_configs(names, SMALL, [0]), Path("root"))

    assert [c.label for c in planned] == ["fedprox:mu=0.1", "fedprox:mu=1e+0+dw:mu=1e+2", "mine:mu=2"]
    assert [Path(str(c.out)).name for c in planned] == [
        "fedprox-mu-0.1-seed0", "fedprox-mu-1e+0+dw-mu-1e+2-seed0", "mine-mu-2-seed0",
    ]  # fmt: skip
    assert planned[1].terms == ("dw:mu=1e+2",)


def test_long_names_that_differ_at_their_ends_get_directories_of_their_own() -> None:
    many = "dcpfl:optim.lr=0.01,optim.momentum=0.9,optim.weight_decay=0.001,lam="
    planned = assign_directories(plan_configs([f"{many}0.1", f"{many}0.2"], SMALL, [0]), Path("root"))

    assert len({c.out for c in planned}) == 2


@pytest.mark.parametrize(("names", "seeds"), [(["fedavg", "fedavg"], [0]), (["fedavg"], [1, 2, 1])])
def test_the_same_run_twice_is_refused(names: list[str], seeds: list[int]) -> None:
    with pytest.raises(AtollError, match="twice"):
        assign_directories(plan_configs(names, SMALL, seeds), Path("root"))


@pytest.mark.parametrize("text", ["../../x", "/etc/x", "a/../b", "é:x", "..", "a b"])
def test_run_names_cannot_leave_the_directory(text: str) -> None:
    name = to_file_name(text)
    assert "/" not in name
    assert (Path("root") / f"{name}-seed0").resolve().parent == Path("root").resolve()


# -- running ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.chaos)])
def test_worker_processes_give_what_one_process_gives(
    start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The progress of each run reaches its own watch. Workers that are forked need not import everything again."""
    monkeypatch.setattr(runner, "get_context", lambda kind: get_context(start))
    one = assign_directories(plan_configs(["local", "fedavg"], SMALL), tmp_path / "one")
    two = assign_directories(plan_configs(["local", "fedavg"], SMALL), tmp_path / "two")
    go(one)
    seen: list[list[tuple[int, Any]]] = [[], []]
    run_all(two, [lambda done, line, own=own: own.append((done, line)) for own in seen], workers=2)  # type: ignore[misc]
    assert digests(one) == digests(two)
    assert len(set(digests(one))) == 2
    for own, config in zip(seen, two, strict=True):
        assert [done for done, _ in own] == [1, 2]
        stored = [json.loads(line) for line in (Path(str(config.out)) / "metrics.jsonl").read_text().splitlines()]
        assert [line["personal"]["post"]["accuracy"] for _, line in own] == [
            line["personal"]["post"]["accuracy"] for line in stored
        ]


def test_a_comparison_resumes_what_is_missing(tmp_path: Path) -> None:
    planned = assign_directories(plan_configs(["local", "fedavg"], SMALL, [0]), tmp_path)
    go(planned[:1])
    before = (tmp_path / "local-seed0" / "metrics.jsonl").read_bytes()
    go(planned, resume=True)
    assert len(digests(planned)) == 2
    assert (tmp_path / "local-seed0" / "metrics.jsonl").read_bytes() == before


def test_existing_run_stops_a_comparison_before_any_run_starts(tmp_path: Path) -> None:
    planned = assign_directories(plan_configs(["local", "fedavg"], SMALL, [0]), tmp_path)
    go(planned[1:])
    with pytest.raises(AtollError, match="already holds a run"):
        go(planned)
    assert not (tmp_path / "local-seed0").exists()
    go(planned, force=True)
    assert len(digests(planned)) == 2


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["local", "fedavg"], {"models": ["mlp:hidden=8", "mlp:hidden=16"]}, "all clients need one architecture"),
        (["local", "pfedes"], {"data": "table.csv", "rows": None}, "image"),
        (["local", "fedavg+dw:mu=x"], {}, "must be a number"),
        (["local", "fedavg:x"], {}, "variants"),
        (["local", "nobody"], {}, "Unknown method"),
        (["local", "nobody.py"], {}, "no method file"),
    ],
)
def test_unfit_method_stops_a_comparison_before_any_run_starts(
    names: list[str], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    rows = "".join(f"{at},{at * at % 7},{at % 3}\n" for at in range(90))
    Path("table.csv").write_text("a,b,label\n" + rows)
    with pytest.raises(AtollError) as caught:
        go(assign_directories(plan_configs(names, {**SMALL, "partition": "iid", **options}, [0]), tmp_path / "root"))
    assert message in str(caught.value)
    assert not (tmp_path / "root").exists()


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads in the place of worker processes, which take seconds to start."""

    def pool(workers: int, **_: Any) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(workers)

    monkeypatch.setattr(runner, "ProcessPoolExecutor", pool)


@pytest.mark.usefixtures("threads")
def test_error_in_a_worker_process_is_raised_without_other_output(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The second directory cannot be made, which only the worker finds out."""
    planned = assign_directories(plan_configs(["local"], SMALL, [0, 1]), tmp_path / "root")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "local-seed1").write_text("a file")
    with pytest.raises(AtollError, match="Cannot write to the run directory"):
        go(planned, workers=2)
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("threads")
def test_killed_worker_error_gives_a_remedy(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: Any) -> None:
        raise BrokenProcessPool

    monkeypatch.setattr(runner, "_run_in_worker", dies)
    with pytest.raises(AtollError, match="Continue with --resume and fewer --workers"):
        go(assign_directories(plan_configs(["local"], SMALL, [0, 1]), tmp_path / "root"), workers=2)
    assert capfd.readouterr().err == ""


def test_all_plans_every_method_and_sets_public_rows_aside() -> None:
    """A tenth of the 1442 training rows of digits is less than 100 of each class; so is a tenth of 500."""
    for given, public in (({"rows": None}, 144), ({"rows": 500}, 50), ({"public": 70}, 70)):
        planned = plan_configs(["all"], {**SMALL, **given})
        assert [c.method for c in planned] == [name for name in _registry.methods() if name != "fedbn"]  # no BatchNorm
        assert {c.public for c in planned} == {public}
    assert {c.public for c in plan_configs(["fedavg"], SMALL)} == {0}


def test_all_leaves_out_methods_that_do_not_fit() -> None:
    """On two widths everything goes that asks neither for one architecture nor for one width."""
    planned = [c.method for c in plan_configs(["all"], {**SMALL, "models": ("mlp:hidden=8", "mlp:hidden=16")})]
    unfit = {Need.SAME_ARCHITECTURE, Need.SAME_WIDTH, Need.BATCH_NORM}
    assert planned == [name for name, cls in _registry.methods().items() if not unfit & traits_of(cls).needs]
    assert {"local", "fedpd", "pfedes"} <= set(planned)
    assert "fedavg" not in planned


def test_a_worker_ends_with_its_parent() -> None:
    """A process starts a worker, prints its number and is killed; within seconds the worker is gone as well."""
    reading, writing = os.pipe()
    parent = os.fork()
    if parent == 0:
        me = os.getpid()
        worker = os.fork()
        if worker == 0:
            runner._end_with(me)
        os.write(writing, str(worker).encode())
        os.kill(me, signal.SIGKILL)
    os.waitpid(parent, 0)
    worker = int(os.read(reading, 20))
    deadline = time.monotonic() + 20
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{worker}").exists()


# -- what is done once ------------------------------------------------------------------------------------------------


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Methods whose setups are built, in their order."""
    methods: list[str] = []

    def build(config: Config, *data: Any) -> Setup:
        methods.append(config.method)
        return build_setup(config, *data)

    monkeypatch.setattr(python_parts, "build_setup", build)
    monkeypatch.setattr(runner, "build_setup", build)
    return methods


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of run directories that are read, in their order."""
    names: list[str] = []
    load = run_reader.load

    def note(path: Path) -> run_reader.Run:
        names.append(path.name)
        return load(path)

    monkeypatch.setattr(run_reader, "load", note)
    return names


def test_a_single_run_is_set_up_and_read_once(tmp_path: Path, built: list[str], read: list[str]) -> None:
    (planned,) = plan_configs(["fedavg"], {**SMALL, "out": str(tmp_path / "one")})

    outcome = run_one(planned, silent)

    assert built == ["fedavg"]
    assert read == ["one"]
    assert [run.summary["digest"] for run in outcome.runs] == digests([planned])


@pytest.mark.parametrize("resume", [False, True])
def test_runs_of_a_comparison_are_set_up_and_read_once(
    resume: bool, tmp_path: Path, built: list[str], read: list[str]
) -> None:
    planned = assign_directories(plan_configs(["local", "fedavg"], SMALL, [0]), tmp_path)

    outcome = go(planned, resume=resume)

    assert built == ["local", "fedavg"]
    assert read == ["local-seed0", "fedavg-seed0"]
    assert [run.summary["digest"] for run in outcome.runs] == digests(planned)


def test_a_finished_run_that_is_resumed_is_only_read(tmp_path: Path, built: list[str], read: list[str]) -> None:
    (planned,) = plan_configs(["local"], {**SMALL, "out": str(tmp_path / "one")})
    run_one(planned, silent)
    (tmp_path / "one" / "report.html").touch()
    before = (tmp_path / "one" / "metrics.jsonl").stat().st_mtime_ns

    outcome = run_one(planned, silent, resume=True)

    assert outcome.runs[0].label == "local"
    assert (built, read) == (["local"] * 2, ["one"] * 2)
    assert (tmp_path / "one" / "metrics.jsonl").stat().st_mtime_ns == before
