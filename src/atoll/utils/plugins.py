"""Load what installed packages add by entry points: methods, regularisers, metrics, trackers."""

import warnings
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any


def load_plugins(group: str, check: Callable[[str, Any], None] | None = None) -> dict[str, Any]:
    """Load the objects that installed packages register in a group of entry points.

    Warns about an object that cannot be loaded or fails the check, and leaves it out.

    Args:
        group: the group of entry points, such as ``"atoll.metrics"``.
        check: called with the name and the object; raises an error if the object does not fit.

    Returns:
        The objects by the names of their entry points.
    """
    found: dict[str, Any] = {}
    for point in entry_points(group=group):
        try:
            loaded = point.load()
            if check is not None:
                check(point.name, loaded)
        except Exception as reason:  # Code of other packages may raise anything.
            warnings.warn(f"{group} {point.name!r} ({point.value}) was left out: {reason}", stacklevel=2)
        else:
            found[point.name] = loaded
    return found
