"""Clients batched by vmap: who shares a call, and gradients taken behind it."""

from typing import Any

import pytest
import torch
from support import small_runs
from torch import Tensor
from torch.func import vmap

from atoll.backends import vmap as vmap_backend
from atoll.backends.vmap import COPIES, VmapBackend
from atoll.clients.state_store import MemoryStore
from atoll.clients.tasks import ClientTask
from atoll.core import vmap as core_vmap
from atoll.core.optim.sgd import SGD
from atoll.core.payload import Params, about, equal, payload
from atoll.core.prng import key
from atoll.core.task import Round
from atoll.engine.round import run_round
from atoll.methods.fedavg import FedAvg
from atoll.simulation.costs import Operations


def jobs(made: Any) -> list[ClientTask]:
    task = made.pool.task()
    server = made.method.init_server(task, key(0))
    return [ClientTask(i, Round(0), made.method.broadcast(server, i, task, Round(0))) for i in made.pool.ids]


def batches(made: Any) -> list[list[str]]:
    backend = VmapBackend(made.pool, MemoryStore())
    return [[job.client for job in upload_batch] for upload_batch in backend._batches(made.method, 0, jobs(made))]


def bytes_of_one(made: Any) -> int:
    """Rows of 64 floats and a label up to the largest client, and six copies of 64 * 64 + 64 + 64 * 10 + 10 weights."""
    rows = max(made.pool.train.size(at) for at in range(len(made.pool.ids)))
    return int(rows * (64 * 4 + 8) + COPIES * 4 * (64 * 64 + 64 + 64 * 10 + 10))


# -- who shares a call -------------------------------------------------------------------------------------------------


def test_all_share_a_call_if_there_is_room() -> None:
    made = small_runs.setup("fedavg")
    assert batches(made) == [list(made.pool.ids)]


@pytest.mark.parametrize(
    ("room", "sizes"), [(1.0, [1] * 5), (2.0, [1, 2, 2]), (3.9, [2, 3]), (4.9, [2, 3]), (5.0, [5])]
)
def test_parties_take_no_more_than_the_room(room: float, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Five clients in as few calls as possible, of like sizes: 5 / 2 gives three calls, 5 / 3 and 5 / 4 two."""
    made = small_runs.setup("fedavg")
    monkeypatch.setattr(vmap_backend, "ROOM", int(room * bytes_of_one(made)))
    found = batches(made)
    assert [len(upload_batch) for upload_batch in found] == sizes
    assert [i for upload_batch in found for i in upload_batch] == list(made.pool.ids)


def test_a_client_that_is_too_large_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vmap_backend, "ROOM", 1)
    assert [len(upload_batch) for upload_batch in batches(small_runs.setup("fedavg"))] == [1] * 5


@pytest.mark.parametrize("name", ["fedavg", "ditto", "fedrep"])
def test_parties_change_nothing_but_the_last_digits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert small_runs.gap(*servers) <= 1e-6


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_the_company_changes_no_bit_of_a_clients_upload(momentum: float) -> None:
    """None of the ten numbers of a head's bias may know how many others there are, if padding stays the same."""
    made, method = small_runs.setup("fedavg"), FedAvg(SGD(epochs=2, momentum=momentum))
    everybody = sorted(jobs(made), key=lambda job: -made.pool.train.size(made.pool.position(job.client)))
    uploads = [
        {o.sender: o.upload for o in VmapBackend(made.pool, MemoryStore()).train(method, 0, some)}
        for some in (everybody, everybody[:4], everybody[:3], [*everybody[1:3], everybody[0]])
    ]
    for fewer in uploads[1:]:
        assert all(equal(upload, uploads[0][i]) for i, upload in fewer.items())


def test_uploads_come_before_the_next_party_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So no more than one party's uploads are in memory, if the server holds on to none."""
    made, started = small_runs.setup("fedavg"), list[int]()
    monkeypatch.setattr(vmap_backend, "ROOM", 2 * bytes_of_one(made))
    real = VmapBackend._together

    def together(self: VmapBackend, method: Any, seed: int, upload_batch: list[ClientTask]) -> Any:
        started.append(len(upload_batch))
        return real(self, method, seed, upload_batch)

    monkeypatch.setattr(VmapBackend, "_together", together)
    outcomes = VmapBackend(made.pool, MemoryStore()).train(made.method, 0, jobs(made))
    assert [next(outcomes).sender, *started] == [made.pool.ids[0], 1]
    next(outcomes)
    assert started == [1, 2]


# -- behind the batch --------------------------------------------------------------------------------------------------


def squares(params: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """sum_j w_j^2 + b: its gradient is (2 w, 1)."""
    return params["w"].square().sum() + params["b"], params["w"].sum()


def test_every_client_gets_its_own_gradient() -> None:
    """Clients with w = (1, 2) and (3, 4), and one b for both, which no client shares in the result."""
    w, b = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor(5.0)
    with torch.no_grad():
        grads, sums = vmap(lambda w: core_vmap.gradient(squares, {"w": w, "b": b}))(w)
    assert grads["w"].tolist() == [[2.0, 4.0], [6.0, 8.0]]
    assert grads["b"].tolist() == [1.0, 1.0]
    assert sums.tolist() == [3.0, 7.0]


def test_clients_may_be_in_any_dimension() -> None:
    w = torch.tensor([[1.0, 3.0], [2.0, 4.0]])
    grads, _ = vmap(lambda w: core_vmap.gradient(squares, {"w": w, "b": w.sum()}), in_dims=1)(w)
    assert grads["w"].tolist() == [[2.0, 4.0], [6.0, 8.0]]


def test_gradients_inside_other_transformations() -> None:
    """The gradient of |grad|^2 = 4 w^2 + 1 is 8 w."""

    def twice(w: Tensor) -> Tensor:
        def norm(v: Tensor) -> Tensor:
            grads, _ = core_vmap.gradient(squares, {"w": v, "b": torch.zeros(())})
            return sum((g.square().sum() for g in grads.values()), start=torch.zeros(()))

        return torch.func.grad(norm)(w)

    assert vmap(twice)(torch.tensor([[1.0], [2.0]])).tolist() == [[8.0], [16.0]]


def test_copies_are_one_for_each_client() -> None:
    shared = torch.zeros(2)

    def write(add: Tensor) -> Tensor:
        own = core_vmap.copies({"w": shared})["w"]
        return own.add_(add)

    assert vmap(write)(torch.tensor([1.0, 2.0])).tolist() == [[1.0, 1.0], [2.0, 2.0]]
    assert shared.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("w", "all_have"), [([[1.0, 0.0], [1.0, 1.0]], True), ([[1.0, 0.0], [0.0, 0.0]], False)])
def test_everybody_has_rows(w: list[list[float]], all_have: bool) -> None:
    seen = []
    vmap(lambda own: seen.append(core_vmap.all_clients_have_rows(own)) or own)(torch.tensor(w))
    assert seen == [all_have]


def test_outside_of_vmap_nobody_is_sure() -> None:
    assert not core_vmap.all_clients_have_rows(torch.ones(2))


def test_nothing_of_what_sees_all_clients_goes_through_vmap() -> None:
    """Tensors and lists of them, also one that is the same for all; results keep their form."""
    forms = []

    def halves(both: list[Tensor], same: Tensor) -> list[Tensor]:
        forms.append([tuple(v.shape) for v in (*both, same)])
        return [both[0] + both[1], same / 2]

    def local(a: Tensor, b: Tensor) -> Tensor:
        total, half = core_vmap.on_stacked(halves, [a, b], torch.tensor([2.0, 4.0]))
        return total + half

    a, b = torch.arange(6.0).view(3, 2), torch.ones(3, 2)
    assert torch.equal(vmap(local)(a, b), a + torch.tensor([2.0, 3.0]))
    assert torch.equal(local(a[0], b[0]), a[0] + torch.tensor([2.0, 3.0]))
    assert forms == [[(3, 2)] * 3, [(2,)] * 3]


def test_rows_are_taken_from_each_client() -> None:
    x, y, rows = torch.arange(24.0).view(2, 4, 3), torch.arange(8).view(2, 4), torch.tensor([[3, 1], [0, 0]])

    def taken(x: Tensor, y: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        return tuple(core_vmap.take([x, y], rows))

    both = vmap(taken)(x, y, rows)
    assert torch.equal(both[0], torch.stack([x[0][[3, 1]], x[1][[0, 0]]]))
    assert both[1].tolist() == [[3, 1], [4, 4]]
    assert torch.equal(taken(x[0], y[0], rows[0])[0], both[0][0])
    assert torch.equal(vmap(taken, (None, None, 0))(x[0], y[0], rows)[0], x[0][rows])


@payload
class Scaled:
    params: Params = about("tensors")
    times: int = about("a number")
    none: Tensor | None = about("perhaps something")


def test_one_call_for_all_clients() -> None:
    """As torch's own vmap: clients in front, also in what does not depend on them; scalars are left alone."""
    p = Scaled({"a": torch.arange(6.0).view(3, 2)}, 2, None)

    def double(p: Scaled, k: Tensor) -> tuple[Scaled, Tensor]:
        assert p.params["a"].shape == (2,)
        return Scaled({"a": p.times * p.params["a"] + k}, 5, p.none), torch.ones(4)

    made, ones = core_vmap.batched_call(double, 3, p, torch.tensor([0.0, 1.0, 2.0]))
    assert made.params["a"].tolist() == [[0.0, 2.0], [5.0, 7.0], [10.0, 12.0]]
    assert (made.times, made.none, ones.shape) == (5, None, (3, 4))


def test_after_a_call_that_failed_there_is_no_vmap_left() -> None:
    with pytest.raises(ZeroDivisionError):
        core_vmap.batched_call(lambda v: 1 // 0, 2, torch.zeros(2))
    assert core_vmap._current() is None


def test_norms_are_those_of_each_client() -> None:
    a, b = torch.tensor([[[3.0, 4.0]], [[6.0, 8.0]]]), torch.tensor([-2.0, 1.0])
    assert [v.tolist() for v in vmap(lambda *vs: tuple(core_vmap.norms(vs)))(a, b)] == [[5.0, 10.0], [2.0, 1.0]]
    assert [float(v) for v in core_vmap.norms([a[0], b[0]])] == [5.0, 2.0]


@pytest.mark.parametrize(("most", "certain"), [(5.0, True), (4.9, False)])
def test_nobody_can_be_longer_than_all_together(most: float, certain: bool) -> None:
    """Clients of 3 and 4: all together 5."""
    seen = []
    vmap(lambda v: seen.append(core_vmap.all_within([v], most)) or v)(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    assert seen == [certain]
    assert not core_vmap.all_within([torch.zeros(2)], most)


def test_rows_are_put_together_once_for_the_same_company(monkeypatch: pytest.MonkeyPatch) -> None:
    made = small_runs.setup("fedavg")
    backend, put = VmapBackend(made.pool, MemoryStore()), []
    together = type(made.pool).together
    monkeypatch.setattr(type(made.pool), "together", lambda pool, ids: put.append(ids) or together(pool, ids))
    for some in (jobs(made), jobs(made), jobs(made)[1:]):
        list(backend.train(made.method, 0, some))
    assert put == [list(made.pool.ids), list(made.pool.ids)[1:]]


def test_operations_of_a_product_and_of_its_gradient() -> None:
    """[2, 3] times [3, 4]: 2 * 2 * 3 * 4 = 48 forwards, and as many for the gradient of one factor."""
    a, b = torch.ones(2, 3), torch.ones(3, 4, requires_grad=True)
    with Operations() as counter:
        (a @ b).sum().backward()
    assert counter.total == 96
