"""The virtual clock, against rounds timed by hand."""

import pytest

from atoll.errors import AtollError
from atoll.simulation.clock import Clock, Devices, Times, Work


def round_time(overlap: bool, local: float, personal: float, communication: float, rounds: int = 50) -> float:
    """Seconds per round of three equal clients, once the first rounds are over."""
    clock = Clock(overlap)
    times = {i: Times(local, personal, communication, 0.0) for i in "abc"}
    ends = [clock.round(times, 0.0).personal for _ in range(rounds)]
    return (ends[-1] - ends[9]) / (rounds - 10)


@pytest.mark.parametrize(
    ("g", "p", "c", "speedup"),
    [(1, 1, 1, 1.5), (1, 3, 3, 1.75), (1, 5, 5, 11 / 6), (5, 5, 2, 1.2), (2, 0, 3, 1.0), (2, 3, 0, 1.0)],
)
def test_speedup_of_overlap_equals_the_bound(g: float, p: float, c: float, speedup: float) -> None:
    """Waiting takes G + P + c a round, overlapping G + max(P, c): for (1, 5, 5) that is 11 against 6."""
    waiting, free = round_time(False, g, p, c), round_time(True, g, p, c)
    assert waiting == pytest.approx(g + p + c)
    assert free == pytest.approx(g + max(p, c))
    assert waiting / free == pytest.approx(speedup)
    assert waiting / free < 2


def test_clock_of_a_round_with_two_different_clients() -> None:
    """a: download 1, G 2, P 3, upload 1; b: download 1, G 4, P 1, upload 2; aggregation 1.

    Waiting: a sends at 1+2+3+1 = 7, b at 1+4+1+2 = 8, the server is done at 9; personal models at 6 and 6.
    Overlapping: a sends at 4, b at 7, the server is done at 8. Next round a starts at max(8+1, 6) = 9.
    """
    times = {"a": Times(2, 3, 1, 1), "b": Times(4, 1, 2, 1)}
    assert Clock(False).round(times, 1.0) == (9.0, 6.0)
    clock = Clock(True)
    assert clock.round(times, 1.0) == (8.0, 6.0)
    assert clock.round({"a": times["a"]}, 1.0) == (8 + 1 + 2 + 1 + 1, 8 + 1 + 2 + 3)


def test_personal_work_that_outlasts_the_network_delays_the_next_round() -> None:
    """G 1, P 10, c 2: the reply is there at 3, but the client is busy until 11, so round 2 ends its P at 22."""
    clock = Clock(True)
    times = {"a": Times(1, 10, 2, 0)}
    assert clock.round(times, 0.0).personal == 11
    assert clock.round(times, 0.0).personal == 22


def test_absent_clients_neither_work_nor_wait() -> None:
    clock = Clock(False)
    clock.round({"slow": Times(100, 0, 0, 0), "quick": Times(1, 0, 0, 0)}, 0.0)
    assert clock.round({"quick": Times(1, 0, 0, 0)}, 0.0).generic == 101


def test_seconds_from_operations_and_bytes() -> None:
    """2e9 operations at 1e9/s are 2 s; 3e6 bytes at 1e6/s after 0.5 s latency are 3.5 s."""
    devices = Devices(speed=1e9, up=1e6, down=2e6, latency=0.5, server=1e10)
    assert devices.times(Work(2e9, 1e9, 3e6, 1e6), "a", 0) == (2.0, 1.0, 3.5, 1.0)
    assert devices.aggregation(5e9) == 0.5


def test_other_models_of_communication() -> None:
    work = Work(2e9, 1e9, 3e6, 1e6)
    assert Devices(speed=1e9, communication="fixed", seconds=7).times(work, "a", 0) == (2, 1, 7, 0)
    assert Devices(speed=1e9, communication="equal_to_personal").times(work, "a", 0) == (2, 1, 1, 0)


def test_speeds_spread_between_the_bounds_and_stay_the_same() -> None:
    devices = Devices(speed=100.0, spread=4.0)
    speeds = [devices.speed_of(str(i), 0) for i in range(200)]
    assert min(speeds) >= 25
    assert max(speeds) <= 400
    assert max(speeds) / min(speeds) > 8
    assert speeds == [devices.speed_of(str(i), 0) for i in range(200)]


@pytest.mark.parametrize("wrong", [{"speed": 0}, {"up": -1}, {"spread": 0.5}, {"latency": -1}, {"communication": "x"}])
def test_impossible_devices_are_refused(wrong: dict) -> None:
    with pytest.raises(AtollError, match="--clock"):
        Devices(**wrong)
