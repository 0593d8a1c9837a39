"""IFCA: choices and averages by hand, different starts, clusters that are found, and who may not sum."""

from dataclasses import replace

import pytest
import torch
from support import small_runs, toy_models

from atoll.clients import method_calls
from atoll.core.payloads import Nothing, Params
from atoll.core.prng import key
from atoll.errors import AtollError
from atoll.methods.ifca import IFCA, Models, Update

W = "head.weight"
MODEL = toy_models.identity_body(1, 2, bias=False)
PAIR = Models({W: torch.tensor([[[1.0], [0.0]], [[0.0], [1.0]]])})  # logits (x, 0) and (0, x)
TWO = IFCA(toy_models.PLAIN, clusters=2)


def update(value: float, n: float, choice: int) -> Update:
    params: Params = {"w": torch.tensor([value])}
    return Update(params, torch.tensor(n), torch.tensor(choice, dtype=torch.int32))


@pytest.mark.parametrize(("label", "expected"), [(0, 0), (1, 1)])
def test_client_chooses_the_model_of_least_loss(label: int, expected: int) -> None:
    """x = 1: the logits are (1, 0) and (0, 1); for class 0 the losses are log(1 + 1/e) = 0.31 and log(1 + e) = 1.31."""
    c = toy_models.client([[1.0]], [label], MODEL, classes=2)
    assert int(TWO.choose(PAIR, c)) == expected


def test_padding_does_not_choose() -> None:
    """One row of class 0 and three of padding, which are labelled 0 and would prefer the second model at x = -7."""
    c = toy_models.padded(toy_models.client([[1.0]], [0], MODEL, classes=2), 4, junk=-7.0)
    assert int(TWO.choose(PAIR, c)) == 0


def test_client_trains_the_chosen_model_and_says_which() -> None:
    """One step of 0.1 from logits (0, 1) for class 1: p = (0.2689, 0.7311), gradient (0.2689, -0.2689) of the head."""
    c = toy_models.client([[1.0]], [1], MODEL, classes=2)

    up, _ = toy_models.participate(TWO, PAIR, Nothing(), c, key(0))

    assert int(up.choice) == 1
    assert up.params[W].flatten().tolist() == pytest.approx([-0.02689, 1.02689], abs=1e-5)


def test_models_are_averaged_over_those_who_chose_them() -> None:
    """Models 1 (3 rows) and 5 (1 row) chose the first of three: 2. The second is 7 alone. The third stays at 30."""
    server = Models({"w": torch.tensor([[10.0], [20.0], [30.0]])})
    ups = [update(1.0, 3, 0), update(7.0, 2, 1), update(5.0, 1, 0)]
    after = toy_models.aggregate(IFCA(clusters=3), server, ups, toy_models.task(MODEL))
    assert after.params["w"].flatten().tolist() == [2.0, 7.0, 30.0]


def test_starts_differ_and_follow_from_the_key() -> None:
    model = toy_models.mlp()
    task = toy_models.task(model)
    start, again, other = (IFCA(clusters=3).init_server(task, key(seed)) for seed in (0, 0, 1))
    first, second, third = start.params["head.weight"]
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)
    assert torch.equal(start.params["head.weight"], again.params["head.weight"])
    assert not torch.equal(start.params["head.weight"], other.params["head.weight"])


def test_clients_of_two_kinds_end_in_two_clusters() -> None:
    """x is 1 or -1 and the label its sign, or the opposite: no common model exists, and two do."""
    x = [[1.0], [-1.0]] * 4
    clients = [toy_models.client(x, [(i % 2) ^ kind for i in range(8)], MODEL, classes=2) for kind in (0, 1, 0, 1)]
    method = replace(TWO, optim=replace(toy_models.PLAIN, lr=1.0, epochs=5))
    server = Models({W: PAIR.params[W] * 0.1})
    for t in range(5):
        ups = [toy_models.participate(method, server, Nothing(), c, key(t))[0] for c in clients]
        server = toy_models.aggregate(method, server, ups, toy_models.task(MODEL))
    assert [int(up.choice) for up in ups] == [0, 1, 0, 1]
    for c in clients:
        predictor = method_calls.personal_predictor(method, server, None, Nothing(), c)
        assert torch.equal(predictor(c.x).argmax(1), c.y)


def test_fixed_sums_are_refused_with_the_reason() -> None:
    with pytest.raises(AtollError, match="averages the models of the clients that made the same choice"):
        small_runs.setup("ifca", sums="fixed")


def test_robust_rule_works_within_a_cluster() -> None:
    assert small_runs.run("ifca", robust="median").summary["status"] == "finished"


def test_number_of_clusters_below_one_is_refused() -> None:
    with pytest.raises(AtollError, match="clusters is 0"):
        IFCA(clusters=0)


def test_vmap_equals_loop() -> None:
    toy_models.check_vmap(IFCA(toy_models.RICH, clusters=3), toy_models.mlp())
