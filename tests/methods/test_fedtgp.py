"""FedTGP: margin and contrast by hand, prototypes that are trained, and FedProto's clients."""

from dataclasses import replace
from math import log
from typing import Any

import pytest
import torch
from support import toy_models
from support.small_runs import made_with, run, same_models
from torch import Tensor

from atoll.clients import method_calls
from atoll.core.optim.base import gradient
from atoll.core.optim.sgd import SGD
from atoll.core.payloads import Nothing, Params, nbytes
from atoll.core.prng import key, normal
from atoll.errors import AtollError
from atoll.methods.fedgh import Means
from atoll.methods.fedproto import FedProto, Prototypes
from atoll.methods.fedtgp import FedTGP, Server, contrast, distances, prototypes
from atoll.methods.local import Local, State

CORNERS = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]])
LABELS = torch.arange(3)


def fixed(p: Tensor) -> Params:
    """Params whose prototypes are ``p``, by layers that pass on what is not negative."""
    eye, zero = torch.eye(p.shape[1]), torch.zeros(p.shape[1])
    return {"e": p, "fc1.weight": eye, "fc1.bias": zero, "fc2.weight": eye, "fc2.bias": zero}


def held(*rows: list[float] | None) -> Means:
    width = len(next(row for row in rows if row is not None))
    return Means(torch.tensor([row or [0.0] * width for row in rows]), torch.tensor([row is not None for row in rows]))


def aggregated(method: FedTGP, server: Server, *uploads: Means) -> Server:
    after: Server = toy_models.aggregate(
        method, server, list(uploads), toy_models.task(toy_models.identity_body(), classes=3)
    )
    return after


def born(method: FedTGP) -> Server:
    return method.init_server(toy_models.task(toy_models.identity_body(), classes=3), key(0))


# -- the margin and the loss ------------------------------------------------------------------------------------------


def test_margin_by_hand() -> None:
    """(0, 0), (3, 4), (0, 1): distances 5, 1 and sqrt(9 + 9) = 4.242641. The nearest others are at 1, 4.242641 and 1:
    the margin is 4.242641; of all pairs it would be 5; tau = 2 cuts both.
    """
    assert float(FedTGP().gap(CORNERS, LABELS, 4)) == pytest.approx(4.242641, abs=1e-6)
    assert float(FedTGP(margin="max_pair").gap(CORNERS, LABELS, 4)) == pytest.approx(5, abs=1e-6)
    for margin in ("nearest", "max_pair"):
        assert float(FedTGP(margin=margin, tau=2.0).gap(CORNERS, LABELS, 4)) == 2


def test_the_margin_is_between_means_of_clients() -> None:
    """Class 0 sends (-1, 0) and (1, 0), so Q_0 = (0, 0); class 1 sends (0, 3): 3, not sqrt 10."""
    x = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 3.0]])
    assert float(FedTGP().gap(x, torch.tensor([0, 0, 1]), 2)) == pytest.approx(3, abs=1e-6)


def test_a_single_class_has_no_margin() -> None:
    assert float(FedTGP().gap(CORNERS[:2], torch.tensor([1, 1]), 3)) == 0


@pytest.mark.parametrize(("delta", "value"), [(4.242641, 3.298431), (5.0, 4.035976), (0.0, 0.318176)])
def test_contrast_by_hand(delta: float, value: float) -> None:
    """P_k = (0, 0) of class 0, prototypes as above: distances 0, 5, 1. With the margin 4.242641 the loss is 4.242641 +
    log(e^-4.242641 + e^-5 + e^-1) = 4.242641 + log 0.388988 = 3.298431; with 5 it is 5 + log(2 e^-5 + e^-1) = 4.035976;
    with none log(1 + e^-5 + e^-1) = log 1.374617 = 0.318176.
    """
    loss = contrast(torch.tensor(delta))(fixed(CORNERS), toy_models.batch([[0.0, 0.0]], [0]))
    assert float(loss) == pytest.approx(value, abs=2e-6)


def test_equal_distances_without_margin_leave_the_log_of_the_number_of_classes() -> None:
    p = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    loss = contrast(torch.tensor(0.0))(fixed(p), toy_models.batch([[0.0, 0.0], [1.0, 1.0]], [0, 3]))
    assert float(loss) == pytest.approx(log(4), abs=1e-6)


def test_gradients_are_finite_where_a_mean_meets_its_prototype() -> None:
    """And distances are never the root of a rounding error below 0, even far from the origin."""
    grads, _ = gradient(contrast(torch.tensor(1.0)), fixed(CORNERS), toy_models.batch(CORNERS, LABELS))
    assert all(g.isfinite().all() for g in grads.values())
    assert any(g.any() for g in grads.values())
    far = normal(key(1), 3, 50) + 1000
    torch.testing.assert_close(distances(far, far).diagonal(), torch.full((3,), 1e-6))


# -- the server -------------------------------------------------------------------------------------------------------


def test_prototypes_are_two_layers_on_embeddings() -> None:
    """e = (1, -1), identity and ReLU: (1, 0); then [[2, 5], [3, 7]] and bias (1, 1): (3, 4)."""
    params = fixed(torch.tensor([[1.0, -1.0]]))
    params |= {"fc2.weight": torch.tensor([[2.0, 5.0], [3.0, 7.0]]), "fc2.bias": torch.ones(2)}
    assert prototypes(params).tolist() == [[3.0, 4.0]]


def test_one_step_by_hand() -> None:
    """The layers pass on; only biases of the last are looked at: a step of 0.5 from the gradient of the contrast."""
    step = SGD(lr=0.5, epochs=1, batch_size=10, weight_decay=0.0, clip=0.0, momentum=0.0)
    server = Server(fixed(CORNERS), CORNERS, torch.ones(3, dtype=torch.bool))
    up = held([1.0, 0.0], [3.0, 3.0], None)
    after = aggregated(FedTGP(server=step), server, up)
    b = toy_models.batch([[1.0, 0.0], [3.0, 3.0]], [0, 1])
    grads, _ = gradient(contrast(torch.tensor(13.0).sqrt()), server.params, b)  # (1, 0) and (3, 3): 4 + 9
    for name, v in server.params.items():
        torch.testing.assert_close(after.params[name], v - 0.5 * grads[name])
    torch.testing.assert_close(after.means, prototypes(after.params))


def test_training_separates_prototypes_and_goes_on_where_it_stopped() -> None:
    method = FedTGP(server=replace(FedTGP().server, epochs=60, lr=0.1))
    uploads = [held([0.0, 2.0], [2.0, 0.0], [2.0, 2.0]), held([0.1, 2.1], [2.1, 0.1], [2.1, 2.1])]
    x, y = torch.cat([u.means for u in uploads]), LABELS.repeat(2)
    server, values = born(method), []
    for _ in range(3):
        values.append(float(contrast(method.gap(x, y, 3))(server.params, toy_models.batch(x, y))))
        server = aggregated(method, server, *uploads)
    assert values[0] > values[1] > values[2]
    assert distances(x, server.means).argmin(1).tolist() == y.tolist()


def test_classes_never_sent_are_not_sent_on() -> None:
    """Not even after training has moved them; a class once sent stays known."""
    method = FedTGP(server=replace(FedTGP().server, epochs=2))
    first = born(method)
    assert nbytes(method.broadcast(first, "a", toy_models.task(toy_models.mlp()), None, key(0))) == 0  # type: ignore[arg-type]
    after = aggregated(method, first, held([1.0, 0.0], None, None), held([1.0, 2.0], None, None))
    assert after.seen.tolist() == [True, False, False]
    assert not after.means[1:].any()
    assert prototypes(after.params)[1:].any()
    later = aggregated(method, after, held(None, [1.0, 2.0], None))
    assert later.seen.tolist() == [True, True, False]
    torch.testing.assert_close(later.means[0], prototypes(later.params)[0])


def test_without_means_the_server_stays_as_it_is() -> None:
    nobody = Means(torch.zeros(3, 2), torch.zeros(3, dtype=torch.bool))
    toy_models.assert_same(aggregated(FedTGP(), born(FedTGP()), nobody), born(FedTGP()))


def test_initial_values() -> None:
    """Embeddings are normal, layers within 1 / sqrt(d) on both sides, all from the key."""
    t = toy_models.task(toy_models.identity_body(400, 20), classes=20)
    a, b = (FedTGP().init_server(t, key(i)).params for i in range(2))
    assert float(a["e"].std()) == pytest.approx(1, abs=0.05)
    for name in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"):
        assert 0.04 < float(a[name].abs().max()) <= 0.05
        assert float(a[name].mean()) == pytest.approx(0, abs=0.005)
        assert not torch.equal(a[name], b[name])
    assert not torch.equal(a["fc1.weight"], a["fc2.weight"])


# -- the client -------------------------------------------------------------------------------------------------------


def test_clients_are_fedprotos() -> None:
    """With mean squared errors, whatever made the prototypes; counts stay at home. Features have 4 entries."""
    c = toy_models.random_client(9, 1, toy_models.mlp())
    down = Prototypes(normal(key(2), 3, 4), torch.tensor([True, False, True]))
    up, state = toy_models.participate(
        FedTGP(toy_models.RICH, lam=3.0, lam_width=4), down, State(c.model.init()), c, key(1)
    )
    theirs, expected = toy_models.participate(
        FedProto(toy_models.RICH, lam=3.0), down, State(c.model.init()), c, key(1)
    )
    toy_models.assert_same(state, expected)
    toy_models.assert_same(up, Means(theirs.means, theirs.n > 0))


@pytest.mark.parametrize(("width", "strength"), [(512, 3.0 * 4 / 512), (4, 3.0), (0, 3.0)])
def test_strength_of_the_pull_follows_the_width_of_features(width: int, strength: float) -> None:
    """lam = 3 for features of ``width`` entries; these have 4. A width of 0 takes lam as it is."""
    c = toy_models.random_client(9, 1, toy_models.mlp())
    down = Prototypes(normal(key(2), 3, 4), torch.tensor([True, True, True]))
    start = State(c.model.init())

    _, state = toy_models.participate(FedTGP(toy_models.RICH, lam=3.0, lam_width=width), down, start, c, key(1))
    _, expected = toy_models.participate(FedProto(toy_models.RICH, lam=strength), down, start, c, key(1))

    toy_models.assert_same(state, expected)


def test_who_predicts() -> None:
    """Prototypes (2, 3) and (0, 0), x = (1, 1): the nearest is that of class 1, unless only class 0 is the client's."""
    down = Prototypes(torch.tensor([[2.0, 3.0], [0.0, 0.0]]), torch.tensor([True, True]))
    c = toy_models.client([[1.0, 1.0]], [0], toy_models.identity_body(), classes=2)
    state = State(c.model.init())
    head = method_calls.personal_predictor(FedTGP(), down, None, state, c)
    own, free = (
        method_calls.personal_predictor(FedTGP(readout="prototype", proto_own_classes=which), down, None, state, c)
        for which in (True, False)
    )
    assert head(c.x).tolist() == [[0.0, 0.0]]
    assert own(c.x).argmax(1).tolist() == [0]
    assert free(c.x).tolist() == [[-5.0, -2.0]]


@pytest.mark.parametrize("off", ["lam", "first round"])
def test_local_where_the_pull_is_off(off: str) -> None:
    c = toy_models.random_client(9, 1, toy_models.mlp())
    method = FedTGP(toy_models.RICH, lam=0.0 if off == "lam" else 10.0)
    known = Prototypes(torch.ones(3, 4), torch.ones(3, dtype=torch.bool))
    first = method.broadcast(
        method.init_server(toy_models.task(c.model), key(0)), "a", toy_models.task(c.model), None, key(0)
    )  # type: ignore[arg-type]
    down = known if off == "lam" else first
    _, state = toy_models.participate(method, down, method_calls.init_client(method, c, key(0)), c, key(1))
    _, alone = toy_models.participate(Local(toy_models.RICH), Nothing(), State(c.model.init()), c, key(1))
    toy_models.assert_same(state, alone)
    assert (method.reduces_to() is not None) == (off == "lam")


def test_a_whole_run_without_pull_is_local() -> None:
    assert same_models(made_with("fedtgp", lam=0.0), run("local"))


def test_bytes() -> None:
    """Ten classes, 500 features. Down 5,000 scalars; up, with two classes, 2 labels and 2 * 500."""
    assert nbytes(Prototypes(torch.ones(10, 500), torch.ones(10, dtype=torch.bool))) == 4 * 5_000
    flags = torch.arange(10) < 2
    assert nbytes(Means(flags[:, None] * torch.ones(10, 500), flags)) == 4 * 1_002


@pytest.mark.parametrize("wrong", [{"lam": -1.0}, {"tau": -1.0}, {"margin": "far"}, {"readout": "both"}])
def test_senseless_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(AtollError, match=f"FedTGP: {next(iter(wrong))} is"):
        FedTGP(**wrong)


def test_vmap_equals_loop() -> None:
    toy_models.check_vmap(FedTGP(toy_models.RICH, server=replace(FedTGP().server, epochs=3)), toy_models.mlp())
