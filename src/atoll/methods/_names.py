"""List the names of methods without importing them, to check names before torch is loaded."""

import pkgutil
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from ..errors import unknown

ALL = "all"  # stands for every method that can run


@cache
def method_names() -> tuple[str, ...]:
    """Return the names of all methods: files of this package, and entry points of other packages."""
    files = (info.name for info in pkgutil.iter_modules([str(Path(__file__).parent)]))
    added = (point.name for point in entry_points(group="atoll.methods"))
    return tuple(sorted({*added, *(name for name in files if not name.startswith("_"))}))


def check_name(text: str) -> None:
    """Refuse an unknown method; text with a path, a variant or regularisers is looked at as far as its name goes.

    Raises:
        AtollError: there is neither a method nor a file of this name.
    """
    name = text.partition("+")[0].partition(":")[0]
    is_path = name.endswith(".py") or Path(text).exists() or "/" in text
    if name != ALL and not is_path and name not in method_names():
        raise unknown("method", name, method_names())
