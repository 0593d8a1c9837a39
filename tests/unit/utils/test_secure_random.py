"""Noise from the secure source and from a seed."""

import math

import pytest
import torch

from atoll.utils.secure_random import secure, seeded


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
