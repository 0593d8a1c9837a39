"""FedYogi: two rounds by hand; the rest is in test_server_optimiser.py."""

import pytest
import torch
from support.server_optimisers import path

from atoll.methods.fedyogi import FedYogi


def test_two_rounds_by_hand() -> None:
    """delta = 1, from 0: m = 0.1; v = 1e-6 + 0.01 * 1 = 0.010001, its root 0.100005;
    x = 0.5 * 0.1 / (0.100005 + 0.001) = 0.4950250. Then clients return what they got, delta = 0: m = 0.09 and v stays,
    where Adam would let it decay: x = 0.4950250 + 0.045 / 0.101005 = 0.9405475.
    """
    assert path(FedYogi, server_lr=0.5) == pytest.approx([0.4950250, 0.9405475], abs=1e-6)


def test_second_moment_falls_where_it_exceeds_the_squared_change() -> None:
    """v = 4, delta^2 = 1: v - 0.01 * 1 = 3.99; delta^2 = 9: v + 0.01 * 9 = 4.09. Adam would come to 3.97 and 4.05."""
    v = FedYogi().size(torch.tensor([4.0, 4.0]), torch.tensor([1.0, 9.0]))
    assert v.tolist() == pytest.approx([3.99, 4.09])
