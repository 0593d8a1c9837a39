"""The worker of a site: a process that holds data, model and states, and carries out requests of the server.

``python -m atoll.deploy.site.worker SITE_DIR`` listens on SITE_DIR/state/worker.sock until it is told to stop.
"""

import fcntl
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import AtollError
from ...utils.files import to_json
from ..transport.protocol import Frame, ProtocolError, Refusal, error, pack, receive, unpack
from .config import SiteConfig, read_site
from .exchange_store import ExchangeStore
from .participation import Flawed, Participation, check_rules, check_version, config_of

HURRY = 60.0  # seconds within which a request must have come in once somebody connects
BACKLOG = 16

Afterwards = Callable[[], None]


class Answer(NamedTuple):
    reply: bytes
    afterwards: Afterwards | None = None  # what goes on once the reply has left


class RequestHandler:
    """Handles the requests to one site, one at a time."""

    def __init__(self, site: SiteConfig):
        self.site = site
        self._engaged: dict[str, Participation] = {}

    def handle(self, data: bytes) -> Answer:
        """Answer a request. Errors leave as codes; their reasons stay in the site's own log."""
        try:
            request = unpack(data)
            return self._serve(request, data)
        except Refusal as refusal:
            _tell(f"refused ({refusal.code}): {refusal}")
            return Answer(pack(error(refusal.code)))
        except ProtocolError as reason:
            _tell(str(reason))
            return Answer(pack(error("request")))
        except AtollError as reason:
            _tell(str(reason))
        except Exception:
            _tell(traceback.format_exc())
        return Answer(pack(error("failed")))

    def _serve(self, request: Frame, data: bytes) -> Answer:
        match request.kind:
            case "name":
                return Answer(pack(Frame("name", {"site": self.site.name})))
            case "hello":
                check_version(request.head)
                config = config_of(request.head)
                check_rules(self.site, config)
                return Answer(pack(Frame("card", self.site.card(config))))
            case "begin":
                return self._begin(request.head)
            case "exchange":
                return self._exchange(request, data)
            case "finish":
                return Answer(pack(self._participation(request).finish(request)))
            case "assess":
                return Answer(pack(self._participation(request).assess(request)))
            case "end":
                return Answer(pack(self._participation(request).end(request)))
        raise Refusal("request", f"Nobody here knows what {request.kind!r} means.")

    def _begin(self, head: dict[str, Any]) -> Answer:
        self._engage(head).exchanges.begin(head)
        return Answer(pack(Frame("ready", {})))

    def _engage(self, document: dict[str, Any]) -> Participation:
        check_version(document)
        participation = Participation(self.site, document)
        participation.compare()
        self._engaged = {participation.run: participation}  # one run at a time: models of earlier ones are let go
        return participation

    def _exchange(self, request: Frame, data: bytes) -> Answer:
        participation = self._participation(request)
        try:
            reply, again, afterwards = participation.exchange(request, data)
        except Flawed as reason:
            _tell(str(reason))
            return Answer(pack(Frame("flawed", {})))
        self._record(participation, request, reply, again)
        return Answer(pack(reply), afterwards)

    def _participation(self, request: Frame) -> Participation:
        run = str(request.head.get("run"))
        return self._engaged.get(run) or self._engage(ExchangeStore(self.site.state, run).document())

    def _record(self, participation: Participation, request: Frame, reply: Frame, again: bool) -> None:
        """Return the site's own log of everything that left it."""
        scores = {name: reply.head[name] for name in ("before", "after") if reply.head.get(name)}
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "run": participation.run,
            "round": request.head["round"] + 1,
            "phase": request.head["phase"],
            "bytes": len(reply.body),
            "sha256": sha256(reply.body).hexdigest(),
            "again": again,
            "scores": scores,
            "privacy": participation.account(),
        }
        with (self.site.state / "sent.jsonl").open("a") as book:
            book.write(to_json(line) + "\n")
            book.flush()
            os.fsync(book.fileno())


def local(site: SiteConfig) -> Callable[[bytes], bytes]:
    """Return the site as a function of packed frames, without process and socket."""
    per_client = RequestHandler(site)

    def answer(data: bytes) -> bytes:
        reply, afterwards = per_client.handle(data)
        if afterwards:
            afterwards()
        return reply

    return answer


def serve(site: SiteConfig) -> None:
    """Answer one request after the other; continue personal training between a reply and the next request."""
    per_client = RequestHandler(site)
    with _listener(site.socket) as listener:
        _tell(f"site {site.name!r} is ready: {to_json(site.rows.given)}")
        while True:
            line, _ = listener.accept()
            with line:
                afterwards = _converse(per_client, line)
            if afterwards:
                _go_on(afterwards)


def _converse(per_client: RequestHandler, line: socket.socket) -> Afterwards | None:
    try:
        line.settimeout(HURRY)
        data = receive(line)
        line.settimeout(None)
        reply, afterwards = per_client.handle(data)
        line.sendall(reply)
    except (OSError, ProtocolError) as reason:  # who asked is gone; the answer is on the shelf
        _tell(f"a conversation broke off: {reason}")
        return None
    return afterwards


def _go_on(afterwards: Afterwards) -> None:
    """Continue personal training. A failure is repeated and reported when the server asks for the result."""
    try:
        afterwards()
    except Exception:
        _tell(traceback.format_exc())


def _listener(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
    except OSError as reason:
        raise AtollError(
            f"Cannot listen on {str(path)!r}: {reason}. Use a site folder with a shorter path."
        ) from reason
    path.chmod(0o600)
    listener.listen(BACKLOG)
    return listener


def _tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def main(folder: Path) -> None:
    import torch

    torch.set_num_threads(1)  # sums that are split over threads round differently
    os.umask(0o077)
    site = read_site(folder)
    site.state.mkdir(mode=0o700, exist_ok=True)
    site.state.chmod(0o700)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with (site.state / "worker.lock").open("w") as lock:  # it falls with the process, however that ends
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise AtollError(f"A worker of the site in {str(folder)!r} is running already.") from None
        serve(site)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except AtollError as mistake:
        sys.exit(f"Error: {mistake}")
