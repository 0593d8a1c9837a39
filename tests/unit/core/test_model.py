"""Initial values of a model: those of the network, or others drawn from a key."""

import pytest
import torch
from support import toy_models
from torch import nn

from atoll.core.model import Model
from atoll.core.payloads import Params
from atoll.core.prng import key
from atoll.errors import AtollError
from atoll.models import build


def same(a: Params, b: Params) -> bool:
    return a.keys() == b.keys() and all(torch.equal(v, b[name]) for name, v in a.items())


def test_initial_values_without_a_key_are_those_of_the_network() -> None:
    model = toy_models.mlp()
    assert same(model.init(), dict(model.net.named_parameters()))


@pytest.mark.parametrize("name", ["mlp:norm", "cnn1", "resnet18"])
def test_initial_values_follow_from_the_key_alone(name: str) -> None:
    base, _, norm = name.partition(":")
    model = Model(build(base, (3, 32, 32), 10, **({"norm": True} if norm else {})))
    before, generator = model.init(), torch.get_rng_state()

    first, again, other = model.init(key(1)), model.init(key(1)), model.init(key(2))

    assert same(first, again)
    assert not torch.equal(first["head.weight"], other["head.weight"])
    assert not torch.equal(first["head.weight"], before["head.weight"])
    assert first.keys() == before.keys()
    assert same(model.init(), before)
    assert torch.equal(torch.get_rng_state(), generator)


def test_drawn_values_have_the_spread_of_the_layers_rule() -> None:
    """nn.Linear with 100 inputs draws evenly from -0.1 to 0.1, 1 / sqrt(100): deviation 0.1 / sqrt(3) = 0.0577."""
    model = Model(toy_models.Net(nn.Linear(100, 200), nn.Linear(200, 3)))
    drawn = model.init(key(1))["body.weight"]
    assert float(drawn.abs().max()) <= 0.1
    assert float(drawn.std()) == pytest.approx(0.0577, rel=0.02)


def test_running_statistics_start_as_those_of_a_new_layer() -> None:
    model = Model(toy_models.Net(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), nn.Linear(3, 2)))
    drawn = model.init(key(1))
    assert drawn["buffers.body.1.running_var"].tolist() == [1.0, 1.0, 1.0]
    assert drawn["body.1.weight"].tolist() == [1.0, 1.0, 1.0]


def test_layer_without_a_rule_for_initial_values_is_named() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))

    model = Model(toy_models.Net(Scale(), nn.Linear(2, 2)))
    assert model.init()["body.scale"].tolist() == [1.0, 1.0]
    with pytest.raises(AtollError, match=r"The layer body \(Scale\) has weights and no reset_parameters\(\)"):
        model.init(key(1))


def test_batch_norms_are_named_whether_or_not_they_keep_statistics() -> None:
    body = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.BatchNorm1d(3, track_running_stats=False))
    assert Model(toy_models.Net(body, nn.Linear(3, 2))).batch_norms == {"body.1", "body.2"}
    assert toy_models.mlp().batch_norms == frozenset()
