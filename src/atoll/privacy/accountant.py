"""Closed-form accounting of Gaussian noise. Balle and Wang, ICML 2018. https://arxiv.org/abs/1805.06530

One release of a value of sensitivity 1 with noise of standard deviation z is a shift of a normal distribution by
mu = 1 / z, and T of them, each of which may depend on those before, are one shift by mu = sqrt(T) / z. Such a shift is
(epsilon, delta)-differentially private exactly if

    delta >= Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu).

Nothing is gained from sampling here: who takes part and which rows meet in a batch follow from a seed that the server
knows too.
"""

from collections.abc import Callable
from math import exp, sqrt

from scipy.special import log_ndtr, ndtr

STEPS = 200  # of a bisection, down to the last digit of a double


def delta_of(epsilon: float, mu: float) -> float:
    """The smallest delta for which a shift by ``mu`` is (epsilon, delta)-private."""
    if mu <= 0:
        return 0.0
    right = exp(epsilon + float(log_ndtr(-mu / 2 - epsilon / mu)))
    return max(0.0, float(ndtr(mu / 2 - epsilon / mu)) - right)


def epsilon_of(delta: float, mu: float) -> float:
    """The smallest epsilon for which a shift by ``mu`` is (epsilon, delta)-private."""
    if mu <= 0 or delta_of(0.0, mu) <= delta:
        return 0.0
    most = 1.0
    while delta_of(most, mu) > delta:
        most *= 2
    return _least(lambda epsilon: delta_of(epsilon, mu) <= delta, 0.0, most)


def noise_multiplier(epsilon: float, delta: float, releases: int) -> float:
    """The smallest noise, in units of the sensitivity, with which so many releases are (epsilon, delta)-private."""

    def enough(z: float) -> bool:
        return delta_of(epsilon, sqrt(releases) / z) <= delta

    most = 1.0
    while not enough(most):
        most *= 2
    return _least(enough, 0.0, most)


def _least(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Where ``holds`` begins to be true; from above, so that it is true of the answer."""
    for _ in range(STEPS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
