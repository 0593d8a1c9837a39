"""The bytes that a site may send to the server: what the run asked for, and a floor per hour."""

from pathlib import Path

import pytest

from atoll.deploy.server.access import Refusal
from atoll.deploy.server.upload_quota import HOUR, AskedBytes, UploadQuota

FLOOR = 1000


class Scene:
    """A quota with a floor of 1000 bytes, a clock that stands still, and the lines of its log."""

    def __init__(self, state: Path):
        self.now = 0.0
        self.lines: list[str] = []
        self.quota = UploadQuota(state, lambda: FLOOR, lambda: self.now, self.lines.append)

    def takes(self, site: str, size: int) -> bool:
        try:
            self.quota.take(site, size)
        except Refusal as refusal:
            return refusal.status != 429
        return True


def test_site_that_was_asked_for_nothing_has_the_floor_of_each_hour(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    assert scene.takes("north", 600)
    assert not scene.takes("north", 401)
    assert scene.takes("north", 400)
    assert scene.takes("south", 1000)  # each site has its own
    scene.now = HOUR
    assert scene.takes("north", 1000)


def test_bytes_that_were_asked_for_may_be_sent_twice_and_leave_the_floor_alone(tmp_path: Path) -> None:
    scene, asked = Scene(tmp_path), AskedBytes(tmp_path)
    asked.add({"north": 5000})

    assert scene.takes("north", 10_000)
    assert scene.takes("north", 1000)
    assert not scene.takes("north", 1)
    assert not scene.takes("south", 1001)
    asked.add({"north": 10})
    assert scene.takes("north", 20)
    assert not scene.takes("north", 1)


def test_requests_of_an_hour_ago_still_count(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    AskedBytes(tmp_path).add({"north": 5000})
    assert scene.takes("north", 10)

    scene.now = 3 * HOUR

    assert scene.takes("north", 9000)


def test_next_run_does_not_inherit_what_the_last_one_asked_for(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    AskedBytes(tmp_path).add({"north": 5000})
    assert scene.takes("north", 10)

    AskedBytes(tmp_path).add({"north": 100})

    assert scene.takes("north", 1200)
    assert not scene.takes("north", 1)


def test_refusals_of_a_site_are_logged_once_an_hour(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    for _ in range(3):
        assert not scene.takes("north", 2000)
    scene.now = HOUR
    assert not scene.takes("north", 2000)

    assert ["refused an upload of north" in line for line in scene.lines] == [True, True]


def test_only_the_server_can_read_what_was_asked_for(tmp_path: Path) -> None:
    AskedBytes(tmp_path).add({"north": 1})

    assert (tmp_path / "asked.json").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("size", [1, FLOOR])
def test_refused_bytes_are_not_counted(size: int, tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    assert not scene.takes("north", FLOOR + 1)

    assert scene.takes("north", size)
