"""FedUV: both terms by hand, with padding, and FedAvg where they are off."""

from typing import Any

import pytest
import torch
from support import toy_models
from torch import Tensor

from atoll.core.batch import Step
from atoll.core.client import Client
from atoll.core.optim.base import gradient
from atoll.core.payloads import Nothing
from atoll.core.prng import key, normal
from atoll.core.regularisers import Regularisers
from atoll.errors import AtollError
from atoll.methods.fedavg import FedAvg
from atoll.methods.feddw import DW
from atoll.methods.feduv import UV, FedUV, lower_median, uniformity, variance

CLIENT = toy_models.random_client(9, 1, toy_models.mlp())


def ones(n: int) -> Tensor:
    return torch.ones(n)


def played(method: Any, c: Client = CLIENT, rounds: int = 2) -> Any:
    t = toy_models.task(c.model)
    server = method.init_server(t, key(0))
    for r in range(rounds):
        up, _ = toy_models.participate(method, method.broadcast(server, "a", t, r, key(0)), Nothing(), c, key(r))
        server = toy_models.aggregate(method, server, [up], t)
    return server


# ------------------------------------------------------------------------------------------------------------ variance


@pytest.mark.parametrize(("classes", "gamma"), [(2, 0.707107), (10, 0.316228), (100, 0.1)])
def test_gamma(classes: int, gamma: float) -> None:
    """The spread of a column of the identity is C^(-1/2); predictions that do not vary are short of all of it."""
    assert float(torch.eye(classes).std(0).mean()) == pytest.approx(gamma, abs=1e-6)
    flat = torch.full((4, classes), 1 / classes)
    assert float(variance(flat, ones(4))) == pytest.approx(gamma, abs=1e-6)


def test_each_class_twice() -> None:
    """One-hot predictions of ten classes, 20 rows: each column has variance (2 * 0.81 + 18 * 0.01) / 19 = 0.0947368,
    spread 0.3077935, which is 0.316228 - 0.3077935 = 0.0084343 short.
    """
    p = torch.eye(10).repeat(2, 1)
    assert float(variance(p, ones(20))) == pytest.approx(0.0084343, abs=1e-7)


def test_enough_variance_costs_nothing() -> None:
    """Two classes, rows (1, 0) and (0, 1): spread 0.707107, as much as gamma."""
    assert float(variance(torch.eye(2), ones(2))) == pytest.approx(0, abs=1e-6)


def test_constant_predictions_have_a_finite_gradient() -> None:
    p = torch.full((4, 3), 1 / 3, requires_grad=True)
    (slope,) = torch.autograd.grad(variance(p, ones(4)), p)
    assert torch.isfinite(slope).all()


# ---------------------------------------------------------------------------------------------------------- uniformity


def test_three_points_on_a_line() -> None:
    """0, 1 and 3: squared distances 1, 9, 4, median 4: (e^-0.25 + e^-2.25 + e^-1) / 3 =
    (0.778801 + 0.105399 + 0.367879) / 3 = 0.4173598.
    """
    assert float(uniformity(torch.tensor([[0.0], [1.0], [3.0]]), ones(3))) == pytest.approx(0.4173598, abs=1e-7)


def test_the_median_is_the_lower_one_of_those_above_zero() -> None:
    """0, 0, 1 and 3: distances 0, 1, 9, 1, 9, 4; above zero 1, 1, 4, 9, 9, median 4:
    (1 + 2 e^-0.25 + 2 e^-2.25 + e^-1) / 6 = (1 + 1.557602 + 0.210798 + 0.367879) / 6 = 0.522713.
    Of 1, 2, 4 and 9 the lower median is 2.
    """
    z = torch.tensor([[0.0], [0.0], [1.0], [3.0]])
    assert float(uniformity(z, ones(4))) == pytest.approx(0.522713, abs=1e-6)
    v = torch.tensor([4.0, 9.0, 0.0, 1.0, 2.0])
    assert float(lower_median(v, v > 0)) == 2
    assert float(lower_median(v, v > 100)) == 1


def test_gradients_flow_through_the_median() -> None:
    """Two points at distance a: sigma = a^2, the term is e^-1 whatever a is, and its gradient 0."""
    z = torch.tensor([[0.0], [3.0]], requires_grad=True)
    value = uniformity(z, ones(2))
    assert value.item() == pytest.approx(0.3678794)
    assert torch.autograd.grad(value, z)[0].flatten().tolist() == pytest.approx([0, 0], abs=1e-7)


def test_slopes_by_hand() -> None:
    """0, 1 and 3 again, with a = 1, b = 9 and the median c = 4: (e^(-a/c) + e^(-b/c) + e^-1) / 3 has the slopes
    -e^-0.25 / 12 = -0.0649001 by a, -e^-2.25 / 12 = -0.0087833 by b and (e^-0.25 + 9 e^-2.25) / 48 = 0.0359874 by c.
    By the points: 2 * 0.0649001 + 6 * 0.0087833 = 0.182500; -2 * 0.0649001 - 4 * 0.0359874 = -0.273750; and the rest.
    """
    z = torch.tensor([[0.0], [1.0], [3.0]], requires_grad=True)
    (slope,) = torch.autograd.grad(uniformity(z, ones(3)), z)
    assert slope.flatten().tolist() == pytest.approx([0.182500, -0.273750, 0.091250], abs=1e-6)


@pytest.mark.parametrize("z", [[[1.0, 2.0]], [[1.0, 2.0]] * 3])
def test_without_two_different_features_there_is_no_term(z: list[list[float]]) -> None:
    """The median of nothing would be NaN, and end the model."""
    model = toy_models.identity_body(width=2, classes=2, weight=torch.eye(2))

    def loss(p: Any, b: Any) -> Tensor:
        return UV(lam_v=1.0, lam_u=1.0).bind({}, p, CLIENT)(model.step(p, b))

    b = toy_models.batch(z, [0] * len(z))
    assert float(uniformity(b.x, b.w)) == 0
    grads, _ = gradient(loss, model.init(), b)
    assert all(torch.isfinite(g).all() for g in grads.values())


def test_a_single_row_costs_nothing() -> None:
    step = Step({}, toy_models.batch([[0.0, 1.0]], [0]), torch.zeros(1, 2), torch.zeros(1, 2))
    assert float(UV().bind({}, {}, CLIENT)(step)) == 0


@pytest.mark.parametrize("term", [variance, uniformity])
def test_padding_is_not_seen(term: Any) -> None:
    rows = normal(key(0), 5, 3).softmax(1)
    padded = torch.cat([rows, torch.full((3, 3), 7.0)]).requires_grad_()
    value = term(padded, torch.tensor([1.0] * 5 + [0.0] * 3))
    torch.testing.assert_close(value, term(rows, ones(5)))
    (slope,) = torch.autograd.grad(value, padded)
    assert not slope[5:].any()
    assert slope[:5].any()


# ---------------------------------------------------------------------------------------------------------- the method


def test_the_sum_of_both() -> None:
    """Logits (0, 0) for all: L_V = 0.707107; features 0, 1, 3: L_U = 0.4173598. 2.5 and 0.5 of them: 1.976447."""
    z = torch.tensor([[0.0], [1.0], [3.0]])
    step = Step({}, toy_models.batch(z, [0, 1, 0]), z, torch.zeros(3, 2))
    assert float(UV().bind({}, {}, CLIENT)(step)) == pytest.approx(2.5 * 0.7071068 + 0.5 * 0.4173598, abs=1e-6)


def test_strengths_of_zero_are_fedavg() -> None:
    plain = played(FedAvg(toy_models.RICH))
    toy_models.assert_near(played(FedUV(toy_models.RICH, lam_v=0.0, lam_u=0.0)).params, plain.params, tolerance=0)
    for one in (FedUV(toy_models.RICH, lam_v=0.0), FedUV(toy_models.RICH, lam_u=0.0)):
        assert one.reduces_to() is None
        assert not torch.equal(played(one).params["head.weight"], plain.params["head.weight"])
    assert "FedAvg" in str(FedUV(lam_v=0.0, lam_u=0.0).reduces_to())


def test_it_is_fedavg_with_a_term() -> None:
    toy_models.assert_same(played(FedUV(toy_models.RICH)), played(FedAvg(toy_models.RICH, Regularisers([UV()]))))


def test_a_dw_term_of_weight_zero_changes_nothing() -> None:
    c = toy_models.random_client(9, 1, toy_models.mlp(bias=False))
    host, guest = (played(FedUV(toy_models.RICH, terms), c) for terms in (Regularisers(), Regularisers([DW(0.0)])))
    toy_models.assert_near(host.params, guest.params, tolerance=0)
    both = Regularisers([DW(2.0)])
    bare = played(FedUV(toy_models.RICH, both, lam_v=0.0, lam_u=0.0), c)
    toy_models.assert_same(bare, played(FedAvg(toy_models.RICH, both), c))


@pytest.mark.parametrize("wrong", [{"lam_v": -1.0}, {"lam_u": -1.0}])
@pytest.mark.parametrize("make", [UV, FedUV])
def test_senseless_settings_are_refused(wrong: dict[str, float], make: Any) -> None:
    with pytest.raises(AtollError, match=f"{make.__name__}: {next(iter(wrong))} is"):
        make(**wrong)


def test_vmap_equals_loop() -> None:
    toy_models.check_vmap(FedUV(toy_models.RICH), toy_models.mlp())
