"""Differential privacy: bounds that are never exceeded, noise of the right size, a budget that is kept."""

import importlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Atoll
from support.small_runs import setup
from support.toy_models import batch, client, identity_body, mlp
from torch import Tensor

from atoll.core.batch import Batch
from atoll.core.class_statistics import class_means, covariances
from atoll.core.losses import objective
from atoll.core.optim.base import gradient
from atoll.core.optim.dpsgd import DPSGD, row_gradients, row_scales
from atoll.core.payloads import Params
from atoll.core.prng import key
from atoll.core.schema import declared_constraints
from atoll.core.task import Round
from atoll.engine.build import run_experiment
from atoll.errors import AtollError
from atoll.methods import _registry
from atoll.methods.dcpfl import Gaussians
from atoll.methods.fedavg import Global, Update
from atoll.privacy import mechanisms
from atoll.privacy.accountant import compute_delta, compute_epsilon, compute_noise_multiplier
from atoll.privacy.budget import Budget, Journal
from atoll.privacy.disclosure import DisclosureControl
from atoll.privacy.mechanisms import (
    StatisticsMechanism,
    UpdateMechanism,
    clip_norm,
    find_update_field,
    moments,
    positive,
)
from atoll.privacy.policy import Privacy
from atoll.storage.run_dir import RunDir
from atoll.utils.secure_random import secure, seeded


def silence(shape: tuple[int, ...]) -> Tensor:
    """No noise."""
    return torch.zeros(shape, dtype=torch.double)


# ---------------------------------------------------------------------------------------------------------------------
# The accountant


@pytest.mark.parametrize(
    ("releases", "expected"), [(1, (3.73, 1.08, 0.60)), (10, (11.8, 3.42, 1.90)), (100, (37.3, 10.8, 6.00))]
)
def test_noise_multipliers_match_literature(releases: int, expected: tuple[float, ...]) -> None:
    """For delta = 1e-5 and epsilon 1, 4, 8, to three figures."""
    found = [compute_noise_multiplier(epsilon, 1e-5, releases) for epsilon in (1, 4, 8)]
    assert [float(f"{z:.3g}") for z in found] == list(expected)


def test_epsilon_and_delta_of_a_shift_agree() -> None:
    """mu = 1: delta(0) = 2 Phi(1/2) - 1 = 0.382925, and compute_epsilon undoes compute_delta."""
    assert compute_delta(0, 1) == pytest.approx(0.382925, abs=1e-6)
    for mu in (0.1, 0.5, 1.0, 3.0, 10.0):
        for epsilon in (0.1, 1.0, 8.0, 30.0):
            delta = compute_delta(epsilon, mu)
            if delta > 1e-12:
                assert compute_epsilon(delta, mu) == pytest.approx(epsilon, abs=1e-6)
    assert compute_epsilon(1e-5, 0) == 0
    assert compute_delta(1000.0, 40.0) <= 1  # no overflow


def test_a_planned_budget_is_spent_exactly_and_never_exceeded() -> None:
    for epsilon in (0.5, 1, 4, 8, 20):
        for planned in (1, 3, 50):
            budget = Budget(epsilon, 1e-5, planned)
            spent = [budget.after(t) for t in range(planned + 1)]
            assert spent == sorted(spent)
            assert spent[-1] <= epsilon + 1e-9
            assert spent[-1] == pytest.approx(epsilon, abs=1e-3)
            assert budget.after(planned + 1) > epsilon


@pytest.mark.parametrize(("epsilon", "releases"), [(1.0, 1), (4.0, 10), (8.0, 100)])
def test_accounting_agrees_with_dp_accounting_package(epsilon: float, releases: int) -> None:
    """Its privacy loss distribution gives the same epsilon within 1e-3; its Renyi bound is somewhat above."""
    library = pytest.importorskip(
        "dp_accounting", reason="a second opinion on the closed form: pip install 'atoll[dp]'"
    )
    z = compute_noise_multiplier(epsilon, 1e-5, releases)
    event = library.SelfComposedDpEvent(library.GaussianDpEvent(z), releases)
    pld = importlib.import_module("dp_accounting.pld").PLDAccountant(value_discretization_interval=1e-4)
    assert pld.compose(event).get_epsilon(1e-5) == pytest.approx(epsilon, abs=1e-3)
    renyi = importlib.import_module("dp_accounting.rdp").RdpAccountant()
    assert epsilon <= renyi.compose(event).get_epsilon(1e-5) <= 1.25 * epsilon


@pytest.mark.parametrize(("epsilon", "releases"), [(1.0, 5), (8.0, 50)])
def test_accounting_agrees_with_opacus(epsilon: float, releases: int) -> None:
    """With every row in every step, which is what one epoch of disjoint batches is to a row."""
    pytest.importorskip("opacus", reason="a second opinion on DP-SGD: pip install 'atoll[opacus]'")
    z = compute_noise_multiplier(epsilon, 1e-5, releases)
    accountants = importlib.import_module("opacus.accountants")
    prv, renyi = accountants.PRVAccountant(), accountants.RDPAccountant()
    for accountant in (prv, renyi):
        accountant.history = [(z, 1.0, releases)]
    assert prv.get_epsilon(delta=1e-5) == pytest.approx(epsilon, abs=2e-2)
    assert epsilon <= renyi.get_epsilon(delta=1e-5) <= 1.3 * epsilon


# ---------------------------------------------------------------------------------------------------------------------
# The noise


def test_secure_noise_is_standard_normal() -> None:
    """Deviation within 1 %, mean within five of its own deviations, tails as they should be; never the same twice."""
    draw = secure((400_000,))
    assert draw.dtype == torch.double
    assert abs(float(draw.std()) - 1) < 0.01
    assert abs(float(draw.mean())) < 5 / math.sqrt(400_000)
    assert float((draw.abs() > 1.959964).double().mean()) == pytest.approx(0.05, abs=0.002)
    assert not torch.equal(secure((3,)), secure((3,)))


def test_seeded_noise_repeats_and_differs_by_use() -> None:
    assert torch.equal(seeded(1, "a", 0)((4,)), seeded(1, "a", 0)((4,)))
    assert not torch.equal(seeded(1, "a", 0)((4,)), seeded(1, "a", 1)((4,)))
    assert not torch.equal(seeded(1, "a", 0)((4,)), seeded(1, "b", 0)((4,)))


# ---------------------------------------------------------------------------------------------------------------------
# Updates


def pair_of(change: float) -> tuple[Global, Update]:
    start = {"w": torch.zeros(3), "b": torch.ones(1)}
    moved = {"w": start["w"] + change, "b": start["b"] + change}
    return Global(start, {}), Update(moved, torch.tensor(17.0), {})


def test_an_update_is_clipped_as_a_whole() -> None:
    """A change of 5 in each of 4 weights has norm 10; clipped to 2, each is 1. One of 0.5 has norm 1 and stays."""
    for change, expected in ((5.0, 1.0), (0.5, 0.5)):
        down, up = pair_of(change)
        out = UpdateMechanism(2.0, 1.0).release(down, up, declared_constraints(Update), silence)
        torch.testing.assert_close(out.params["w"], torch.full((3,), expected))
        torch.testing.assert_close(out.params["b"], torch.full((1,), 1 + expected))
        assert float(out.n) == 1  # all weigh the same


def test_clipping_is_never_exceeded() -> None:
    for seed in range(2000):
        v = {"a": seeded(seed, "a")((7,)) * 10.0 ** (seed % 9 - 4), "b": seeded(seed, "b")((2, 3))}
        out = clip_norm(v, 0.37)
        assert math.sqrt(sum(float(t.square().sum()) for t in out.values())) <= 0.37


def test_a_change_that_is_not_finite_counts_as_none() -> None:
    down, up = pair_of(math.nan)
    assert torch.equal(
        UpdateMechanism(2.0, 1.0).release(down, up, declared_constraints(Update), silence).params["w"], torch.zeros(3)
    )


def test_noise_on_updates_has_the_deviation_of_multiplier_times_clip() -> None:
    start = {"w": torch.zeros(300_000)}
    out = UpdateMechanism(2.0, 0.7).release(
        Global(start, {}), Update(start, torch.ones(()), {}), declared_constraints(Update), secure
    )
    assert float(out.params["w"].std()) == pytest.approx(1.4, rel=0.01)


# ---------------------------------------------------------------------------------------------------------------------
# Statistics


def rows(n: int, d: int = 3, classes: int = 2, seed: int = 0, bound: float | None = None) -> Any:
    y = [i % classes for i in range(n)]
    c = client(seeded(seed, "rows")((n, d)) * 3, y, identity_body(d, classes), classes)
    return replace(c, bound=bound)


def gaussians(c: Any) -> Gaussians:
    z, member = c.features(c.model.init()), c.members()
    n, mu = class_means(z, member)
    return Gaussians(n, mu, covariances(z, member, n, mu))


def test_features_are_clipped_row_by_row() -> None:
    """(3, 4) of norm 5 becomes (0.6, 0.8) at bound 1, and (0.3, 0.4) stays; the mean is (0.45, 0.6)."""
    c = replace(client([[3.0, 4.0], [0.3, 0.4]], [0, 0], identity_body(2, 1), 1), bound=1.0)
    torch.testing.assert_close(c.features(c.model.init()), torch.tensor([[0.6, 0.8], [0.3, 0.4]]))
    torch.testing.assert_close(gaussians(c).mu, torch.tensor([[0.45, 0.6]]))


@pytest.mark.parametrize("name", sorted(n for n, cls in _registry.methods().items() if cls.bounded_statistics))
def test_statistics_of_methods_that_say_so_are_of_bounded_features(name: str) -> None:
    """A mean of rows no longer than 0.1 is no longer than 0.1; without the bound the same means are."""
    plain = setup(name, rounds=1, eval_every=1)
    for bound in (0.1, None):
        pool = replace(plain.pool, bound=bound)
        c, task = pool.client(pool.ids[0]), pool.task()
        down = plain.method.broadcast(plain.method.init_server(task, key("s")), pool.ids[0], task, Round(0))
        with torch.no_grad():
            up, _ = plain.method.local(down, plain.method.init_client(c, key("i")), c, key("l"))
        longest = float((up.mu if name == "dcpfl" else up.means).norm(dim=1).max())
        assert longest <= 0.1 + 1e-6 if bound else longest > 0.1


def test_moments_are_those_of_the_rows() -> None:
    c = rows(9)
    up = gaussians(c)
    found = moments(up.n, up.mu, up.sigma)
    own = c.x[c.y == 1].double()
    torch.testing.assert_close(found.total[1], own.sum(0), atol=1e-5, rtol=1e-5)
    assert found.second is not None
    torch.testing.assert_close(found.second[1], own.T @ own, atol=1e-4, rtol=1e-5)


def test_a_row_moves_the_moments_by_no_more_than_the_sensitivity() -> None:
    """sqrt(1 + R^2 + R^4) for count, sum and second moment; reached by a row of norm R."""
    bound = 1.5
    mechanism = StatisticsMechanism(bound, 1.0, DisclosureControl())
    assert mechanism.sensitivity(True) == pytest.approx(math.sqrt(1 + 2.25 + 5.0625))
    assert mechanism.sensitivity(False) == pytest.approx(math.sqrt(3.25))
    largest = 0.0
    for seed in range(50):
        with_row, without = rows(8, seed=seed, bound=bound), rows(7, seed=seed, bound=bound)
        without = replace(without, x=with_row.x[:7])
        a, b = (moments(u.n, u.mu, u.sigma) for u in map(gaussians, (with_row, without)))
        assert a.second is not None
        assert b.second is not None
        parts = [(a.n - b.n), (a.total - b.total), (a.second - b.second)]
        largest = max(largest, math.sqrt(sum(float(p.square().sum()) for p in parts)))
    assert largest <= mechanism.sensitivity(True) + 1e-4
    assert largest > 0.95 * mechanism.sensitivity(True)


def test_without_noise_the_release_is_what_the_client_has() -> None:
    c = rows(60, bound=100.0)
    up = gaussians(c)
    out = StatisticsMechanism(100.0, 0.0, DisclosureControl()).release(c, up, declared_constraints(Gaussians), silence)
    assert torch.equal(out.n, up.n)
    torch.testing.assert_close(out.mu, up.mu, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(out.sigma, up.sigma, atol=1e-3, rtol=1e-3)


def test_noise_on_moments_is_of_one_size_and_symmetric() -> None:
    """For 2,000 classes of width 5: deviation multiplier * sensitivity on counts, sums and second moments."""
    mechanism = StatisticsMechanism(1.0, 2.0, DisclosureControl())
    zero = mechanisms.Moments(torch.zeros(2000), torch.zeros(2000, 5), torch.zeros(2000, 5, 5))
    noisy = mechanism.noisy(zero, secure)
    expected = 2 * math.sqrt(3)
    assert noisy.second is not None
    assert torch.equal(noisy.second, noisy.second.mT)
    upper = noisy.second[:, *torch.triu_indices(5, 5)]
    for part in (noisy.total, upper):
        assert float(part.std()) == pytest.approx(expected, rel=0.03)
    assert float(noisy.n.std()) == pytest.approx(expected, rel=0.06)


def test_noisy_covariances_are_usable_and_noisy_counts_are_believed() -> None:
    plain = setup("dcpfl", rounds=2, eval_every=1, dp="20", dp_clip=3.0, dp_seed=1)
    privacy = Privacy(plain.config, plain.method, plain.pool)
    c = plain.pool.client(plain.pool.ids[0])
    assert c.bound == 3.0
    result = run_experiment(plain)
    assert not [r for line in result.history for r in line["rejected"]]
    assert privacy.spare_rows > 0
    matrix = positive(seeded(0, "m")((6, 6)))
    assert float(torch.linalg.eigvalsh(matrix).min()) > -1e-9


def test_the_nearest_positive_matrix() -> None:
    """[[1, 2], [2, 1]] has eigenvalues 3 and -1 along (1, 1) and (1, -1): what is left is 3/2 everywhere."""
    torch.testing.assert_close(positive(torch.tensor([[1.0, 2.0], [2.0, 1.0]])), torch.full((2, 2), 1.5))


def test_classes_without_rows_are_told_apart_by_noisy_counts_only() -> None:
    """With a count far below the noise a class does not leave, and what leaves is marked by the noisy count."""
    c = rows(3, bound=1.0)
    out = StatisticsMechanism(1.0, 50.0, DisclosureControl()).release(
        c, gaussians(c), declared_constraints(Gaussians), seeded(3)
    )
    held = out.n > 0
    assert bool((out.n[held] >= 2 * 50 * math.sqrt(3) - 1).all())
    assert not out.mu[~held].any()
    assert float(out.mu.norm(dim=1).max()) <= 1 + 1e-6


# ---------------------------------------------------------------------------------------------------------------------
# Who can be covered

UPDATES = {
    "ditto", "fedala", "fedapen", "fedavg", "fedavg_ft", "fedavgm", "fedbabu", "feddf", "feddyn", "fedper",
    "fedprox", "fedrep", "fedrod", "feduv", "fml", "lgfedavg", "moon", "perfedavg", "pfedes", "pfedme", "scd",
}  # fmt: skip
STATISTICS = {"dcpfl", "fedgh", "fedproto", "fedtgp"}
TRAINING = {"fedavg", "fedavgm", "fedper", "fedprox", "lgfedavg"}


@pytest.mark.parametrize("name", sorted(_registry.methods()))
def test_a_method_is_covered_or_refused_with_the_reason(name: str) -> None:
    """Its uploads pass the server's checks; those of updates are noise around what was received."""
    options = {"rounds": 1, "eval_every": 1, "dp": "8", "dp_seed": 3}
    if name not in UPDATES | STATISTICS:
        with pytest.raises(AtollError, match=f"--dp cannot cover {name}: it"):
            setup(name, **options)
        return
    plain = setup(name, **options)
    privacy = Privacy(plain.config, plain.method, plain.pool)
    assert privacy.kind == ("updates" if name in UPDATES else "statistics")
    result = run_experiment(plain)
    assert result.summary["status"] == "finished"
    assert not result.history[0]["rejected"]


@pytest.mark.parametrize("name", sorted(_registry.methods()))
def test_dpsgd_covers_a_method_or_refuses_it(name: str) -> None:
    options = {"rounds": 1, "eval_every": 1, "dp": "8", "dp_seed": 3, "optimiser": "dpsgd"}
    if name in TRAINING:
        plain = setup(name, **options)
        assert Privacy(plain.config, plain.method, plain.pool).kind == "training"
        return
    with pytest.raises(AtollError):
        setup(name, **options)


def test_models_with_running_statistics_are_refused() -> None:
    params = {"w": torch.zeros(2), "buffers.seen": torch.zeros((), dtype=torch.long)}
    with pytest.raises(AtollError, match="running statistics"):
        find_update_field(Global(params, {}), Update(params, torch.ones(()), {}), declared_constraints(Update))
    with pytest.raises(AtollError, match="running statistics"):
        row_gradients(squares, params, batch([[1.0, 2.0]], [0]))


def test_invalid_dp_options_are_refused(refused: Callable[..., str]) -> None:
    assert "EPSILON:DELTA" in refused("run", "fedavg", "--dp", "much")
    assert "EPSILON must be a number above 0" in refused("run", "fedavg", "--dp", "-1")
    assert "DELTA must be a number above 0 and below 1" in refused("run", "fedavg", "--dp", "1:2")
    assert "--dp-clip must be above 0" in refused("run", "fedavg", "--dp", "1", "--dp-clip", 0)
    assert "nothing without --dp" in refused("run", "fedavg", "--dp-seed", 1)
    assert "min_count" in refused("run", "dcpfl", "--dp", "8", "--set", "min_count=3")


# ---------------------------------------------------------------------------------------------------------------------
# The budget in a run

QUICK = ["--rows", 300, "--clients", 3, "--epochs", 1, "--backend", "loop", "--eval-every", 2, "--quiet"]


def test_the_record_says_what_is_guaranteed(tmp_path: Path, atoll: Atoll, without_report: None) -> None:
    atoll("run", "fedavg", *QUICK, "--rounds", 2, "--dp", "4", "--out", "real")
    found = json.loads(Path("real/summary.json").read_text())["privacy"]
    assert found["dp"]["dp_scope"].startswith("client level")
    assert found["dp"]["spent"] == pytest.approx(4, abs=1e-3)
    assert "cannot be repeated" in found["dp"]["noise"]
    lines = [json.loads(line) for line in Path("real/metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["privacy"]["epsilon"] == found["dp"]["spent"]
    atoll("run", "dcpfl", *QUICK, "--rounds", 2, "--dp", "4", "--dp-seed", 1, "--out", "seeded")
    found = json.loads(Path("seeded/summary.json").read_text())["privacy"]
    assert found["dp"]["dp_scope"].startswith("release, extractor fixed")
    assert found["dp"]["noise"] == "not private: seeded noise"
    assert found["statement"][0].startswith("not private: seeded noise")


def test_real_noise_differs_and_seeded_noise_repeats() -> None:
    real = [run_experiment(setup("fedavg", rounds=1, eval_every=1, dp="8")).summary["digest"] for _ in range(2)]
    assert real[0] != real[1]
    fixed = [
        run_experiment(setup("fedavg", rounds=1, eval_every=1, dp="8", dp_seed=1)).summary["digest"] for _ in range(2)
    ]
    assert fixed[0] == fixed[1]
    split = run_experiment(setup("fedavg", rounds=1, eval_every=1, dp="8", dp_seed=1, backend="processes", workers=2))
    assert split.summary["digest"] == fixed[0]


def test_a_run_ends_before_its_budget_is_exceeded(tmp_path: Path, atoll: Atoll, without_report: None) -> None:
    """A budget for 3 rounds lasts for 3 of 5; resuming changes nothing, and neither does asking for more rounds."""
    result = atoll("run", "fedavg", *QUICK, "--rounds", 5, "--dp-rounds", 3, "--dp", "4", "--out", "run")
    assert "The privacy budget is spent" in result.stderr
    for _ in range(2):
        summary = json.loads(Path("run/summary.json").read_text())
        assert (summary["status"], summary["rounds"]) == ("exhausted", 3)
        assert summary["privacy"]["dp"]["spent"] <= 4 + 1e-9
        assert json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])["round"] == 3
        atoll("run", "--resume", "run", "--rounds", 9, "--quiet")


def test_interrupted_round_spends_budget(tmp_path: Path, atoll: Atoll, without_report: None) -> None:
    """The journal has a line for a round of which no checkpoint knows; the half line after it was never acted on."""
    atoll("run", "fedavg", *QUICK, "--rounds", 2, "--dp-rounds", 4, "--dp", "4", "--out", "run")
    with Path("run/privacy.jsonl").open("a") as f:
        f.write('{"releases": 1, "round": 3, "epsilon": 3.4}\n{"relea')
    atoll("run", "--resume", "run", "--rounds", 4, "--quiet")
    summary = json.loads(Path("run/summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("exhausted", 3)
    assert summary["privacy"]["dp"]["releases"] == 4
    assert len(Path("run/privacy.jsonl").read_text().splitlines()) == 4


def test_releases_survive_loss_of_journal(tmp_path: Path, atoll: Atoll, without_report: None) -> None:
    atoll("run", "fedavg", *QUICK, "--rounds", 2, "--dp-rounds", 2, "--dp", "4", "--out", "run")
    Path("run/privacy.jsonl").unlink()
    atoll("run", "--resume", "run", "--rounds", 3, "--quiet")
    assert json.loads(Path("run/summary.json").read_text())["rounds"] == 2


def test_a_damaged_journal_stops_the_run(
    tmp_path: Path, atoll: Atoll, refused: Callable[..., str], without_report: None
) -> None:
    atoll("run", "fedavg", *QUICK, "--rounds", 1, "--dp-rounds", 2, "--dp", "4", "--out", "run")
    Path("run/privacy.jsonl").write_text('{"releases": -5}\n')
    assert "is damaged" in refused("run", "--resume", "run", "--rounds", 2)
    atoll("run", "fedavg", *QUICK, "--rounds", 1, "--dp", "4", "--out", "run", "--force")


def test_release_is_recorded_before_it_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the first client's upload is made, the journal already has the line of its round."""
    plain, seen = setup("fedavg", rounds=2, eval_every=2, dp="8"), []
    real = Privacy.upload_filter

    def watched(self: Privacy, *given: Any) -> Any:
        seen.append((given[0].round.t, Journal(tmp_path).made()))
        return real(self, *given)

    monkeypatch.setattr(Privacy, "upload_filter", watched)
    with RunDir(tmp_path) as run_dir:
        run_experiment(plain, run_dir)
    assert seen == [(0, 1)] * 5 + [(1, 2)] * 5


def test_what_was_spent_survives_kill_9(tmp_path: Path) -> None:
    """Killed three times at some moment and resumed: epsilon never decreases, and never exceeds the budget."""
    plain = setup("fedavg", clients=3, rounds=40, eval_every=40, dp="8")

    def conducted() -> None:
        with RunDir(tmp_path) as run_dir:
            run_dir.start(plain.config, resume=True, force=False)
            run_experiment(plain, run_dir)

    spent, journal = [0.0], tmp_path / "privacy.jsonl"
    for _ in range(3):
        process = get_context("fork").Process(target=conducted)
        process.start()
        before, deadline = _made(journal), time.monotonic() + 60
        while _made(journal) < before + 3 and process.is_alive() and time.monotonic() < deadline:
            time.sleep(0.002)
        process.kill()
        process.join()
        spent.append(Budget(8, 1e-5, 40, _made(journal)).spent)
    assert spent[0] < spent[1] < spent[2] < spent[3] <= 8


def _made(journal: Path) -> int:
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


# ---------------------------------------------------------------------------------------------------------------------
# DP-SGD


def test_without_noise_or_clipping_a_step_is_that_of_sgd() -> None:
    model, b = mlp(), batch([[1.0, 2, 3], [0, 1, 0], [2, 0, 1]], [0, 1, 2])
    plain, _ = gradient(objective(model), model.init(), b)
    private, _ = DPSGD(clip=1e6)._gradient(objective(model), model.init(), b)
    for name, g in plain.items():
        torch.testing.assert_close(private[name], g)


def squares(w: Params, b: Batch) -> Tensor:
    """1/2 sum_i ||w - x_i||^2 / |B|: the gradient of a row is w - x_i."""
    return ((w["w"] - b.x).square().sum(1) * b.w).sum() / 2 / b.w.sum().clamp(min=1)


def test_rows_are_clipped_one_by_one() -> None:
    """At w = 0 the gradients are -(3, 4) of norm 5 and -(0.3, 0.4) of norm 0.5.

    Clipped to 1 they are -(0.6, 0.8) and -(0.3, 0.4); their mean is -(0.45, 0.6).
    """
    b, params = batch([[3.0, 4.0], [0.3, 0.4]], [0, 0]), {"w": torch.zeros(2)}
    each = row_gradients(squares, params, b)
    torch.testing.assert_close(each["w"], -b.x)
    torch.testing.assert_close(row_scales(each, 1.0), torch.tensor([0.2, 1.0], dtype=torch.double))
    found, _ = DPSGD(clip=1.0)._gradient(squares, params, b)
    torch.testing.assert_close(found["w"], -torch.tensor([0.45, 0.6]))


def test_no_row_moves_the_sum_by_more_than_the_clip() -> None:
    """Whatever stands in a row, NaN included."""
    params, base = {"w": torch.zeros(2)}, [[0.1, 0.2], [5.0, -1.0]]
    for row in ([1e30, 1.0], [math.nan, 0.0], [math.inf, 0.0], [0.0, 0.0], [-3.0, 2.0]):
        full, _ = DPSGD(clip=0.5)._gradient(squares, params, batch([*base, row], [0, 0, 0]))
        less, _ = DPSGD(clip=0.5)._gradient(squares, params, batch(base, [0, 0]))
        assert float((3 * full["w"] - 2 * less["w"]).norm()) <= 0.5 + 1e-6


def test_noise_of_a_step() -> None:
    """Deviation noise * clip / |B| = 1.5 * 2 / 4 in every weight."""
    b, params = batch(torch.zeros(4, 100_000), [0] * 4), {"w": torch.zeros(100_000)}
    found, _ = DPSGD(clip=2.0, noise=1.5)._gradient(squares, params, b)
    assert float(found["w"].std()) == pytest.approx(0.75, rel=0.01)


def test_dpsgd_in_a_run() -> None:
    """2 rounds of 3 epochs are 6 releases for a row."""
    plain = setup("fedavg", rounds=2, eval_every=2, dp="8", optimiser="dpsgd", epochs=3, batch_size=128, dp_clip=0.5)
    optim = plain.method.optim  # type: ignore[attr-defined]
    assert optim.noise == pytest.approx(compute_noise_multiplier(8, 1e-5, 6))
    assert optim.clip == 0.5
    assert plain.config.backend == "loop"
    found = run_experiment(plain).summary["privacy"]["dp"]
    assert (found["mechanism"], found["releases"], found["planned"]) == ("training", 6, 6)
    assert found["dp_scope"].startswith("row level, end to end")


@pytest.mark.parametrize(
    ("method", "options", "reason"),
    [
        ("fedavg", {}, "needs a budget"),
        ("feddw", {"dp": "8"}, "cannot cover feddw"),
        ("scd", {"dp": "8"}, "cannot cover scd"),
        ("fedavg", {"dp": "8", "terms": ("dw",)}, "--with"),
        ("fedavg", {"dp": "8", "backend": "vmap"}, "vmap"),
    ],
)
def test_dpsgd_is_refused_where_it_could_not_keep_its_promise(
    method: str, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(AtollError, match=reason):
        setup(method, optimiser="dpsgd", **options)
