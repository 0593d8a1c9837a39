"""Values of ``--schedule``."""

import pytest

from atoll.aggregation.staleness import StalenessWeight
from atoll.errors import AtollError
from atoll.simulation.schedule import Schedule, read_schedule


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("synchronous", Schedule(None)),
        ("buffered:4", Schedule(4, StalenessWeight(0.5))),
        ("buffered:4:constant", Schedule(4, StalenessWeight(0.0))),
        ("buffered:4:polynomial", Schedule(4, StalenessWeight(0.5))),
        ("buffered:4:polynomial:2", Schedule(4, StalenessWeight(2.0))),
        ("asynchronous:0.6", Schedule(1, StalenessWeight(0.5, mixing=0.6))),
        ("asynchronous:0.6:constant", Schedule(1, StalenessWeight(0.0, mixing=0.6))),
    ],
)
def test_schedule_is_read(text: str, schedule: Schedule) -> None:
    assert read_schedule(text) == schedule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bufferd:4", "buffered"),
        ("buffered", "K is missing"),
        ("buffered:0", "K must be a whole number of at least 1"),
        ("buffered:2:linear", "WEIGHT must be constant or polynomial"),
        ("buffered:2:polynomial:-1", "EXPONENT must be a number at least 0"),
        ("buffered:2:constant:1", "constant weight has no exponent"),
        ("asynchronous:0", "ALPHA must be a number"),
        ("synchronous:3", "nothing may follow the name"),
    ],
)
def test_malformed_schedule_is_refused_with_the_form(text: str, message: str) -> None:
    with pytest.raises(AtollError, match=message):
        read_schedule(text)
