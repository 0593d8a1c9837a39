"""A Ray cluster: the bits of the loop, whatever happens to a worker or a node; without Ray, a clear word."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.odd_uploads import ODD, Odd
from support.paths import ROOT, TESTS
from support.ray_witness import Witness
from support.small_runs import run, setup

from atoll.backends import ray_backend
from atoll.config import Config
from atoll.engine.build import run_experiment
from atoll.engine.result import Result
from atoll.engine.setup import build_setup
from atoll.errors import AtollError

NODES = TESTS / "support" / "ray_nodes.py"


def test_without_ray_the_message_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_backend, "find_spec", lambda name: None)
    with pytest.raises(AtollError, match="pip install ray"):
        run_experiment(setup("fedavg", backend="ray"))


def test_a_run_on_a_cluster_is_the_run_of_the_loop() -> None:
    assert Config(backend="ray").identity() == Config(backend="loop").identity()
    assert Config(backend="ray").identity() != Config(backend="vmap").identity()


def test_the_package_does_not_import_ray() -> None:
    script = "import sys, atoll.cli, atoll.backends.ray_backend; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_a_method_file_travels_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another machine the module is not there: it is made again, payload classes and all."""
    file = tmp_path / "mine.py"
    file.write_text("from atoll.methods.fedavg import FedAvg\n\n\nclass Mine(FedAvg):\n    pass\n")
    made = ray_backend.package_method(build_setup(Config(method=str(file), rows=100, clients=2)).method)
    ((name, source),) = made.sources
    assert source == file.read_text()
    monkeypatch.delitem(sys.modules, name)
    assert type(ray_backend.method_from(made)) is sys.modules[name].Mine


def test_a_method_of_the_script_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Witness, "__module__", "__main__")
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    with pytest.raises(AtollError, match="a file of its own"):
        ray_backend.package_method(Witness())


def test_other_versions_are_refused() -> None:
    made = ray_backend.package_method(setup("fedavg").method)
    with pytest.raises(AtollError, match=r"torch 1\.0"):
        ray_backend.method_from(made._replace(versions=ray_backend.HERE._replace(torch="1.0")))


@pytest.mark.parametrize("address", ["ray://10.0.0.1:10001"])
def test_a_remote_control_of_a_cluster_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(AtollError, match="HOST:PORT"):
        ray_backend._connect(None, None)


# -- with Ray ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """A Ray of this machine's that several runs use, as that of a program that has its own."""
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", str(TESTS))  # Workers need the methods and uploads of tests/support.
    found = ray_backend.require()
    ray_backend._connect(found, 2)
    yield found
    found.shutdown()
    patch.undo()


@pytest.mark.deploy
@pytest.mark.parametrize("method", ["fedavg", "ditto", "dcpfl", "scd"])
def test_a_cluster_gives_the_bits_of_the_loop(method: str, ray: Any) -> None:
    assert run(method, backend="ray", workers=2).summary["digest"] == run(method).summary["digest"]
    assert ray.is_initialized(), "the run ended a Ray that was not its own"


def witnessed(folder: Path, **more: Any) -> Result:
    made = setup("ditto", backend="ray", workers=2)
    method = Witness(made.method.optim, personal_optim=made.method.personal_optim, folder=str(folder), **more)
    return run_experiment(replace(made, method=method))


@pytest.mark.deploy
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("deadly", [1, 2])
def test_a_dead_worker_loses_nothing(ray: Any, tmp_path: Path, deadly: int, late: bool) -> None:
    """Two deaths can meet one client or two: either way nobody has three."""
    result = witnessed(tmp_path, deadly=deadly, late=late)
    assert len(list(tmp_path.glob("death-*"))) == deadly
    assert result.summary["digest"] == run("ditto").summary["digest"]


@pytest.mark.deploy
def test_a_client_that_kills_every_worker_counts_as_absent(ray: Any, tmp_path: Path) -> None:
    """Five clients with three tries each die fifteen times; then nobody is left, and the run says so."""
    with pytest.raises(AtollError, match="three Ray workers died"):
        witnessed(tmp_path, deadly=15)
    assert len(list(tmp_path.glob("death-*"))) == 15


@pytest.mark.deploy
@pytest.mark.parametrize("kind", ODD)
def test_odd_upload_of_one_client_is_rejected_as_in_the_loop(kind: str, ray: Any) -> None:
    made = setup("fedavg", backend="ray", workers=2, strikes=0)
    odd = Odd(optim=made.method.optim, kind=kind, bad=float(made.pool.train.size(1)))
    results = [
        run_experiment(replace(made, method=odd, config=replace(made.config, backend=backend)))
        for backend in ("ray", "loop")
    ]
    assert results[0].history[-1]["rejected"] == results[1].history[-1]["rejected"]
    assert results[0].summary["digest"] == results[1].summary["digest"]


@pytest.mark.deploy
def test_error_of_all_clients_on_a_cluster_is_raised_with_its_traceback(ray: Any) -> None:
    made = setup("fedavg", backend="ray", workers=2, strikes=0, rounds=4)

    with pytest.raises(KeyError, match="no such key") as caught:
        run_experiment(replace(made, method=Odd(optim=made.method.optim, kind="exception", bad=0.0)))

    notes = "".join(caught.value.__notes__)
    assert "the code of all clients failed (5 of 5)" in notes
    assert "odd_uploads.py" in notes


@pytest.mark.deploy
def test_two_nodes_and_the_loss_of_one(tmp_path: Path) -> None:
    """Head and second node with a token; the second one is killed with a client's work on it."""
    namespace = ["unshare", "-rnpf", "--mount-proc", "--kill-child"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(str(path) for path in (ROOT, TESTS, ROOT / "src"))}
    environment.pop(ray_backend.LOOPBACK, None)  # set by the tests above, for a Ray of this process alone
    ran = subprocess.run(
        ["timeout", "-s", "KILL", "400", *namespace, sys.executable, str(NODES), str(tmp_path)],
        env=environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]
    told = json.loads(ran.stdout.splitlines()[-1])
    assert told["both"] == [told["loop"], 2]  # the same digest, and both nodes had work
    assert told["killed"] == [told["loop"], 2]
    code, message = told["stranger"]
    assert code != 0
    assert "Cannot join the Ray cluster" in message
