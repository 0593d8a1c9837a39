"""What every method must obey: one test for each law, over the whole registry."""

import json
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from support.paths import TESTS
from support.small_runs import PERSONAL, gap, gap_params, made_with, resumed, run, same_models, setup

from atoll.backends.loop import LoopBackend
from atoll.backends.vmap import VmapBackend
from atoll.clients import method_calls
from atoll.clients.participation import take_part
from atoll.clients.pool import ClientPool
from atoll.clients.server_side import ClientServers, ServerSideStates
from atoll.clients.state_store import DiskStore, MemoryStore, Store
from atoll.clients.tasks import ClientTask
from atoll.core.client import Client
from atoll.core.contract import contract, exchanges_of
from atoll.core.limits import why_star
from atoll.core.method import Method, traits_of
from atoll.core.payloads import equal, pack, unpack
from atoll.core.prng import key
from atoll.core.replies import Replies
from atoll.core.serialization import decode, encode, schema
from atoll.core.task import Reply, Round
from atoll.core.traits import Need
from atoll.engine.build import run_experiment
from atoll.engine.cohort import sample_cohort
from atoll.engine.round import run_round
from atoll.engine.setup import Setup
from atoll.errors import AtollError
from atoll.methods import _registry
from atoll.simulation.topology import read_topology
from benchmarks.digests import PUBLIC

METHODS = sorted(_registry.methods())
SPECS = METHODS + [f"{name}:{variant}" for name in METHODS for variant in _registry.method(name).traits.variants]
VECTORISABLE = [name for name in SPECS if traits_of(_registry.method(name.partition(":")[0])).vmap is not False]
WIRE = TESTS / "wire"
# -- law 1: the backend, the order of clients and where states are kept do not matter ---------------------------------


class Twins(LoopBackend):
    """A loop that has everything done by vmap as well, from the same states and messages, and notes the differences."""

    def __init__(self, pool: ClientPool):
        super().__init__(pool, MemoryStore())
        self.other, self.gaps = VmapBackend(pool, self.store), list[float]()

    def train(self, method: Any, seed: int, jobs: Any) -> Any:
        mine = list(super().train(method, seed, jobs))
        theirs = self.other.train(method, seed, jobs)
        self.gaps += [gap(a.upload, b.upload) for a, b in zip(mine, theirs, strict=True)]
        yield from mine

    def results(self) -> Any:
        mine = list(super().results())
        self.gaps += [gap(a.state, b.state) for a, b in zip(mine, self.other.results(), strict=True)]
        yield from mine


def assert_vmap_agrees(made: Setup) -> None:
    """To 1e-6; but a ReLU whose input is 0 up to rounding may open for the one and not for the other, for a few."""
    twins, task, per_client_states = Twins(made.pool), made.pool.task(), MemoryStore()
    server = made.method.init_server(task, key(0))
    for t in range(2):
        server, _ = run_round(
            made.method, task, twins, server, t=t, seed=0, cohort=task.clients, per_client_states=per_client_states
        )
    close = sum(g <= 1e-6 for g in twins.gaps)
    assert close >= 0.8 * len(twins.gaps), twins.gaps
    assert max(twins.gaps) <= 1e-2


@pytest.mark.parametrize("name", VECTORISABLE)
def test_vmap_backend_agrees_with_loop_up_to_rounding(name: str) -> None:
    assert_vmap_agrees(setup(name))


@pytest.mark.parametrize("name", METHODS)
def test_order_of_clients_in_a_round_changes_no_bit(name: str) -> None:
    made = setup(name)
    task, forwards = made.pool.task(), made.pool.ids
    outcomes = []
    for ids in (forwards, forwards[::-1]):
        backend, server = LoopBackend(made.pool, MemoryStore()), made.method.init_server(task, key(0))
        server_side = ServerSideStates(made.method, task, 0, MemoryStore())
        for r in (Round(0, at) for at in range(len(exchanges_of(made.method)))):
            jobs = [ClientTask(i, r, server_side.download(server, i, r)) for i in ids]
            uploads = {o.sender: o.upload for o in backend.train(made.method, 0, jobs)}
            for results in backend.results():
                backend.commit(results)
            replies = server_side.serve_replies(server, (Reply(i, uploads[i]) for i in forwards), r)
            with torch.no_grad():
                server = method_calls.aggregate(made.method, server, Replies(replies), task, r, key(0))
            outcomes += [uploads[i] for i in forwards]
        outcomes += [server, *(backend.store.get(i) for i in forwards)]
    half = len(outcomes) // 2
    assert all(equal(a, b) for a, b in zip(outcomes[:half], outcomes[half:], strict=True))


@pytest.mark.parametrize("name", METHODS)
def test_on_the_complete_graph_every_client_has_the_state_of_the_server(name: str) -> None:
    made = setup(name)
    if why_star(made.method):
        pytest.skip("needs a server")
    task, neighbours = made.pool.task(), read_topology("complete", made.pool.ids)
    star = made.method.init_server(task, key(0))
    graph = ClientServers(dict.fromkeys(task.clients, star), neighbours or {})
    backends = [LoopBackend(made.pool, MemoryStore()) for _ in range(2)]
    for t in range(2):
        cohort = sample_cohort(task.clients, 0.6, 0, t)
        star, _ = run_round(made.method, task, backends[0], star, t=t, seed=0, cohort=cohort)
        graph, _ = run_round(made.method, task, backends[1], graph, t=t, seed=0, cohort=cohort)
    assert len(graph.states) == len(task.clients)
    assert all(equal(state, star) for state in graph.states.values())
    assert all(equal(*(backend.state(made.method, 0, i) for backend in backends)) for i in task.clients)


@pytest.mark.parametrize("name", METHODS)
def test_disk_store_with_cache_for_one_client_gives_same_states(name: str, tmp_path: Path) -> None:
    made = setup(name)
    kept = []
    types = contract(made.method)
    on_disk = (
        DiskStore(tmp_path / "states", types.state, cache=1),
        DiskStore(tmp_path / "desks", types.per_client, cache=1),
    )
    for store, per_client_states in ((MemoryStore(), MemoryStore()), on_disk):
        backend, task = LoopBackend(made.pool, store), made.pool.task()
        server = made.method.init_server(task, key(0))
        for t in range(2):
            server, _ = run_round(
                made.method,
                task,
                backend,
                server,
                t=t,
                seed=0,
                cohort=sample_cohort(task.clients, 0.6, 0, t),
                per_client_states=per_client_states,
            )
        kept.append([server, *everything(made, backend, per_client_states)])
    assert all(equal(a, b) for a, b in zip(*kept, strict=True))


def everything(made: Setup, backend: LoopBackend, per_client_states: Store) -> list[Any]:
    """The state of every client, and the desks in use."""
    return [
        *(backend.state(made.method, 0, i) for i in made.pool.ids),
        *(per_client_states.get(i) for i in per_client_states),
    ]


@pytest.mark.parametrize("name", METHODS)
def test_process_backend_gives_same_digest_as_loop(name: str) -> None:
    assert run(name, backend="processes", workers=2).summary["digest"] == run(name).summary["digest"]


# -- law 2: a run through checkpoints equals a run without ------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_resume_from_checkpoint_gives_same_digest(name: str, tmp_path: Path) -> None:
    made = setup(name, rate=0.6)
    whole = run_experiment(made)
    assert resumed(made, tmp_path).summary["digest"] == whole.summary["digest"]


# -- law 3: payloads survive the wire ---------------------------------------------------------------------------------


class Exchanged(NamedTuple):
    sent: list[tuple[Any, Any]]  # download and upload of each phase
    state: Any
    server: Any
    per_client: Any  # None for methods that keep none


@cache
def exchange(name: str) -> Exchanged:
    """What one client exchanges in the second round, when everything that may be sent is sent, and what is kept.

    With all rows of digits, in few steps: the golden files have the number of classes that the client holds.
    """
    made = setup(name, rows=None, batch_size=64)
    method, task, backend, per_client_states = (
        made.method,
        made.pool.task(),
        LoopBackend(made.pool, MemoryStore()),
        MemoryStore(),
    )
    server = method.init_server(task, key(0))
    server, _ = run_round(
        method, task, backend, server, t=0, seed=0, cohort=task.clients, per_client_states=per_client_states
    )
    i, sent, server_side = made.pool.ids[0], [], ServerSideStates(method, task, 0, per_client_states)
    for r in (Round(1, at) for at in range(len(exchanges_of(method)))):
        down = server_side.download(server, i, r)
        (outcome,) = backend.train(method, 0, [ClientTask(i, r, down)])
        (results,) = backend.results()
        backend.commit(results)
        sent.append((down, outcome.upload))
        with torch.no_grad():
            replies = server_side.serve_replies(server, iter([Reply(i, outcome.upload)]), r)
            server = method_calls.aggregate(method, server, Replies(replies), task, r, key(0))
    return Exchanged(sent, results.state, server, server_side.get(i))


@pytest.mark.parametrize("name", SPECS)
def test_packed_and_encoded_payloads_are_restored_bit_for_bit(name: str) -> None:
    sent, *kept = exchange(name)
    for p in (p for p in chain(*sent, kept) if p is not None):
        assert equal(unpack(type(p), *pack(p)), p)
        again = decode(type(p), encode(p))
        assert equal(again, p)
        assert encode(again) == encode(p)


@pytest.mark.parametrize("name", SPECS)
def test_messages_and_states_have_the_declared_payload_classes(name: str) -> None:
    found, types = exchange(name), contract(setup(name).method)
    assert [(type(down), type(up)) for down, up in found.sent] == list(types.exchanges)
    assert (type(found.state), type(found.server)) == (types.state, types.server)
    assert found.per_client is None or type(found.per_client) is types.per_client


# -- law 4: inputs are left alone -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_method_functions_do_not_modify_their_inputs(name: str) -> None:
    made = setup(name)
    method: Method[Any, Any, Any, Any] = made.method
    task, i = made.pool.task(), made.pool.ids[0]
    client, k = made.pool.client(i), key(1)
    server_side, rows = ServerSideStates(method, task, 0, MemoryStore()), encode_rows(client)
    server, state = method.init_server(task, k), method_calls.init_client(method, client, k)
    for r in (Round(0, at) for at in range(len(exchanges_of(method)))):
        down, per_client = server_side.download(server, i, r), server_side.get(i)
        given = [p for p in (server, down, state, per_client) if p is not None]
        before = [encode(p) for p in given]
        with torch.no_grad():
            part = take_part(method, r, down, state, client, k)
            up, sent, after = part.upload, encode(part.upload), part.finish()
            replies = Replies(server_side.serve_replies(server, iter([Reply(i, up)]), r))
            later = method_calls.aggregate(method, server, replies, task, r, k)
        assert [encode(p) for p in given] == before
        assert encode(up) == sent
        server, state = later, after
    assert encode_rows(client) == rows


def encode_rows(client: Client) -> list[bytes]:
    return [v.numpy().tobytes() for v in (client.x, client.y, client.public) if v is not None]


@pytest.mark.parametrize("name", METHODS)
def test_run_neither_reads_nor_advances_the_global_generator(name: str) -> None:
    torch.manual_seed(1)
    first = run(name).summary["digest"]
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert run_experiment(setup(name)).summary["digest"] == first
    assert torch.equal(torch.get_rng_state(), before)


# -- law 5: degenerate hyper-parameters give the simpler method, bit for bit ------------------------------------------


def test_fedprox_with_mu_zero_equals_fedavg() -> None:
    assert equal(made_with("fedprox", mu=0.0).server, run("fedavg").server)


def test_feddw_with_mu_zero_equals_fedavg_with_bias_free_head() -> None:
    dw = made_with("feddw", mu=0.0)
    plain = run_experiment(replace(setup("fedavg"), pool=setup("feddw").pool))
    assert gap_params(dw.server.params, plain.server.params) == 0


@pytest.mark.parametrize(
    "host", [name for name in METHODS if hasattr(_registry.method(name), "regularisers") and name != "feddw"]
)
def test_dw_regulariser_of_weight_zero_leaves_the_method_unchanged(host: str) -> None:
    with_dw = setup(host, terms=("dw:mu=0",))
    plain = run_experiment(replace(setup(host), pool=with_dw.pool))
    assert gap_params(run_experiment(with_dw).server.params, plain.server.params) == 0


@pytest.mark.parametrize(
    ("name", "off"),
    [
        ("moon", {"mu": 0.0}),
        ("feduv", {"lam_v": 0.0, "lam_u": 0.0}),
        ("feddistill", {"gamma": 0.0}),
        ("scd", {"lam_g": 0.0}),
    ],
)
def test_method_with_loss_weight_zero_equals_fedavg(name: str, off: dict[str, float]) -> None:
    assert gap_params(made_with(name, **off).server.params, run("fedavg").server.params) == 0


def test_scd_with_lam_p_zero_has_local_personal_models() -> None:
    apart = made_with("scd", lam_p=0.0, **PERSONAL)
    assert same_models(apart, run("local"))
    assert same_models(made_with("scd:no-both", **PERSONAL), apart)


def test_fedproto_with_lam_zero_equals_local() -> None:
    assert same_models(made_with("fedproto", lam=0.0), run("local"))


def test_ditto_without_proximal_term_has_local_personal_models_and_fedavg_global_model() -> None:
    assert same_models(made_with("ditto", lam=0.0, **PERSONAL), run("local"))
    assert equal(run("ditto").server, run("fedavg").server)


def test_dcpfl_without_calibrations_equals_fedgh_with_per_client_means() -> None:
    bare = made_with("dcpfl", lam=0.0, virtual=0)
    fedgh = made_with("fedgh", server_mode="per_client_mean")
    assert gap_params(bare.server.head, fedgh.server.head) == 0
    assert same_models(bare, fedgh)


def test_fedavg_equals_local_with_a_single_client() -> None:
    alone = {"clients": 1, "partition": "iid"}
    assert same_models(run("fedavg", **alone), run("local", **alone))


def test_pfedes_with_mu_zero_equals_local() -> None:
    assert same_models(made_with("pfedes", mu=0.0), run("local"))


def test_fedpd_with_lam_zero_equals_local() -> None:
    assert same_models(made_with("fedpd", lam=0.0), run("local", public=PUBLIC))


# -- law 7: what leaves a client is a reviewed file -------------------------------------------------------------------


@pytest.mark.parametrize("name", SPECS)
def test_messages_have_the_schema_of_the_golden_file(name: str) -> None:
    phases = [{"down": schema(down), "up": schema(up)} for down, up in exchange(name).sent]
    found = phases[0] if len(phases) == 1 else phases
    golden = WIRE / f"{name.replace(':', '-')}.json"
    assert golden.exists(), f"{golden.name} is missing; it should hold {json.dumps(found)}"
    assert found == json.loads(golden.read_text())


# -- law 8: a broken upload leaves no trace ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in METHODS if n != "local"])  # local uploads nothing that could break
def test_invalid_upload_changes_nothing_but_the_absence_of_its_client(name: str) -> None:
    made = setup(name)
    task, bad = made.pool.task(), made.pool.ids[2]

    class Saboteur(LoopBackend):
        def train(self, method: Any, seed: int, jobs: Any) -> Any:
            for outcome in super().train(method, seed, jobs):
                yield outcome._replace(upload=poisoned(outcome.upload)) if outcome.sender == bad else outcome

    class Absent(LoopBackend):
        def train(self, method: Any, seed: int, jobs: Any) -> Any:
            return super().train(method, seed, [job for job in jobs if job.client != bad])

    kept = []
    for kind in (Saboteur, Absent):
        backend, server, per_client_states = (
            kind(made.pool, MemoryStore()),
            made.method.init_server(task, key(0)),
            MemoryStore(),
        )
        for t in range(2):
            server, log = run_round(
                made.method,
                task,
                backend,
                server,
                t=t,
                seed=0,
                cohort=task.clients,
                per_client_states=per_client_states,
            )
            assert [r.client for r in log.rejected] == ([bad] if kind is Saboteur else [])
        kept.append([server, *everything(made, backend, per_client_states)])
    assert all(equal(a, b) for a, b in zip(*kept, strict=True))


def poisoned(upload: Any) -> Any:
    """The upload with NaN in the last of its floating-point tensors."""
    packed = pack(upload)
    name = [n for n, t in packed.tensors.items() if t.is_floating_point()][-1]
    packed.tensors[name] = torch.full_like(packed.tensors[name], float("nan"))
    return unpack(type(upload), *packed)


# -- unlike models: a method works, or refuses with the reason --------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_heterogeneous_models_run_or_are_refused_with_the_reason(name: str) -> None:
    mixed = {"models": ("mlp:hidden=32", "mlp:hidden=64"), "width": 24}
    if Need.SAME_ARCHITECTURE in traits_of(_registry.method(name)).needs:
        with pytest.raises(AtollError, match="one architecture"):
            setup(name, **mixed)
    else:
        assert run(name, **mixed).summary["status"] == "finished"
        if name in VECTORISABLE:
            assert_vmap_agrees(setup(name, **mixed))
