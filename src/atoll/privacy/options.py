"""Declare the options of a run that determine its privacy."""

from typing import NamedTuple, Protocol

from ..utils.parsing import Spec, number


class PrivacyOptions(Protocol):
    """The part of a run's configuration that privacy reads; ``atoll.Config`` has all of these options."""

    @property
    def method(self) -> str:
        """Return the name of the method, for messages."""

    @property
    def backend(self) -> str:
        """Return the name of the backend."""

    @property
    def seed(self) -> int:
        """Return the seed of the run."""

    @property
    def rounds(self) -> int:
        """Return the number of rounds of the run."""

    @property
    def min_class_count(self) -> int:
        """Return the rows that a class needs before its statistics are uploaded; 0 for no limit."""

    @property
    def cov_source(self) -> str | None:
        """Return the source of covariances; None follows from ``min_class_count``."""

    @property
    def dp(self) -> str | None:
        """Return the budget of differential privacy, such as ``8`` or ``8:1e-6``; None for no noise."""

    @property
    def dp_clip(self) -> float:
        """Return the largest norm of a release before noise."""

    @property
    def dp_rounds(self) -> int | None:
        """Return the rounds that the budget is planned for; None for those of the run."""

    @property
    def dp_seed(self) -> int | None:
        """Return the seed of the noise, with which a run is repeatable and not private; None for a secure source."""


class PrivacyTarget(NamedTuple):
    """Epsilon and delta of ``--dp``."""

    epsilon: float
    delta: float = 1e-5


FORM = Spec(
    "EPSILON or EPSILON:DELTA, such as 8:1e-5",
    number("EPSILON", above=0),
    number("DELTA", above=0, below=1, optional=True),
)


def parse_target(text: str) -> PrivacyTarget:
    """Read a value of ``--dp``: ``"8"`` or ``"8:1e-6"``."""
    return PrivacyTarget(*FORM.parse("--dp", text))
