"""Nothing is lost: real processes, killed, stopped, starved and raced; the same end comes of it every time.

Tests marked ``chaos`` do at length what their neighbours do briefly.
"""

import errno
import gc
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from support import killable_cli, small_runs
from support.disk_crashes import crash_points, disk_full, trouble_at
from support.killable_cli import Victim
from support.toy_data import toy_data

from atoll.backends import multiprocess
from atoll.backends.loop import LoopBackend
from atoll.cli import main
from atoll.config import Config
from atoll.core.optim.sgd import SGD
from atoll.engine.build import run_experiment
from atoll.engine.setup import Setup, build_setup
from atoll.errors import AtollError
from atoll.methods.ditto import Ditto
from atoll.storage.object_packs import SUFFIX, _objects
from atoll.storage.object_store import ObjectStore
from atoll.storage.run_dir import RunDir

pytestmark = pytest.mark.usefixtures("without_report")
SEED = int(os.environ.get("ATOLL_CHAOS_SEED", "7"))  # of the moments at which processes are killed

SMALL: tuple[object, ...] = (
    "--rows", 300, "--clients", 3, "--partition", "iid", "--rate", 0.67, "--rounds", 5, "--epochs", 1,
    "--batch-size", 64, "--eval-every", 2, "--checkpoint-every", 1, "--models", "mlp:hidden=8", "--backend", "loop",
    "--quiet",
)  # fmt: skip
SYSTEMS: dict[str, tuple[object, ...]] = {
    "dcpfl": (),
    "feddw": (),
    "fedpd": ("--public", 40, "--server-model", "mlp_a", "--set", "server.epochs=1"),
    "pfedes": ("--proxy", 2, "--set", "proxy_optim.epochs=1"),
    "scd": ("--set", "personal_optim.epochs=1", "--store", "disk", "--cache", 1),
}


@pytest.fixture(autouse=True)
def warm(at_home: None, without_report: None) -> None:
    """Much is imported when it is first needed: here and now, once, and not in every process that is forked."""
    _warm_up()


@cache
def _warm_up() -> None:
    CliRunner().invoke(main, [str(word) for word in ("run", "dcpfl", *SMALL, "--rounds", 1, "--out", "warm")])


def untimed(value: Any) -> Any:
    """Without the seconds that it took, which differ from run to run."""
    if isinstance(value, dict):
        return {k: untimed(v) for k, v in value.items() if k != "seconds" or isinstance(v, dict)}
    return [untimed(v) for v in value] if isinstance(value, list) else value


def everything(out: Path) -> dict[str, Any]:
    """All that a run directory holds, apart from times and sessions: results, both checkpoints, all states.

    Of packs, the objects that checkpoints name: which pack holds an object depends on the saves before.
    """
    found: dict[str, Any] = {}
    left_out = (".lock", "manifest.json", "environment.json")
    named = "".join(path.read_text() for path in (out / "checkpoints").rglob("*.json"))
    store = ObjectStore(out / "objects")
    for path in sorted(p for p in out.rglob("*") if p.is_file() and p.name not in left_out):
        name = str(path.relative_to(out))
        if path.suffix == SUFFIX:
            names = [held for held, _ in _objects(path) if held in named]
            found |= {f"objects/{held}": store.read(held) for held in names}
        elif path.suffix == ".json":
            found[name] = untimed(json.loads(path.read_text()))
        elif path.suffix == ".jsonl":
            found[name] = [untimed(json.loads(line)) for line in path.read_text().splitlines()]
        elif path.suffix == ".parquet":
            found[name] = repr(pq.read_table(path).to_pylist())
        elif path.name == "config.yaml":
            found[name] = [line for line in path.read_text().splitlines() if not line.startswith("out:")]
        else:
            found[name] = path.read_bytes()
    return found


def differing(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    return sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))


# -- killed at any moment ----------------------------------------------------------------------------------------------


def survive(name: str, kills: int, tmp_path: Path) -> None:
    """Kill runs, and half of the runs that take over from them, until so many kills have struck; compare each end."""
    moments, struck, log = random.Random(f"{SEED} {name}"), 0, tmp_path / "log"
    command = ("run", name, *SMALL, *SYSTEMS[name])
    started = time.monotonic()
    with killable_cli.atoll(*command, "--out", tmp_path / "whole", log=log) as undisturbed:
        undisturbed.finish()
    took, whole = time.monotonic() - started, everything(tmp_path / "whole")
    for trial in range(20 * kills):
        out, waits = tmp_path / str(trial), list[float]()
        for _ in range(moments.choice((1, 1, 2))):
            waits.append(moments.random() * took)
            with killable_cli.atoll(*command, "--out", out, "--resume", log=log) as victim:
                if victim.ended(waits[-1]) is not None or not victim.kill():
                    break
                struck += 1
        with killable_cli.atoll(*command, "--out", out, "--resume", log=log) as heir:
            heir.finish()
        story = f"trial {trial} of seed {SEED}: killed after {waits} of {took} s"
        assert differing(everything(out), whole) == [], story
        if struck >= kills:
            return
    pytest.fail(f"only {struck} of {kills} kills struck")


@pytest.mark.promise("Stopping and resuming", "A run that was killed and resumed leaves the files of one that was not.")
@pytest.mark.parametrize("name", SYSTEMS)
def test_resume_after_kill_gives_same_files(name: str, tmp_path: Path) -> None:
    survive(name, 4, tmp_path)


@pytest.mark.promise(
    "Stopping and resuming",
    "A run that was killed a hundred times at random moments leaves the files of one that was not.",
)
@pytest.mark.chaos
@pytest.mark.parametrize("name", SYSTEMS)
def test_resume_after_a_hundred_kills_gives_same_files(name: str, tmp_path: Path) -> None:
    survive(name, 100, tmp_path)


# -- crashes and full disks at every step ------------------------------------------------------------------------------


@pytest.fixture
def tiny() -> Setup:
    """Two clients, three rounds, a checkpoint after each; states on disk as well."""
    config = Config("ditto", clients=2, partition="iid", epochs=1, rounds=3, checkpoint_every=1, models=("linear",),
                    rate=0.5, store="disk", cache=1, backend="loop")  # fmt: skip
    return build_setup(config, toy_data(), method=Ditto(SGD(epochs=1, batch_size=64)))


def conducted(setup: Setup, out: Path, resume: bool = False) -> None:
    with RunDir(out) as folder:
        folder.start(setup.config, resume=resume, force=False)
        run_experiment(setup, folder)


@pytest.mark.chaos
def test_resume_after_crash_at_every_disk_step_gives_same_files(tiny: Setup, tmp_path: Path) -> None:
    places = [tmp_path / "whole"]
    conducted(tiny, places[0])
    whole, points = everything(places[0]), 0
    for step in crash_points(lambda: conducted(tiny, places[-1]), lambda: places.append(tmp_path / str(len(places)))):
        conducted(tiny, places[-1], resume=True)
        assert differing(everything(places[-1]), whole) == [], f"crashed at step {step}"
        points += 1
    assert points > 150


def full_at(step: int, tiny: Setup, out: Path) -> bool:
    """Whether a run was stopped by a disk that is full from the given step on; what it left is whole and no litter."""
    complaint = ""
    with trouble_at(step, disk_full, ("mkdir", "fsync"), lasting=True):
        try:
            conducted(tiny, out)
        except (OSError, AtollError) as reason:
            complaint = str(reason)
    if not complaint:
        return False
    assert "No space left on device" in complaint
    assert not [p for p in out.rglob("*") if p.name.startswith("new-") or p.suffix == ".new"]
    return True


@pytest.mark.parametrize("stride", [17, pytest.param(1, marks=pytest.mark.chaos)])
def test_resume_after_full_disk_gives_same_files(stride: int, tiny: Setup, tmp_path: Path) -> None:
    conducted(tiny, tmp_path / "whole")
    whole, step = everything(tmp_path / "whole"), 0
    while full_at(step, tiny, out := tmp_path / str(step)):
        conducted(tiny, out, resume=True)
        assert differing(everything(out), whole) == [], f"full at step {step}"
        step += stride
    assert step > 80


def test_file_size_limit_stops_run_with_message_and_resumable_checkpoint(tmp_path: Path) -> None:
    """The table of results grows with the rounds, so that the limit strikes late."""
    out, log, command = tmp_path / "run", tmp_path / "log", ("run", "feddw", *SMALL)
    with killable_cli.atoll(*command, "--out", tmp_path / "whole", log=log) as whole:
        whole.finish()
    largest = max(p.stat().st_size for p in (tmp_path / "whole").rglob("*") if p.is_file())
    least = largest - 100

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (least, least))

    with killable_cli.atoll(*command, "--out", out, log=log, before=limit) as starved:
        said = starved.finish(code=2)
    assert "The operating system reports an error" in said
    assert "Free some space, then continue with --resume" in said
    assert not (out / "summary.json").exists()
    with killable_cli.atoll(*command, "--out", out, "--resume", log=log) as heir:
        assert "damaged" not in heir.finish()
    assert differing(everything(out), everything(tmp_path / "whole")) == []


def test_read_only_run_directory_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    out, log, command = tmp_path / "run", tmp_path / "log", ("run", "feddw", *SMALL)
    with killable_cli.atoll(*command, "--out", out, log=log) as first:
        first.finish()
    before = everything(out)
    steps = ("open", "mkdir", "replace", "rename", "unlink", "rmdir")
    frozen = trouble_at(0, lambda: OSError(errno.EROFS, "Read-only file system"), steps, lasting=True)

    def freeze() -> None:
        frozen.__enter__()

    with killable_cli.atoll(*command, "--rounds", 6, "--out", out, "--resume", log=log, before=freeze) as refused:
        assert "Cannot write to the run directory" in refused.finish(code=2)
    assert everything(out) == before


# -- two runs in one directory -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("races", [10, pytest.param(100, marks=pytest.mark.chaos)])
def test_second_run_in_a_directory_is_refused_with_id_of_the_first(races: int, tmp_path: Path) -> None:
    """Both start at the same moment; then the winner is killed, and the next one need not wait."""
    for race in range(races):
        out, start = tmp_path / str(race), tmp_path / f"start{race}"
        start.mkdir()

        def contend(out: Path = out, start: Path = start) -> None:
            (start / str(os.getpid())).touch()
            while len(list(start.iterdir())) < 2:
                pass
            begun = time.monotonic()
            try:
                with RunDir(out):
                    print("won", flush=True)
                    signal.pause()
            finally:
                print(time.monotonic() - begun, flush=True)

        logs = [tmp_path / f"{race}-{at}" for at in range(2)]
        with Victim(contend, logs[0]) as a, Victim(contend, logs[1]) as b:
            pids = [a.pid, b.pid]
            while a.ended(0) is None and b.ended(0) is None:
                time.sleep(0.001)
            loser, winner = (a, b) if a.pid == 0 else (b, a)
            assert winner.ended(0) is None
            assert winner.log.read_text() == "won\n"
            said = loser.finish(code=70)
            assert f"is in use by another run (process {winner.pid})" in said
            assert winner.pid in pids
            assert float(said.splitlines()[0]) < 1
            assert winner.kill()
        with RunDir(out):
            pass


# -- told to stop ------------------------------------------------------------------------------------------------------

STOPS = {signal.SIGINT: 130, signal.SIGTERM: 143}


@pytest.mark.promise(
    "Stopping and resuming", "Ctrl-C and SIGTERM save the last whole round, and end with exit code 130 or 143."
)
@pytest.mark.parametrize("number", STOPS)
@pytest.mark.parametrize("backend", ["loop", "processes"])
def test_run_stopped_by_signal_saves_last_finished_round(
    number: signal.Signals, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its third round clients take for ever, and no checkpoint was due so far."""
    out, log, sign = tmp_path / "run", tmp_path / "log", tmp_path / "sign"
    command = (
        "run", "scd", *SMALL, "--checkpoint-every", 99, "--backend", backend, "--workers", 2, "--store", "disk"
    )  # fmt: skip
    with killable_cli.atoll(*command, "--out", tmp_path / "whole", log=log) as whole:
        whole.finish()
    participate = LoopBackend._take_part

    def endless(self: LoopBackend, method: Any, seed: int, job: Any) -> Any:
        if job.round.t == 2:
            sign.touch()
            time.sleep(600)
        return participate(self, method, seed, job)

    with monkeypatch.context() as patch:
        patch.setattr(LoopBackend, "_take_part", endless)
        victim = killable_cli.atoll(*command, "--out", out, log=log)
    with victim:
        while not sign.exists():
            assert victim.ended(0.01) is None, log.read_text()
        victim.send(number)
        said = victim.finish(STOPS[number], seconds=5)
        assert victim.leaves_nobody(2)
    assert said == f"Interrupted. Finished rounds are saved in {out}: continue with `atoll run --resume {out}`.\n"
    assert [p.name for p in (out / "checkpoints").iterdir()] == ["round-000002"]
    assert not (out / "summary.json").exists()
    with killable_cli.atoll(*command, "--out", out, "--resume", log=log) as heir:
        heir.finish()
    assert everything(out)["summary.json"] == everything(tmp_path / "whole")["summary.json"]
    assert everything(out)["metrics.jsonl"] == everything(tmp_path / "whole")["metrics.jsonl"]


@pytest.mark.chaos
@pytest.mark.parametrize("number", STOPS)
def test_comparison_stopped_by_signal_saves_checkpoint_of_every_run(number: signal.Signals, tmp_path: Path) -> None:
    """A signal to the whole group, as a terminal or a scheduler sends it; and nobody is left."""
    out, log = tmp_path / "runs", tmp_path / "log"
    command = ("compare", "fedavg", "ditto", *SMALL, "--rounds", 4000, "--checkpoint-every", 3999, "--workers", 2)
    with killable_cli.atoll(*command, "--out", out, log=log) as victim:
        while len(list(out.glob("*/metrics.jsonl"))) < 2 or not all(p.stat().st_size for p in out.glob("*/metrics*")):
            assert victim.ended(0.05) is None, log.read_text()
        os.killpg(victim.pid, number)
        said = victim.finish(STOPS[number], seconds=5)
        assert victim.leaves_nobody(3)
    assert said == f"Interrupted. Finished rounds are saved in {out}: continue with `atoll run --resume {out}`.\n"
    assert len(list(out.glob("*/checkpoints/round-*"))) == 2


SIGNALLED = {
    "vmap": ("run", "fedavg", *SMALL, "--backend", "vmap"),
    "loop": ("run", "scd", *SMALL, "--backend", "loop"),
    "processes": ("run", "ditto", *SMALL, "--backend", "processes", "--workers", 2),
    "comparison": ("compare", "fedavg", "ditto", *SMALL, "--workers", 2),
}


def stop_at_random(name: str, signals: int, tmp_path: Path) -> None:
    """Send a signal to each of so many runs at a random moment: each ends as promised, and can be resumed.

    A run that has not begun yet has no checkpoint; one that is over has its summary.
    """
    log, moments, struck = tmp_path / "log", random.Random(f"{SEED} {name}"), 0
    command = (*SIGNALLED[name], "--rounds", 30, "--checkpoint-every", 999)
    started = time.monotonic()
    with killable_cli.atoll(*command, "--out", tmp_path / "whole", log=log) as whole:
        whole.finish()
    took = time.monotonic() - started
    for trial in range(10 * signals):
        number, out = list(STOPS)[trial % 2], tmp_path / f"{trial}"
        with killable_cli.atoll(*command, "--out", out, log=log) as victim:
            code = victim.ended(moments.random() * took)
            if code is None:
                victim.send(number)
                code = victim.ended(60)
                struck += code != 0
        assert code in (0, STOPS[number], -number), f"{name}, trial {trial}, code {code}: {log.read_text()}"
        assert "Traceback" not in log.read_text()
        for folder in (path.parent for path in out.rglob("metrics.jsonl") if path.read_text().count("\n") > 1):
            assert list((folder / "checkpoints").glob("round-*")), f"{name}, trial {trial}: {folder}"
        shutil.rmtree(out, ignore_errors=True)
        if struck >= signals:
            return
    pytest.fail(f"only {struck} of {signals} signals struck")


@pytest.mark.promise(
    "Stopping and resuming",
    "200 signals at random moments of vmap, loop, worker processes and comparisons each end with a checkpoint.",
)
@pytest.mark.chaos
@pytest.mark.parametrize("name", SIGNALLED)
def test_fifty_signals_at_random_moments_end_with_a_checkpoint_and_the_exit_code(name: str, tmp_path: Path) -> None:
    stop_at_random(name, 50, tmp_path)


# -- the same numbers, whoever computes them and in whatever order -----------------------------------------------------

ELSEWHERE = {"TZ": "Asia/Kathmandu", "LC_ALL": "C", "OMP_NUM_THREADS": "2"}
HASHED = "from atoll import run; print(run('dcpfl', **{options}).summary['digest'])"


def options(**changes: Any) -> dict[str, Any]:
    return {
        "rows": 300, "clients": 5, "partition": "dirichlet:0.5", "rounds": 3, "epochs": 1, "rate": 0.8,
        "models": "mlp:hidden=8", "backend": "loop",
    } | changes  # fmt: skip


def digest(name: str = "dcpfl", **changes: Any) -> str:
    from atoll import run

    return str(run(name, **options(**changes)).summary["digest"])


def hashed(seed: int) -> str:
    """From a new interpreter: sets and dicts of texts have another order, and the place is another one."""
    ran = subprocess.run(
        [sys.executable, "-c", HASHED.replace("{options}", repr(options()))],
        env=os.environ | ELSEWHERE | {"PYTHONHASHSEED": str(seed)}, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return ran.stdout.strip()


def shuffle_completion(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Workers answer in another order each time."""
    run_work_item = multiprocess.run_work_item

    def dawdling(pool: Any, upload_filter: Any, order: Any, download: Any) -> Any:
        time.sleep(random.Random(f"{seed} {order.at} {order.job.round}").random() * 0.05)
        return run_work_item(pool, upload_filter, order, download)

    monkeypatch.setattr(multiprocess, "run_work_item", dawdling)


def resumed(after: int, out: Path) -> str:
    digest(rounds=after, out=out)
    return digest(out=out, resume=True)


@pytest.mark.promise(
    "Repeatability",
    "The digest is the same for any number of workers, states on disk, resumes, hash seeds, time zones, locales and "
    "thread variables.",
)
@pytest.mark.parametrize("length", ["brief", pytest.param("long", marks=pytest.mark.chaos)])
def test_digest_is_the_same_for_all_backends_stores_resumes_and_hash_seeds(
    length: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = length == "long"
    digests = [digest() for _ in range(4 if long else 2)]
    digests += [digest(backend="processes", workers=n) for n in ((1, 2, 4, 8) if long else (3,))]
    digests += [digest(store="disk", cache=n, out=tmp_path / f"disk{n}") for n in ((1, 2, 99) if long else (1,))]
    digests += [resumed(after, tmp_path / f"after{after}") for after in ((1, 2, 3) if long else (2,))]
    digests += [hashed(seed) for seed in (range(4) if long else (1,))]
    for seed in range(6 if long else 1):
        with monkeypatch.context() as patch:
            shuffle_completion(patch, seed)
            digests.append(digest(backend="processes", workers=1 + seed % 3 + 1))
    assert len(digests) == (24 if long else 7)
    assert len(set(digests)) == 1


# -- long runs ---------------------------------------------------------------------------------------------------------


def resources(out: Path) -> dict[str, int]:
    gc.collect()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "memory": 1024 * int(status["VmRSS"].split()[0]),
        "own": 1024 * int(status["RssAnon"].split()[0]),  # without the files of libraries, read when first needed
        "files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count() + len(os.listdir("/proc/self/task")),
        "litter": sum(1 for p in out.rglob("*") if ".new" in p.name or p.name.startswith("new-")),
        "states": len(list((out / "states").iterdir())) + len(list((out / "checkpoints").iterdir())),
    }


def soak(rounds: int, log: Path, out: Path) -> list[dict[str, int]]:
    """What a run of so many rounds has in use after round 50, and at its end."""

    def act() -> None:
        def watch(done: int, line: Any) -> None:
            if done in (50, rounds):
                print(json.dumps(resources(out)))

        setup = small_runs.setup(
            "ditto", models=("linear",), clients=3, rows=120, rounds=rounds, eval_every=25, checkpoint_every=10,
            store="disk",
        )  # fmt: skip
        with RunDir(out) as folder:
            run_experiment(replace(setup), folder, watch)

    with Victim(act, log) as victim:
        return [json.loads(line) for line in victim.finish(seconds=3600).splitlines()]


@pytest.mark.promise("Stopping and resuming", "Memory and open files do not grow with rounds.")
@pytest.mark.parametrize("rounds", [100, pytest.param(1000, marks=pytest.mark.chaos)])
def test_memory_and_open_files_do_not_grow_with_rounds(rounds: int, tmp_path: Path) -> None:
    early, late = soak(rounds, tmp_path / "log", tmp_path / "run")
    whole, after = early.pop("memory"), late.pop("memory")
    drift = late.pop("own") - early.pop("own")
    print(f"{rounds} rounds: {whole / 1e6:.1f} MB after round 50, {drift / 1e6:+.2f} MB since")
    assert drift < min(20e6, 0.01 * whole)
    assert after - whole < 20e6
    assert late == early
