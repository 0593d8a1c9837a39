"""Runs between real sites by the commands that users type: the same results as simulations, also after deaths."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.deployed_federation import Deployed, atoll, environment, processes, wait_for

from atoll.api import run_setup
from atoll.config import Config
from atoll.deploy.export_sites import export_sites
from atoll.engine.setup import build_setup

pytestmark = pytest.mark.deploy
METHODS = ("fedavg", "dcpfl", "feddw", "fedpd", "pfedes", "scd")
SHARED = {"data": "digits", "rounds": 2, "epochs": 1, "seed": 3, "min_class_count": 10}  # as sites do by themselves
PUBLIC = 60  # rows
OWN: dict[str, dict[str, object]] = {"fedpd": {"server_model": "mlp_a"}}  # one that takes rows of eight by eight
SPEED = ("--round-timeout", 300, "--wait", 300, "--json")


def config(method: str, **more: object) -> Config:
    """Three clients with rows enough for each, in one process."""
    shape = {"rows": 360, "public": PUBLIC, "clients": 3, "backend": "loop"}
    return Config(method=method, **{**SHARED, **OWN.get(method, {}), **shape, **more})  # type: ignore[arg-type]


def options(values: dict[str, object]) -> list[object]:
    return [word for name, value in values.items() for word in (f"--{name.replace('_', '-')}", value)]


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """A server and three sites that have the rows of a simulation's clients."""
    folder = tmp_path_factory.mktemp("r")
    setup = build_setup(config("fedavg"))
    *files, public = export_sites(setup.federation, folder / "rows")
    made = Deployed(folder, setup.pool.ids).ready()
    made.allow_comparisons()  # with simulations, digit by digit, many a day
    for name, file in zip(setup.pool.ids, files, strict=True):
        made.site(name, file, "--model", setup.pool.models[name].name, "--public", public)
    for standing in made.sites.values():
        standing.said("Connected")
    yield made
    made.end()


def digest(fed: Deployed, method: str, *more: object) -> str:
    taught = ("--public", fed.folder / "rows" / "public.npz") if method == "fedpd" else ()
    done = fed.run(method, *options(SHARED | OWN.get(method, {})), *taught, *SPEED, *more)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["digest"]
    assert isinstance(found, str)
    return found


@pytest.mark.parametrize("method", METHODS)
def test_a_deployed_run_equals_the_simulated_one(fed: Deployed, method: str) -> None:
    assert digest(fed, method) == run_setup(build_setup(config(method))).result.summary["digest"]


def test_a_run_leaves_what_a_simulation_leaves(fed: Deployed) -> None:
    digest(fed, "fedavg", "--force")
    out = fed.home.runs / "fedavg-3"
    for name in ("config.yaml", "summary.json", "metrics.jsonl", "clients.parquet", "report.html"):
        assert (out / name).exists(), name
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2]
    again = fed.run("fedavg", *options(SHARED))
    assert again.returncode == 0, again.stderr
    assert "Report:" in again.stdout
    assert "fedavg" in again.stdout


def test_a_run_that_cannot_be_ends_with_an_error(fed: Deployed) -> None:
    """The server's part raises, and Flower's own command would say that all is well."""
    done = fed.run("fedavg", *options(SHARED), "--drop", 0.3, "--out", fed.folder / "wrong", *SPEED)
    assert done.returncode == 2
    assert "Error: " in done.stderr
    assert "Traceback" not in done.stderr


def test_two_runs_at_a_time_are_refused_and_a_run_can_be_stopped(fed: Deployed) -> None:
    out = fed.folder / "long"
    words = ["deploy", "run", fed.home.path, "fedavg", *options({**SHARED, "rounds": 500, "out": out}), *SPEED]
    run = subprocess.Popen([sys.executable, "-m", "atoll", *map(str, words)], env=environment(), stderr=subprocess.PIPE)
    wait_for("a first round", lambda: (out / "metrics.jsonl").exists() and (out / "metrics.jsonl").read_text())
    done = fed.run("dcpfl", *options(SHARED))
    assert done.returncode == 2
    assert "going on already" in done.stderr
    assert "was stopped" in atoll("deploy", "stop", fed.home.path).stdout
    assert run.wait(120) == 2
    assert fed.status()["runs"][0]["outcome"] == "stopped"


# -- deaths -----------------------------------------------------------------------------------------------------------


def victim(fed: Deployed, what: str) -> int:
    site = str(fed.home.site(next(iter(fed.sites))))
    words = {
        "server": (str(fed.server.process.pid),),
        "superlink": ("atoll.deploy.server.superlink", str(fed.home.path)),
        "gate": ("atoll.deploy.server.proxy", str(fed.home.path)),
        "connection": ("atoll.deploy.site.connection", site),
        "worker": ("atoll.deploy.site.worker", site),
        "serverapp": ("atoll.deploy.server.app_process", f":{fed.running().port}"),
    }[what]
    if what == "server":
        return fed.server.process.pid
    (found,) = processes(*words)
    return found


@pytest.mark.parametrize("what", ["worker", "connection", "gate", "superlink", "serverapp", "server"])
def test_a_run_goes_on_to_the_same_end_after_kill_9(fed: Deployed, what: str) -> None:
    """Killed after the first round; where the run itself ends, the same command is given again."""
    out = fed.folder / f"killed-{what}"
    words = ["deploy", "run", fed.home.path, "fedavg", *options({**SHARED, "rounds": 4, "out": out}), *SPEED]
    command = [sys.executable, "-m", "atoll", *map(str, words)]
    first = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for("a first round", lambda: (out / "metrics.jsonl").exists() and (out / "metrics.jsonl").read_text(), 300)
    os.kill(victim(fed, what), signal.SIGKILL)
    if what == "server":
        fed.server.process.wait()
        fed.server.start()
        fed.server.said("Ready")
    text, mistake = first.communicate(timeout=400)
    if first.returncode != 0:
        assert "The same command continues" in mistake or "does not answer" in mistake, mistake
        again = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=400)
        assert again.returncode == 0, again.stderr
        text = again.stdout
    assert json.loads(text)["digest"] == run_setup(build_setup(config("fedavg", rounds=4))).result.summary["digest"]
    rounds = [json.loads(line)["round"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert rounds == [1, 2, 3, 4]
