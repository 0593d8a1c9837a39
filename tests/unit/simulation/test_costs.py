"""What a method costs: operations that torch counts."""

import torch

from atoll.simulation.costs import OperationCounter


def test_operations_of_a_product_and_of_its_gradient() -> None:
    """[2, 3] times [3, 4]: 2 * 2 * 3 * 4 = 48 forwards, and as many for the gradient of one factor."""
    a, b = torch.ones(2, 3), torch.ones(3, 4, requires_grad=True)
    with OperationCounter() as counter:
        (a @ b).sum().backward()
    assert counter.total == 96
