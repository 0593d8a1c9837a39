"""FedAvg with fine-tuning: FedAvg outside, a tuned copy of the received average inside."""

import torch
import toys

from atoll.core.losses import objective
from atoll.core.optim.sgd import SGD
from atoll.core.payload import Nothing
from atoll.core.prng import key
from atoll.methods.fedavg import FedAvg
from atoll.methods.fedavg_ft import FedAvgFT


def test_upload_is_that_of_fedavg() -> None:
    c = toys.random_client(9, 1, toys.mlp())
    method = FedAvgFT(toys.RICH, finetune=toys.PLAIN)
    down = method.init_server(toys.task(c.model), key(0))
    up, _ = toys.participate(method, down, method.init_client(c, key(2)), c, key(1))
    plain, _ = toys.participate(FedAvg(toys.RICH), down, Nothing(), c, key(1))
    toys.assert_same(up, plain)


def test_the_received_average_is_tuned() -> None:
    """Neither the upload nor the personal model of the round before is where fine-tuning starts."""
    c = toys.random_client(9, 1, toys.mlp())
    method = FedAvgFT(toys.RICH, finetune=toys.PLAIN)
    down = method.init_server(toys.task(c.model), key(0))
    _, state = toys.participate(method, down, method.init_client(c, key(2)), c, key(1))
    _, again = toys.participate(method, down, state, c, key(1))
    tuned = toys.PLAIN.fit(objective(c.model), down.params, c, key(1))
    assert all(torch.equal(v, state.params[name]) for name, v in tuned.items())
    toys.assert_same(state, again)


def test_who_predicts() -> None:
    c = toys.random_client(9, 1, toys.mlp())
    method = FedAvgFT(toys.RICH, finetune=toys.PLAIN)
    down = method.init_server(toys.task(c.model), key(0))
    up, state = toys.participate(method, down, method.init_client(c, key(2)), c, key(1))
    assert torch.equal(method.personal(down, None, state, c)(c.x), c.model(down.params, c.x))
    assert torch.equal(method.personal(down, up, state, c)(c.x), c.model(state.params, c.x))


def test_tuning_like_training_is_fedavg() -> None:
    c = toys.random_client(9, 1, toys.mlp())
    method = FedAvgFT(toys.RICH, finetune=toys.RICH)
    down = method.init_server(toys.task(c.model), key(0))
    up, state = toys.participate(method, down, method.init_client(c, key(2)), c, key(1))
    assert all(torch.equal(v, state.params[name]) for name, v in up.params.items())
    assert method.degenerate() is not None
    assert FedAvgFT(finetune=SGD(epochs=3)).degenerate() is None


def test_vmap_equals_loop() -> None:
    toys.check_vmap(FedAvgFT(toys.RICH, finetune=toys.RICH), toys.mlp())
