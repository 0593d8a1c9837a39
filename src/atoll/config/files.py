"""Make configurations from entries, and read entries from YAML files."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from ..errors import AtollError, unknown
from ..utils.parsing import Json, from_yaml
from .run_config import Config


def from_dict(values: Mapping[str, object], where: str = "the configuration") -> Config:
    """Make a configuration from entries; ``where`` names their source in error messages.

    Raises:
        AtollError: if an entry is unknown or its value is wrong.
    """
    known = {f.name for f in fields(Config)}
    for name in values:
        if name not in known:
            raise unknown("entry", str(name), known, f"in {where}")
    return Config(**values)  # type: ignore[arg-type]  # Config checks the types of all values.


def read_yaml(path: Path) -> Json:
    """Read the entries of a configuration file; :func:`from_dict` checks them.

    Raises:
        AtollError: if the file is missing or is no YAML mapping.
    """
    try:
        values = from_yaml(path.read_text())
    except FileNotFoundError:
        raise AtollError(f"There is no configuration file {str(path)!r}. Check the path.") from None
    except OSError as reason:
        raise AtollError(f"Cannot read the configuration file {str(path)!r}: {reason.strerror}.") from reason
    except ValueError as reason:
        raise AtollError(
            f"{str(path)!r} is not readable YAML ({' '.join(str(reason).split())}). Write one `entry: value` on each "
            "line."
        ) from reason
    if not isinstance(values, dict):
        raise AtollError(f"{str(path)!r} must contain entries such as 'method: fedavg'.")
    return values
