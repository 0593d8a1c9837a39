"""FedDW: the term, its gradient and Omega by hand."""

from dataclasses import fields
from typing import Any

import pytest
import torch
from support import toy_models
from torch import Tensor

from atoll.core.client import Client
from atoll.core.optim.base import gradient
from atoll.core.payloads import Nothing, Params, nbytes
from atoll.core.prng import key, normal
from atoll.core.regularisers import Regularisers
from atoll.core.replies import Reports
from atoll.errors import AtollError
from atoll.methods.fedavg import FedAvg
from atoll.methods.feddw import DW, FedDW, Relation, relation
from atoll.methods.fedprox import FedProx

ANY = toy_models.random_client(4, 0, toy_models.mlp())


def head(omega: Any) -> Params:
    return {"head.weight": torch.as_tensor(omega, dtype=torch.float32)}


def term(weight: Any, omega: Any, dw: DW | None = None, anchor: Any = None) -> tuple[float, Tensor]:
    """Value and gradient of the term at mu = 1."""
    bound = (dw or DW(1.0)).bind({"omega": torch.as_tensor(omega, dtype=torch.float32)}, head(anchor or weight), ANY)
    value = float(bound(toy_models.at(head(weight))))
    grads, _ = gradient(lambda p, b: bound(toy_models.at(p)), head(weight), toy_models.batch([[0.0]], [0]))
    return value, grads["head.weight"]


EYE = [[1.0, 0.0], [0.0, 1.0]]
SKEW, SOFT = [[1.0, 0.0], [1.0, 1.0]], [[0.9, 0.1], [0.2, 0.8]]


def test_identity() -> None:
    """W = I: W W^T = I, whose row softmax has e / (e + 1) = 0.731059 on the diagonal. All four differences to I are
    0.268941: their mean square is 0.0723295. G = 2 (A - I) / 4 = -+0.134471; dS = A (G - rowsum(G A)): the row sum is
    0.134471 (0.268941 - 0.731059) = -0.062141, dS_00 = 0.731059 (-0.134471 + 0.062141) = -0.052877 and the
    gradient (dS + dS^T) W has -0.105754 on the diagonal and the opposite beside it.
    """
    torch.testing.assert_close(relation(head(EYE)), torch.tensor([[0.731059, 0.268941], [0.268941, 0.731059]]))
    value, slope = term(EYE, EYE)
    assert value == pytest.approx(0.0723295, abs=1e-7)
    expected = torch.tensor([[-0.105754, 0.105754], [0.105754, -0.105754]])
    torch.testing.assert_close(slope, expected, rtol=0, atol=1e-6)


def test_zero_weights_are_stationary() -> None:
    """W = 0: A is 1/2 everywhere, differences 1/2, mean square 1/4; the gradient is a product with W."""
    value, slope = term([[0.0, 0.0], [0.0, 0.0]], EYE)
    assert value == 0.25
    assert not slope.any()


def test_larger_weights() -> None:
    """W = 2 I: off the diagonal 1 / (e^4 + 1) = 0.0179862, whose square is 3.2350e-4."""
    assert term([[2.0, 0.0], [0.0, 2.0]], EYE)[0] == pytest.approx(3.2350e-4, abs=1e-8)


def test_skew_weights() -> None:
    """W W^T = [[1, 1], [1, 2]], A = [[.5, .5], [.268941, .731059]]; differences to [[.9, .1], [.2, .8]]: .4 twice and
    .068941 twice: (2 * .16 + 2 * .0047529) / 4 = 0.0823765. With A^T A = [[.32233, .44661], [.44661, .78445]] the
    squares are .33370 + .12014 + .06082 + .00024 = 0.514902.
    """
    torch.testing.assert_close(relation(head(SKEW)), torch.tensor([[0.5, 0.5], [0.268941, 0.731059]]))
    assert term(SKEW, SOFT)[0] == pytest.approx(0.0823765, abs=1e-7)
    assert term(SKEW, SOFT, DW(1.0, form="ata"))[0] == pytest.approx(0.514902, abs=1e-6)


def test_linear_form_touches_the_other_at_its_anchor() -> None:
    """Eq. (30) is a first-order expansion around A_0: same value and gradient there, another value elsewhere."""
    ata, linear = DW(1.0, form="ata"), DW(1.0, form="ata_linear")
    for a, b in zip(term(SKEW, SOFT, ata), term(SKEW, SOFT, linear), strict=True):
        torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b))
    assert term(EYE, SOFT, ata)[0] != pytest.approx(term(EYE, SOFT, linear, anchor=SKEW)[0], abs=1e-4)


def test_linear_form_is_convex_in_a() -> None:
    """||Omega - A_0^T A - A^T A_0 + A_0^T A_0||^2 at A = I with A_0 = [[.5, .5], [.268941, .731059]] of the skew
    weights: A_0 + A_0^T - A_0^T A_0 = [[.67767, .32233], [.32233, .67767]]; to [[.9, .1], [.2, .8]] the squares are
    .04943 + .04943 + .01496 + .01496 = 0.12878. (Weights of 10 I make A the identity to nine digits.)
    """
    value, _ = term([[10.0, 0.0], [0.0, 10.0]], SOFT, DW(1.0, form="ata_linear"), anchor=SKEW)
    assert value == pytest.approx(0.12878, abs=1e-5)


def test_upper_bound() -> None:
    """Rows that disagree wholly: W = [[10, 0], [-10, 0]] makes A the identity; against the anti-diagonal 2/C = 1."""
    assert term([[10.0, 0.0], [-10.0, 0.0]], [[0.0, 1.0], [1.0, 0.0]])[0] == pytest.approx(1.0)


def test_labels_may_be_permuted() -> None:
    w, omega = normal(key(0), 4, 6), normal(key(1), 4, 4).softmax(1)
    p = torch.tensor([2, 0, 3, 1])
    assert term(w[p].tolist(), omega[p][:, p])[0] == pytest.approx(term(w.tolist(), omega)[0], rel=1e-5)
    torch.testing.assert_close(relation(head(w[p])), relation(head(w))[p][:, p])


def test_only_the_last_layer_feels_it_and_the_batch_does_not_matter() -> None:
    model = toy_models.mlp(bias=False)
    bound = DW(1.0).bind({"omega": torch.eye(3)}, model.init(), ANY)
    one, two = (
        gradient(
            lambda p, b: bound(model.step(p, b)), model.init(), toy_models.batch(normal(key(s), 4, 3), [0, 1, 2, 0])
        )[0]
        for s in range(2)
    )
    toy_models.assert_near(one, two, 0)
    assert one["head.weight"].any()
    assert not any(v.any() for name, v in one.items() if name != "head.weight")


# ---------------------------------------------------------------------------------------------------------------- Omega


def report(n: float, soft: list[float]) -> Params:
    """``n`` rows of class 0 with this mean soft label; nothing of class 1."""
    return {"sum": torch.tensor([[n * p for p in soft], [0.0, 0.0]]), "count": torch.tensor([n, 0.0])}


REPORTS = [report(3, [0.8, 0.2]), report(1, [0.4, 0.6])]
TASK = toy_models.task(toy_models.identity_body(), classes=2)


def merged(dw: DW, *rounds: list[Params]) -> Params:
    kept = dw.start(TASK)
    for reports in rounds:
        kept = dw.merge(kept, Reports(reports))
    return kept


def test_pooling_of_soft_labels() -> None:
    """3 rows of mean (.8, .2), 1 of (.4, .6): (2.4 + .4, .6 + .6) / 4 = (.7, .3). Half of it with half of the identity
    is (.85, .15). Class 1, which nobody held, keeps its row of the identity.
    """
    torch.testing.assert_close(merged(DW(), REPORTS)["omega"], torch.tensor([[0.7, 0.3], [0.0, 1.0]]))
    torch.testing.assert_close(merged(DW(sl_ema=0.5), REPORTS)["omega"], torch.tensor([[0.85, 0.15], [0.0, 1.0]]))


def test_absent_rows() -> None:
    """Class 0 is held in the first round, not in the second. Kept: its row. Identity: (1, 0). Masked: no target."""
    nobody = [{"sum": torch.zeros(2, 2), "count": torch.zeros(2)}]
    for how, row in (("keep", [0.7, 0.3]), ("eye", [1.0, 0.0]), ("mask", [0.0, 0.0])):
        torch.testing.assert_close(merged(DW(absent_row=how), REPORTS, nobody)["omega"][0], torch.tensor(row))


def test_masked_rows_are_left_out_of_the_sum() -> None:
    """W = I against (1, 0) and no second row: 2 * 0.268941^2 / 4, half of the whole term; in round 1 nothing."""
    dw = DW(1.0, absent_row="mask")
    assert term(EYE, [[1.0, 0.0], [0.0, 0.0]], dw)[0] == pytest.approx(0.0723295 / 2, abs=1e-7)
    assert term(EYE, dw.start(TASK)["omega"], dw)[0] == 0


def test_a_masked_row_comes_back_whole() -> None:
    """An average with a row of zeros would not sum to 1."""
    omega = merged(DW(absent_row="mask", sl_ema=0.5), REPORTS)["omega"]
    torch.testing.assert_close(omega, torch.tensor([[0.7, 0.3], [0.0, 0.0]]))


def test_memory_of_all_rounds() -> None:
    """(.7, .3) from 4 rows, then (.2, .8) from 4: the mean of both is (.45, .55); of the last round alone (.2, .8)."""
    rounds = (REPORTS, [report(4, [0.2, 0.8])])
    torch.testing.assert_close(merged(DW(), *rounds)["omega"][0], torch.tensor([0.2, 0.8]))
    kept = merged(DW(sl_memory="all"), *rounds)
    torch.testing.assert_close(kept["omega"][0], torch.tensor([0.45, 0.55]))
    assert kept["count"].tolist() == [8, 0]
    assert DW(sl_memory="all").send(kept).keys() == {"omega"}  # history stays on the server


def test_mu_decays() -> None:
    """mu = 1, every 3 rounds: 1 in rounds 1 and 2, 0.1 in rounds 3 to 5, 0.01 in round 6; what was sent is used."""
    dw = DW(1.0, mu_decay=3)
    strengths = [float(dw.send(merged(dw, *[REPORTS] * r))["mu"]) for r in range(6)]
    assert strengths == pytest.approx([1, 1, 0.1, 0.1, 0.1, 0.01])
    bound = dw.bind({"omega": torch.eye(2), "mu": torch.tensor(0.1)}, head(EYE), ANY)
    assert float(bound(toy_models.at(head(EYE)))) == pytest.approx(0.00723295, abs=1e-8)
    assert "mu" not in DW().send(DW().start(TASK))


def test_report_of_a_trained_model() -> None:
    """Head 0: every soft label is (1/2, 1/2); two rows of class 0 and one of class 1, and a row of padding."""
    c = toy_models.padded(
        toy_models.client([[1.0, 2.0], [0.0, 1.0], [1.0, 1.0]], [0, 0, 1], toy_models.identity_body(), 2), 4
    )
    said = DW().report(c.model.init(), c)
    assert said["sum"].tolist() == [[1.0, 1.0], [0.5, 0.5]]
    assert said["count"].tolist() == [2, 1]


# ---------------------------------------------------------------------------------------------------------- the method


def played(method: Any, c: Client, rounds: int = 2) -> Any:
    t = toy_models.task(c.model)
    server = method.init_server(t, key(0))
    for r in range(rounds):
        up, _ = toy_models.participate(method, method.broadcast(server, "a", t, r, key(0)), Nothing(), c, key(r))
        server = toy_models.aggregate(method, server, [up], t)
    return server


def test_rows_of_omega_sum_to_one() -> None:
    server = played(FedDW(toy_models.RICH), toy_models.random_client(9, 1, toy_models.mlp(bias=False)))
    torch.testing.assert_close(server.extra["DW.omega"].sum(1), torch.ones(3))
    assert not torch.equal(server.extra["DW.omega"], torch.eye(3))


def test_mu_zero_is_fedavg() -> None:
    c = toy_models.random_client(9, 1, toy_models.mlp(bias=False))
    toy_models.assert_near(
        played(FedDW(toy_models.RICH, mu=0.0), c).params, played(FedAvg(toy_models.RICH), c).params, tolerance=0
    )
    assert FedDW(mu=0.0).reduces_to() is not None
    assert FedDW().reduces_to() is None


def test_the_term_acts_and_composes() -> None:
    """FedDW is FedAvg with DW; DW beside another term with strength 0 changes nothing, nor does the other beside it."""
    c = toy_models.random_client(9, 1, toy_models.mlp(bias=False))
    own = played(FedDW(toy_models.RICH, mu=3.0), c)
    toy_models.assert_same(own, played(FedAvg(toy_models.RICH, Regularisers([DW(3.0)])), c))
    toy_models.assert_near(
        own.params, played(FedProx(toy_models.RICH, Regularisers([DW(3.0)]), mu=0.0), c).params, tolerance=0
    )
    host = played(FedProx(toy_models.RICH, mu=0.5), c)
    guest = played(FedProx(toy_models.RICH, Regularisers([DW(0.0)]), mu=0.5), c)
    toy_models.assert_near(host.params, guest.params, tolerance=0)
    assert not torch.equal(own.params["head.weight"], played(FedAvg(toy_models.RICH), c).params["head.weight"])


def test_settings_are_the_same_for_both() -> None:
    names = {f.name for f in fields(Relation)}
    assert names == {f.name for f in fields(DW)}
    assert names <= {f.name for f in fields(FedDW)}
    (dw,) = FedDW(mu=2.0, form="ata", sl_ema=0.5).terms()
    assert dw == DW(mu=2.0, form="ata", sl_ema=0.5)


def test_heads_without_bias() -> None:
    assert FedDW().bias_free_head
    assert FedDW().terms().bias_free_head
    assert not FedDW(bias_free_head=False).terms().bias_free_head
    assert not FedAvg().terms().bias_free_head


def test_bytes() -> None:
    """Three classes: Omega is 9 scalars down; sums and counts are 9 + 3 up. The counter and the history stay."""
    c = toy_models.random_client(9, 1, toy_models.mlp(bias=False))
    method = FedDW(toy_models.RICH, sl_memory="all", mu_decay=9)
    t = toy_models.task(c.model)
    down = method.broadcast(method.init_server(t, key(0)), "a", t, None, key(0))  # type: ignore[arg-type]
    plain = nbytes(FedAvg().init_server(t, key(0)))
    assert nbytes(down) == plain + 4 * (9 + 1)
    up, _ = toy_models.participate(method, down, Nothing(), c, key(1))
    assert nbytes(up) == plain + 4 * (1 + 9 + 3)


def test_one_download_serves_all_clients() -> None:
    """The tensors sent are the server's own, so that a backend can see that they are shared."""
    dw = DW(mu_decay=3, sl_memory="all", absent_row="mask")
    kept = merged(dw, REPORTS)
    assert all(dw.send(kept)[name] is kept[name] for name in ("omega", "mu"))


@pytest.mark.parametrize(
    "wrong",
    [{"mu": -1.0}, {"form": "x"}, {"sl_memory": "x"}, {"sl_ema": 1.5}, {"mu_decay": -1}, {"absent_row": "x"}],
)
@pytest.mark.parametrize("make", [DW, FedDW])
def test_senseless_settings_are_refused(wrong: dict[str, Any], make: Any) -> None:
    with pytest.raises(AtollError, match=f"{make.__name__}: {next(iter(wrong))} is"):
        make(**wrong)


@pytest.mark.parametrize("settings", [{}, {"form": "ata"}, {"form": "ata_linear", "mu_decay": 1, "absent_row": "mask"}])
def test_vmap_equals_loop(settings: dict[str, Any]) -> None:
    toy_models.check_vmap(FedDW(toy_models.RICH, **settings), toy_models.mlp(bias=False))
