"""FedKD: both losses by hand, compression and its traps, and that every copy of the mentee is the same."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from support import toy_models
from support.small_runs import gap_params, made_with, run, same_models
from torch import Tensor, nn

from atoll.clients import method_calls
from atoll.core.batch import Step
from atoll.core.client import Client
from atoll.core.model import Model
from atoll.core.params import sub, weights
from atoll.core.payloads import Nothing, Params, nbytes
from atoll.core.prng import key, normal
from atoll.core.replies import Replies
from atoll.core.task import Reply, Round
from atoll.errors import AtollError
from atoll.methods._low_rank import apply_change, compress, decompress, rank
from atoll.methods.fedavg import FedAvg, Global
from atoll.methods.fedkd import PROJECT, Change, FedKD, Mentee, Server, State
from atoll.methods.local import Local
from atoll.methods.local import State as Alone

LOSSLESS = {"t_start": 1.0, "t_end": 1.0}
APART = {"kl_weight": 0.0, "hidden_weight": 0.0}


def step(z: Any, logits: Any, project: Any = None) -> Step:
    z, logits = torch.as_tensor(z), torch.as_tensor(logits)
    params = {} if project is None else {PROJECT: torch.as_tensor(project)}
    return Step(params, toy_models.batch(logits.detach(), [0] * len(logits)), z, logits)


def pair(**changes: Any) -> tuple[Step, Step]:
    """Mentor: features (1, 0), logits (0, 0); mentee: features (0, 0), logits (ln 3, 0); W = I; label 0."""
    mentor = step([[1.0, 0.0]], [[0.0, 0.0]])
    return mentor, step(
        changes.get("z", [[0.0, 0.0]]), torch.tensor([[3.0, 1.0]]).log(), changes.get("w", torch.eye(2))
    )


def unlike(n: int = 9, seed: int = 1) -> Client:
    """The mentor has four features, the mentee five."""
    return toy_models.random_client(n, seed, toy_models.mlp(), proxy=toy_models.mlp(width=5, seed=3))


def mentee_of(c: Client) -> Model:
    assert c.proxy is not None
    return c.proxy


def whole(c: Client, threshold: float = 0.95) -> Mentee:
    return Mentee(mentee_of(c).init(), {}, {}, threshold)


def squeezed(v: Tensor, threshold: float) -> tuple[Params, Tensor]:
    """A change of one tensor as it travels, and as it arrives."""
    small = compress({"w": v}, threshold)
    return small, decompress(small, {"w": v})["w"]


# -- losses -----------------------------------------------------------------------------------------------------------


def test_losses_by_hand() -> None:
    """CE: ln 2 = 0.693147 and ln 4/3 = 0.287682, so S = 0.980829. KL(mentee || mentor) / S = 0.130812 / S = 0.133369,
    KL(mentor || mentee) / S = 0.143841 / S = 0.146652; the mean square of (1, 0) - (0, 0) is 1/2, by S 0.509773.
    L_t = 0.693147 + 0.133369 + 0.509773 = 1.336289;  L_s = 0.287682 + 0.146652 + 0.509773 = 0.944107.
    """
    assert [float(v) for v in FedKD().losses(*pair())] == pytest.approx([1.336289, 0.944107], abs=1e-6)
    assert [float(v) for v in FedKD(**APART).losses(*pair())] == pytest.approx([0.693147, 0.287682], abs=1e-6)
    no_kl = [float(v) for v in FedKD(kl_weight=0.0).losses(*pair())]
    assert no_kl == pytest.approx([0.693147 + 0.509773, 0.287682 + 0.509773], abs=1e-6)


def test_s_and_the_other_model_are_constants() -> None:
    """Slopes in the logits: of CE p - y, of KL(q || p) p - q, divided by S = 0.980829. Mentor: (-1/2, 1/2) + (-1/4,
    1/4) / S = (-0.754887, 0.754887); mentee: (-1/4, 1/4) + (1/4, -1/4) / S = (0.004887, -0.004887).
    """
    mentor, mentee = pair()
    z = mentor.logits.requires_grad_(), mentee.logits.requires_grad_()
    total = sum(FedKD().losses(mentor, mentee), start=torch.zeros(()))
    grads = torch.autograd.grad(total, z)
    torch.testing.assert_close(grads[0], torch.tensor([[-0.754887, 0.754887]]), rtol=0, atol=1e-6)
    torch.testing.assert_close(grads[1], torch.tensor([[0.004887, -0.004887]]), rtol=0, atol=1e-6)


def test_the_projection_learns_from_the_distance_once() -> None:
    """z_t = (1, 0), z_s = (2, 0), W = 0: the gap is (1, 0), and the mean square's slope in W is -2/2 gap z_s' =
    [[-2, 0], [0, 0]], divided by S; in z_t it is (1, 0) / S. Both losses hold the distance, but only the mentee's
    moves W, and only the mentor's z_t.
    """
    mentor, mentee = pair(z=[[2.0, 0.0]], w=torch.zeros(2, 2))
    w, z_t = mentee.params[PROJECT].requires_grad_(), mentor.features.requires_grad_()
    total = sum(FedKD(kl_weight=0.0).losses(mentor, mentee), start=torch.zeros(()))
    of_w, of_z = torch.autograd.grad(total, (w, z_t))
    torch.testing.assert_close(of_w, torch.tensor([[-2.0, 0.0], [0.0, 0.0]]) / 0.980829, rtol=1e-5, atol=0)
    torch.testing.assert_close(of_z, torch.tensor([[1.0, 0.0]]) / 0.980829, rtol=1e-5, atol=0)


def test_s_has_a_floor() -> None:
    """Both models all but sure of the label: S is 4e-9, and the distance 1/2 would count 1e8; by 0.01 it is 50."""
    sure = torch.tensor([[20.0, 0.0]])
    mentor, mentee = step([[1.0, 0.0]], sure), step([[0.0, 0.0]], sure, torch.eye(2))
    assert float(FedKD().losses(mentor, mentee)[0]) == pytest.approx(50.0, rel=1e-4)
    assert float(FedKD(s_min=0.1).losses(mentor, mentee)[0]) == pytest.approx(5.0, rel=1e-4)


# -- compression ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("threshold", "expected"), [(0.95, 2), (0.9, 1), (0.85, 1), (1.0, 2), (0.0, 1)])
def test_rank(threshold: float, expected: int) -> None:
    """diag(3, 1): the first singular value holds 9 of 10."""
    assert rank(torch.tensor([3.0, 1.0]), threshold) == expected


def test_compression_by_hand() -> None:
    """diag(3, 1) in a matrix of 6 x 6: one factor takes 13 numbers of 36, two take 26, so both travel as factors."""
    matrix = torch.zeros(6, 6)
    matrix[0, 0], matrix[1, 1] = 3.0, 1.0
    small, back = squeezed(matrix, 0.85)
    assert {name: list(v.shape) for name, v in small.items()} == {"left.w": [6, 1], "scale.w": [1], "right.w": [1, 6]}
    torch.testing.assert_close(back, torch.zeros(6, 6).index_put((torch.tensor(0), torch.tensor(0)), torch.tensor(3.0)))
    small, back = squeezed(matrix, 0.95)
    assert sum(v.numel() for v in small.values()) == 26
    torch.testing.assert_close(back, matrix)


@pytest.mark.parametrize(
    "matrix", [torch.eye(2), torch.eye(6), normal(key(1), 10, 500), torch.diag(torch.tensor([3.0, 1.0]))]
)
def test_what_needs_all_singular_values_travels_as_it_is(matrix: Tensor) -> None:
    """A rule that only looks at the values before the last would find none, and send zeros."""
    small, back = squeezed(matrix, 0.95)
    assert list(small) == ["dense.w"]
    assert torch.equal(back, matrix)


def test_factors_must_be_smaller() -> None:
    """4 x 5 of rank 1: 10 numbers of 20. Of rank 2: 20 of 20, which is not smaller."""
    one, two = torch.zeros(4, 5), torch.zeros(4, 5)
    one[0, 0] = two[0, 0] = two[1, 1] = 1.0
    assert "left.w" in squeezed(one, 0.99)[0]
    assert "dense.w" in squeezed(two, 0.99)[0]


@pytest.mark.parametrize("shape", [(7,), (5, 9), (8, 4, 3, 3)])
def test_a_threshold_of_one_loses_nothing(shape: tuple[int, ...]) -> None:
    v = normal(key(2), *shape)
    assert torch.equal(squeezed(v, 1.0)[1], v)


def test_convolutions_are_matrices_of_outputs_by_the_rest() -> None:
    """[8, 4, 3, 3] of rank 1 as 8 x 36: 8 + 1 + 36 = 45 numbers of 288."""
    v = (normal(key(3), 8, 1) * normal(key(4), 1, 36)).reshape(8, 4, 3, 3)
    small, back = squeezed(v, 0.95)
    assert {name: list(t.shape) for name, t in small.items()} == {"left.w": [8, 1], "scale.w": [1], "right.w": [1, 36]}
    torch.testing.assert_close(back, v, rtol=1e-5, atol=1e-5)


def test_a_tensor_with_three_rows_is_no_triple() -> None:
    v = normal(key(5), 3)
    assert torch.equal(squeezed(v, 0.5)[1], v)


def test_nothing_changed() -> None:
    assert torch.equal(squeezed(torch.zeros(8, 9), 0.95)[1], torch.zeros(8, 9))


def test_what_is_not_finite_is_left_for_the_server_to_refuse() -> None:
    small, _ = squeezed(torch.full((8, 9), float("nan")), 0.95)
    assert small["dense.w"].isnan().all()


def test_bytes() -> None:
    """64 x 100 at rank 3 and a bias of 64: 3 * (64 + 100 + 1) + 64 = 559 numbers, and n_k."""
    matrix = normal(key(6), 64, 3) @ normal(key(7), 3, 100)
    change = compress({"w": matrix, "b": torch.ones(64)}, 0.9999)
    assert nbytes(Change(change, {}, torch.tensor(5.0))) == 4 * 560


def test_the_threshold_grows_to_its_end() -> None:
    grown = [FedKD(rounds_to_end=10).threshold(Round(t)) for t in (0, 5, 10, 20)]
    assert grown == pytest.approx([0.95, 0.965, 0.98, 0.98])


# -- client -----------------------------------------------------------------------------------------------------------


def test_what_a_client_sends_is_its_change_from_what_it_received() -> None:
    """Undistilled and lossless, the change is that of plain training, and the mentor is Local's."""
    c, method = unlike(), FedKD(toy_models.RICH, **APART)
    up, state = toy_models.participate(method, whole(c, 1.0), method_calls.init_client(method, c, key(0)), c, key(1))
    plain, _ = toy_models.participate(
        FedAvg(toy_models.RICH), Global(mentee_of(c).init(), {}), Nothing(), replace(c, model=mentee_of(c)), key(1)
    )
    expected = sub(plain.params, mentee_of(c).init())
    assert gap_params(decompress(up.change, mentee_of(c).init()), expected) == 0
    _, alone = toy_models.participate(Local(toy_models.RICH), Nothing(), Alone(c.model.init()), c, key(1))
    toy_models.assert_same(Alone(state.params), alone)
    toy_models.assert_same(Alone(state.mentee), Alone(mentee_of(c).init()))


def test_the_projection_fits_unlike_widths_and_is_trained() -> None:
    c, method = unlike(), FedKD(toy_models.RICH)
    before = method_calls.init_client(method, c, key(0))
    assert before.project.shape == (4, 5)
    assert before.project.abs().max() <= 5**-0.5
    assert before.project.std() > 0.1
    _, after = toy_models.participate(method, whole(c), before, c, key(1))
    assert (after.project - before.project).abs().max() > 1e-3
    assert list(after.params) == list(c.model.init())


def test_both_models_learn_from_each_other() -> None:
    c = unlike()
    ups, states = zip(
        *(
            toy_models.participate(m, whole(c, 1.0), method_calls.init_client(m, c, key(0)), c, key(1))
            for m in (
                FedKD(toy_models.RICH),
                FedKD(toy_models.RICH, kl_weight=0.0),
                FedKD(toy_models.RICH, hidden_weight=0.0),
            )
        ),
        strict=True,
    )
    for other in (1, 2):
        assert gap_params(states[0].params, states[other].params) > 1e-4
        assert gap_params(*(decompress(ups[i].change, mentee_of(c).init()) for i in (0, other))) > 1e-4


def test_running_statistics_travel_as_they_are() -> None:
    """Two epochs of two batches: 4 counted, on the client, on the server and on a client that knew the first mentee."""

    def normed(width: int, seed: int) -> Model:
        body = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.ReLU())
        return Model(toy_models.filled(toy_models.Net(body, nn.Linear(width, 3)), seed))

    c = toy_models.random_client(8, 1, normed(4, 0), proxy=normed(5, 3))
    method, t = FedKD(toy_models.RICH), toy_models.task(c.model, proxy=c.proxy)
    server = method.init_server(t, key(0))
    up, state = toy_models.participate(method, whole(c), method_calls.init_client(method, c, key(0)), c, key(1))
    assert up.buffers["buffers.body.1.num_batches_tracked"] == 4
    assert not any("buffers" in name for name in up.change)
    after = toy_models.aggregate(method, server, [up], t)
    down = method.broadcast(after, "0", t, Round(1), key(0))
    assert list(after.params) == list(server.params)
    for name in up.buffers:
        assert torch.equal(after.params[name], up.buffers[name])
        assert after.params[name].dtype == server.params[name].dtype
    _, later = toy_models.participate(method, down, state, c, key(2))
    toy_models.assert_same(Alone(later.mentee), Alone(after.params))


# -- server -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("uniform", "expected"), [(False, 1.3), (True, 1.2)])
def test_aggregation(uniform: bool, expected: float) -> None:
    """From 1, changes 0 and 0.4 of clients with 100 and 300 rows: by rows 1 + 0.75 * 0.4 = 1.3, equally 1.2."""
    ups = [Change({"dense.b": torch.tensor([v])}, {}, torch.tensor(n)) for v, n in ((0.0, 100.0), (0.4, 300.0))]
    server = Server({"b": torch.ones(1)}, {}, {})
    out = toy_models.aggregate(FedKD(uniform=uniform), server, ups, toy_models.task(toy_models.mlp()))
    assert float(out.params["b"]) == pytest.approx(expected)
    assert sorted(out.present) == ["0", "1"]


def test_the_server_keeps_the_compressed_change() -> None:
    """diag(3, 1) in 6 x 6 at 0.85 arrives as diag(3, 0): were the server to add the 1, its copy would be another."""
    matrix = torch.zeros(6, 6)
    matrix[0, 0], matrix[1, 1] = 3.0, 1.0
    up = Change({"dense.w": matrix}, {}, torch.tensor(1.0))
    out = toy_models.aggregate(
        FedKD(t_start=0.85), Server({"w": torch.zeros(6, 6)}, {}, {}), [up], toy_models.task(toy_models.mlp())
    )
    assert float(out.params["w"][1, 1]) == pytest.approx(0.0, abs=1e-6)
    assert float(out.params["w"][0, 0]) == pytest.approx(3.0)
    toy_models.assert_same(Alone(out.params), Alone(apply_change({"w": torch.zeros(6, 6)}, out.change, {})))


def test_all_copies_of_the_mentee_agree_under_partial_participation() -> None:
    """Who took part in the round before gets the change, all others the whole; either way it is the server's mentee."""
    alone = {"a": unlike(9, 1), "b": unlike(8, 2), "c": unlike(7, 3)}
    method, t = FedKD(toy_models.RICH), toy_models.task(alone["a"].model, proxy=alone["a"].proxy)
    server, states = (
        method.init_server(t, key(0)),
        {i: method_calls.init_client(method, c, key(0)) for i, c in alone.items()},
    )
    changed: list[list[str]] = []
    for r, cohort in enumerate(("ab", "bc", "ab", "ab", "c", "abc")):
        downs = {i: method.broadcast(server, i, t, Round(r), key(0)) for i in cohort}
        changed.append([i for i in cohort if not downs[i].params])
        replies = []
        for i in cohort:
            up, states[i] = toy_models.participate(method, downs[i], states[i], alone[i], key(r, i))
            toy_models.assert_same(Alone(states[i].mentee), Alone(server.params))
            assert bool(downs[i].params) != bool(downs[i].change)
            replies.append(Reply(i, up))
        with torch.no_grad():
            server = method.aggregate(server, Replies(replies), t, Round(r), key(r))
    assert changed == [[], ["b"], ["b"], ["a", "b"], [], ["c"]]


def test_a_change_is_smaller_than_the_whole() -> None:
    result = run("fedkd")
    method, task = result.setup.method, result.pool.task()
    known, new = (
        method.broadcast(result.server, i, task, Round(3), key(0)) for i in (result.pool.ids[0], "a new client")
    )
    assert nbytes(known) < 0.6 * nbytes(new)
    assert nbytes(new) == sum(4 * v.numel() for v in result.server.params.values()) + 8


# -- degenerate, predictions, settings --------------------------------------------------------------------------------


def test_without_distillation_mentors_are_local_and_without_loss_the_mentee_is_fedavg() -> None:
    """The mentee adds changes where FedAvg averages models, so these agree up to rounding."""
    apart = made_with("fedkd", **APART, **LOSSLESS)
    assert same_models(apart, run("local"))
    assert gap_params(apart.server.params, run("fedavg").server.params) < 1e-5
    assert same_models(made_with("fedkd", **APART), run("local"))
    assert "Local" in str(FedKD(**APART).reduces_to())
    assert FedKD().reduces_to() is None
    assert FedKD(kl_weight=0.0).reduces_to() is None


def test_who_predicts() -> None:
    c, method = unlike(), FedKD()
    t = toy_models.task(c.model, proxy=c.proxy)
    server, state = method.init_server(t, key(0)), State(toy_models.mlp(seed=9).init(), torch.zeros(4, 5), {})
    assert torch.equal(
        method_calls.personal_predictor(method, whole(c), None, state, c)(c.x), c.model(state.params, c.x)
    )
    assert torch.equal(method_calls.generic_predictor(method, server, t)(c.x), mentee_of(c)(mentee_of(c).init(), c.x))


def test_unlike_widths_run() -> None:
    result = run("fedkd", models=("mlp:hidden=32", "mlp:hidden=64"), rounds=2, eval_every=2)
    assert {tuple(result.state(i).project.shape) for i in result.pool.ids} == {(32, 32), (64, 32)}
    assert weights(result.server.params).keys() == weights(result.pool.proxy.init()).keys()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "wrong",
    [
        {"kl_weight": -1.0},
        {"hidden_weight": -1.0},
        {"s_min": 0.0},
        {"t_start": 1.1},
        {"t_end": -0.1},
        {"rounds_to_end": 0},
    ],
)
def test_senseless_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(AtollError, match=next(iter(wrong))):
        FedKD(**wrong)
