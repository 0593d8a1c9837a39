"""FedProto: prototypes, the pull and the readout by hand."""

import pytest
import torch
from support import toy_models

from atoll.clients import method_calls
from atoll.core.optim.base import gradient
from atoll.core.payloads import Nothing, nbytes
from atoll.core.prng import key
from atoll.errors import AtollError
from atoll.methods._prototypes import pull_to_means
from atoll.methods.fedproto import FedProto, Means, Prototypes
from atoll.methods.local import Local, State

EMPTY = Prototypes(torch.zeros(2, 2), torch.zeros(2, dtype=torch.bool))
TWO = [
    Means(torch.tensor([[1.0, 1.0], [0.0, 0.0]]), torch.tensor([10.0, 0.0])),
    Means(torch.tensor([[3.0, 5.0], [0.0, 0.0]]), torch.tensor([30.0, 0.0])),
]


def pooled(method: FedProto, server: Prototypes, uploads: list[Means]) -> Prototypes:
    after: Prototypes = toy_models.aggregate(
        method, server, uploads, toy_models.task(toy_models.identity_body(), classes=2)
    )
    return after


def test_pooling() -> None:
    """(1, 1) from 10 rows and (3, 5) from 30. Plain mean (2, 3); by rows (1/4 + 9/4, 1/4 + 15/4) = (2.5, 4). The
    paper's formula, which does both, would halve the latter. Class 1, which nobody has, stays without a prototype.
    """
    assert pooled(FedProto(), EMPTY, TWO).means.tolist() == [[2.0, 3.0], [0.0, 0.0]]
    assert pooled(FedProto(aggregation="weighted"), EMPTY, TWO).means.tolist() == [[2.5, 4.0], [0.0, 0.0]]
    assert pooled(FedProto(), EMPTY, TWO).seen.tolist() == [True, False]


def test_absent_classes_keep_their_prototype_unless_forgotten() -> None:
    known = Prototypes(torch.tensor([[9.0, 9.0], [7.0, 8.0]]), torch.tensor([True, True]))
    kept = pooled(FedProto(), known, TWO)
    assert kept.means.tolist() == [[2.0, 3.0], [7.0, 8.0]]
    assert kept.seen.tolist() == [True, True]
    forgetful = pooled(FedProto(forget_absent=True), known, TWO)
    assert forgetful.means.tolist() == [[2.0, 3.0], [0.0, 0.0]]
    assert forgetful.seen.tolist() == [True, False]


@pytest.mark.parametrize(("distance", "value"), [("mse", 2.5), ("sq", 5.0), ("l2", 5**0.5)])
def test_pull(distance: str, value: float) -> None:
    """z = (1, 1), prototype (2, 3): squared differences 1 and 4; mean 2.5, sum 5, the root of that 2.236068."""
    pull = pull_to_means(torch.tensor([[2.0, 3.0]]), torch.tensor([True]), 1.0, distance)
    assert float(pull(toy_models.at({}, toy_models.batch([[0.0]], [0]), [[1.0, 1.0]]))) == pytest.approx(value)


def test_a_class_without_prototype_is_not_pulled_but_counts() -> None:
    """Two rows, mse 2.5 and unknown: (2.5 + 0) / 2."""
    pull = pull_to_means(torch.tensor([[2.0, 3.0], [0.0, 0.0]]), torch.tensor([True, False]), 1.0, "mse")
    step = toy_models.at({}, toy_models.batch([[0.0], [0.0]], [0, 1]), [[1.0, 1.0], [50.0, 50.0]])
    assert float(pull(step)) == pytest.approx(1.25)


def test_the_pull_reaches_the_body_only() -> None:
    model = toy_models.mlp()
    pull = pull_to_means(torch.ones(3, 4), torch.ones(3, dtype=torch.bool), 1.0, "mse")
    grads, _ = gradient(lambda p, b: pull(model.step(p, b)), model.init(), toy_models.batch(torch.ones(2, 3), [0, 1]))
    assert not grads["head.weight"].any()
    assert not grads["head.bias"].any()
    assert grads["body.0.weight"].any()


def test_nearest_prototype() -> None:
    """Prototypes (2, 3) and (0, 0), z = (1, 1): squared distances 5 and 2, so class 1."""
    down = Prototypes(torch.tensor([[2.0, 3.0], [0.0, 0.0]]), torch.tensor([True, True]))
    c = toy_models.client([[1.0, 1.0], [2.0, 2.0]], [0, 1], toy_models.identity_body(), classes=2)
    scores = method_calls.personal_predictor(FedProto(readout="prototype"), down, None, State(c.model.init()), c)(c.x)
    assert scores[0].tolist() == [-5.0, -2.0]
    assert scores.argmax(1).tolist() == [1, 0]


def test_prototypes_of_others_do_not_compete() -> None:
    down = Prototypes(torch.tensor([[2.0, 3.0], [0.0, 0.0]]), torch.tensor([True, True]))
    c = toy_models.client([[1.0, 1.0]], [0], toy_models.identity_body(), classes=2)
    state = State(c.model.init())
    own = method_calls.personal_predictor(FedProto(readout="prototype"), down, None, state, c)
    free = method_calls.personal_predictor(FedProto(readout="prototype", proto_own_classes=False), down, None, state, c)
    assert own(c.x).argmax(1).tolist() == [0]
    assert free(c.x).argmax(1).tolist() == [1]


def test_the_head_decides_until_there_is_a_prototype() -> None:
    c = toy_models.client(
        [[1.0, 1.0]], [0], toy_models.identity_body(weight=torch.tensor([[0.0, 0.0], [1.0, 1.0]])), classes=2
    )
    state = State(c.model.init())
    assert method_calls.personal_predictor(FedProto(readout="prototype"), EMPTY, None, state, c)(c.x).tolist() == [
        [0.0, 2.0]
    ]
    assert method_calls.personal_predictor(FedProto(), EMPTY, None, state, c)(c.x).tolist() == [[0.0, 2.0]]


@pytest.mark.parametrize("distance", ["mse", "sq", "l2"])
@pytest.mark.parametrize("off", ["lam", "first round"])
def test_local_where_the_pull_is_off(distance: str, off: str) -> None:
    c = toy_models.random_client(9, 1, toy_models.mlp())
    known = Prototypes(torch.ones(3, 4), torch.ones(3, dtype=torch.bool))
    method = FedProto(toy_models.RICH, lam=0.0 if off == "lam" else 2.0, distance=distance)
    down = known if off == "lam" else method.init_server(toy_models.task(c.model), key(0))
    _, state = toy_models.participate(method, down, method_calls.init_client(method, c, key(0)), c, key(1))
    _, alone = toy_models.participate(
        Local(toy_models.RICH), Nothing(), method_calls.init_client(method, c, key(0)), c, key(1)
    )
    toy_models.assert_same(state, alone)
    assert (method.reduces_to() is not None) == (off == "lam")


def test_the_pull_brings_features_closer() -> None:
    c = toy_models.random_client(9, 1, toy_models.mlp())
    down = Prototypes(torch.full((3, 4), 2.0), torch.ones(3, dtype=torch.bool))

    def gap(lam: float) -> float:
        method = FedProto(toy_models.RICH, lam=lam)
        up, _ = toy_models.participate(method, down, method_calls.init_client(method, c, key(0)), c, key(1))
        return float((up.means - down.means).square().mean())

    assert gap(5.0) < gap(0.0)


def test_bytes() -> None:
    """C = 10, d = 500. Down: 5,000 scalars once all classes are seen, none in the first round. Up with 2 classes:
    2 labels, 2 counts and 2 * 500 = 1,004 scalars.
    """
    first = FedProto().init_server(toy_models.task(toy_models.identity_body(500, 10), 10), key(0))
    assert nbytes(first) == 0
    assert nbytes(Prototypes(torch.ones(10, 500), torch.ones(10, dtype=torch.bool))) == 4 * 5_000
    n = torch.tensor([40.0, 7.0] + [0.0] * 8)
    assert nbytes(Means((n > 0)[:, None] * torch.ones(10, 500), n)) == 4 * 1_004


@pytest.mark.parametrize("wrong", [{"lam": -1.0}, {"distance": "l1"}, {"aggregation": "both"}, {"readout": "both"}])
def test_senseless_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(AtollError, match=f"FedProto: {next(iter(wrong))} is"):
        FedProto(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("distance", ["mse", "l2"])
def test_vmap_equals_loop(distance: str) -> None:
    toy_models.check_vmap(FedProto(toy_models.RICH, distance=distance), toy_models.mlp())
