"""FedAdam: two rounds by hand; the rest is in test_server_optimiser.py."""

import pytest
from support.server_optimisers import path

from atoll.methods.fedadam import FedAdam


def test_two_rounds_by_hand() -> None:
    """delta = 1, from 0: m = 0.1; v = 0.99 * 1e-6 + 0.01 = 0.01000099, its root 0.10000495;
    x = 0.5 * 0.1 / (0.10000495 + 0.001) = 0.4950253. Then clients return what they got, delta = 0: m = 0.09,
    v = 0.99 * 0.01000099 = 0.00990098, its root 0.09950367; x = 0.4950253 + 0.045 / 0.10050367 = 0.9427705.
    """
    assert path(FedAdam, server_lr=0.5) == pytest.approx([0.4950253, 0.9427705], abs=1e-6)


def test_steps_are_of_the_size_of_the_servers_rate() -> None:
    """With beta1 = beta2 = 0, m / sqrt(v) is the sign of delta: steps of eta, whatever the size of delta."""
    assert path(FedAdam, server_lr=0.5, beta1=0.0, beta2=0.0, tau=1e-9)[0] == pytest.approx(0.5)
