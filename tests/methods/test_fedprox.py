"""FedProx: the proximal term by hand, and FedAvg where it is off."""

import pytest
import torch
from support import toy_models
from torch import Tensor

from atoll.core.batch import Batch
from atoll.core.optim.base import gradient
from atoll.core.params import sqnorm, sub
from atoll.core.payloads import Nothing, Params
from atoll.core.prng import key
from atoll.core.regularisers import Regularisers
from atoll.errors import AtollError
from atoll.methods.fedavg import FedAvg, Update
from atoll.methods.fedprox import FedProx, Proximal

ANY = toy_models.random_client(4, 0, toy_models.mlp())


def quadratic(a: float, mu: float, anchor: float, steps: int) -> list[float]:
    """Values of w while (w - a)^2 / 2 + mu/2 (w - anchor)^2 is minimised from the anchor with rate 0.1."""
    pull = Proximal(mu).bind({}, {"w": torch.tensor([anchor])}, ANY)

    def loss(p: Params, b: Batch) -> Tensor:
        return (p["w"] - a).square().sum() / 2 + pull(toy_models.at(p))

    w, seen = {"w": torch.tensor([anchor])}, []
    for _ in range(steps):
        w = toy_models.PLAIN.run(loss, w, [toy_models.batch([[0.0]], [0])])
        seen.append(float(w["w"]))
    return seen


def test_steps_and_fixed_point() -> None:
    """a = 3, anchor 0, mu = 1, rate 0.1. From 0 the gradient is -3: 0.3. There it is (0.3 - 3) + 0.3 = -2.4: 0.54.
    It vanishes where (w - 3) + w = 0: 1.5.
    """
    path = quadratic(3.0, 1.0, 0.0, 200)
    assert path[:2] == pytest.approx([0.3, 0.54])
    assert path[-1] == pytest.approx(1.5)


def test_the_norm_is_squared() -> None:
    """w = (1, 2), anchor 0, mu = 1: (1 + 4) / 2 = 2.5; the bare norm would give 2.236. Gradient mu (w - anchor)."""
    pull = Proximal(1.0).bind({}, {"w": torch.zeros(2)}, ANY)
    w = {"w": torch.tensor([1.0, 2.0])}
    assert float(pull(toy_models.at(w))) == 2.5
    grads, _ = gradient(lambda p, b: pull(toy_models.at(p)), w, toy_models.batch([[0.0]], [0]))
    assert grads["w"].tolist() == [1.0, 2.0]


def test_running_statistics_are_not_pulled() -> None:
    pull = Proximal(1.0).bind({}, {"w": torch.zeros(1), "buffers.m": torch.zeros(1)}, ANY)
    assert float(pull(toy_models.at({"w": torch.zeros(1), "buffers.m": torch.ones(1)}))) == 0


def test_mu_zero_is_fedavg() -> None:
    c = toy_models.random_client(9, 1, toy_models.mlp())
    down = FedAvg().init_server(toy_models.task(c.model), key(0))
    a, _ = toy_models.participate(FedAvg(toy_models.RICH), down, Nothing(), c, key(1))
    b, _ = toy_models.participate(FedProx(toy_models.RICH, mu=0.0), down, Nothing(), c, key(1))
    toy_models.assert_same(a, b)
    assert FedProx(mu=0.0).reduces_to() == "With mu = 0 this is FedAvg."
    assert FedProx().reduces_to() is None


def test_is_fedavg_with_the_regulariser() -> None:
    c = toy_models.random_client(9, 1, toy_models.mlp())
    down = FedAvg().init_server(toy_models.task(c.model), key(0))
    a, _ = toy_models.participate(FedAvg(toy_models.RICH, Regularisers([Proximal(2.0)])), down, Nothing(), c, key(1))
    b, _ = toy_models.participate(FedProx(toy_models.RICH, mu=2.0), down, Nothing(), c, key(1))
    far, _ = toy_models.participate(FedAvg(toy_models.RICH), down, Nothing(), c, key(1))
    toy_models.assert_same(a, b)

    def distance(up: Update) -> float:
        return float(sqnorm(sub(up.params, down.params)))

    assert distance(b) < distance(far)


@pytest.mark.parametrize("make", [FedProx, Proximal])
def test_negative_mu_is_refused(make: type) -> None:
    with pytest.raises(AtollError, match=r"mu is -0.1, but it must be at least 0"):
        make(mu=-0.1)


def test_vmap_equals_loop() -> None:
    toy_models.check_vmap(FedProx(toy_models.RICH, mu=0.5), toy_models.mlp())
