"""Batched clients: which clients share a call, and what they share."""

from typing import Any

import pytest
from support import small_runs

from atoll.backends import vmap as vmap_backend
from atoll.backends.vmap import COPIES, VmapBackend
from atoll.clients.state_store import MemoryStore
from atoll.clients.tasks import ClientTask
from atoll.core.optim.sgd import SGD
from atoll.core.payloads import equal
from atoll.core.prng import key
from atoll.core.task import Round
from atoll.engine.round import run_round
from atoll.engine.vmap_trial import largest_gap
from atoll.methods.fedavg import FedAvg


def jobs(made: Any) -> list[ClientTask]:
    task = made.pool.task()
    server = made.method.init_server(task, key(0))
    return [ClientTask(i, Round(0), made.method.broadcast(server, i, task, Round(0), key(0))) for i in made.pool.ids]


def batches(made: Any) -> list[list[str]]:
    backend = VmapBackend(made.pool, MemoryStore())
    return [[job.client for job in upload_batch] for upload_batch in backend._batches(made.method, 0, jobs(made))]


def bytes_of_one(made: Any) -> int:
    """Rows of 64 floats and a label up to the largest client, and six copies of 64 * 64 + 64 + 64 * 10 + 10 weights."""
    rows = max(made.pool.train.size(at) for at in range(len(made.pool.ids)))
    return int(rows * (64 * 4 + 8) + COPIES * 4 * (64 * 64 + 64 + 64 * 10 + 10))


def test_all_clients_share_one_call_if_memory_suffices() -> None:
    made = small_runs.setup("fedavg")
    assert batches(made) == [list(made.pool.ids)]


@pytest.mark.parametrize(
    ("room", "sizes"), [(1.0, [1] * 5), (2.0, [1, 2, 2]), (3.9, [2, 3]), (4.9, [2, 3]), (5.0, [5])]
)
def test_batches_of_clients_fit_into_the_memory(room: float, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Five clients in as few calls as possible, of like sizes: 5 / 2 gives three calls, 5 / 3 and 5 / 4 two."""
    made = small_runs.setup("fedavg")
    monkeypatch.setattr(vmap_backend, "ROOM", int(room * bytes_of_one(made)))
    found = batches(made)
    assert [len(upload_batch) for upload_batch in found] == sizes
    assert [i for upload_batch in found for i in upload_batch] == list(made.pool.ids)


def test_client_larger_than_the_memory_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vmap_backend, "ROOM", 1)
    assert [len(upload_batch) for upload_batch in batches(small_runs.setup("fedavg"))] == [1] * 5


@pytest.mark.parametrize("name", ["fedavg", "ditto", "fedrep"])
def test_batch_size_changes_results_by_rounding_only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = small_runs.setup(name)
    task = made.pool.task()
    servers = []
    for room in (2**28, 2 * bytes_of_one(made)):
        monkeypatch.setattr(vmap_backend, "ROOM", room)
        first = made.method.init_server(task, key(0))
        server, log = run_round(
            made.method, task, VmapBackend(made.pool, MemoryStore()), first, t=0, seed=0, cohort=task.clients
        )
        assert log.accepted == list(made.pool.ids)
        servers.append(server)
    assert largest_gap(*servers) <= 1e-6


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_other_clients_in_the_batch_change_no_bit_of_an_upload(momentum: float) -> None:
    """The bits of an upload do not depend on the number of clients after it if the padding is the same.

    The place of a client in the stack may change the last bit of a product of matrices, within 1e-7.
    """
    made, method = small_runs.setup("fedavg"), FedAvg(SGD(epochs=2, momentum=momentum))
    everybody = sorted(jobs(made), key=lambda job: -made.pool.train.size(made.pool.position(job.client)))
    uploads = [
        {o.sender: o.upload for o in VmapBackend(made.pool, MemoryStore()).train(method, 0, some)}
        for some in (everybody, everybody[:4], everybody[:3])
    ]
    for fewer in uploads[1:]:
        assert all(equal(upload, uploads[0][i]) for i, upload in fewer.items())


def test_uploads_are_yielded_before_the_next_batch_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one batch of uploads is in memory at a time if the server stores none."""
    made, started = small_runs.setup("fedavg"), list[int]()
    monkeypatch.setattr(vmap_backend, "ROOM", 2 * bytes_of_one(made))
    real = VmapBackend._train_batch

    def together(self: VmapBackend, method: Any, seed: int, upload_batch: list[ClientTask]) -> Any:
        started.append(len(upload_batch))
        return real(self, method, seed, upload_batch)

    monkeypatch.setattr(VmapBackend, "_train_batch", together)
    outcomes = VmapBackend(made.pool, MemoryStore()).train(made.method, 0, jobs(made))
    assert [next(outcomes).sender, *started] == [made.pool.ids[0], 1]
    next(outcomes)
    assert started == [1, 2]


def test_rows_are_stacked_once_for_repeated_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    made = small_runs.setup("fedavg")
    backend, put = VmapBackend(made.pool, MemoryStore()), []
    together = type(made.pool).stack_clients
    monkeypatch.setattr(type(made.pool), "stack_clients", lambda pool, ids: put.append(ids) or together(pool, ids))
    for some in (jobs(made), jobs(made), jobs(made)[1:]):
        list(backend.train(made.method, 0, some))
    assert put == [list(made.pool.ids), list(made.pool.ids)[1:]]


@pytest.mark.parametrize("track", ["true", "false"])
def test_clients_share_a_call_with_batch_norm_only_if_they_have_equally_many_rows(track: str) -> None:
    """Padding would enter the statistics of a batch, also where no running statistics are kept."""
    made = small_runs.setup("fedavg", models=(f"feddw_fmnist:track_running_stats={track}",), rows=150)
    sizes = {i: made.pool.train.size(made.pool.position(i)) for i in made.pool.ids}
    for together in batches(made):
        assert len({sizes[i] for i in together}) == 1
    assert len(set(sizes.values())) > 1
