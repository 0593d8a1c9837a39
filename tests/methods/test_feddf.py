"""FedDF: targets, divergences and steps by hand, one model for each architecture, and batches of public rows."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from support import toy_models
from support.small_runs import gap_params, made_with, run, same_models, setup
from torch import Tensor, nn

from atoll.backends.loop import LoopBackend
from atoll.clients import method_calls
from atoll.clients.state_store import MemoryStore
from atoll.core.model import Model
from atoll.core.optim.adam import Adam
from atoll.core.optim.base import gradient
from atoll.core.params import BUFFERS
from atoll.core.payloads import Nothing, Params
from atoll.core.prng import key, normal
from atoll.core.problems import Classes
from atoll.core.replies import Replies
from atoll.core.task import Reply, Round, Task
from atoll.engine.round import run_round
from atoll.errors import AtollError
from atoll.methods import feddf
from atoll.methods._distillation import imitation_loss, kl_divergence, target_batches
from atoll.methods._factory import make
from atoll.methods.fedavg import FedAvg, Global
from atoll.methods.feddf import FedDF, Group, Server, Update
from benchmarks.digests import PUBLIC

ROWS = normal(key("public"), 10, 3)
SHARP, FLAT = torch.tensor([[4.0, 0.0]]), torch.tensor([[0.0, 0.0]])


def two_kinds() -> Task:
    """Clients a and b have one architecture, c has another one of another width."""
    small, large = toy_models.mlp(width=4), toy_models.mlp(width=6, seed=1)
    large.name = "large"
    return Task(small, Classes(3), ("a", "b", "c"), None, ROWS, {"a": small, "b": small, "c": large})


def constant(model: Model, value: float, n: float) -> Update:
    return Update({name: torch.full_like(v, value) for name, v in model.init().items()}, torch.tensor(n))


def trained(model: Model, seed: int, n: float = 1.0) -> Update:
    noise = {name: v + normal(key(seed, name), *v.shape) for name, v in model.init().items()}
    return Update(noise, torch.tensor(n))


def fused(method: FedDF, t: Task, uploads: dict[str, Update], server: Server | None = None) -> Server:
    server = server or method.init_server(t, key(0))
    with torch.no_grad():
        return method.aggregate(server, Replies(Reply(i, up) for i, up in uploads.items()), t, Round(0), key("server"))


def model_of(method: FedDF, server: Server, i: str, t: Task) -> Params:
    return method.broadcast(server, i, t, Round(0), key(0)).params


# -- what is made small -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ensemble", "target", "apart"),
    [("logits", (0.880797, 0.119203), 0.3278133), ("probs", (0.741007, 0.258993), 0.1211461)],
)
def test_targets_and_divergences_by_hand(ensemble: str, target: tuple[float, float], apart: float) -> None:
    """Teachers (4, 0) and (0, 0), student (0, 0), which predicts (1/2, 1/2). The mean logits are (2, 0), the target is
    e^2 / (1 + e^2) = 0.880797; mean probabilities are (e^4 / (1 + e^4) + 1/2) / 2 = (0.982014 + 0.5) / 2 = 0.741007.
    KL = log 2 + sum t log t: 0.693147 - 0.365334 = 0.3278133, and 0.693147 - 0.572001 = 0.1211461.
    """
    found = FedDF(ensemble=ensemble).target([SHARP, FLAT])
    torch.testing.assert_close(found, torch.tensor([target]), rtol=0, atol=1e-6)
    assert float(kl_divergence(found, FLAT)) == pytest.approx(apart, abs=1e-6)


def test_temperature_divides_logits() -> None:
    """At T = 2 the mean logits (2, 0) become (1, 0): e / (1 + e) = 0.731059."""
    found = FedDF(temperature=2.0).target([SHARP, FLAT])
    torch.testing.assert_close(found, torch.tensor([[0.731059, 0.268941]]), rtol=0, atol=1e-6)


def test_the_mean_of_divergences_has_the_gradient_of_mean_probabilities() -> None:
    student = torch.tensor([[0.3, -0.2]], requires_grad=True)
    each = torch.stack([kl_divergence(teacher.softmax(1), student) for teacher in (SHARP, FLAT)]).mean()
    whole = kl_divergence(FedDF(ensemble="probs").target([SHARP, FLAT]), student)
    grads = [torch.autograd.grad(value, student)[0] for value in (each, whole)]
    torch.testing.assert_close(*grads)
    assert float(each.detach()) != pytest.approx(float(whole.detach()))


def test_a_divergence_is_a_sum_over_classes_and_a_mean_over_rows() -> None:
    twice = kl_divergence(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.zeros(2, 2))
    assert float(twice) == pytest.approx(0.693147, abs=1e-6)


def test_a_step_of_distillation_by_hand() -> None:
    """One client with bias (4, 0) and weights 0 has w_a = itself; the student begins there too, so a second client with
    bias (0, 0), of the same weight, makes it (2, 0): the mean of the teachers' logits. Nothing moves. With mean
    probabilities, 0.741007 of class 0, the student's 0.880797 is too much: the bias moves by 0.1 (0.741007 - 0.880797).
    """
    model = toy_models.identity_body(2, 2)
    t = Task(model, Classes(2), ("a", "b"), None, torch.zeros(6, 2), {"a": model, "b": model})
    start = model.init()
    uploads = {
        "a": Update(start | {"head.bias": torch.tensor([4.0, 0.0])}, torch.tensor(1.0)),
        "b": Update(start, torch.tensor(1.0)),
    }
    for ensemble, moved in (("logits", 0.0), ("probs", 0.1 * (0.741007 - 0.880797))):
        method = FedDF(server=toy_models.PLAIN, steps=1, ensemble=ensemble, validation=0.0)
        bias = model_of(method, fused(method, t, uploads), "a", t)["head.bias"]
        torch.testing.assert_close(bias, torch.tensor([2 + moved, -moved]), rtol=0, atol=1e-6)


def test_a_student_that_is_all_its_teachers_stands_still() -> None:
    t, method = two_kinds(), FedDF(server=toy_models.PLAIN)
    up = trained(t.models["a"], 1)
    target = method.target([t.models["a"](up.params, ROWS)] * 2)
    grads, _ = gradient(imitation_loss(t.models["a"], kl_divergence), up.params, toy_models.batch(ROWS, target))
    assert all(float(g.abs().max()) < 1e-6 for g in grads.values())
    up = Update(up.params, torch.tensor(3.0))
    after = model_of(method, fused(method, t, {"a": up, "b": up}), "a", t)
    assert gap_params(after, up.params) < 1e-5


# -- the end of distillation ------------------------------------------------------------------------------------------


def ended(
    accuracies: list[float], steps: int = 9, check_every: int = 2, patience: int = 4
) -> tuple[float, list[float]]:
    """Distil w from 0 by steps of 1, with these accuracies in turn; return w, and the w that were looked at."""
    method = FedDF(server=toy_models.PLAIN, steps=steps, check_every=check_every, patience=patience)
    looked: list[float] = []

    def accuracy(params: Params) -> float:
        looked.append(float(params["w"]))
        return accuracies[len(looked) - 1]

    def loss(params: Params, batch: Any) -> Tensor:
        return -params["w"] / method.server.lr

    batches = target_batches(ROWS, ROWS, method.server, key(0), steps)
    return float(method._best(loss, {"w": torch.tensor(0.0)}, batches, accuracy)["w"]), looked


def test_distillation_ends_when_validation_accuracy_has_not_risen_for_patience_steps() -> None:
    """Looks at 0, 2, 4, 6, 8 steps: the highest accuracy is at 2, and 4 steps later, at 6, nothing has risen."""
    found, looked = ended([0.1, 0.5, 0.4, 0.5, 0.9])

    assert found == pytest.approx(2.0)
    assert looked == pytest.approx([0, 2, 4, 6])


def test_distillation_takes_all_steps_while_accuracy_rises() -> None:
    """Nine steps by two: looks at 2, 4, 6, 8 and 9."""
    found, looked = ended([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])

    assert found == pytest.approx(9.0)
    assert looked == pytest.approx([0, 2, 4, 6, 8, 9])


def test_steps_between_looks_are_those_of_one_training() -> None:
    """Momentum goes on: Adam by twos and threes ends where Adam ends that is never interrupted."""
    t, server = two_kinds(), Adam(lr=0.01, batch_size=4)
    up, loss = trained(t.models["a"], 1), imitation_loss(t.models["a"], kl_divergence)
    target = torch.eye(3)[torch.arange(10) % 3]
    batches = list(target_batches(ROWS, target, server, key(0), 5))
    with torch.no_grad():
        whole = server.run(loss, up.params, batches)
        first = server.advance(loss, up.params, batches[:2])
        second = server.advance(loss, first.params, batches[2:], first.memory)
    assert gap_params(whole, second.params) == 0


def test_validation_rows_are_never_distilled_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 10 public rows, 0.3 are 3: they are the same in every round, and 7 others are in the batches."""
    t, method = two_kinds(), FedDF(server=toy_models.PLAIN, steps=7, validation=0.3)
    seen: list[tuple[Tensor, Tensor]] = []

    def note(x: Tensor, y: Tensor, *rest: Any) -> Any:
        seen.append((x, y))
        return target_batches(x, y, *rest)

    monkeypatch.setattr(feddf, "target_batches", note)
    fused(method, t, {"a": trained(t.models["a"], 1)})
    fused(method, t, {"a": trained(t.models["a"], 2)})
    assert [len(x) for x, _ in seen] == [7, 7]
    assert torch.equal(seen[0][0], seen[1][0])


def test_variant_without_validation_distils_on_all_public_rows_for_all_steps() -> None:
    t = two_kinds()
    uploads = {i: trained(t.models[i], seed) for seed, i in enumerate(t.clients)}
    method = make("feddf:fixed", {"steps": 3})
    assert isinstance(method, FedDF)
    plain = replace(FedDF(steps=3), validation=0.0)
    assert gap_params(*(model_of(m, fused(m, t, uploads), "a", t) for m in (method, plain))) == 0


# -- architectures ----------------------------------------------------------------------------------------------------


def test_every_architecture_has_a_fedavg_of_its_own() -> None:
    """Models 0 and 4 of 3 and 1 rows have the mean 1; another architecture does not enter it."""
    t, method = two_kinds(), FedDF(steps=0)
    small, large = t.models["a"], t.models["c"]
    server = fused(
        method, t, {"a": constant(small, 0.0, 3), "c": constant(large, 9.0, 50), "b": constant(small, 4.0, 1)}
    )
    assert all(bool((v == 1).all()) for i in "ab" for v in model_of(method, server, i, t).values())
    assert all(bool((v == 9).all()) for v in model_of(method, server, "c", t).values())
    assert model_of(method, server, "c", t).keys() == large.init().keys()


def test_an_architecture_without_clients_in_the_round_keeps_its_model() -> None:
    t, method = two_kinds(), FedDF(server=toy_models.RICH, steps=3)
    first = method.init_server(t, key(0))
    server = fused(method, t, {"a": trained(t.models["a"], 1)}, first)
    toy_models.assert_same(Group(model_of(method, server, "c", t)), Group(t.models["c"].init()))
    toy_models.assert_same(first, method.init_server(t, key(0)))


def test_clients_of_all_architectures_teach_every_one() -> None:
    t, method = two_kinds(), FedDF(server=toy_models.PLAIN, steps=1, validation=0.0)
    own = {"a": trained(t.models["a"], 1), "b": trained(t.models["b"], 2)}
    taught = [fused(method, t, own | {"c": trained(t.models["c"], seed)}) for seed in (3, 4)]
    assert gap_params(*(model_of(method, s, "a", t) for s in taught)) > 0
    plain = [fused(replace(method, steps=0), t, own | {"c": trained(t.models["c"], seed)}) for seed in (3, 4)]
    assert gap_params(*(model_of(method, s, "a", t) for s in plain)) == 0


def test_the_servers_models_come_nearer_to_their_teachers() -> None:
    t = two_kinds()
    uploads = {i: trained(t.models[i], seed) for seed, i in enumerate(t.clients)}
    target = FedDF().target([t.models[i](up.params, ROWS) for i, up in uploads.items()])
    apart = []
    for steps in (0, 20, 100):
        method = FedDF(server=Adam(lr=0.01, batch_size=4), steps=steps, validation=0.0)
        server = fused(method, t, uploads)
        apart.append([float(kl_divergence(target, t.models[i](model_of(method, server, i, t), ROWS))) for i in "ac"])
    for before, between, after in zip(*apart, strict=True):
        assert before > between > after


def test_the_servers_models_predict_together() -> None:
    t, method = two_kinds(), FedDF()
    server = method.init_server(t, key(0))
    both = [t.models[i](t.models[i].init(), ROWS) for i in "ac"]
    torch.testing.assert_close(method_calls.generic_predictor(method, server, t)(ROWS), (both[0] + both[1]) / 2)


def test_teachers_are_in_evaluation_mode_and_statistics_follow_public_batches() -> None:
    """Running statistics of 3 rows and of 1 are averaged as weights are; then each step moves them, and counts."""
    net = toy_models.Net(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)), nn.Linear(4, 3))
    model = Model(toy_models.filled(net))
    t = Task(model, Classes(3), ("a", "b"), None, ROWS, {"a": model, "b": model})
    moved = {name: v + 4 if name.endswith("running_mean") else v for name, v in model.init().items()}
    uploads = {"a": Update(model.init(), torch.tensor(3.0)), "b": Update(moved, torch.tensor(1.0))}
    plain, taught = (
        model_of(m, fused(m, t, uploads), "a", t)
        for m in (FedDF(steps=0), FedDF(server=replace(toy_models.PLAIN, lr=0.0), steps=2, validation=0.0))
    )
    mean = f"{BUFFERS}body.1.running_mean"
    torch.testing.assert_close(plain[mean], torch.ones(4))
    assert not torch.equal(taught[mean], plain[mean])
    assert int(taught[f"{BUFFERS}body.1.num_batches_tracked"]) == 2
    seen: list[Tensor] = []

    class Watched(FedDF):
        def target(self, logits: list[Tensor]) -> Tensor:
            seen.extend(logits)
            return super().target(logits)

    fused(Watched(steps=1), t, uploads)
    assert torch.equal(seen[0], model(model.init(), ROWS))
    assert torch.equal(seen[1], model(moved, ROWS))


# -- batches of public rows -------------------------------------------------------------------------------------------


def test_an_epoch_has_every_row_once_and_its_own_order() -> None:
    x, optim = torch.arange(10.0)[:, None], replace(toy_models.PLAIN, epochs=2, batch_size=4)
    batches = list(target_batches(x, 2 * x, optim, key(0)))
    assert [len(b.x) for b in batches] == [4, 3, 3] * 2
    epochs = [torch.cat([b.x.flatten() for b in batches[at : at + 3]]).tolist() for at in (0, 3)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(10))
    assert epochs[0] != epochs[1]
    assert all(torch.equal(b.y, 2 * b.x) for b in batches)
    assert len({int(b.k) for b in batches}) == 6


def test_no_batch_has_a_single_row() -> None:
    """Nine rows by four: 3, 3, 3. A last batch of one row would have no variance for a layer that asks for it."""
    assert [len(b.x) for b in target_batches(ROWS[:9], ROWS[:9], replace(toy_models.PLAIN, batch_size=4), key(0))] == [
        3,
        3,
        3,
    ]
    model = Model(toy_models.filled(toy_models.Net(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), nn.Linear(4, 3))))
    t = Task(model, Classes(3), ("a",), None, ROWS[:9], {"a": model})
    fused(
        FedDF(server=replace(toy_models.PLAIN, batch_size=4), steps=3),
        t,
        {"a": Update(model.init(), torch.tensor(1.0))},
    )


@pytest.mark.parametrize("steps", [0, 1, 3, 7])
def test_steps_are_counted_not_epochs(steps: int) -> None:
    optim = replace(toy_models.PLAIN, epochs=1, batch_size=4)
    some, more = (list(target_batches(ROWS, ROWS, optim, key(0), n)) for n in (steps, 9))
    assert len(some) == steps
    assert all(torch.equal(a.x, b.x) for a, b in zip(some, more[:steps], strict=True))


# -- clients and whole runs -------------------------------------------------------------------------------------------


def test_clients_train_as_in_fedavg() -> None:
    c, method = toy_models.random_client(9, 1, toy_models.mlp()), FedDF(toy_models.RICH)
    down = Group(toy_models.mlp(seed=3).init())
    up, _ = toy_models.participate(method, down, Nothing(), c, key(1))
    plain, _ = toy_models.participate(FedAvg(toy_models.RICH), Global(down.params, {}), Nothing(), c, key(1))
    assert gap_params(up.params, plain.params) == 0
    assert float(up.n) == 9
    assert method.personal_params(down, None, Nothing(), c) is down.params
    assert method.personal_params(down, up, Nothing(), c) is up.params


def test_without_distillation_and_with_one_architecture_it_is_fedavg() -> None:
    mine, fedavg = made_with("feddf", steps=0), run("fedavg", public=PUBLIC)
    assert same_models(mine, fedavg)
    assert gap_params(mine.server.params, {f"mlp/{name}": v for name, v in fedavg.server.params.items()}) == 0
    assert "FedAvg" in str(FedDF(steps=0).reduces_to())
    assert FedDF().reduces_to() is None


def test_unlike_models_of_unlike_widths_and_what_they_exchange() -> None:
    """64 inputs, 12 or 20 hidden units, 10 classes: 64 h + h + 10 h + 10 floats each way, and n_k up."""
    mixed: dict[str, Any] = {"models": ("mlp:hidden=12", "mlp:hidden=20")}
    assert run("feddf", **mixed).summary["status"] == "finished"
    made = setup("feddf", **mixed)
    backend, server = LoopBackend(made.pool, MemoryStore()), made.method.init_server(made.pool.task(), key(0))
    _, log = run_round(made.method, made.pool.task(), backend, server, t=0, seed=0, cohort=made.pool.ids)
    sizes = {i: 4 * (75 * made.pool.models[i].feature_dim + 10) for i in made.pool.ids}
    assert set(sizes.values()) == {4 * 910, 4 * 1510}
    assert log.down == sizes
    assert log.up == {i: size + 4 for i, size in sizes.items()}


def test_vmap_equals_loop() -> None:
    clients = [toy_models.random_client(n, seed, toy_models.mlp()) for n, seed in ((9, 1), (6, 2))]
    clients[1] = replace(clients[1], model=clients[0].model)
    method, down, keys = FedDF(toy_models.RICH), Group(toy_models.mlp(seed=3).init()), [key(0), key(1)]
    one = [toy_models.participate(method, down, Nothing(), c, k) for c, k in zip(clients, keys, strict=True)]
    many = toy_models.together(method, down, [Nothing(), Nothing()], [toy_models.padded(c, 11) for c in clients], keys)
    toy_models.assert_near(one, many)


def test_mistakes_are_refused() -> None:
    for wrong in ({"steps": -1}, {"temperature": 0.0}, {"ensemble": "losses"}):
        with pytest.raises(AtollError, match=next(iter(wrong))):
            FedDF(**wrong)
    t = replace(two_kinds(), public=None)
    with pytest.raises(AtollError, match="--public"):
        fused(FedDF(), t, {"a": trained(t.models["a"], 1)})
