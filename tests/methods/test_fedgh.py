"""FedGH: the server's steps by hand, what travels, and who has which head."""

from dataclasses import replace

import pytest
import torch
from support import toy_models

from atoll.clients import method_calls
from atoll.core.model import Model
from atoll.core.params import part
from atoll.core.payloads import Nothing, nbytes
from atoll.core.prng import key
from atoll.errors import AtollError
from atoll.methods.fedgh import MODES, FedGH, Head, Means
from atoll.methods.local import Local, State
from atoll.models import build

AXES = Means(torch.eye(2), torch.tensor([True, True]))  # mean (1, 0) of class 0, mean (0, 1) of class 1
BLANK = Head(part(toy_models.identity_body().init(), "head"))


def stepped(method: FedGH, *uploads: Means) -> Head:
    after: Head = toy_models.aggregate(
        method, BLANK, list(uploads), toy_models.task(toy_models.identity_body(), classes=2)
    )
    return after


def test_one_step_for_each_mean() -> None:
    """W = 0, b = 0, rate 0.01. The mean (1, 0) of class 0 has p = (1/2, 1/2): the logits move by 0.01 (0.5, -0.5), so
    the first column of W and b become (0.005, -0.005). The mean (0, 1) of class 1 then has logits b, p_0 = 1 / (1 +
    exp(-0.01)) = 0.5025: the second column becomes (-0.005025, 0.005025), b = (0.005 - 0.005025, ...) = (-2.5e-5, ...).
    """
    head = stepped(FedGH(), AXES).head
    expected = torch.tensor([[0.005, -0.005025], [-0.005, 0.005025]])
    torch.testing.assert_close(head["head.weight"], expected, rtol=0, atol=1e-8)
    torch.testing.assert_close(head["head.bias"], torch.tensor([-2.5e-5, 2.5e-5]), rtol=0, atol=1e-8)


@pytest.mark.parametrize("mode", ["per_client_mean", "shuffled_batches"])
def test_one_step_for_the_mean_of_a_clients_losses(mode: str) -> None:
    """Both means at once, from zero: each contributes half of 0.01 (0.5, -0.5) to its column: 0.0025; b cancels.
    A shuffled batch that holds everything does the same.
    """
    head = stepped(FedGH(server_mode=mode), AXES).head
    torch.testing.assert_close(head["head.weight"], torch.tensor([[0.0025, -0.0025], [-0.0025, 0.0025]]))
    torch.testing.assert_close(head["head.bias"], torch.zeros(2))


def test_clients_teach_one_after_the_other() -> None:
    other = Means(torch.tensor([[0.0, 0.0], [2.0, 1.0]]), torch.tensor([False, True]))
    method = FedGH(server_mode="per_client_mean")
    t = toy_models.task(toy_models.identity_body(), classes=2)
    both = stepped(method, AXES, other)
    toy_models.assert_same(both, toy_models.aggregate(method, stepped(method, AXES), [other], t))
    toy_models.assert_same(
        stepped(FedGH(), AXES, other), toy_models.aggregate(FedGH(), stepped(FedGH(), AXES), [other], t)
    )


def test_passes() -> None:
    for mode in ("per_sample", "per_client_mean"):
        once = FedGH(server_mode=mode)
        twice = replace(once, server=replace(once.server, epochs=2))
        t = toy_models.task(toy_models.identity_body(), classes=2)
        toy_models.assert_same(stepped(twice, AXES), toy_models.aggregate(once, stepped(once, AXES), [AXES], t))


def test_absent_classes_teach_nothing() -> None:
    """A row of zeros is not a mean: class 1 without a flag leaves the second column of W alone."""
    head = stepped(FedGH(), Means(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.tensor([True, False]))).head
    torch.testing.assert_close(head["head.weight"], torch.tensor([[0.005, 0.0], [-0.005, 0.0]]))
    nobody = Means(torch.zeros(2, 2), torch.tensor([False, False]))
    toy_models.assert_same(stepped(FedGH(), nobody), BLANK)


@pytest.mark.parametrize("mode", MODES)
def test_the_global_head_moves_and_clients_do_not(mode: str) -> None:
    c = toy_models.random_client(9, 1, toy_models.mlp())
    method, t = FedGH(toy_models.RICH, server_mode=mode), toy_models.task(toy_models.mlp())
    server = method.init_server(t, key(0))
    up, state = toy_models.participate(method, server, method_calls.init_client(method, c, key(0)), c, key(1))
    before = toy_models.snapshot(state)
    after = toy_models.aggregate(method, server, [up], t)
    assert not torch.equal(after.head["head.weight"], server.head["head.weight"])
    toy_models.assert_same(state, before)


def test_frozen_head() -> None:
    method = FedGH(freeze_global_head=True)
    toy_models.assert_same(stepped(method, AXES), BLANK)
    assert method.reduces_to() is not None
    assert FedGH().reduces_to() is None


def test_means_are_exact() -> None:
    """Features 0, 0, 0, 4 of one class in batches of 3 and 1: the mean is 1; a mean of batch means would be 2."""
    c = toy_models.client([[0.0], [0.0], [0.0], [4.0]], [0, 0, 0, 0], toy_models.identity_body(1), classes=2)
    method = FedGH(replace(toy_models.PLAIN, batch_size=3))
    down = method.init_server(toy_models.task(c.model, 2), key(0))
    up, _ = toy_models.participate(method, down, method_calls.init_client(method, c, key(0)), c, key(1))
    assert up.means.tolist() == [[1.0], [0.0]]
    assert up.held.tolist() == [True, False]


def test_first_round_trains_from_the_global_head() -> None:
    """The body is the client's, the head the server's, even before the server has learned anything."""
    c = toy_models.random_client(9, 1, toy_models.mlp(seed=1))
    method = FedGH(toy_models.RICH)
    down = method.init_server(toy_models.task(toy_models.mlp(seed=2)), key(0))
    _, state = toy_models.participate(method, down, method_calls.init_client(method, c, key(0)), c, key(1))
    _, alone = toy_models.participate(Local(toy_models.RICH), Nothing(), State(c.model.init() | down.head), c, key(1))
    toy_models.assert_same(state, alone)


def test_who_predicts() -> None:
    """Before training the client's body with the received head, afterwards with the one it trained."""
    c = toy_models.random_client(9, 1, toy_models.mlp())
    method = FedGH(toy_models.RICH)
    down = method.init_server(toy_models.task(toy_models.mlp(seed=4)), key(0))
    old = method_calls.init_client(method, c, key(0))
    up, state = toy_models.participate(method, down, old, c, key(1))
    assert torch.equal(
        method_calls.personal_predictor(method, down, None, old, c)(c.x), c.model(old.params | down.head, c.x)
    )
    assert torch.equal(method_calls.personal_predictor(method, down, up, state, c)(c.x), c.model(state.params, c.x))


def test_bytes() -> None:
    """CNN-1, 10 classes, 500 features, a client with 2 classes. Up: 2 labels + 2 * 500 = 1,002 scalars of 4 bytes.
    Down: 10 * 500 + 10 = 5,010. A client with every class sends no labels: 5,000.
    """
    held = torch.arange(10) < 2
    assert nbytes(Means(held[:, None] * torch.ones(10, 500), held)) == 4 * 1_002
    assert nbytes(Means(torch.ones(10, 500), torch.ones(10, dtype=torch.bool))) == 4 * 5_000
    with torch.device("meta"):
        head = part(Model(build("cnn1", (3, 32, 32), 10)).init(), "head")
    assert nbytes(Head(head)) == 4 * 5_010


def test_unknown_mode_is_refused() -> None:
    with pytest.raises(AtollError, match="per_sample, per_client_mean, shuffled_batches"):
        FedGH(server_mode="all")


@pytest.mark.parametrize("mode", MODES)
def test_vmap_equals_loop(mode: str) -> None:
    toy_models.check_vmap(FedGH(toy_models.RICH, server_mode=mode), toy_models.mlp())
