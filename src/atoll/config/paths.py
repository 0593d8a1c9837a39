"""Write the paths in a configuration so that they hold in every working directory."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from ..data.catalogue import ALIASES, KNOWN
from ..simulation.topology import NAMED

CODE = ("method", "models", "shared_model", "server_model", "terms", "metric")  # may name a Python file
DATA = ("data", "public_data")
_FILE_OF_CODE = re.compile(r"()(.+?\.py)((?:[:?].*)?)")
_FILE_OF_DATA = re.compile(r"((?:pfllib:)?)(.+?)((?:[?@].*)?)")
_FILE_OF_PARTITION = re.compile(r"(file:)(.+)()")
_WHOLE = re.compile(r"()(.+)()")
# How each entry names a path: what stands before it, the path, and what follows it.
_FORMS = {
    **dict.fromkeys(CODE, _FILE_OF_CODE),
    **dict.fromkeys(DATA, _FILE_OF_DATA),
    "partition": _FILE_OF_PARTITION,
    "topology": _WHOLE,
    "data_dir": _WHOLE,
}


def with_absolute_paths(entries: Mapping[str, object]) -> dict[str, object]:
    """Return the entries of a configuration with absolute paths in place of relative ones that exist.

    Args:
        entries: entries as :meth:`Config.to_dict` gives them.
    """
    made = dict(entries)
    for name, form in _FORMS.items():
        value = made.get(name)
        if isinstance(value, list):
            made[name] = [_absolute(word, form) for word in value]
        elif isinstance(value, str) and not _is_known(name, value):
            made[name] = _absolute(value, _WHOLE if name in DATA and _exists(value) else form)
    return made


def _absolute(text: str, form: re.Pattern[str]) -> str:
    found = form.fullmatch(text)
    if found is None or not _exists(found[2]):
        return text
    return f"{found[1]}{os.path.abspath(found[2])}{found[3]}"


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # The text is too long for a path, or has a character that no path has.
        return False


def _is_known(name: str, value: str) -> bool:
    """Return True for a name that a file or folder of the same name does not replace."""
    if name in DATA:
        base = re.split("[?@]", value)[0]
        return ALIASES.get(base, base) in KNOWN
    return name == "topology" and value in NAMED
