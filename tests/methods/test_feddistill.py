"""FedDistill+: the term by hand, FedDW's soft labels, and FedAvg where it is off."""

from dataclasses import fields
from typing import Any

import pytest
import torch
from support import toy_models

from atoll.core.batch import Step
from atoll.core.client import Client
from atoll.core.losses import objective
from atoll.core.optim.base import gradient
from atoll.core.payloads import Nothing, nbytes
from atoll.core.prng import key, normal
from atoll.core.regularisers import Regularisers
from atoll.core.replies import Reports
from atoll.errors import AtollError
from atoll.methods._factory import make
from atoll.methods.fedavg import FedAvg
from atoll.methods.feddistill import Distillation, FedDistill, SoftLabels
from atoll.methods.feddw import DW

CLIENT = toy_models.random_client(9, 1, toy_models.mlp())


def played(method: Any, c: Client = CLIENT, rounds: int = 2) -> Any:
    t = toy_models.task(c.model)
    server = method.init_server(t, key(0))
    for r in range(rounds):
        up, _ = toy_models.participate(method, method.broadcast(server, "a", t, r, key(0)), Nothing(), c, key(r))
        server = toy_models.aggregate(method, server, [up], t)
    return server


def value(omega: Any, p: Any, y: list[int], gamma: float = 1.0) -> float:
    """The term for given predictions."""
    logits = torch.tensor(p).log()
    bound = SoftLabels(gamma).bind({"omega": torch.tensor(omega)}, {}, CLIENT)
    return float(bound(Step({}, toy_models.batch(logits, y), logits, logits)))


def test_divergence_by_hand() -> None:
    """Target (.9, .1), prediction (.7, .3): .9 log(.9/.7) + .1 log(.1/.3) = 0.226183 - 0.109861 = 0.116322. With
    probabilities in the place of their logarithms it would be .9 (log .9 - .7) + .1 (log .1 - .3) = -0.985083.
    """
    omega = [[0.9, 0.1], [0.5, 0.5]]
    assert value(omega, [[0.7, 0.3]], [0]) == pytest.approx(0.116322, abs=1e-6)
    assert value(omega, [[0.7, 0.3]], [0], gamma=3.0) == pytest.approx(0.348966, abs=2e-6)
    assert value(omega, [[0.9, 0.1], [0.5, 0.5]], [0, 1]) == pytest.approx(0, abs=1e-6)
    assert value(omega, [[0.7, 0.3], [0.5, 0.5]], [0, 1]) == pytest.approx(0.058161, abs=1e-6)


def test_the_identity_is_cross_entropy() -> None:
    """0 log 0 counts as 0: what is left is -log p_y."""
    assert value([[1.0, 0.0], [0.0, 1.0]], [[0.7, 0.3], [0.2, 0.8]], [0, 1]) == pytest.approx(0.289909, abs=1e-6)


def test_a_class_without_target_is_not_pulled() -> None:
    assert value([[0.9, 0.1], [0.0, 0.0]], [[0.7, 0.3], [0.2, 0.8]], [0, 1]) == pytest.approx(0.116322 / 2, abs=1e-6)
    kept = SoftLabels(absent_row="mask").start(toy_models.task(toy_models.mlp()))
    assert not kept["omega"].any()


def test_in_the_first_round_the_loss_counts_double() -> None:
    """Omega is the identity: CE + gamma CE."""
    params, b = CLIENT.model.init(), toy_models.batch(CLIENT.x, CLIENT.y)
    term = SoftLabels(1.0).bind({"omega": torch.eye(3)}, params, CLIENT)
    plain, _ = gradient(objective(CLIENT.model), params, b)
    double, _ = gradient(objective(CLIENT.model, term), params, b)
    toy_models.assert_near(double, {name: 2 * g for name, g in plain.items()})


def test_padding_is_not_seen() -> None:
    logits = normal(key(0), 4, 3)
    term = SoftLabels().bind({"omega": normal(key(1), 3, 3).softmax(1)}, {}, CLIENT)
    b = toy_models.batch(logits, [0, 1, 2, 0])
    some = b._replace(w=torch.tensor([1.0, 1.0, 0.0, 0.0]))
    rows = toy_models.batch(logits[:2], [0, 1])
    torch.testing.assert_close(term(Step({}, some, logits, logits)), term(Step({}, rows, logits[:2], logits[:2])))


def test_knowledge_is_feddws() -> None:
    """3 rows of mean (.8, .2), 1 of (.4, .6): (.7, .3), and (.85, .15) with half of the identity."""
    t = toy_models.task(toy_models.identity_body(), classes=2)
    reports = [
        {"sum": torch.tensor([[n * a, n * b], [0.0, 0.0]]), "count": torch.tensor([n, 0.0])}
        for n, a, b in ((3.0, 0.8, 0.2), (1.0, 0.4, 0.6))
    ]
    for term, expected in ((SoftLabels(), [0.7, 0.3]), (SoftLabels(sl_ema=0.5), [0.85, 0.15])):
        kept = term.merge(term.start(t), Reports(reports))
        torch.testing.assert_close(kept["omega"], torch.tensor([expected, [0.0, 1.0]]))
        assert term.send(kept).keys() == {"omega"}
    both = SoftLabels(sl_memory="all")
    assert both.merge(both.start(t), Reports(reports))["count"].tolist() == [4, 0]
    server = played(FedDistill(toy_models.RICH))
    torch.testing.assert_close(server.extra["SoftLabels.omega"].sum(1), torch.ones(3))


def test_gamma_zero_is_fedavg() -> None:
    plain = played(FedAvg(toy_models.RICH))
    toy_models.assert_near(played(FedDistill(toy_models.RICH, gamma=0.0)).params, plain.params, tolerance=0)
    assert not torch.equal(played(FedDistill(toy_models.RICH)).params["head.weight"], plain.params["head.weight"])
    assert "FedAvg" in str(FedDistill(gamma=0.0).reduces_to())
    assert FedDistill().reduces_to() is None


def test_it_is_fedavg_with_a_term() -> None:
    toy_models.assert_same(
        played(FedDistill(toy_models.RICH)), played(FedAvg(toy_models.RICH, Regularisers([SoftLabels()])))
    )
    names = {f.name for f in fields(Distillation)}
    assert names == {f.name for f in fields(SoftLabels)}
    (own,) = FedDistill(gamma=2.0, sl_ema=0.5).terms()
    assert own == SoftLabels(gamma=2.0, sl_ema=0.5)
    assert not FedDistill().bias_free()


def test_a_dw_term_of_weight_zero_changes_nothing() -> None:
    """Each keeps its own Omega; as both report the same, the two are equal."""
    c = toy_models.random_client(9, 1, toy_models.mlp(bias=False))
    host, guest = (played(FedDistill(toy_models.RICH, terms), c) for terms in (Regularisers(), Regularisers([DW(0.0)])))
    toy_models.assert_near(host.params, guest.params, tolerance=0)
    assert torch.equal(guest.extra["DW.omega"], guest.extra["SoftLabels.omega"])
    both = Regularisers([DW(2.0)])
    bare = played(FedDistill(toy_models.RICH, both, gamma=0.0), c)
    toy_models.assert_near(bare.params, played(FedAvg(toy_models.RICH, both), c).params, tolerance=0)
    assert make("feddistill", terms=["dw:mu=0.1"]).bias_free()


def test_bytes() -> None:
    """Three classes: Omega is 9 scalars down; sums and counts are 9 + 3 up, beside n_k."""
    t = toy_models.task(CLIENT.model)
    method = FedDistill(toy_models.RICH, sl_memory="all")
    down = method.broadcast(method.init_server(t, key(0)), "a", t, None, key(0))  # type: ignore[arg-type]
    plain = nbytes(FedAvg().init_server(t, key(0)))
    assert nbytes(down) == plain + 4 * 9
    up, _ = toy_models.participate(method, down, Nothing(), CLIENT, key(1))
    assert nbytes(up) == plain + 4 * (1 + 9 + 3)


@pytest.mark.parametrize("wrong", [{"gamma": -1.0}, {"sl_ema": 1.5}, {"sl_memory": "x"}, {"absent_row": "x"}])
@pytest.mark.parametrize("make", [SoftLabels, FedDistill])
def test_senseless_settings_are_refused(wrong: dict[str, Any], make: Any) -> None:
    with pytest.raises(AtollError, match=f"{make.__name__}: {next(iter(wrong))} is"):
        make(**wrong)


@pytest.mark.parametrize("settings", [{}, {"sl_memory": "all", "sl_ema": 0.5, "absent_row": "mask"}])
def test_vmap_equals_loop(settings: dict[str, Any]) -> None:
    toy_models.check_vmap(FedDistill(toy_models.RICH, **settings), toy_models.mlp())
