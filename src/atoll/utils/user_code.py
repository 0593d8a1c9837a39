"""Import Python files that users write, such as a method or a model, and find their lines in tracebacks."""

import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from textwrap import shorten
from types import ModuleType
from typing import Any

from ..errors import AtollError, unknown

LONGEST_LINE = 80  # characters of code in a message
# Folders of code that users did not write: this package, other packages, and the standard library.
_INSTALLED = tuple(
    {str(Path(__file__).parents[1]), *map(sysconfig.get_paths().__getitem__, ("purelib", "platlib", "stdlib"))}
)


def imported(path: Path, what: str) -> ModuleType:
    """Import a file as a module. An edited file becomes a new module.

    The file may import others of its folder. Installed packages come first, so no file takes the place of one.

    Args:
        path: the Python file.
        what: what the file should define, for messages, such as ``"Method file"``.
    """
    if not path.is_file():
        raise AtollError(f"There is no {what[0].lower() + what[1:]} {str(path)!r}. Check the path.")
    source = path.resolve()
    stamp = sha256(str(source).encode() + source.read_bytes()).hexdigest()[:12]
    name = f"atoll_user_{source.stem}_{stamp}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, source)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        if str(source.parent) not in sys.path:
            sys.path.append(str(source.parent))
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as reason:
            del sys.modules[name]
            raise AtollError(
                f"{what} {str(path)!r} cannot be imported: {reason!r}. Correct it and try again."
            ) from reason
    return sys.modules[name]


def entry(path: Path, name: str, what: str) -> Callable[..., Any]:
    """Return the callable called ``name`` that a file defines; ``what`` describes the file in messages."""
    module = imported(path, what)
    own = {key: v for key, v in vars(module).items() if callable(v) and not key.startswith("_")}
    if name not in own:
        raise unknown("entry", name, own, f"of {what[0].lower() + what[1:]} {str(path)!r}")
    found: Callable[..., Any] = own[name]
    return found


def find_user_line(reason: BaseException) -> str | None:
    """Return the last line of a user's own code in a traceback, such as ``line 7 of mine.py (if total.item() > 0)``.

    None if no such code was running.
    """
    own = [f for f in traceback.extract_tb(reason.__traceback__) if not f.filename.startswith((*_INSTALLED, "<frozen"))]
    if not own:
        return None
    last = own[-1]
    code = shorten(last.line or "", LONGEST_LINE, placeholder=" …").rstrip(":")
    return f"line {last.lineno} of {Path(last.filename).name}" + (f" ({code})" if code else "")
