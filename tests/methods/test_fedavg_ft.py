"""FedAvg with fine-tuning: FedAvg outside, a tuned copy of the received average inside."""

import torch
from support import toy_models

from atoll.clients import method_calls
from atoll.core.losses import objective
from atoll.core.optim.sgd import SGD
from atoll.core.payloads import Nothing
from atoll.core.prng import key
from atoll.methods.fedavg import FedAvg
from atoll.methods.fedavg_ft import FedAvgFT


def test_upload_is_that_of_fedavg() -> None:
    c = toy_models.random_client(9, 1, toy_models.mlp())
    method = FedAvgFT(toy_models.RICH, finetune=toy_models.PLAIN)
    down = method.init_server(toy_models.task(c.model), key(0))
    up, _ = toy_models.participate(method, down, method_calls.init_client(method, c, key(2)), c, key(1))
    plain, _ = toy_models.participate(FedAvg(toy_models.RICH), down, Nothing(), c, key(1))
    toy_models.assert_same(up, plain)


def test_the_received_average_is_tuned() -> None:
    """Neither the upload nor the personal model of the round before is where fine-tuning starts."""
    c = toy_models.random_client(9, 1, toy_models.mlp())
    method = FedAvgFT(toy_models.RICH, finetune=toy_models.PLAIN)
    down = method.init_server(toy_models.task(c.model), key(0))
    _, state = toy_models.participate(method, down, method_calls.init_client(method, c, key(2)), c, key(1))
    _, again = toy_models.participate(method, down, state, c, key(1))
    tuned = toy_models.PLAIN.fit(objective(c.model), down.params, c, key(1))
    assert all(torch.equal(v, state.params[name]) for name, v in tuned.items())
    toy_models.assert_same(state, again)


def test_who_predicts() -> None:
    c = toy_models.random_client(9, 1, toy_models.mlp())
    method = FedAvgFT(toy_models.RICH, finetune=toy_models.PLAIN)
    down = method.init_server(toy_models.task(c.model), key(0))
    up, state = toy_models.participate(method, down, method_calls.init_client(method, c, key(2)), c, key(1))
    assert torch.equal(method_calls.personal_predictor(method, down, None, state, c)(c.x), c.model(down.params, c.x))
    assert torch.equal(method_calls.personal_predictor(method, down, up, state, c)(c.x), c.model(state.params, c.x))


def test_tuning_like_training_is_fedavg() -> None:
    c = toy_models.random_client(9, 1, toy_models.mlp())
    method = FedAvgFT(toy_models.RICH, finetune=toy_models.RICH)
    down = method.init_server(toy_models.task(c.model), key(0))
    up, state = toy_models.participate(method, down, method_calls.init_client(method, c, key(2)), c, key(1))
    assert all(torch.equal(v, state.params[name]) for name, v in up.params.items())
    assert method.reduces_to() is not None
    assert FedAvgFT(finetune=SGD(epochs=3)).reduces_to() is None


def test_vmap_equals_loop() -> None:
    toy_models.check_vmap(FedAvgFT(toy_models.RICH, finetune=toy_models.RICH), toy_models.mlp())
