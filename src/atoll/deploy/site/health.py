"""Answer ``GET /health`` for the probes of service managers and container engines."""

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from ...utils.files import to_json
from ..addresses import split
from ..flower_adapter.fleet import HEALTH
from ..transport.protocol import Frame, call, pack, unpack

SILENCE = 90.0  # seconds without an answer of the server after which the site counts as cut off
WORKER_SECONDS = 2.0  # for an idle worker to answer
TIMEOUT = 5.0  # of a probe's connection


class Health:
    """The state of a site's connection, as its loop reports it.

    Args:
        worker: the worker's socket.
        clock: measures seconds.
    """

    def __init__(self, worker: Path, clock: Callable[[], float] = time.monotonic):
        self._worker = worker
        self._clock = clock
        self._heard = clock()
        self.working = False  # True while the worker carries out a request

    def hear(self) -> None:
        """Note that the server has answered."""
        self._heard = self._clock()

    def report(self) -> dict[str, object]:
        """Return whether server and worker answer. A worker that carries out a request counts as answering."""
        silent = self._clock() - self._heard
        return {
            "server": self.working or silent < SILENCE,
            "worker": self.working or self._worker_answers(),
            "seconds_since_server": round(silent, 1),
        }

    def _worker_answers(self) -> bool:
        return unpack(call(self._worker, pack(Frame("name", {})), WORKER_SECONDS)).code is None


def serve_health(health: Health, address: str) -> ThreadingHTTPServer:
    """Answer probes in a thread until the process ends: 200 if server and worker answer, 503 otherwise.

    Args:
        health: the state of the connection.
        address: HOST:PORT to listen on.
    """

    class Probe(BaseHTTPRequestHandler):
        timeout = TIMEOUT

        def do_GET(self) -> None:
            report = health.report() if self.path == HEALTH else None
            body = to_json(report).encode() if report else b""
            status = 404 if report is None else 200 if report["server"] and report["worker"] else 503
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Write nothing: probes come every few seconds."""

    server = ThreadingHTTPServer(split(address), Probe)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
