"""The memory that a machine or a container can still give."""

from pathlib import Path

import pytest

from atoll.utils import memory
from atoll.utils.memory import available_memory

MEMINFO = "MemTotal:       24000000 kB\nMemAvailable:   2000000 kB\n"


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    (tmp_path / "meminfo").write_text(MEMINFO)
    return tmp_path


def test_memory_of_a_machine_is_what_the_kernel_calls_available(system: Path) -> None:
    assert available_memory() == 2_000_000 * 1024


def test_limit_of_a_container_counts_if_less_is_left_of_it(system: Path) -> None:
    (system / "memory.current").write_text("400\n")
    (system / "memory.max").write_text("1000\n")

    assert available_memory() == 600


def test_container_without_a_limit_has_the_memory_of_its_machine(system: Path) -> None:
    (system / "memory.current").write_text("400\n")
    (system / "memory.max").write_text("max\n")

    assert available_memory() == 2_000_000 * 1024


def test_system_that_does_not_say_has_no_number(system: Path) -> None:
    (system / "meminfo").unlink()

    assert available_memory() is None
