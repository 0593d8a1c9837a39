"""Learning-rate schedules: pure functions of the round, the same for every client."""

from collections.abc import Callable
from functools import cache
from math import cos, pi
from typing import NamedTuple

from ...errors import unknown
from ...utils.parsing import Spec, number, whole

CONSTANT = "constant"


class Schedule(NamedTuple):
    """The grammar of a schedule, and its factor of the learning rate in round ``t``, counted from 0."""

    form: Spec
    factor: Callable[..., float]


def _cosine(t: int, rounds: int, last: float = 0.0) -> float:
    return last + (1 - last) * (1 + cos(pi * min(t, rounds) / rounds)) / 2


SCHEDULES = {
    CONSTANT: Schedule(Spec("constant, and nothing else"), lambda t: 1.0),
    "step": Schedule(
        Spec(
            "step:EVERY:FACTOR, to multiply the rate by FACTOR after every EVERY rounds, such as step:30:0.1",
            whole("EVERY", least=1),
            number("FACTOR", above=0, most=1),
        ),
        lambda t, every, factor: factor ** (t // every),
    ),
    "exponential": Schedule(
        Spec(
            "exponential:FACTOR, to multiply the rate by FACTOR after every round, such as exponential:0.99",
            number("FACTOR", above=0, most=1),
        ),
        lambda t, factor: factor**t,
    ),
    "cosine": Schedule(
        Spec(
            "cosine:ROUNDS, to fall to 0 in ROUNDS rounds, or cosine:ROUNDS:SHARE, to fall to that share of the rate",
            whole("ROUNDS", least=1),
            number("SHARE", least=0, most=1, optional=True),
        ),
        _cosine,
    ),
    "warmup": Schedule(
        Spec("warmup:ROUNDS, to rise to the rate in ROUNDS rounds, such as warmup:5", whole("ROUNDS", least=1)),
        lambda t, rounds: min(1.0, (t + 1) / rounds),
    ),
}


def factor_at(schedule: str, t: int) -> float:
    """Return the factor of the learning rate in round ``t``, counted from 0.

    Args:
        schedule: one schedule, or several joined by commas, whose factors are multiplied.
        t: the round.

    Raises:
        AtollError: if the text is no schedule.

    Example:
        >>> factor_at("step:10:0.5", 25)
        0.25
    """
    product = 1.0
    for factor, values in _parse(schedule):
        product *= factor(t, *values)
    return product


@cache
def _parse(text: str) -> list[tuple[Callable[..., float], list[float]]]:
    found = []
    for part in text.split(","):
        name = part.partition(":")[0]
        if name not in SCHEDULES:
            raise unknown("learning-rate schedule", name, SCHEDULES)
        schedule = SCHEDULES[name]
        found.append((schedule.factor, schedule.form.parse("schedule", part, skip=1)))
    return found
