"""FedAdagrad: two rounds by hand; the rest is in test_server_optimiser.py."""

import pytest
from support.server_optimisers import path

from atoll.methods.fedadagrad import FedAdagrad


def test_two_rounds_by_hand() -> None:
    """delta = 1, from 0: m = 1, without beta1; v = 1e-6 + 1, its root 1.0000005; x = 0.5 / 1.0010005 = 0.4995002.
    Then clients return what they got: delta = 0, and x stays.
    """
    assert path(FedAdagrad, server_lr=0.5) == pytest.approx([0.4995002, 0.4995002], abs=1e-6)
    # With beta1 = 0.9: m = 0.1, x = 0.0499500; then m = 0.09 and x = 0.0499500 + 0.045 / 1.0010005 = 0.0949050.
    assert path(FedAdagrad, server_lr=0.5, beta1=0.9) == pytest.approx([0.0499500, 0.0949050], abs=1e-6)
