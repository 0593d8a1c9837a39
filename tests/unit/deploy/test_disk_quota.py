"""The bytes that a site stores for runs: measured now and then, and limited."""

from pathlib import Path

import pytest

from atoll.deploy.site.disk_quota import FRESH, LINE, DiskQuota, size_of
from atoll.deploy.transport.protocol import Refusal


def test_size_of_a_folder_is_the_sum_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "one").write_bytes(bytes(10))
    (tmp_path / "a" / "b" / "two").write_bytes(bytes(5))
    (tmp_path / "a" / "link").symlink_to("nowhere")

    assert size_of(tmp_path) == 10 + 5 + len("nowhere")


def test_request_that_would_exceed_the_limit_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(bytes(1000))
    quota = DiskQuota(tmp_path, 1000 + 400 + LINE)

    quota.take(100)  # four times 100 bytes, and a line of the log
    with pytest.raises(Refusal, match="disk_gb"):
        quota.take(101)


def test_folder_is_measured_again_when_the_limit_seems_reached_or_after_a_minute(tmp_path: Path) -> None:
    now = [0.0]
    quota = DiskQuota(tmp_path, 2 * LINE, lambda: now[0])
    for _ in range(5):
        quota.take(0)  # Nothing was written, as each measurement shows.

    (tmp_path / "state").write_bytes(bytes(2 * LINE))
    now[0] = FRESH + 1

    with pytest.raises(Refusal):
        quota.take(0)
