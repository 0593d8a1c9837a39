"""FedRoD: a balanced global model, and personal heads that learn from it without touching it."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from support import small_runs, toy_models
from torch import nn

from atoll.clients import method_calls
from atoll.core.batch import Batch
from atoll.core.client import Client
from atoll.core.losses import cross_entropy
from atoll.core.model import Model
from atoll.core.optim.adam import Adam
from atoll.core.optim.base import gradient
from atoll.core.params import BUFFERS, part, sub
from atoll.core.payloads import Nothing, Params, equal
from atoll.core.prng import key, normal
from atoll.core.regularisers import Regularisers
from atoll.core.task import Round
from atoll.errors import AtollError
from atoll.methods.fedavg import FedAvg, Global, Update
from atoll.methods.feddw import DW
from atoll.methods.fedprox import Proximal
from atoll.methods.fedrod import FedRoD, State

CLIENT = toy_models.random_client(9, 1, toy_models.mlp())
FORMS = pytest.mark.parametrize("interleaved", [True, False])


def fedrod(**settings: Any) -> FedRoD:
    return FedRoD(**{"optim": toy_models.RICH, "personal_optim": toy_models.RICH} | settings)


def down(c: Client = CLIENT) -> Global:
    return Global(c.model.init(), {})


def own_head(c: Client = CLIENT) -> State:
    return State({n: normal(key("own", n), *v.shape) for n, v in part(c.model.init(), "head").items()})


def with_statistics() -> Client:
    net = toy_models.Net(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.3)), nn.Linear(4, 3))
    return toy_models.random_client(8, 1, Model(toy_models.filled(net), "bn"))


# -- the balanced loss ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("y", "expected"), [(1, 2.302585), (0, 0.105361)])
def test_a_rare_class_costs_more(y: int, expected: float) -> None:
    """Logits 0 and counts (9, 1): shifted by log n they give p = (9/10, 1/10). -log(1/10) = 2.302585 for a row of class
    1, -log(9/10) = 0.105361 for one of class 0.
    """
    c = toy_models.client(torch.zeros(10, 2), [0] * 9 + [1], toy_models.identity_body())
    step = c.model.step(c.model.init(), toy_models.batch([[0.0, 0.0]], [y]))
    assert float(fedrod()._balanced(c)(step)) == pytest.approx(expected, abs=1e-6)


def test_equal_counts_give_plain_cross_entropy() -> None:
    c = toy_models.client(normal(key(1), 6, 3), [0, 1, 2] * 2, toy_models.mlp())
    step = c.model.step(c.model.init(), toy_models.batch(c.x, c.y))
    shifted, plain = fedrod()._balanced(c)(step), cross_entropy(step.logits, step.batch)
    torch.testing.assert_close(shifted, plain)


def test_the_exponent() -> None:
    """gamma = 2 squares the counts: 81 to 1, -log(1/82) = 4.406719."""
    c = toy_models.client(torch.zeros(10, 2), [0] * 9 + [1], toy_models.identity_body())
    step = c.model.step(c.model.init(), toy_models.batch([[0.0, 0.0]], [1]))
    assert float(fedrod(gamma=2.0)._balanced(c)(step)) == pytest.approx(4.406719, abs=1e-6)


def test_a_class_without_rows_costs_nothing_and_breaks_nothing() -> None:
    """Counts (2, 0): p = 1 for class 0 whatever the logits, so no value and no gradient is left, and none is NaN."""
    c = toy_models.client([[1.0, 0.0], [0.0, 1.0]], [0, 0], toy_models.identity_body(), classes=2)
    balanced = fedrod()._balanced(c)

    def loss(p: Params, b: Batch) -> torch.Tensor:
        return balanced(c.model.step(p, b))

    assert float(loss(c.model.init(), toy_models.batch(c.x, c.y))) == pytest.approx(0.0, abs=1e-8)
    grads, _ = gradient(loss, c.model.init(), toy_models.batch(c.x, c.y))
    assert all(torch.isfinite(g).all() and g.abs().max() < 1e-8 for g in grads.values())


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_a_class_without_rows_may_be_the_label_of_padding(gamma: float) -> None:
    """Such rows weigh 0; with log 0 in place of log 1e-9, 0 times infinity would come back, gamma's 0 included."""
    c = toy_models.client([[1.0, 0.0], [0.0, 1.0]], [1, 1], toy_models.identity_body(), classes=2)
    b = toy_models.batch([[1.0, 0.0], [7.0, 7.0]], [1, 0])._replace(w=torch.tensor([1.0, 0.0]))
    assert torch.isfinite(fedrod(gamma=gamma)._balanced(c)(c.model.step(c.model.init(), b)))


def test_padding_does_not_count() -> None:
    """Rows that are not there would make class 0 look common."""
    step = CLIENT.model.step(CLIENT.model.init(), toy_models.batch(CLIENT.x, CLIENT.y))
    alone, more = (fedrod()._balanced(c)(step) for c in (CLIENT, toy_models.padded(CLIENT, 20)))
    assert torch.equal(alone, more)


@FORMS
def test_without_balance_the_global_model_is_fedavgs(interleaved: bool) -> None:
    up, _ = toy_models.participate(fedrod(gamma=0.0, interleaved=interleaved), down(), own_head(), CLIENT, key(1))
    toy_models.assert_same(up, toy_models.participate(FedAvg(toy_models.RICH), down(), Nothing(), CLIENT, key(1))[0])
    assert "FedAvg" in str(fedrod(gamma=0.0).reduces_to())
    assert fedrod().reduces_to() is None


# -- one body, two heads ----------------------------------------------------------------------------------------------


def test_one_step_of_both() -> None:
    """One full batch, rate 0.1: p - 0.1 grad_p CE(g(z) + p(z), y) with z and g as received, not as trained."""
    method = fedrod(optim=toy_models.PLAIN, personal_optim=toy_models.PLAIN)
    before = own_head()
    up, after = toy_models.participate(method, down(), before, CLIENT, key(1))
    received = down().params
    z = CLIENT.model.features(received, CLIENT.x)

    def loss(p: Params, b: Batch) -> torch.Tensor:
        return cross_entropy(CLIENT.model.classify(received, z) + CLIENT.model.classify(p, z), b)

    grads, _ = gradient(loss, before.head, toy_models.batch(CLIENT.x, CLIENT.y))
    toy_models.assert_near(after.head, sub(before.head, grads, 0.1))
    assert not torch.equal(up.params["body.0.weight"], received["body.0.weight"])


def test_wait_free_the_head_meets_the_final_model() -> None:
    """The same step, with z and g as they were sent; rows in evaluation mode."""
    c = with_statistics()
    method, before = fedrod(personal_optim=toy_models.PLAIN, interleaved=False), own_head(c)
    up, after = toy_models.participate(method, down(c), before, c, key(1))
    z = c.model.features(up.params, c.x)

    def loss(p: Params, b: Batch) -> torch.Tensor:
        return cross_entropy(c.model.classify(up.params, z) + c.model.classify(p, z), b)

    grads, _ = gradient(loss, before.head, toy_models.batch(c.x, c.y))
    toy_models.assert_near(after.head, sub(before.head, grads, 0.1))


@pytest.mark.parametrize("c", [CLIENT, with_statistics()], ids=["plain", "statistics"])
@pytest.mark.parametrize(
    "personal", [toy_models.RICH, replace(toy_models.RICH, lr=5.0, clip=0.0), Adam(epochs=3, batch_size=2)]
)
def test_the_global_model_does_not_notice_its_personal_heads(c: Client, personal: Any) -> None:
    """Bit for bit, whatever the head is, however it moves, interleaved or afterwards; clipping is not shared either."""
    tight = replace(toy_models.RICH, clip=0.05)
    ups = [
        toy_models.participate(fedrod(optim=tight, personal_optim=personal, interleaved=i), down(c), state, c, key(1))[
            0
        ]
        for i in (True, False)
        for state in (own_head(c), method_calls.init_client(FedRoD(), c, key(0)))
    ]
    for up in ups[1:]:
        toy_models.assert_same(up, ups[0])
    assert all(name.startswith(("body.", "head.", BUFFERS)) for name in ups[0].params)


def test_afterwards_nothing_but_the_head_moves() -> None:
    c = with_statistics()
    up = Update(c.model.init(), c.n, {})
    sent = toy_models.snapshot(up)
    with torch.no_grad():
        state = fedrod(interleaved=False).after_upload(down(c), up, own_head(c), c, Round(0), key(1))
    toy_models.assert_same(up, sent)
    assert state.head.keys() == {"head.weight", "head.bias"}
    assert not torch.equal(state.head["head.weight"], own_head(c).head["head.weight"])


def test_momentum_of_the_head_lasts_for_all_batches() -> None:
    """A model that does not move: interleaved steps of the head are then those of any other optimiser."""
    still = replace(toy_models.RICH, lr=0.0)
    inside, after = (fedrod(optim=still, interleaved=i) for i in (True, False))
    one, other = (toy_models.participate(m, down(), own_head(), CLIENT, key(1))[1] for m in (inside, after))
    toy_models.assert_near(one, other)


def test_wait_free_heads_take_their_own_epochs() -> None:
    once, thrice = (
        toy_models.participate(
            fedrod(interleaved=False, personal_optim=replace(toy_models.RICH, epochs=e)),
            down(),
            own_head(),
            CLIENT,
            key(1),
        )[1]
        for e in (1, 3)
    )
    assert not equal(once, thrice)
    none = fedrod(interleaved=False, personal_optim=replace(toy_models.RICH, epochs=0))
    toy_models.assert_same(toy_models.participate(none, down(), own_head(), CLIENT, key(1))[1], own_head())


def test_interleaved_nothing_is_left_for_later() -> None:
    up, state = fedrod().client_update(down(), own_head(), CLIENT, Round(0), key(1))
    assert not equal(state, own_head())
    assert fedrod().after_upload(down(), up, state, CLIENT, Round(0), key(1)) is state


# -- who predicts -----------------------------------------------------------------------------------------------------


def test_a_head_of_zeros_predicts_as_the_global_model() -> None:
    """Clients begin so."""
    method = fedrod()
    state = method_calls.init_client(method, CLIENT, key(0))
    generic = method_calls.generic_predictor(method, down(), toy_models.task(CLIENT.model))
    assert torch.equal(
        method_calls.personal_predictor(method, down(), None, state, CLIENT)(CLIENT.x), generic(CLIENT.x)
    )


def test_both_heads_predict() -> None:
    """g(z) + p(z), with the body received before training and the trained one after it."""
    method, state = fedrod(), own_head()
    up, after = toy_models.participate(method, down(), state, CLIENT, key(1))
    for params, sent, kept in ((down().params, None, state), (up.params, up, after)):
        z = CLIENT.model.features(params, CLIENT.x)
        both = CLIENT.model.classify(params, z) + CLIENT.model.classify(kept.head, z)
        torch.testing.assert_close(method_calls.personal_predictor(method, down(), sent, kept, CLIENT)(CLIENT.x), both)


def test_heads_fit_their_own_clients() -> None:
    """All rows are of class 2: the personal model learns to say so; for the balanced one there is nothing to learn."""
    c = toy_models.client(normal(key(3), 12, 3), [2] * 12, toy_models.mlp(), classes=3)
    method = fedrod(optim=replace(toy_models.RICH, weight_decay=0.0))
    server, state = method.init_server(toy_models.task(c.model), key(0)), method_calls.init_client(method, c, key(0))
    up, state = toy_models.participate(method, server, state, c, key(1))
    assert (method_calls.personal_predictor(method, server, up, state, c)(c.x).argmax(1) == 2).all()
    toy_models.assert_near(up.params, server.params, tolerance=1e-6)
    assert (method_calls.generic_predictor(method, server, toy_models.task(c.model))(c.x).argmax(1) != 2).any()


# -- in a federation --------------------------------------------------------------------------------------------------


@FORMS
def test_regularisers_join_the_balanced_loss(interleaved: bool) -> None:
    """Terms of weight zero change nothing, not even a bit; a strong pull keeps the model where it was."""
    with_terms = fedrod(interleaved=interleaved, regularisers=Regularisers([Proximal(0.0), DW(0.0)]))
    c = toy_models.random_client(9, 1, toy_models.mlp(bias=False))
    server = with_terms.init_server(toy_models.task(c.model), key(0))
    up, state = toy_models.participate(with_terms, server, own_head(c), c, key(1))
    plain, other = toy_models.participate(
        fedrod(interleaved=interleaved), Global(server.params, {}), own_head(c), c, key(1)
    )
    toy_models.assert_near(up.params, plain.params, tolerance=0)
    toy_models.assert_same(state, other)
    assert up.extra.keys() == {"DW.sum", "DW.count"}
    pulled = fedrod(interleaved=interleaved, regularisers=Regularisers([Proximal(50.0)]))
    near, _ = toy_models.participate(pulled, Global(server.params, {}), own_head(c), c, key(1))
    assert small_runs.gap_params(near.params, server.params) < small_runs.gap_params(plain.params, server.params)


def test_a_whole_run_has_the_same_global_model_in_both_forms() -> None:
    first, second = (small_runs.made_with("fedrod", interleaved=i, **small_runs.PERSONAL) for i in (True, False))
    assert equal(first.server, second.server)
    assert not small_runs.same_models(first, second)


def test_a_negative_exponent_is_refused() -> None:
    with pytest.raises(AtollError, match="gamma is -1"):
        FedRoD(gamma=-1.0)


@FORMS
@pytest.mark.parametrize("personal", [toy_models.RICH, Adam(lr=0.01, epochs=2, batch_size=4)])
def test_vmap_equals_loop(interleaved: bool, personal: Any) -> None:
    toy_models.check_vmap(fedrod(interleaved=interleaved, personal_optim=personal), toy_models.mlp())


def test_the_wait_free_form_is_known() -> None:
    assert replace(FedRoD(), **dict(FedRoD.traits.wait_free or {})).interleaved is False
