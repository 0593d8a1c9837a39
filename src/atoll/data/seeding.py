"""Independent streams of random numbers for dividing and sampling data."""

from hashlib import sha256

import numpy as np
from numpy.random import Generator


def stream(seed: int, *purpose: str) -> Generator:
    """Return a generator that is independent for every seed and purpose."""
    text = "\x1f".join((str(seed), *purpose))
    return np.random.default_rng(int.from_bytes(sha256(text.encode("utf-8", "surrogatepass")).digest()[:16], "little"))
