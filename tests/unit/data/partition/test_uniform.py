"""Equal random parts."""

import numpy as np
from support.partitions import divide, make_pool


def test_iid_gives_equal_parts_that_cover_the_pool():
    rows = make_pool(50, 53)
    got = divide("iid", rows, 10)
    assert sorted(len(r) for r in got.rows) == [10] * 7 + [11] * 3
    assert sorted(np.concatenate(got.rows)) == list(range(103))
    assert got.clients == tuple("0123456789")
