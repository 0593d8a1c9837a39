"""Simulated times of clients, from devices, rows, faults and a deadline."""

import pytest
from support.small_runs import setup

from atoll.clients.pool import ClientPool
from atoll.clients.tasks import RoundLog, Start
from atoll.simulation.clock import Clock, Devices
from atoll.simulation.costs import BatchCosts, Costs, RowCosts, Traffic
from atoll.simulation.faults import read_faults
from atoll.simulation.timing import RoundTimer

DEVICES = Devices(speed=10.0, up=5.0, down=10.0, latency=0.0, server=4.0)


def timer(pool: ClientPool, deadline: float | None = None, **faults: str) -> RoundTimer:
    made = read_faults(pool.ids, 0, **faults)
    return RoundTimer(DEVICES, pool, made, seed=0, deadline=deadline, constraints={})


@pytest.fixture
def pool() -> ClientPool:
    return setup("fedavg").pool


def costs(pool: ClientPool) -> Costs:
    """Two operations for each row before the upload, one after it, eight of the server."""
    return Costs({pool.models["0"].name: [(RowCosts(row=2.0), RowCosts(row=1.0))]}, 8.0)


def test_times_follow_from_rows_bytes_and_speeds(pool: ClientPool) -> None:
    n = len(pool.client("0").y)
    times = timer(pool).of(0, "0", costs(pool), up=10, down=20)

    # 2 n operations at 10 per second, n afterwards, 10 bytes at 5 per second, 20 bytes at 10 per second
    assert times == pytest.approx((0.2 * n, 0.1 * n, 2.0, 2.0))


def test_straggler_takes_a_multiple_of_everything(pool: ClientPool) -> None:
    normal = timer(pool).of(0, "0", costs(pool), up=10, down=20)
    slow = timer(pool, stragglers="1:3").of(0, "0", costs(pool), up=10, down=20)

    assert slow == pytest.approx([3 * t for t in normal])


def test_upload_after_the_deadline_is_late(pool: ClientPool) -> None:
    clock, n = Clock(overlap=False), len(pool.client("0").y)
    arrival = 0.3 * n + 2.0 + 2.0  # training before and after the upload, then upload and download

    for deadline, late in ((arrival + 0.1, False), (arrival - 0.1, True), (None, False)):
        assert timer(pool, deadline).faults(0, costs(pool), clock).is_late("0", 10, 20) is late


def test_server_waits_for_the_slowest_client_and_aggregates(pool: ClientPool) -> None:
    log = RoundLog(0, ["0", "1"], up={"0": 10, "1": 10}, down={"0": 20, "1": 20}, accepted=["0", "1"])
    work = costs(pool)
    times = timer(pool).times(log, {i: work.of(pool, i) for i in log.cohort})
    stamps = timer(pool).stamps(log, times, work.server, {"waiting": Clock(overlap=False)})

    most = max(len(pool.client(i).y) for i in ("0", "1"))
    assert stamps["waiting"].generic == pytest.approx(0.3 * most + 4.0 + 8.0 / 4.0)


def test_budget_is_the_number_of_batches_before_the_next_download(
    pool: ClientPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uploads take 1 + 1 s, downloads 1 + 2 s, the aggregation 2 s; clients train for 4 and 10 s before uploads.

    The uploads leave at 3 + 4 = 7 and 3 + 10 = 13 and arrive at 9 and 15. The server is done at 17, and its downloads
    arrive at 20. After the upload, work takes 1 s and 2 s for each batch: client 0 has 13 s, for (13 - 1) / 2 = 6
    batches, and client 1 has 7 s, for 3.
    """
    devices = Devices(speed=1.0, up=100.0, down=200.0, latency=1.0, server=4.0)
    timer = RoundTimer(devices, pool, read_faults(pool.ids, 0), seed=0, deadline=None, constraints={})
    name = pool.models["0"].name
    work = Costs(
        {name: [(RowCosts(row=1.0), RowCosts())]}, 8.0, {name: Traffic(up=100, down=400)}, {name: BatchCosts(1.0, 2.0)}
    )
    seconds = {"0": 4.0, "1": 10.0}
    monkeypatch.setattr(type(pool.train), "size", lambda self, at: seconds[str(at)])
    now = Start(0, {"wait_free": 0.0})

    budgets = timer.budgets({"0": now, "1": now}, work, "wait_free", Clock(overlap=True))

    assert budgets == {"0": 6, "1": 3}
    log = RoundLog(0, ["0", "1"], {"0": 100, "1": 100}, {"0": 400, "1": 400}, accepted=["0", "1"], budgets=budgets)
    clock = Clock(overlap=True)
    times = timer.times(log, {i: work.of(pool, i, budget) for i, budget in budgets.items()})
    assert timer.stamps(log, times, work.server, {"wait_free": clock})["wait_free"] == (17.0, 20.0)
    assert clock.free == {"0": 20.0, "1": 20.0}  # 7 + 1 + 6 * 2 and 13 + 1 + 3 * 2: nobody waits for personal training
