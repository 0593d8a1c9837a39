"""Start the dashboard: bind a port on the loopback, run the server, open a browser."""

import errno
import importlib.util
import os
import socket
import sys
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from secrets import token_urlsafe

from ..errors import AtollError

HOST = "127.0.0.1"
NEEDED = ("starlette", "uvicorn")


def serve(root: Path, port: int, browse: bool, echo: Callable[[str], None]) -> None:
    """Serve until Ctrl-C.

    Args:
        root: folder below which runs are found.
        port: port on the loopback; 0 for any free port.
        browse: whether to open a browser.
        echo: prints the address.
    """
    check_extra()
    if not root.is_dir():
        raise AtollError(f"There is no folder {str(root)!r}. Give the one that holds your runs: atoll ui RUNS_DIR")
    with listen(port) as listener:
        token = token_urlsafe()  # Other accounts of this machine can connect, and do not know it.
        address = f"http://{HOST}:{listener.getsockname()[1]}/?token={token}"
        _run(root, listener, token, lambda: _announce(address, browse, echo))


def check_extra() -> None:
    """Raise an AtollError if a package of the extra ``ui`` is missing."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise AtollError(f"The dashboard needs the package {' and '.join(missing)}: pip install starlette uvicorn")


def listen(port: int) -> socket.socket:
    """Return a listening socket that only this machine can reach."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # Without this option, the port could not be used again for a minute.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen()
    except OSError as reason:
        listener.close()
        taken = reason.errno == errno.EADDRINUSE
        why = "is in use, perhaps by another dashboard" if taken else f"cannot be used ({reason.strerror})"
        raise AtollError(f"Port {port} {why}. Choose another with --port, or --port 0 for any free one.") from None
    return listener


def _run(root: Path, listener: socket.socket, token: str, ready: Callable[[], None]) -> None:
    import uvicorn

    from .app import make_app
    from .run_index import RunIndex

    app = make_app(RunIndex(root), listener.getsockname()[1], token)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, ws="none", server_header=False, timeout_graceful_shutdown=1
    )
    ready()  # The socket listens already, so early requests wait for the server.
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])


def _announce(address: str, browse: bool, echo: Callable[[str], None]) -> None:
    echo(f"Dashboard: {address} (Ctrl-C ends it)")
    if browse and _has_desktop():
        webbrowser.open(address)


def _has_desktop() -> bool:
    """Return True if a graphical browser can open; a text browser would take over the terminal."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
