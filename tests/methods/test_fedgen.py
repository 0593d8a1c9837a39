"""FedGen: the generator's loss and the clients' terms by hand, where it draws from, FedAvg where it is off."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from support import toy_models
from support.small_runs import gap_params, made_with, run
from torch import Tensor, nn

from atoll.clients import method_calls
from atoll.core.batch import Batch, Step
from atoll.core.client import Client
from atoll.core.model import Model
from atoll.core.optim.adam import Adam
from atoll.core.optim.base import gradient
from atoll.core.payloads import Nothing, Params, nbytes
from atoll.core.prng import key, normal
from atoll.core.task import Task
from atoll.core.tree import stack
from atoll.errors import AtollError
from atoll.methods._generator import Generator, draw_labels
from atoll.methods.fedavg import FedAvg
from atoll.methods.fedgen import LEAST, FedGen, Global, Update, sameness

LOG3 = 1.0986123
TILTED = toy_models.identity_body(weight=torch.tensor([[LOG3, 0.0], [0.0, 0.0]]))  # (1, 0) has predictions (.75, .25)
SMALL = {"hidden": 5, "noise": 2, "teach": Adam(lr=0.01, epochs=3, batch_size=6)}
TWO = Generator(classes=2, width=2, hidden=5, noise=2)


def constant(z: list[float]) -> Params:
    """A generator of two classes that makes ``z`` of everything."""
    params = TWO.init(key(0))
    return params | {"head.weight": torch.zeros(2, 5), "head.bias": torch.tensor(z)}


def down(seen: list[bool], left: float = 1.0, generator: Params | None = None, model: Model = TILTED) -> Global:
    made = constant([1.0, 0.0]) if generator is None else generator
    return Global(model.init(), made, torch.tensor(seen), torch.tensor(left))


def step(x: Any, y: list[int], model: Model = TILTED, epoch: int = 0) -> Step:
    return model.step(model.init(), toy_models.batch(x, y)._replace(extra={"epoch": epoch}))


def pair(model: Model = TILTED) -> Client:
    return toy_models.client([[0.0, 0.0], [0.0, 0.0]], [0, 1], model)


def method(**settings: Any) -> FedGen:
    return FedGen(**SMALL | settings)  # type: ignore[arg-type]


def two(model: Model = TILTED) -> Task:
    return toy_models.task(model, classes=2)


# -- the generator's loss ---------------------------------------------------------------------------------------------


def test_diversity_by_hand() -> None:
    """Noises 0 and 1, outputs 0 and 2: of four pairs two have 1 * 2, so exp(-(2 + 2) / 4) = exp(-1) = 0.36787944."""
    value = sameness(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [2.0]]))
    assert float(value) == pytest.approx(0.36787944, abs=1e-7)


def test_diversity_takes_squares_of_noises_and_sizes_of_features() -> None:
    """Noises (0, 0) and (2, 0): mean square 2. Outputs (0, 0) and (-3, 1): mean size 2. exp(-(4 + 4) / 4)."""
    value = sameness(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([[0.0, 0.0], [-3.0, 1.0]]))
    assert float(value) == pytest.approx(0.13533528, abs=1e-7)


@pytest.mark.parametrize(("eta", "more"), [(0.0, 0.0), (2.0, 2.0)])
def test_teachers_by_hand(eta: float, more: float) -> None:
    """Everything becomes (1, 0): head 1 predicts (.75, .25), head 2 (.5, .5). Rows (3, 0) and (1, 2) of the two classes
    give head 1 the shares 3/4 and 0, head 2 1/4 and 1. Labels 0 and 1: the mean of .75 * .287682 + .25 * .693147 =
    .389049 and 1 * .693147 is .541098. With the mean weight of a batch for each of its rows it would be .747087.
    Features that are all the same cost eta exp(0).
    """
    heads = [{"head.weight": w, "head.bias": torch.zeros(2)} for w in (TILTED.init()["head.weight"], torch.zeros(2, 2))]
    n = torch.tensor([[3.0, 0.0], [1.0, 2.0]])
    loss = method(eta=eta).generator_loss(two(), stack(heads), n)
    assert float(loss(constant([1.0, 0.0]), TWO.batch(torch.tensor([0, 1]), key(1)))) == pytest.approx(
        0.541098 + more, abs=1e-6
    )


def trained(m: FedGen, server: Global, counts: list[list[float]], t: Task | None = None) -> Global:
    params = (t or two()).model.init()
    ups = [Update(params, torch.tensor(sum(n)), torch.tensor(n)) for n in counts]
    after: Global = toy_models.aggregate(m, server, ups, t or two())
    return after


def test_the_generator_learns_what_the_heads_know() -> None:
    """A head that tells apart by the first feature: after 300 steps generated features are of their classes."""
    model = toy_models.identity_body(weight=torch.tensor([[2.0, 0.0], [-2.0, 0.0]]))
    m = method(teach=Adam(lr=0.01, epochs=300, batch_size=16))
    after = trained(m, m.init_server(two(model), key(0)), [[5.0, 5.0]], two(model))
    y = torch.tensor([0, 1] * 20)
    z = TWO(after.generator, y, key("other noise"))
    assert float((model.classify(model.init(), z).argmax(1) == y).float().mean()) > 0.95


def test_the_generator_goes_on_and_its_rate_fades() -> None:
    """With one step of Adam, which has the size of its rate: 0.01 in the first round, 0.01 * 0.5 in the second."""
    m = method(teach=Adam(lr=0.01, epochs=1, batch_size=6), fade=0.5)
    first = trained(m, m.init_server(two(), key(0)), [[5.0, 5.0]])
    second = trained(m, first, [[5.0, 5.0]])
    assert (float(first.left), float(second.left)) == (0.5, 0.25)
    moved = (second.generator["head.bias"] - first.generator["head.bias"]).abs().max()
    assert float(moved) == pytest.approx(0.005, rel=1e-3)
    stats = [s.generator["buffers.body.1.num_batches_tracked"].item() for s in (first, second)]
    assert stats == [1, 2]


def test_only_labels_of_the_round_are_taught_and_those_seen_accumulate(monkeypatch: pytest.MonkeyPatch) -> None:
    taught: list[Tensor] = []
    batch = Generator.batch
    monkeypatch.setattr(Generator, "batch", lambda g, y, k: taught.append(y) or batch(g, y, k))
    m = method()
    first = trained(m, m.init_server(two(), key(0)), [[0.0, 5.0], [0.0, 1.0]])
    assert torch.cat(taught).unique().tolist() == [1]
    taught.clear()
    second = trained(m, first, [[2.0, 0.0]])
    assert torch.cat(taught).unique().tolist() == [0]
    assert (first.seen.tolist(), second.seen.tolist()) == ([False, True], [True, True])


# -- the generator ----------------------------------------------------------------------------------------------------


def test_labels_are_drawn_evenly_from_those_flagged() -> None:
    counts = draw_labels(torch.tensor([False, True, False, True, True]), 3000, key(0)).bincount(minlength=5)
    assert counts[[0, 2]].tolist() == [0, 0]
    assert all(900 < n < 1100 for n in counts[[1, 3, 4]].tolist())


def test_inputs_are_uniform_noise_and_the_label() -> None:
    b = Generator(classes=3, width=2, hidden=5, noise=50).batch(torch.tensor([2, 0, 1] * 20), key(0))
    noises, labels = b.x[:, :50], b.x[:, 50:]
    assert labels[:3].tolist() == [[0, 0, 1], [1, 0, 0], [0, 1, 0]]
    assert 0 < float(noises.min()) < 0.01 < 0.99 < float(noises.max()) < 1
    assert float(noises.mean()) == pytest.approx(0.5, abs=0.02)


def test_it_is_what_torch_layers_make_of_its_params() -> None:
    """In evaluation mode by running statistics, in training by those of the batch."""
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))
    g = TWO.init(key(1)) | {"buffers.body.1.running_mean": normal(key(2), 5)}
    names = {"0.": "body.0.", "1.": "body.1.", "3.": "head."}
    values = [
        g[("buffers." if n in dict(net.named_buffers()) else "") + names[n[:2]] + n[2:]] for n in net.state_dict()
    ]
    net.load_state_dict(dict(zip(net.state_dict(), values, strict=True)))
    y = torch.tensor([0, 1, 1, 0])
    b = TWO.batch(y, key(3))
    torch.testing.assert_close(TWO.step(g, b), net.train()(b.x))
    net.load_state_dict(dict(zip(net.state_dict(), values, strict=True)))
    torch.testing.assert_close(TWO(g, y, key(3)), net.eval()(b.x))
    assert g["body.0.weight"].abs().max() <= 0.5


# -- the clients' terms -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alpha", "beta", "value"), [(3.0, 0.0, 0.431523), (0.0, 3.0, 0.196218), (1.0, 2.0, 0.143841 + 0.130812)]
)
def test_terms_by_hand(alpha: float, beta: float, value: float) -> None:
    """G makes (1, 0), which the head takes for (.75, .25). Only label 0 is seen, so all y' are 0: CE = .287682, and
    B' / B = 16 / 32 leaves .143841. The rows x = 0 have predictions (.5, .5): KL = .75 log 1.5 + .25 log .5 = .304099 -
    .173287 = .130812 for that of label 0, none for that of label 1, which is unseen: .065406 on average.
    3 * .143841 = .431523; 3 * .065406 = .196218.
    """
    term = method(alpha=alpha, beta=beta, gen_batch=16).generated(down([True, False]), pair())
    assert float(term(step([[0.0, 0.0], [0.0, 0.0]], [0, 1]))) == pytest.approx(value, abs=3e-6)


def test_terms_fade_with_a_floor() -> None:
    """alpha_t = 3 * left, at least 0.0001; 0 stays 0."""
    for left, strength in ((0.5, 1.5), (1e-9, LEAST)):
        term = method(alpha=3.0, beta=0.0, gen_batch=32).generated(down([True, False], left), pair())
        assert float(term(step([[0.0, 0.0], [0.0, 0.0]], [0, 1]))) == pytest.approx(strength * 0.287682, rel=1e-5)
    off = method(alpha=0.0, beta=0.0).generated(down([True, True], 1e-9), pair())
    assert float(off(step([[0.0, 0.0], [0.0, 0.0]], [0, 1]))) == 0


def test_what_is_generated_does_not_move_with_the_divergence() -> None:
    """At x = 0 the logits are the biases b = 0. The gradient of KL with a constant target (.75, .25) is p - target =
    (-.25, .25) in b, and nothing in the weights, by which the target was made.
    """
    m = method(alpha=0.0, beta=1.0)
    term = m.generated(down([True, True]), pair())

    def loss(w: Params, b: Batch) -> Tensor:
        return term(TILTED.step(w, b._replace(extra={"epoch": 0})))

    grads, _ = gradient(loss, TILTED.init(), toy_models.batch([[0.0, 0.0]], [0]))
    torch.testing.assert_close(grads["head.bias"], torch.tensor([-0.25, 0.25]))
    assert not grads["head.weight"].any()


def test_padding_is_not_seen() -> None:
    term = method(alpha=0.0, beta=1.0).generated(down([True, True]), pair())
    b = toy_models.batch([[0.0, 0.0], [9.0, 9.0]], [0, 1])._replace(extra={"epoch": 0}, w=torch.tensor([1.0, 0.0]))
    assert float(term(TILTED.step(TILTED.init(), b))) == pytest.approx(0.130812, abs=1e-6)


def test_clients_generate_in_evaluation_mode() -> None:
    """A label's features do not depend on the other labels of the batch, and statistics received stay as they are."""
    g = TWO.init(key(1))
    y = torch.tensor([0, 1, 1])
    torch.testing.assert_close(TWO(g, y, key(2))[:1], TWO(g, y[:1], key(2)))
    c = toy_models.random_client(9, 1, toy_models.mlp())
    sent = Global(c.model.init(), Generator(3, 4, 5, 2).init(key(1)), torch.ones(3) > 0, torch.ones(()))
    before = toy_models.snapshot(sent)
    up, _ = toy_models.participate(method(optim=toy_models.RICH), sent, Nothing(), c, key(1))
    toy_models.assert_same(sent, before)
    assert up.params.keys() == c.model.init().keys()


def test_the_generator_is_used_in_the_first_epochs_only() -> None:
    term = method(gen_epochs=2).generated(down([True, True]), pair())
    values = [float(term(step([[0.0, 0.0], [0.0, 0.0]], [0, 1], epoch=e))) for e in (0, 1, 2, 20)]
    assert [v > 0 for v in values] == [True, True, False, False]
    c = toy_models.random_client(9, 1, toy_models.mlp())
    sent = Global(c.model.init(), Generator(3, 4, 5, 2).init(key(1)), torch.ones(3) > 0, torch.ones(()))

    def after(**settings: Any) -> Params:
        up, _ = toy_models.participate(method(**settings), sent, Nothing(), c, key(1))
        params: Params = up.params
        return params

    one, both = (replace(toy_models.RICH, epochs=n, momentum=0.0) for n in (1, 2))
    start = FedAvg().init_server(toy_models.task(c.model), key(0))
    plain, _ = toy_models.participate(FedAvg(both), start, Nothing(), c, key(1))
    assert gap_params(after(optim=both, gen_epochs=0), plain.params) == 0
    assert gap_params(after(optim=both, gen_epochs=1), after(optim=both)) > 0
    assert gap_params(after(optim=one, gen_epochs=1), after(optim=one)) == 0


# -- rounds -----------------------------------------------------------------------------------------------------------


def batch_norm() -> Model:
    net = toy_models.Net(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.3)), nn.Linear(4, 3))
    return Model(toy_models.filled(net), "bn")


def played(m: Any, model: Model, rounds: int) -> Any:
    clients, t = [toy_models.random_client(n, seed, model) for n, seed in ((8, 1), (4, 2))], toy_models.task(model)
    server = m.init_server(t, key(0))
    for r in range(rounds):
        ups = [toy_models.participate(m, server, Nothing(), c, key(r, i))[0] for i, c in enumerate(clients)]
        server = toy_models.aggregate(m, server, ups, t, r)
    return server


@pytest.mark.parametrize("model", [toy_models.mlp(), batch_norm()])
def test_without_its_terms_it_is_fedavg(model: Model) -> None:
    """Bit for bit, running statistics and dropout included; and the first round is plain for everybody."""
    off = method(optim=toy_models.RICH, alpha=0.0, beta=0.0)
    fedavg = FedAvg(toy_models.RICH)
    assert gap_params(played(off, model, 3).params, played(fedavg, model, 3).params) == 0
    on = method(optim=toy_models.RICH)
    assert gap_params(played(on, model, 1).params, played(fedavg, model, 1).params) == 0
    assert gap_params(played(on, model, 2).params, played(fedavg, model, 2).params) > 0
    assert "FedAvg" in str(off.reduces_to())
    assert on.reduces_to() is None


def test_a_whole_run_without_its_terms_is_fedavg() -> None:
    assert gap_params(made_with("fedgen", alpha=0.0, beta=0.0).server.params, run("fedavg").server.params) == 0


def test_no_generator_travels_before_it_was_trained() -> None:
    m, t = method(optim=toy_models.RICH), toy_models.task(toy_models.mlp())
    first = m.broadcast(m.init_server(t, key(0)), "a", t, None, key(0))  # type: ignore[arg-type]
    assert first.generator == {}
    assert not first.seen.any()
    assert played(m, toy_models.mlp(), 1).generator


def test_counts_are_rows_of_each_class() -> None:
    c = toy_models.client(normal(key(1), 4, 3), [0, 2, 2, 2], toy_models.mlp(), classes=3)
    m = method(optim=toy_models.RICH)
    up, _ = toy_models.participate(
        m, m.init_server(toy_models.task(c.model), key(0)), Nothing(), toy_models.padded(c, 7), key(1)
    )
    assert up.counts.tolist() == [1, 0, 3]
    assert float(up.n) == 4


def test_who_predicts() -> None:
    c = toy_models.random_client(9, 1, toy_models.mlp())
    m, server = method(optim=toy_models.RICH), played(method(optim=toy_models.RICH), c.model, 1)
    up, _ = toy_models.participate(m, server, Nothing(), c, key(1))
    assert torch.equal(method_calls.personal_predictor(m, server, None, Nothing(), c)(c.x), c.model(server.params, c.x))
    assert torch.equal(method_calls.personal_predictor(m, server, up, Nothing(), c)(c.x), c.model(up.params, c.x))
    assert torch.equal(
        method_calls.generic_predictor(m, server, toy_models.task(c.model))(c.x), c.model(server.params, c.x)
    )


def test_bytes() -> None:
    """mlp of 3 inputs, 4 features and 3 classes: 31 weights. Up, with three counts and n_k: 35 scalars. Down: also a
    generator of (2 + 3) * 5 + 5, 4 * 5, 5 * 4 + 4 numbers and one of 8 bytes, one scalar and three flags.
    """
    c = toy_models.random_client(9, 1, toy_models.mlp())
    m, server = method(optim=toy_models.RICH), played(method(optim=toy_models.RICH), c.model, 1)
    up, _ = toy_models.participate(m, server, Nothing(), c, key(1))
    assert nbytes(up) == 4 * 35
    assert nbytes(server) == 4 * (31 + 30 + 20 + 24 + 1) + 8 + 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"alpha": -1.0}, {"beta": -1.0}, {"eta": -1.0}, {"gen_epochs": -1}, {"fade": 1.5}, {"gen_batch": 0},
        {"hidden": 0}, {"noise": 0},
    ],
)  # fmt: skip
def test_senseless_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(AtollError, match=f"FedGen: {next(iter(wrong))} is"):
        FedGen(**wrong)


def test_vmap_equals_loop() -> None:
    toy_models.check_vmap(method(optim=toy_models.RICH), toy_models.mlp())
