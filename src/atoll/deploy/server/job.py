"""Define the job of a deployed run, and read it from a file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...config import Config, from_dict, read_yaml
from ...errors import AtollError
from ...typing import ClientId
from ..site.privacy_rules import FLOOR
from ..transport.requests import Timeouts


@dataclass(frozen=True)
class DeploymentJob:
    """The request for a run between sites. The same job again continues the run in its directory."""

    run_dir: str
    config: Mapping[str, object]  # options of the run; a checkpoint is written after every round in any case
    sites: Mapping[ClientId, str]  # public keys (OpenSSH), in the order of clients
    round_timeout: float = 600.0
    min_clients: int | None = None  # None for all sites
    wait_limit: float = 3600.0
    retry_pause: float = 5.0
    public: str = ""  # file of public rows
    force: bool = False  # replace the run in the directory
    report: bool = True
    extra: Mapping[str, object] = field(default_factory=dict)  # for other programs; not read here

    def __post_init__(self) -> None:
        if not self.sites:
            raise AtollError("A job needs sites.")
        if not 1 <= self.least <= len(self.sites):
            raise AtollError(
                f"--min-clients must be from 1 to {len(self.sites)}, the number of sites, not {self.least}."
            )
        if min(self.round_timeout, self.wait_limit) <= 0:
            raise AtollError("--round-timeout and --wait must be above 0 seconds.")

    @property
    def least(self) -> int:
        """Smallest number of sites in a round."""
        return len(self.sites) if self.min_clients is None else self.min_clients

    @property
    def timeouts(self) -> Timeouts:
        """Time limits of requests."""
        return Timeouts(self.round_timeout, self.wait_limit, self.retry_pause)

    def configured(self) -> Config:
        """Return the configuration of the run."""
        fixed = {"checkpoint_every": 1, "out": self.run_dir}
        return from_dict({"min_class_count": FLOOR, **self.config, **fixed})


def read_job(path: Path) -> DeploymentJob:
    """Read a job from a JSON or YAML file.

    Raises:
        AtollError: if an entry is unknown, missing or wrong.
    """
    try:
        return DeploymentJob(**read_yaml(path))
    except TypeError as reason:
        raise AtollError(f"{str(path)!r} is no job: {reason}.") from reason
