"""Rounds without a server: every client aggregates the uploads of its neighbours, and a complete graph is a star."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from atoll import run
from atoll.clients.server_side import ClientServers
from atoll.core.client import Client
from atoll.core.payloads import Nothing, Payload, equal, nbytes
from atoll.core.prng import Key
from atoll.core.task import Round
from atoll.engine.result import Result
from atoll.errors import AtollError
from atoll.inference.models import open_run
from atoll.inference.new_clients import find_source_run
from atoll.methods.fedavg import FedAvg, Global, Update
from atoll.storage import audit_log
from atoll.typing import ClientId

pytestmark = pytest.mark.usefixtures("without_report")
QUICK: dict[str, Any] = {"rows": 300, "clients": 5, "rounds": 3, "epochs": 1, "batch_size": 16, "backend": "loop"}


def states(result: Result) -> dict[ClientId, Payload]:
    assert isinstance(result.server, ClientServers)
    return dict(result.server.states)


def without(result: Result, *names: str) -> str:
    return json.dumps([{k: v for k, v in line.items() if k not in ("seconds", *names)} for line in result.history])


# -- the star is the complete graph -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", ["fedavg", "ditto", "scd", "fedproto", "dcpfl", "fedgh", "fedavgm", "fedrep", "fedkd", "local"]
)
def test_on_the_complete_graph_every_client_has_the_servers_state(method: str) -> None:
    options = {**QUICK, "rate": 0.6, "drop": "0.2"}
    star, complete = run(method, **options), run(method, **options, topology="complete")

    assert all(equal(state, star.server) for state in states(complete).values())
    assert len(states(complete)) == 5
    personal = [[line["personal"] for line in result.history] for result in (star, complete)]
    assert json.dumps(personal[0]) == json.dumps(personal[1])


def test_two_exchanges_on_the_complete_graph_are_those_of_the_star() -> None:
    star, complete = (run("fedmd", **QUICK, public=60, topology=name) for name in ("star", "complete"))

    assert all(equal(state, star.server) for state in states(complete).values())


# -- neighbours -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SendsMeanLabel(FedAvg):
    """Sends models whose weights are all the mean label of the client."""

    def client_update(self, down: Global, state: Nothing, client: Client, r: Round, k: Key) -> tuple[Update, Nothing]:
        label = client.y.float().mean()
        return Update({name: v * 0 + label for name, v in down.params.items()}, client.n, {}), state


def test_each_client_averages_its_neighbours_and_itself(tmp_path: Path) -> None:
    """A line a - b - c of clients 0, 1, 2: client 0 averages 0 and 1, client 1 all three, client 2 the clients 1 and 2,
    each weighted by rows."""
    (tmp_path / "line.txt").write_text("0 1\n1 2\n")
    options = {"rows": 200, "clients": 3, "rounds": 1, "backend": "loop"}
    result = run(SendsMeanLabel(), **options, topology=str(tmp_path / "line.txt"))

    n = [len(result.pool.train[at].y) for at in range(3)]
    label = [float(result.pool.train[at].y.float().mean()) for at in range(3)]
    heard = {"0": (0, 1), "1": (0, 1, 2), "2": (1, 2)}
    assert len(set(label)) == 3
    for i, state in states(result).items():
        mean = sum(n[j] * label[j] for j in heard[i]) / sum(n[j] for j in heard[i])
        for value in state.params.values():
            assert torch.allclose(value, torch.tensor(mean), atol=1e-5)


def test_bytes_are_counted_for_each_edge() -> None:
    """A ring of five has two edges at each client, the complete graph four; what is sent is received."""
    ring, complete = (run(**QUICK, topology=name) for name in ("ring", "complete"))
    star = run(**QUICK)

    upload = star.summary["bytes"]["up"]
    assert upload == QUICK["rounds"] * 5 * nbytes(Update(star.server.params, torch.tensor(1.0), {}))
    assert ring.summary["bytes"]["up"] == ring.summary["bytes"]["down"] == 2 * upload
    assert complete.summary["bytes"]["up"] == complete.summary["bytes"]["down"] == 4 * upload


def test_every_client_does_the_work_of_a_server() -> None:
    """FedGH's server trains a head on the replies of a round. On the ring each of five clients hears three."""
    star, complete = (run("fedgh", **QUICK, topology=name).summary["flops"]["server"] for name in ("star", "complete"))

    assert star > 0
    assert complete == 5 * star


def test_generic_model_is_each_clients_own() -> None:
    result = run(**QUICK, topology="ring")

    generic = result.history[-1]["generic"]
    assert generic is not None
    assert generic["source"] == "clients"
    test, model = result.pool.test, result.pool.task().model
    own = [model(state.params, test.all.x) for state in states(result).values()]
    accuracies = [float((logits.argmax(1) == test.all.y).float().mean()) for logits in own]
    assert len(set(accuracies)) > 1
    assert generic["global"]["accuracy"] == pytest.approx(sum(accuracies) / 5)
    assert result.generic() is None


# -- backends, files --------------------------------------------------------------------------------------------------


def test_worker_processes_give_the_run_of_the_loop() -> None:
    options = {**QUICK, "topology": "ring"}
    loop, processes = run("ditto", **options), run("ditto", **{**options, "backend": "processes"}, workers=2)

    assert loop.summary["digest"] == processes.summary["digest"]


def test_vmap_gives_nearly_the_run_of_the_loop() -> None:
    loop, vmap = (run("ditto", **{**QUICK, "backend": name}, topology="ring") for name in ("loop", "vmap"))

    for i, state in states(loop).items():
        for name, value in state.params.items():
            assert torch.allclose(states(vmap)[i].params[name], value, atol=1e-6)


def test_resumed_run_equals_the_longer_one(tmp_path: Path) -> None:
    options = {**QUICK, "topology": "ring", "rate": 0.6, "checkpoint_every": 1}
    whole = run("ditto", **{**options, "rounds": 6}, out=tmp_path / "whole")
    run("ditto", **options, out=tmp_path / "part")

    resumed = run("ditto", **{**options, "rounds": 6}, out=tmp_path / "part", resume=True)

    assert resumed.summary["digest"] == whole.summary["digest"]
    assert without(resumed) == without(whole)
    logs = [list(audit_log.read(tmp_path / name / audit_log.NAME)) for name in ("part", "whole")]
    assert logs[0] == logs[1]
    assert len(logs[0]) == 6 * 3  # an upload is one record, however many neighbours receive it


def test_other_edges_in_the_file_are_another_run(tmp_path: Path) -> None:
    graph = tmp_path / "graph.txt"
    graph.write_text("0 1\n1 2\n2 3\n3 4\n")
    run("fedavg", **QUICK, topology=str(graph), out=tmp_path / "run")
    graph.write_text("0 1\n1 2\n2 3\n3 4\n4 0\n")

    with pytest.raises(AtollError, match="belongs to another configuration"):
        run("fedavg", **{**QUICK, "rounds": 4}, topology=str(graph), out=tmp_path / "run", resume=True)


def test_saved_models_are_those_of_the_result(tmp_path: Path) -> None:
    result = run("fedavg", **QUICK, topology="ring", out=tmp_path)
    saved = open_run(tmp_path)

    x = result.pool.test.all.x
    outputs = [result.personal(i)(x) for i in result.pool.ids]
    assert not torch.equal(outputs[0], outputs[1])
    for i, output in zip(result.pool.ids, outputs, strict=True):
        assert torch.equal(saved.personal(i)(x), output)
    assert saved.generic() is None


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("scaffold", {}, "cannot run scaffold: its server keeps the mean of all clients' variates"),
        ("fd", {}, "cannot run fd: its server keeps a state for each client"),
        ("fedavg", {"deadline": 1.0}, "topology ring and deadline exclude each other"),
        ("fedavg", {"schedule": "buffered:2"}, "topology ring and schedule='buffered:2' exclude each other"),
    ],
)
def test_what_needs_a_server_is_refused(method: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(AtollError, match=message):
        run(method, **QUICK, **options, topology="ring")


def test_new_clients_cannot_join_a_run_without_a_server() -> None:
    with pytest.raises(AtollError, match="no server for new clients to ask"):
        find_source_run(run(**QUICK, topology="ring"))
