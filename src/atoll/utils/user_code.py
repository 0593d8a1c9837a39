"""Import Python files that users write: a method, a regulariser, a model, a metric."""

import importlib.util
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import AtollError, unknown


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
