"""After which rounds a checkpoint is due."""

import pytest

from atoll.engine.checkpoint_schedule import CheckpointSchedule


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def due_rounds(schedule: CheckpointSchedule, clock: Clock, rounds: int, seconds: float) -> list[int]:
    """Return the rounds with a checkpoint, if each round takes ``seconds``."""
    found = []
    for done in range(1, rounds + 1):
        clock.seconds += seconds
        if schedule.is_due(done):
            schedule.restart(done)
            found.append(done)
    return found


@pytest.mark.parametrize(
    ("seconds", "rounds"),
    [
        (0.01, []),  # 0.2 seconds in all
        (0.125, [8, 16]),  # a second after eight rounds
        (0.5, [5, 10, 15, 20]),
        (20.0, [3, 6, 9, 12, 15, 18]),  # a minute after three rounds
        (90.0, list(range(1, 21))),
    ],
)
def test_checkpoints_are_five_rounds_apart_but_neither_within_a_second_nor_later_than_a_minute(
    seconds: float, rounds: list[int]
) -> None:
    clock = Clock()

    assert due_rounds(CheckpointSchedule(None, clock), clock, 20, seconds) == rounds


@pytest.mark.parametrize("seconds", [0.0, 1000.0])
def test_a_number_of_rounds_holds_whatever_the_time(seconds: float) -> None:
    clock = Clock()

    assert due_rounds(CheckpointSchedule(3, clock), clock, 10, seconds) == [3, 6, 9]


def test_a_resumed_run_counts_from_its_checkpoint() -> None:
    clock = Clock()
    schedule = CheckpointSchedule(None, clock)
    clock.seconds += 10
    schedule.restart(7)

    assert [done for done in range(8, 14) if schedule.is_due(done)] == []
    clock.seconds += 1
    assert [done for done in range(8, 14) if schedule.is_due(done)] == [12, 13]
