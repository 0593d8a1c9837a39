"""Internals of vmap: batched calls, gradients behind them, and the public way without internals."""

import warnings
from collections.abc import Iterator

import pytest
import torch
from support import small_runs, toy_models
from torch import Tensor
from torch.func import vmap

from atoll.backends.loop import LoopBackend
from atoll.backends.vmap import VmapBackend
from atoll.clients.server_side import ServerSideStates
from atoll.clients.state_store import MemoryStore
from atoll.clients.tasks import ClientTask
from atoll.core.losses import objective
from atoll.core.optim.adam import Adam
from atoll.core.optim.base import Optimiser
from atoll.core.optim.sgd import SGD
from atoll.core.payloads import Params, about, payload
from atoll.core.prng import key
from atoll.core.task import Round
from atoll.core.tree import unstack
from atoll.core.vmap import batched_call, functional_gradients, functorch
from atoll.engine.round import run_round
from atoll.engine.vmap_trial import largest_gap


def squares(params: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """sum_j w_j^2 + b: its gradient is (2 w, 1)."""
    return params["w"].square().sum() + params["b"], params["w"].sum()


def test_every_client_gets_its_own_gradient() -> None:
    """Clients with w = (1, 2) and (3, 4), and one b for both, which no client shares in the result."""
    w, b = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor(5.0)
    with torch.no_grad():
        grads, sums = vmap(lambda w: functorch.gradient(squares, {"w": w, "b": b}))(w)
    assert grads["w"].tolist() == [[2.0, 4.0], [6.0, 8.0]]
    assert grads["b"].tolist() == [1.0, 1.0]
    assert sums.tolist() == [3.0, 7.0]


def test_clients_may_be_in_any_dimension() -> None:
    w = torch.tensor([[1.0, 3.0], [2.0, 4.0]])
    grads, _ = vmap(lambda w: functorch.gradient(squares, {"w": w, "b": w.sum()}), in_dims=1)(w)
    assert grads["w"].tolist() == [[2.0, 4.0], [6.0, 8.0]]


def test_gradients_inside_other_transformations() -> None:
    """The gradient of |grad|^2 = 4 w^2 + 1 is 8 w."""

    def twice(w: Tensor) -> Tensor:
        def norm(v: Tensor) -> Tensor:
            grads, _ = functorch.gradient(squares, {"w": v, "b": torch.zeros(())})
            return sum((g.square().sum() for g in grads.values()), start=torch.zeros(()))

        return torch.func.grad(norm)(w)

    assert vmap(twice)(torch.tensor([[1.0], [2.0]])).tolist() == [[8.0], [16.0]]


@payload
class Scaled:
    params: Params = about("tensors")
    times: int = about("a number")
    none: Tensor | None = about("perhaps something")


def test_batched_call_maps_over_clients_and_passes_scalars() -> None:
    """As torch's own vmap: clients in front, also in what does not depend on them; scalars are left alone."""
    p = Scaled({"a": torch.arange(6.0).view(3, 2)}, 2, None)

    def double(p: Scaled, k: Tensor) -> tuple[Scaled, Tensor]:
        assert p.params["a"].shape == (2,)
        return Scaled({"a": p.times * p.params["a"] + k}, 5, p.none), torch.ones(4)

    made, ones = functorch.batched_call(double, 3, p, torch.tensor([0.0, 1.0, 2.0]))
    assert made.params["a"].tolist() == [[0.0, 2.0], [5.0, 7.0], [10.0, 12.0]]
    assert (made.times, made.none, ones.shape) == (5, None, (3, 4))


def test_after_a_call_that_failed_there_is_no_vmap_left() -> None:
    with pytest.raises(ZeroDivisionError):
        functorch.batched_call(lambda v: 1 // 0, 2, torch.zeros(2))
    assert functorch.current_clients() is None


# -- without functorch's internals ------------------------------------------------------------------------------------


@pytest.fixture
def unknown_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A torch whose internals are to be tested again, as in a new process."""
    monkeypatch.setattr(functorch, "enabled", functorch.enabled)
    functorch.is_usable.cache_clear()
    yield
    functorch.is_usable.cache_clear()


@pytest.mark.usefixtures("unknown_torch")
def test_internals_of_this_torch_pass_the_self_test(recwarn: pytest.WarningsRecorder) -> None:
    assert functorch.is_usable()
    assert not recwarn.list


@pytest.mark.usefixtures("unknown_torch")
def test_a_missing_private_name_gives_one_warning_and_the_public_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functorch, "enabled", False)
    w = torch.tensor([[1.0, 2.0], [3.0, 4.0]])

    with pytest.warns(UserWarning, match=r"internals of vmap .* training is slower"):
        batched_call(torch.neg, 2, w)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        grads, sums = batched_call(lambda p: functorch.gradient(squares, p), 2, {"w": w, "b": torch.zeros(2)})

    assert grads["w"].tolist() == [[2.0, 4.0], [6.0, 8.0]]
    assert sums.tolist() == [3.0, 7.0]


@pytest.mark.usefixtures("unknown_torch")
@pytest.mark.parametrize("fault", ["raises", "other numbers"])
def test_internals_that_have_changed_are_not_used(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(v: Tensor, clients: int) -> Tensor:
        if fault == "raises":
            raise TypeError("get_unwrapped() takes 2 arguments")
        return torch.ones(clients, 2)

    monkeypatch.setattr(functorch, "unwrap", changed)

    with pytest.warns(UserWarning, match="internals of vmap"):
        assert not functorch.is_usable()
    assert not functorch.enabled
    assert batched_call(lambda v: 2 * v, 2, torch.tensor([1.0, 2.0])).tolist() == [2.0, 4.0]


@pytest.mark.usefixtures("unknown_torch")
@pytest.mark.filterwarnings("ignore:Atoll does not know the internals")
@pytest.mark.parametrize(
    "name", ["fedavg", "fedavg_ft", "ditto", "dcpfl", "scd:code", "fedproto", "fedala", "fedpd", "moon"]
)
def test_methods_give_the_results_of_the_loop_without_internals(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a second round, when clients have states and the server has something to send."""
    monkeypatch.setattr(functorch, "enabled", False)
    made = small_runs.setup(name)
    task = made.pool.task()
    states, per_client = MemoryStore(), MemoryStore()
    loop, public = (kind(made.pool, states) for kind in (LoopBackend, VmapBackend))
    first = made.method.init_server(task, key(0))
    server, _ = run_round(
        made.method, task, loop, first, t=0, seed=0, cohort=task.clients, per_client_states=per_client
    )
    served = ServerSideStates(made.method, task, 0, per_client)
    jobs = [ClientTask(i, Round(1), served.download(server, i, Round(1))) for i in made.pool.ids]

    uploads = [list(backend.train(made.method, 0, jobs)) for backend in (loop, public)]
    results = [list(backend.results()) for backend in (loop, public)]

    assert max(largest_gap(a.upload, b.upload) for a, b in zip(*uploads, strict=True)) <= 1e-6
    assert max(largest_gap(a.state, b.state) for a, b in zip(*results, strict=True)) <= 1e-6


@pytest.mark.usefixtures("unknown_torch")
@pytest.mark.filterwarnings("ignore:Atoll does not know the internals")
@pytest.mark.parametrize("optimiser", [SGD(0.1, 2, 4), SGD(0.1, 2, 4, clip=0.3, momentum=0.0), Adam(0.02, 2, 4)])
@pytest.mark.parametrize("sizes", [(8, 8), (11, 3)])
def test_training_without_internals_is_that_of_each_client(
    optimiser: Optimiser, sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients share their first params; 3 of 11 rows leave the second client batches of nothing but padding."""
    monkeypatch.setattr(functorch, "enabled", False)
    model = toy_models.mlp()
    alone = [toy_models.random_client(n, n, model) for n in sizes]
    keys, shared = [key("a"), key("b")], model.init()

    one = [optimiser.fit(objective(model), shared, c, k) for c, k in zip(alone, keys, strict=True)]
    together = toy_models.side_by_side([toy_models.padded(c, max(sizes)) for c in alone])
    with torch.no_grad(), functional_gradients():
        many = batched_call(lambda c, k: optimiser.fit(objective(model), shared, c, k), 2, together, torch.stack(keys))

    toy_models.assert_near(one, unstack(many, 2))
