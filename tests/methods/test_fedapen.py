"""FedAPEN: losses and the weight's steps by hand, which rows are set aside, and which models predict."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from support import toy_models
from support.small_runs import gap_params, made_with, run, same_models
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._pytree import tree_map

from atoll.clients import method_calls
from atoll.core.batch import Step
from atoll.core.client import Client
from atoll.core.model import Model
from atoll.core.prng import key
from atoll.errors import AtollError
from atoll.methods._factory import make
from atoll.methods._mutual_learning import Shared
from atoll.methods.fedapen import PREDICTORS, FedAPEN, Held, State
from atoll.methods.fml import FML
from atoll.methods.local import State as Alone

HALF = torch.tensor(0.5)
THIRD = {"share": 0.3}  # so that nine rows have some to spare
APART = {"kl_weight": 0.0, "ensemble_weight": 0.0, "share": 0.0}


def step(logits: Tensor) -> Step:
    return Step({}, toy_models.batch(logits.detach(), [0] * len(logits)), logits, logits)


def pair() -> tuple[Tensor, Tensor]:
    """Private logits (0, 0), shared ones (ln 3, 0)."""
    return torch.zeros(1, 2), torch.tensor([[3.0, 1.0]]).log()


def held(y: list[int], w: list[float] | None = None) -> Held:
    return Held(torch.zeros(len(y), 1), torch.tensor(y), torch.tensor(w or [1.0] * len(y)), torch.tensor(True))


def rows(labels: list[int], model: Model | None = None) -> Client:
    """A client whose rows are told apart by their only input, their number."""
    x = torch.arange(float(len(labels)))[:, None]
    return toy_models.client(x, labels, model or toy_models.mlp(1), 3, proxy=toy_models.mlp(1, width=5, seed=3))


def unlike(n: int = 9, seed: int = 1) -> Client:
    return toy_models.random_client(n, seed, toy_models.mlp(), proxy=toy_models.mlp(width=5, seed=3))


def shared_of(c: Client) -> Model:
    assert c.proxy is not None
    return c.proxy


def started(method: FedAPEN, c: Client, **changes: Any) -> State:
    return replace(method_calls.init_client(method, c, key(7)), **changes)


# -- losses -----------------------------------------------------------------------------------------------------------


def test_losses_by_hand() -> None:
    """Label 0, lam = 1/2: e = (ln 3 / 2, 0), softmax (sqrt 3, 1) / (1 + sqrt 3) = (0.633975, 0.366025), CE 0.455746.
    L_p = CE + KL(shared || private) + CE(e) = 0.693147 + 0.130812 + 0.455746 = 1.279706;
    L_s = 0.287682 + 0.143841 + 0.455746 = 0.887270.
    """
    losses = FedAPEN().losses(HALF)(*(step(z) for z in pair()))
    assert [float(v) for v in losses] == pytest.approx([1.279706, 0.887270], abs=1e-6)


def test_the_other_model_is_a_constant() -> None:
    """Slopes of CE, KL and CE(e): private (-1/2) + (-1/4) + 1/2 (0.633975 - 1) = -0.933013;
    shared (-1/4) + 1/4 + 1/2 (0.633975 - 1) = -0.183013; the other logit has the opposite sign.
    """
    z = [v.requires_grad_() for v in pair()]
    total = sum(FedAPEN().losses(HALF)(step(z[0]), step(z[1])), start=torch.zeros(()))
    for grad, expected in zip(torch.autograd.grad(total, z), (-0.933013, -0.183013), strict=True):
        torch.testing.assert_close(grad, torch.tensor([[expected, -expected]]), rtol=0, atol=1e-6)


def test_each_model_has_its_own_weight_in_the_ensemble() -> None:
    """lam = 1/4: e = (3/4 ln 3, 0) for both losses, whose slope in e_0 is a = softmax(e)_0 - 1 = -0.304924: private
    -1/2 - 1/4 + 1/4 a = -0.826231, shared -1/4 + 1/4 + 3/4 a = -0.228693.
    """
    z = [v.requires_grad_() for v in pair()]
    total = sum(FedAPEN().losses(torch.tensor(0.25))(step(z[0]), step(z[1])), start=torch.zeros(()))
    for grad, expected in zip(torch.autograd.grad(total, z), (-0.826231, -0.228693), strict=True):
        assert float(grad[0, 0]) == pytest.approx(expected, abs=1e-6)


# -- the weight -------------------------------------------------------------------------------------------------------


def test_a_step_of_the_weight_by_hand() -> None:
    """d CE(e) / d lam = sum_c (softmax(e)_c - y_c)(p_c - s_c) = (0.633975 - 1)(0 - ln 3) = 0.402120: after one step of
    rate 0.001 lam = 0.499598.
    """
    after = FedAPEN(lam_passes=1).fit_weight(HALF, *pair(), held([0]))
    assert float(after) == pytest.approx(0.499598, abs=1e-6)


@pytest.mark.parametrize("size", [2, 64])
def test_the_weight_takes_the_steps_of_autograd(size: int) -> None:
    """Three rows, the last of another label, and one of padding, in batches of 2 or in one."""
    p = torch.tensor([[0.3, -1.0], [2.0, 0.5], [0.0, 1.0], [9.0, 9.0]])
    s, y, w = p.flip(0) * 0.7, torch.tensor([0, 0, 1, 0]), torch.tensor([1.0, 1.0, 1.0, 0.0])
    method = FedAPEN(replace(toy_models.PLAIN, batch_size=size), lam_lr=0.5, lam_passes=3)
    lam = HALF.clone().requires_grad_()
    optimiser = torch.optim.SGD([lam], lr=0.5)
    for _ in range(3):
        for i in range(0, 3, size):
            real = slice(i, min(i + size, 3))
            optimiser.zero_grad()
            nn.functional.cross_entropy(lam * p[real] + (1 - lam) * s[real], y[real]).backward()
            optimiser.step()
            with torch.no_grad():
                lam.clamp_(0, 1)
    after = method.fit_weight(HALF, p, s, held(y.tolist(), w.tolist()))
    torch.testing.assert_close(after, lam.detach())


@pytest.mark.parametrize(("label", "end"), [(0, 0.0), (1, 1.0)])
def test_the_weight_stays_from_0_to_1(label: int, end: float) -> None:
    """The shared model prefers class 0; each step alone would leave the range."""
    assert float(FedAPEN(lam_lr=10.0).fit_weight(HALF, *pair(), held([label]))) == end


def test_the_weight_is_learnt_from_the_next_download() -> None:
    """A first participation keeps 1/2. The next learns from the own model it kept and the shared one it received, with
    both as they are: untouched, in evaluation mode.
    """
    c = unlike()
    method = FedAPEN(replace(toy_models.RICH, epochs=0), lam_lr=0.5, **THIRD)
    down, state = Shared(shared_of(c).init()), started(method, c)
    _, first = toy_models.participate(method, down, state, c, key(1))
    assert float(first.lam) == 0.5
    assert bool(first.seen)
    up, second = toy_models.participate(method, down, first, c, key(2))
    aside = method.split(c, state.draw)[1]
    expected = method.fit_weight(HALF, c.model(first.params, aside.x), shared_of(c)(down.params, aside.x), aside)
    assert torch.equal(second.lam, expected)
    assert float((second.lam - 0.5).abs()) > 1e-3
    toy_models.assert_same(Alone(second.params), Alone(first.params))
    toy_models.assert_same(Alone(up.params), Alone(down.params))
    other = Shared({name: -v for name, v in down.params.items()})
    assert not torch.equal(toy_models.participate(method, other, first, c, key(2))[1].lam, second.lam)
    third = toy_models.participate(method, down, second, c, key(3))[1]
    assert abs(float(third.lam) - 0.5) > abs(float(second.lam) - 0.5)  # it goes on from where it stopped


def test_training_uses_the_weight_learnt_now() -> None:
    c, method = unlike(), FedAPEN(toy_models.RICH, lam_lr=0.0, **THIRD)
    down = Shared(shared_of(c).init())
    for other in (0.1, 0.9):
        ends = [
            toy_models.participate(m, down, started(method, c, lam=torch.tensor(lam)), c, key(1))[1].params
            for m, lam in ((method, other), (method, 0.5), (replace(method, adaptive=False), other))
        ]
        assert gap_params(ends[0], ends[1]) > 1e-4
        assert gap_params(ends[1], ends[2]) == 0  # FedEN trains with 1/2, whatever it has learnt


# -- the rows set aside -----------------------------------------------------------------------------------------------


def test_a_twentieth_is_set_aside_covering_the_classes() -> None:
    """5 % of 40 rows are 2: one of each class, though one class has 36 of the rows. No row is in both parts."""
    c = rows([0] * 36 + [1] * 4)
    rest, aside = FedAPEN().split(c, key(1))
    assert sorted(aside.y.tolist()) == [0, 1]
    assert len(rest.x) == rest.n == 38
    assert sorted(torch.cat([rest.x, aside.x])[:, 0].tolist()) == list(range(40))
    assert torch.equal(torch.cat([rest.y, aside.y]), c.y[torch.cat([rest.x, aside.x])[:, 0].long()])
    assert bool(aside.covers)
    assert aside.w.tolist() == [1.0, 1.0]


def test_beyond_one_of_each_class_shares_are_proportional() -> None:
    """10 of 100 rows, of classes with 70, 20 and 10: the k-th row set aside of a class of n has k / n before it, and
    the smallest go first: 0, 1/70, ..., 6/70 = 0.086 of the first (7), 0 and 1/20 of the second (2), 0 of the third.
    """
    aside = FedAPEN(share=0.1).split(rows([0] * 70 + [1] * 20 + [2] * 10), key(1))[1]
    assert torch.bincount(aside.y).tolist() == [7, 2, 1]


def test_it_is_drawn_once() -> None:
    c, method = rows([0, 1] * 20), FedAPEN()
    sets = [set(method.split(c, key(seed))[1].x[:, 0].tolist()) for seed in (1, 1, 2)]
    assert sets[0] == sets[1] != sets[2]
    state = started(method, c)
    after = toy_models.participate(method, Shared(shared_of(c).init()), state, c, key(9))[1]
    assert torch.equal(after.draw, state.draw)


def test_training_does_not_see_them() -> None:
    c, method = rows([0, 1, 2] * 4), FedAPEN(toy_models.RICH, **THIRD)
    state, down = started(method, c), Shared(shared_of(c).init())
    x = c.x.clone()
    x[method.split(c, state.draw)[1].x[:, 0].long()] = 1e6
    plain, altered = (toy_models.participate(method, down, state, client, key(1))[1] for client in (c, replace(c, x=x)))
    toy_models.assert_same(plain, altered)


def test_batch_statistics_do_not_see_them() -> None:
    """A full batch moves a running mean from 0 by a tenth of the mean of the rows trained on."""
    net = toy_models.Net(nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 4)), nn.Linear(4, 3))
    c = rows([0, 1, 2] * 4, Model(toy_models.filled(net)))
    method = FedAPEN(toy_models.PLAIN, **THIRD)
    state = started(method, c)
    after = toy_models.participate(method, Shared(shared_of(c).init()), state, c, key(1))[1]
    rest = method.split(c, state.draw)[0]
    assert len(rest.x) == 8
    assert float(after.params["buffers.body.0.running_mean"]) == pytest.approx(0.1 * float(rest.x.mean()), rel=1e-5)


@pytest.mark.parametrize(("n", "aside"), [(1, 0), (2, 0), (3, 1), (29, 1), (31, 2), (200, 10)])
def test_small_clients_keep_two_rows_to_train_on(n: int, aside: int) -> None:
    rest, held = FedAPEN().split(rows([0] * n), key(1))
    assert (len(rest.x), len(held.x)) == (n - aside, aside)


def test_a_class_with_one_row_keeps_it_for_training() -> None:
    rest, aside = FedAPEN().split(rows([0] * 30 + [1] + [2] * 9), key(1))
    assert 1 in rest.y.tolist()
    assert sorted(aside.y.tolist()) == [0, 2]
    assert bool(aside.covers)


def test_a_set_that_misses_a_class_teaches_nothing() -> None:
    """5 % of 20 rows are 1, of two classes: lam stays where it was."""
    c = rows([0, 1] * 10)
    method = FedAPEN(toy_models.RICH, lam_lr=0.5)
    state = started(method, c, lam=torch.tensor(0.7), seen=torch.tensor(True))
    assert not bool(method.split(c, state.draw)[1].covers)
    assert float(toy_models.participate(method, Shared(shared_of(c).init()), state, c, key(1))[1].lam) == pytest.approx(
        0.7
    )


@pytest.mark.parametrize("n", [1, 2, 3, 7, 12])
def test_padding_changes_nothing(n: int) -> None:
    c, method = rows([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2][:n]), FedAPEN(share=0.25)
    rest, aside = method.split(c, key(1))

    def split(c: Client) -> tuple[Tensor, ...]:
        rest, aside = method.split(c, key(1))
        return rest.x, rest.y, rest.n, aside.x, aside.w, aside.covers

    x, y, left, held_x, w, covers = (
        v[0] for v in vmap(split)(tree_map(lambda v: torch.stack([v, v]), toy_models.padded(c, 15)))
    )
    assert int(left) == len(rest.x)
    assert torch.equal(x[: len(rest.x)], rest.x)
    assert torch.equal(y[: len(rest.x)], rest.y)
    assert torch.equal(held_x[w > 0], aside.x)
    assert torch.equal(covers, aside.covers)


# -- predictions ------------------------------------------------------------------------------------------------------


def test_who_predicts() -> None:
    """After training, the ensemble with the weight in use and the shared model as received, not as trained here."""
    c, method = unlike(), FedAPEN(toy_models.RICH, lam_lr=0.5, **THIRD)
    down = Shared(shared_of(c).init())
    before = started(method, c, seen=torch.tensor(True), params=toy_models.mlp(seed=5).init())
    up, after = toy_models.participate(method, down, before, c, key(1))
    p, s = c.model(after.params, c.x), shared_of(c)(down.params, c.x)
    torch.testing.assert_close(
        method_calls.personal_predictor(method, down, up, after, c)(c.x), after.lam * p + (1 - after.lam) * s
    )
    others = {"equal": (p + s) / 2, "private": p, "shared": s}
    for name, expected in others.items():
        torch.testing.assert_close(
            method_calls.personal_predictor(replace(method, predict=name), down, up, after, c)(c.x), expected
        )
    assert {*others, "ensemble"} == set(PREDICTORS)
    certain = replace(after, lam=torch.tensor(1.0))
    assert torch.equal(method_calls.personal_predictor(method, down, up, certain, c)(c.x), p)


def test_before_training_the_weight_is_learnt_for_the_model_received() -> None:
    c, method = unlike(), FedAPEN(toy_models.RICH, lam_lr=0.5, **THIRD)
    down, state = Shared(shared_of(c).init()), started(method, c, seen=torch.tensor(True))
    lam = toy_models.participate(method, down, state, c, key(1))[1].lam
    expected = lam * c.model(state.params, c.x) + (1 - lam) * shared_of(c)(down.params, c.x)
    torch.testing.assert_close(method_calls.personal_predictor(method, down, None, state, c)(c.x), expected)
    assert float(lam) != 0.5


# -- variants, degenerate, settings -----------------------------------------------------------------------------------


def test_fml_ae_is_fml_with_a_learnt_ensemble() -> None:
    """CE + KL is twice FML's (CE + KL) / 2: plain steps of half its rate. The weight is learnt all the same."""
    c, optim = unlike(), replace(toy_models.PLAIN, epochs=2, batch_size=4)
    method = FedAPEN(optim, ensemble_weight=0.0, share=0.0)
    fml = FML(replace(optim, lr=0.2))
    down = Shared(shared_of(c).init())
    up, state = toy_models.participate(method, down, started(method, c), c, key(1))
    plain, alone = toy_models.participate(fml, down, Alone(c.model.init()), c, key(1))
    toy_models.assert_near(up, plain)
    toy_models.assert_near(state.params, alone.params)
    assert make("fedapen:fml-ae") == FedAPEN(ensemble_weight=0.0)
    assert make("fedapen:feden") == FedAPEN(adaptive=False)


def test_without_its_terms_the_private_model_is_local_and_the_shared_one_fedavg() -> None:
    apart = made_with("fedapen", **APART, predict="private")
    assert same_models(apart, run("local"))
    assert gap_params(apart.server.params, run("fedavg").server.params) == 0
    assert all(float(apart.state(i).lam) == 0.5 for i in apart.pool.ids)


def test_weights_differ_between_clients_in_a_run() -> None:
    result = made_with("fedapen", lam_lr=0.1)
    lams = {float(result.state(i).lam) for i in result.pool.ids}
    assert len(lams) > 1
    assert all(0 <= lam <= 1 for lam in lams)


def test_it_says_what_it_degenerates_to() -> None:
    assert FedAPEN().reduces_to() is None
    assert "alone" in str(FedAPEN(**APART).reduces_to())
    assert "1/2" in str(FedAPEN(share=0.0).reduces_to())


@pytest.mark.parametrize(
    "wrong",
    [
        {"share": 0.6},
        {"lam_lr": -1.0},
        {"lam_passes": -1},
        {"kl_weight": -1.0},
        {"ensemble_weight": -1.0},
        {"predict": "x"},
    ],
)
def test_senseless_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(AtollError, match=next(iter(wrong))):
        FedAPEN(**wrong)


@pytest.mark.parametrize("changes", [{}, {"adaptive": False}, {"ensemble_weight": 0.0}])
def test_vmap_equals_loop(changes: dict[str, Any]) -> None:
    c = unlike()
    toy_models.check_vmap(FedAPEN(toy_models.RICH, lam_lr=0.1, share=0.34, **changes), c.model, proxy=c.proxy)
