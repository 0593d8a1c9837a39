"""FedPAC: statistics, weights and combinations of heads by hand, the quadratic programme, and the pull of features."""

import pytest
import torch
from support import small_runs, toy_models

from atoll.core.payloads import Nothing
from atoll.core.per_client import PerClient
from atoll.core.prng import key, normal
from atoll.core.problems import Classes
from atoll.core.task import Reply, Round, Task
from atoll.errors import AtollError
from atoll.methods._simplex import minimise_on_simplex
from atoll.methods.fedpac import Down, FedPAC, Kept, Update, combine, statistics

MODEL = toy_models.identity_body(2, 2)
TASK = Task(MODEL, Classes(2), ("a", "b"), models={"a": MODEL, "b": MODEL})
SETTINGS = {"optim": toy_models.RICH, "head_optim": toy_models.RICH}


def kept(head: float, h: float, v: float) -> Kept:
    return Kept({"w": torch.tensor([head])}, torch.tensor([[h]]), torch.tensor(v))


def view(**states: Kept) -> PerClient[Kept]:
    return PerClient(states.get, lambda: sorted(states))


# -- statistics -------------------------------------------------------------------------------------------------------


def test_statistics_by_hand() -> None:
    """Class 0 at (1, 0) and (3, 0), class 1 at (0, 2): p = (2/3, 1/3), h = 2/3 (2, 0) and 1/3 (0, 2).
    mean ||f||^2 = (1 + 9 + 4) / 3 = 42/9, ||h||^2 = 16/9 + 4/9: v = (42/9 - 20/9) / 3 = 22/27.
    """
    z = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0]])
    member = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    h, v = statistics(z, member)
    torch.testing.assert_close(h, torch.tensor([[4 / 3, 0.0], [0.0, 2 / 3]]))
    assert float(v) == pytest.approx(22 / 27)


def test_padding_is_not_counted_in_statistics() -> None:
    z = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0], [99.0, 99.0]])
    member = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    assert float(statistics(z, member)[1]) == pytest.approx(22 / 27)


# -- weights ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("q", "expected"),
    [
        ([[1.0, 0.0], [0.0, 3.0]], [0.75, 0.25]),  # a^2 + 3 (1 - a)^2: 2 a = 6 (1 - a)
        ([[1.0, 1.5], [1.5, 4.0]], [1.0, 0.0]),  # the inverse times 1 is (2.5, -0.5) / 1.75: the second is held at 0
        ([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], [1 / 3, 1 / 3, 1 / 3]),
        ([[2.0]], [1.0]),
        ([[0.0, 0.0], [0.0, 1.0]], [1.0, 0.0]),
    ],
)
def test_quadratic_programme_by_hand(q: list[list[float]], expected: list[float]) -> None:
    assert minimise_on_simplex(torch.tensor(q).double()).tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_quadratic_programme_meets_the_conditions_of_an_optimum(seed: int) -> None:
    """No entry has a smaller slope than the mean, and those above 0 have the mean itself."""
    points = normal(key(seed), 12, 5).double() + 0.7 * (seed % 3)
    q = points @ points.T + 0.01 * torch.eye(12)
    a = minimise_on_simplex(q)
    slope = q @ a
    assert float(a.sum()) == pytest.approx(1)
    assert float(a.min()) >= 0
    assert float(slope.min()) >= float(a @ slope) - 1e-8
    torch.testing.assert_close(slope[a > 1e-9], (a @ slope).expand(int((a > 1e-9).sum())), atol=1e-8, rtol=0)


def test_heads_are_combined_by_hand() -> None:
    """h = 0 and 2, v = 1 and 1. For a: a_1^2 + a_2^2 + (0 - 2 a_2)^2 = a_1^2 + 5 a_2^2 is least at (5/6, 1/6); heads 0
    and 6 give 1. For b: 5 a_1^2 + a_2^2: (1/6, 5/6), 5.
    """
    states = view(a=kept(0.0, 0.0, 1.0), b=kept(6.0, 2.0, 1.0))
    assert float(combine(states, "a")["w"]) == pytest.approx(1.0)
    assert float(combine(states, "b")["w"]) == pytest.approx(5.0)


def test_client_with_noisy_statistics_leans_on_others() -> None:
    """Equal h: weights go by 1 / v. v = 3 and 1: (1/4, 3/4), heads 0 and 4 give 3, for both."""
    states = view(a=kept(0.0, 1.0, 3.0), b=kept(4.0, 1.0, 1.0))
    assert float(combine(states, "a")["w"]) == pytest.approx(3.0)
    assert float(combine(states, "b")["w"]) == pytest.approx(3.0)


def test_first_download_has_the_initial_head() -> None:
    method = FedPAC()
    down = method.broadcast_from_all(method.init_server(TASK, key(0)), view(), "a", TASK, Round(0), key(0))
    assert down.head.keys() == {"head.weight", "head.bias"}
    assert torch.equal(down.head["head.weight"], MODEL.init()["head.weight"])


# -- rounds -----------------------------------------------------------------------------------------------------------


def test_upload_has_statistics_of_the_received_body_and_means_of_the_trained_one() -> None:
    c = toy_models.random_client(9, 1, toy_models.mlp())
    method, task = FedPAC(**SETTINGS), toy_models.task(c.model)
    server = method.init_server(task, key(0))
    down = method.broadcast_from_all(server, view(), "a", task, Round(0), key(0))

    up, _ = toy_models.participate(method, down, Nothing(), c, key(1))

    before, after = (c.model.features(body, c.x) for body in (down.params, up.params))
    torch.testing.assert_close(up.shares, statistics(before, c.members())[0])
    held = up.counts > 0
    sums = c.members().T @ after
    torch.testing.assert_close(up.means[held], (sums / up.counts.clamp(min=1)[:, None])[held])
    assert not torch.equal(before, after)
    assert not torch.equal(up.head["head.weight"], down.head["head.weight"])


def test_features_are_pulled_to_the_means_received() -> None:
    c = toy_models.random_client(9, 1, toy_models.mlp())
    start = c.model.init()
    body, head = ({n: v for n, v in start.items() if n.startswith(part)} for part in ("body", "head"))
    far, seen = torch.full((3, 4), 5.0), torch.ones(3, dtype=torch.bool)

    def distance(lam: float) -> float:
        down = Down(body, far, seen, head)
        up, _ = toy_models.participate(FedPAC(**SETTINGS, lam=lam), down, Nothing(), c, key(1))
        return float((c.model.features(up.params, c.x) - 5).square().mean())

    assert distance(1.0) < 0.9 * distance(0.0)


def test_server_averages_bodies_and_class_means_by_rows() -> None:
    """Bodies 0 and 4 with 3 and 1 rows: 1. Class 0: (3 * 2 + 1 * 6) / 4 = 3. Class 1 was not sent: it keeps 7."""

    def update(body: float, mean: float, n: float) -> Update:
        table = torch.tensor([[mean, mean], [0.0, 0.0]])
        return Update({"w": torch.tensor([body])}, torch.tensor(n), {}, table, torch.tensor(1.0), table,
                      torch.tensor([n, 0.0]))  # fmt: skip

    server = FedPAC().init_server(TASK, key(0))
    server = type(server)({"w": torch.zeros(1)}, torch.full((2, 2), 7.0), torch.tensor([False, True]))
    after = toy_models.aggregate(FedPAC(), server, [update(0.0, 2.0, 3.0), update(4.0, 6.0, 1.0)], TASK)
    assert float(after.params["w"]) == 1.0
    assert after.means.tolist() == [[3.0, 3.0], [7.0, 7.0]]
    assert after.seen.tolist() == [True, True]


def test_server_keeps_head_and_statistics_of_a_reply() -> None:
    c = toy_models.random_client(9, 1, toy_models.mlp())
    method, task = FedPAC(**SETTINGS), toy_models.task(c.model)
    server = method.init_server(task, key(0))
    down = method.broadcast_from_all(server, view(), "a", task, Round(0), key(0))
    up, _ = toy_models.participate(method, down, Nothing(), c, key(1))
    first = method.init_per_client(task, "a", key(0))
    passed, own = method.serve_client(server, first, Reply("a", up), task, Round(0), key(0))
    assert passed is up
    assert (own.head, own.shares, own.variance) == (up.head, up.shares, up.variance)


def test_robust_rule_says_what_it_does_not_guard() -> None:
    assert small_runs.run("fedpac", robust="median").summary["status"] == "finished"


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(AtollError, match="lam is -1"):
        FedPAC(lam=-1.0)


def test_new_clients_are_told_why_they_cannot_join() -> None:
    assert "has none of a new client" in str(FedPAC().why_closed())
