"""Privacy accounting: published noise multipliers, and agreement with other accountants."""

import importlib

import pytest

from atoll.privacy.accountant import compute_delta, compute_epsilon, compute_noise_multiplier
from atoll.privacy.budget import Budget


@pytest.mark.promise("Privacy", "Noise multipliers are those of the literature.")
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


@pytest.mark.promise("Privacy", "The planned budget is spent exactly, and never exceeded.")
def test_planned_budget_is_spent_exactly_and_never_exceeded() -> None:
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
        "dp_accounting", reason="a second opinion on the closed form: pip install dp-accounting"
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
    pytest.importorskip("opacus", reason="a second opinion on DP-SGD: pip install opacus")
    z = compute_noise_multiplier(epsilon, 1e-5, releases)
    accountants = importlib.import_module("opacus.accountants")
    prv, renyi = accountants.PRVAccountant(), accountants.RDPAccountant()
    for accountant in (prv, renyi):
        accountant.history = [(z, 1.0, releases)]
    assert prv.get_epsilon(delta=1e-5) == pytest.approx(epsilon, abs=2e-2)
    assert epsilon <= renyi.get_epsilon(delta=1e-5) <= 1.3 * epsilon
