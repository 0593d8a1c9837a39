"""The options of a run that its privacy depends on."""

from typing import Protocol


class PrivacyOptions(Protocol):
    """What privacy reads of a run's configuration; ``atoll.Config`` has all of these."""

    @property
    def method(self) -> str:
        """Name of the method, for messages."""

    @property
    def backend(self) -> str:
        """Name of the backend."""

    @property
    def seed(self) -> int:
        """Seed of the run."""

    @property
    def rounds(self) -> int:
        """Rounds that the run has."""

    @property
    def min_class_count(self) -> int:
        """Rows that a class needs before its statistics leave a client; 0: any."""

    @property
    def cov_source(self) -> str | None:
        """Which covariances leave a client; None: as ``min_class_count`` implies."""

    @property
    def dp(self) -> str | None:
        """The budget of differential privacy, such as ``8`` or ``8:1e-6``; None: no noise."""

    @property
    def dp_clip(self) -> float:
        """Largest norm of what is released, before noise."""

    @property
    def dp_rounds(self) -> int | None:
        """Rounds that the budget is planned for; None: those of the run."""

    @property
    def dp_seed(self) -> int | None:
        """Seed of the noise, which makes a run repeatable and not private; None: a secure source."""
