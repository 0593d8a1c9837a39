"""What every method must obey: one test for each law, over the whole registry."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from atoll import registry
from atoll.assemble import Setup, assemble
from atoll.backends.inprocess import Loop
from atoll.config import Config
from atoll.core import Method, Need, Reply, Round, contract
from atoll.errors import AtollError
from atoll.experiment import conduct
from atoll.key import key
from atoll.payload import equal, pack, unpack
from atoll.result import Result
from atoll.run import Job, play
from atoll.rundir import RunDir
from atoll.settings import make
from atoll.store import DiskStore, MemoryStore
from atoll.wire import decode, encode, schema

METHODS = sorted(registry.methods())
SPECS = METHODS + [f"{name}:{variant}" for name in METHODS for variant in registry.method(name).variants]
WIRE = Path(__file__).parent / "wire"


@cache
def setup(name: str, **changes: Any) -> Setup:
    """Five clients with unlike numbers of rows, so that batches are padded under vmap."""
    options: dict[str, Any] = {
        "clients": 5, "partition": "dirichlet:0.5", "rounds": 3, "eval_every": 3, "epochs": 1, "batch_size": 16,
        "backend": "loop",
    }  # fmt: skip
    return assemble(Config(method=name, **options | changes))


@cache
def run(name: str, **changes: Any) -> Result:
    return conduct(setup(name, **changes))


def states(result: Result) -> dict[str, Any]:
    return {i: result.state(i) for i in result.fleet.ids}


def gap(a: Any, b: Any) -> float:
    """The largest difference between two payloads of the same form."""
    p, q = pack(a).tensors, pack(b).tensors
    assert p.keys() == q.keys()
    return max((float((p[n].double() - q[n].double()).abs().max()) for n in p if p[n].numel()), default=0.0)


# -- law 1: the backend, the order of clients and where states are kept do not matter ---------------------------------


@pytest.mark.parametrize("name", SPECS)
def test_vmap_gives_what_the_loop_gives(name: str) -> None:
    loop, vmap = run(name), run(name, backend="vmap")
    assert gap(loop.server, vmap.server) <= 1e-5
    for i, state in states(loop).items():
        assert gap(state, vmap.state(i)) <= 1e-5


@pytest.mark.parametrize("name", METHODS)
def test_clients_may_run_in_any_order(name: str) -> None:
    made = setup(name)
    task, forwards = made.fleet.task(), made.fleet.ids
    outcomes = []
    for ids in (forwards, forwards[::-1]):
        backend, server = Loop(made.fleet, MemoryStore()), made.method.init_server(task, key(0))
        jobs = [Job(i, Round(0), made.method.broadcast(server, i, task, Round(0))) for i in ids]
        uploads = {o.sender: o.upload for o in backend.train(made.method, 0, jobs)}
        outcomes.append((uploads, {rest.sender: rest.state for rest in backend.rest()}))
    for i in forwards:
        assert equal(outcomes[0][0][i], outcomes[1][0][i])
        assert equal(outcomes[0][1][i], outcomes[1][1][i])


@pytest.mark.parametrize("name", METHODS)
def test_a_store_on_disk_with_room_for_one_gives_the_same(name: str, tmp_path: Path) -> None:
    made = setup(name)
    kept = []
    for store in (MemoryStore(), DiskStore(tmp_path, contract(made.method).state, cache=1)):
        backend, task = Loop(made.fleet, store), made.fleet.task()
        server = made.method.init_server(task, key(0))
        for t in range(2):
            server, _ = play(made.method, task, backend, server, t, 0, 0.6, ())
        kept.append([server, *(backend.state(made.method, 0, i) for i in made.fleet.ids)])
    assert all(equal(a, b) for a, b in zip(*kept, strict=True))


@pytest.mark.parametrize("name", METHODS)
def test_worker_processes_give_the_bits_of_the_loop(name: str) -> None:
    assert run(name, backend="processes", workers=2).summary["digest"] == run(name).summary["digest"]


# -- law 2: a run through checkpoints equals a run without ------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_resuming_after_any_round_changes_nothing(name: str, tmp_path: Path) -> None:
    made = setup(name, rate=0.6)
    whole = conduct(made)
    short = replace(made, config=replace(made.config, rounds=1, checkpoint_every=1))
    with RunDir(tmp_path) as folder:
        folder.start(short.config, resume=False, force=False)
        conduct(short, folder)
        resumed = conduct(made, folder)
    assert resumed.summary["digest"] == whole.summary["digest"]


# -- law 3: payloads survive the wire ---------------------------------------------------------------------------------


@cache
def exchange(name: str) -> tuple[Any, Any, Any, Any]:
    """Download, upload and both states of the second round, when everything that may be sent is sent."""
    made = setup(name)
    task, backend = made.fleet.task(), Loop(made.fleet, MemoryStore())
    server = made.method.init_server(task, key(0))
    server, _ = play(made.method, task, backend, server, 0, 0, 1.0, ())
    i = made.fleet.ids[0]
    down = made.method.broadcast(server, i, task, Round(1))
    (outcome,) = backend.train(made.method, 0, [Job(i, Round(1), down)])
    (rest,) = backend.rest()
    return down, outcome.upload, rest.state, server


@pytest.mark.parametrize("name", SPECS)
def test_packing_loses_nothing(name: str) -> None:
    for p in exchange(name):
        assert equal(unpack(type(p), *pack(p)), p)
        again = decode(type(p), encode(p))
        assert equal(again, p)
        assert encode(again) == encode(p)


@pytest.mark.parametrize("name", SPECS)
def test_a_method_sends_what_it_declares(name: str) -> None:
    down, up, state, server = exchange(name)
    types = contract(setup(name).method)
    assert (type(down), type(up), type(state), type(server)) == (
        types.download,
        types.upload,
        types.state,
        types.server,
    )


# -- law 4: inputs are left alone -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_inputs_stay_bit_identical(name: str) -> None:
    made = setup(name)
    method: Method[Any, Any, Any, Any] = made.method
    task, i = made.fleet.task(), made.fleet.ids[0]
    client, k = made.fleet.client(i), key(1)
    server = method.init_server(task, k)
    down, state = method.broadcast(server, i, task, Round(0)), method.init_client(client, k)
    before = [encode(p) for p in (server, down, state)]
    rows = client.x.clone(), client.y.clone()
    with torch.no_grad():
        up, _ = method.local(down, state, client, k)
        sent = encode(up)
        if method.after_upload:
            method.after_upload(down, up, state, client, k)
        method.aggregate(server, iter([Reply(i, up)]), task, Round(0), k)
    assert [encode(p) for p in (server, down, state)] == before
    assert encode(up) == sent
    assert torch.equal(client.x, rows[0])
    assert torch.equal(client.y, rows[1])


@pytest.mark.parametrize("name", METHODS)
def test_nothing_draws_from_the_global_generator(name: str) -> None:
    torch.manual_seed(1)
    first = run(name).summary["digest"]
    before = torch.get_rng_state()
    torch.manual_seed(2)
    assert conduct(setup(name)).summary["digest"] == first
    torch.manual_seed(1)
    conduct(setup(name))
    assert torch.equal(torch.get_rng_state(), before)


# -- law 5: degenerate hyper-parameters give the simpler method, bit for bit ------------------------------------------


def models_of(result: Result) -> dict[str, Any]:
    """Every client's personal model on its test rows."""
    fleet = result.fleet
    return {i: result.personal(i)(fleet.test[fleet.position(i)].x) for i in fleet.ids}


def same_models(a: Result, b: Result) -> bool:
    x, y = models_of(a), models_of(b)
    return all(torch.equal(x[i], y[i]) for i in x)


PERSONAL = {"personal_optim.epochs": 1, "personal_optim.batch_size": 16}  # as the common optimiser of these tests


def made_with(name: str, **settings: Any) -> Result:
    plain = setup(name)
    return conduct(replace(plain, method=make(name, settings, optimiser=plain.config.optimiser_options)))


def test_fedprox_without_pull_is_fedavg() -> None:
    assert equal(made_with("fedprox", mu=0.0).server, run("fedavg").server)


def test_feddw_without_term_is_fedavg_with_a_bias_free_head() -> None:
    dw = made_with("feddw", mu=0.0)
    plain = conduct(replace(setup("fedavg"), fleet=setup("feddw").fleet))
    assert gap_params(dw.server.params, plain.server.params) == 0


@pytest.mark.parametrize("host", ["fedavg", "fedprox", "moon", "feduv", "feddistill", "scd", "ditto"])
def test_a_dw_term_of_weight_zero_changes_nothing_in_its_host(host: str) -> None:
    with_dw = setup(host, terms=("dw:mu=0",))
    plain = conduct(replace(setup(host), fleet=with_dw.fleet))
    assert gap_params(conduct(with_dw).server.params, plain.server.params) == 0


@pytest.mark.parametrize(
    ("name", "off"),
    [
        ("moon", {"mu": 0.0}),
        ("feduv", {"lam_v": 0.0, "lam_u": 0.0}),
        ("feddistill", {"gamma": 0.0}),
        ("scd", {"lam_g": 0.0}),
    ],
)
def test_a_term_of_weight_zero_leaves_fedavg(name: str, off: dict[str, float]) -> None:
    assert gap_params(made_with(name, **off).server.params, run("fedavg").server.params) == 0


def test_scd_without_its_personal_term_has_local_personal_models() -> None:
    apart = made_with("scd", lam_p=0.0, **PERSONAL)
    assert same_models(apart, run("local"))
    assert same_models(made_with("scd:no-both", **PERSONAL), apart)


def test_fedproto_without_pull_is_local() -> None:
    assert same_models(made_with("fedproto", lam=0.0), run("local"))


def test_ditto_without_pull_has_local_personal_models_and_always_fedavgs_global_one() -> None:
    assert same_models(made_with("ditto", lam=0.0, **PERSONAL), run("local"))
    assert equal(run("ditto").server, run("fedavg").server)


def test_dcpfl_without_its_two_calibrations_is_fedgh_by_client() -> None:
    bare = made_with("dcpfl", lam=0.0, virtual=0)
    fedgh = made_with("fedgh", server_mode="per_client_mean")
    assert gap_params(bare.server.head, fedgh.server.head) == 0
    assert same_models(bare, fedgh)


def test_fedavg_and_local_agree_on_a_single_client() -> None:
    alone = {"clients": 1, "partition": "iid"}
    assert same_models(run("fedavg", **alone), run("local", **alone))


def test_pfedes_with_neither_branch_nor_proxy_training_is_local() -> None:
    assert same_models(made_with("pfedes", mu=0.0), run("local"))


def gap_params(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[n] - b[n]).abs().max()) for n in a)


# -- law 7: what leaves a client is a reviewed file -------------------------------------------------------------------


@pytest.mark.parametrize("name", SPECS)
def test_what_travels_is_what_the_golden_file_says(name: str) -> None:
    down, up, _, _ = exchange(name)
    found = {"down": schema(down), "up": schema(up)}
    golden = WIRE / f"{name.replace(':', '-')}.json"
    assert golden.exists(), f"{golden.name} is missing; it should hold {json.dumps(found)}"
    assert found == json.loads(golden.read_text())


# -- law 8: a broken upload leaves no trace ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in METHODS if n != "local"])  # local uploads nothing that could break
def test_a_broken_upload_leaves_the_run_as_if_the_client_were_absent(name: str) -> None:
    made = setup(name)
    task, bad = made.fleet.task(), made.fleet.ids[2]

    class Saboteur(Loop):
        def train(self, method: Any, seed: int, jobs: Any) -> Any:
            for outcome in super().train(method, seed, jobs):
                yield outcome._replace(upload=poisoned(outcome.upload)) if outcome.sender == bad else outcome

    class Absent(Loop):
        def train(self, method: Any, seed: int, jobs: Any) -> Any:
            return super().train(method, seed, [job for job in jobs if job.client != bad])

    kept = []
    for kind in (Saboteur, Absent):
        backend, server = kind(made.fleet, MemoryStore()), made.method.init_server(task, key(0))
        for t in range(2):
            server, log = play(made.method, task, backend, server, t, 0, 1.0, ())
            assert [r.client for r in log.rejected] == ([bad] if kind is Saboteur else [])
        kept.append([server, *(backend.state(made.method, 0, i) for i in made.fleet.ids)])
    assert all(equal(a, b) for a, b in zip(*kept, strict=True))


def poisoned(upload: Any) -> Any:
    """The upload with NaN in the last of its floating-point tensors."""
    packed = pack(upload)
    name = [n for n, t in packed.tensors.items() if t.is_floating_point()][-1]
    packed.tensors[name] = torch.full_like(packed.tensors[name], float("nan"))
    return unpack(type(upload), *packed)


# -- unlike models: a method works, or refuses with the reason --------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_unlike_models_work_or_are_refused_with_the_reason(name: str) -> None:
    mixed = {"models": ("mlp:hidden=32", "mlp:hidden=64"), "width": 24}
    if Need.SAME_ARCHITECTURE in registry.method(name).needs:
        with pytest.raises(AtollError, match="one architecture"):
            setup(name, **mixed)
    else:
        loop, vmap = run(name, **mixed), run(name, **mixed, backend="vmap")
        assert loop.summary["status"] == "finished"
        assert gap(loop.server, vmap.server) <= 1e-5
