"""Bytes of a round against sums done by hand: CNN-1 has 500 features, a head of 501 C weights and 4-byte numbers."""

import pytest

from atoll.analysis.communication import ReferenceFederation, Traffic

CNN1 = {10: 2_621_558, 100: 2_666_648}  # weights
N = 1  # the number of training rows, sent along


@pytest.mark.parametrize(("classes", "held"), [(10, 2), (100, 50)])
def test_bytes_match_hand_computed_sizes(classes: int, held: int) -> None:
    """With C classes, of which a client holds h, and d = 500: h rows of a class table travel with h labels.

    A covariance is a triangle of d (d + 1) / 2 = 125,250 numbers. FD's teachers are those of the classes held.
    """
    head, table, mine = 501 * classes, 500 * classes, held * (500 + 1)
    expected = {
        "local": (0, 0),
        "fedavg": (CNN1[classes], CNN1[classes] + N),
        "lgfedavg": (head, head + N),
        "fedper": (CNN1[classes] - head, CNN1[classes] - head + N),
        "fedgh": (head, mine),
        "fedproto": (table, mine + held),
        "fedtgp": (table, mine),
        "fd": (held * (classes + 1), held * (classes + 1)),
        "pfedes": (443, 443 + N),
        "dcpfl": (head + table, held * (500 + 125_250 + 2)),
        "dcpfl:no-al": (head, held * (500 + 125_250 + 2)),
        "dcpfl:no-gc": (head + table, held * (500 + 2)),
    }
    if classes == 100:  # large covariances take a while
        expected = {name: expected[name] for name in ("fedavg", "fedgh", "fedproto", "fd", "dcpfl:no-gc")}
    nominal = ReferenceFederation(classes=classes, held=held)
    found = {name: nominal.traffic(name) for name in expected}
    assert found == {name: Traffic(4 * down, 4 * up) for name, (down, up) in expected.items()}


def test_grey_images_have_a_smaller_proxy_and_shared_models_may_be_the_smallest() -> None:
    """pFedES on one channel: 8 (9 + 1) + (8 * 9 + 1) = 153 weights. Of CNN-1 and CNN-5, FML shares CNN-5."""
    assert ReferenceFederation(shape=(1, 28, 28)).traffic("pfedes") == Traffic(4 * 153, 4 * 154)
    assert ReferenceFederation(models=("cnn1", "cnn5")).traffic("fml") == Traffic(4 * 670_058, 4 * (670_058 + N))
