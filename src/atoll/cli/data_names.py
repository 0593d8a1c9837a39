"""Refuse an unknown data set before torch is loaded."""

import re
from collections.abc import Sequence
from pathlib import Path

from ..errors import unknown

PLAIN = re.compile(r"\w[\w-]*")  # neither a path nor a name with a variant, options or classes


def check_data_name(name: str, data_dir: str | None, known: Sequence[str]) -> None:
    """Refuse a plain name that is neither a known data set nor a file; other names are checked where data is loaded.

    Args:
        name: value of ``--data``.
        data_dir: value of ``--data-dir``.
        known: the names of the catalogue.

    Raises:
        AtollError: there is no data set of this name.
    """
    names = {*known, *(each.partition(":")[0] for each in known)}
    if name in names or not PLAIN.fullmatch(name):
        return
    from ..data.downloads import data_folder  # Known names, the common case, do not need what it imports.

    folder = data_folder(data_dir)
    if not any(place.exists() for place in (Path(name), folder / name, folder / f"{name}.npz")):
        raise unknown("data set", name, names)
