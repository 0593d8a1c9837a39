"""Compute the privacy loss of Gaussian noise in closed form.

Balle and Wang, ICML 2018. https://arxiv.org/abs/1805.06530

One release of a value of sensitivity 1 with noise of standard deviation z is a shift of a normal distribution by
mu = 1 / z, and T releases, each of which may depend on earlier ones, are one shift by mu = sqrt(T) / z. A shift is
(epsilon, delta)-differentially private exactly if

    delta >= Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu).

Sampling does not amplify privacy here, because cohorts and batches follow from a seed that the server knows.
"""

from collections.abc import Callable
from math import exp, sqrt

STEPS = 200  # enough bisection steps to reach the precision of a double


def compute_delta(epsilon: float, mu: float) -> float:
    """Compute the smallest delta for which a shift by ``mu`` is (epsilon, delta)-private."""
    from scipy.special import log_ndtr, ndtr  # only runs with a budget need it

    if mu <= 0:
        return 0.0
    right = exp(epsilon + float(log_ndtr(-mu / 2 - epsilon / mu)))
    return max(0.0, float(ndtr(mu / 2 - epsilon / mu)) - right)


def compute_epsilon(delta: float, mu: float) -> float:
    """Compute the smallest epsilon for which a shift by ``mu`` is (epsilon, delta)-private."""
    if mu <= 0 or compute_delta(0.0, mu) <= delta:
        return 0.0
    most = 1.0
    while compute_delta(most, mu) > delta:
        most *= 2
    return _least(lambda epsilon: compute_delta(epsilon, mu) <= delta, 0.0, most)


def compute_noise_multiplier(epsilon: float, delta: float, releases: int) -> float:
    """Compute the smallest noise, in units of the sensitivity, for which the releases are (epsilon, delta)-private."""

    def is_enough(z: float) -> bool:
        return compute_delta(epsilon, sqrt(releases) / z) <= delta

    most = 1.0
    while not is_enough(most):
        most *= 2
    return _least(is_enough, 0.0, most)


def _least(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return the smallest argument for which ``holds`` is true, by bisection from above."""
    for _ in range(STEPS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
