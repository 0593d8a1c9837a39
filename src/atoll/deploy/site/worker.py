"""Run the worker of a site: the process that holds data, models and states, and carries out requests of the server.

``python -m atoll.deploy.site.worker SITE_DIR`` listens on SITE_DIR/state/worker.sock until it receives SIGTERM. With
``--socket PATH`` it listens there, and the group of the account may connect: for a connection under another account.
"""

import argparse
import fcntl
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from ...errors import AtollError
from ...utils.files import to_json
from ...utils.parsing import Json
from ..transport.protocol import Frame, ProtocolError, Refusal, error, pack, receive, unpack
from .column_statistics import release_statistics
from .config import SiteConfig, read_site
from .disk_quota import DiskQuota
from .exchange_store import ExchangeStore
from .participation import Afterwards, Flawed, Participation
from .run_checks import check_rules, check_unchanged, check_version, config_of
from .time_limit import TimeUp, time_limit

REQUEST_SECONDS = 60.0  # within which a request must arrive after the connection is open
BACKLOG = 16
HOUR, DAY = 3600.0, 86400.0  # seconds


class Answer(NamedTuple):
    """A packed reply, and the training that continues after it was sent."""

    reply: bytes
    afterwards: Afterwards | None = None


class RequestHandler:
    """Handles the requests to one site, one at a time.

    Args:
        site: the site.
        limited: limits the time of a block; by default, the block may take any time.
    """

    def __init__(self, site: SiteConfig, limited: Callable[[], AbstractContextManager[None]] = nullcontext):
        self.site = site
        self._limited = limited
        self._disk = DiskQuota(site.state, site.allow.disk_gb * 2**30)
        self._participations: dict[str, Participation] = {}

    def handle(self, data: bytes) -> Answer:
        """Answer a request. Errors leave as codes; their reasons stay in the site's own log."""
        try:
            request = unpack(data)
            self._disk.take(len(data))
            with self._limited():
                return self._serve(request, data)
        except TimeUp:
            self._give_up()
            return Answer(pack(error("rules")))
        except Refusal as refusal:
            _log(f"refused ({refusal.code}): {refusal}")
            return Answer(pack(error(refusal.code)))
        except ProtocolError as reason:
            _log(str(reason))
            return Answer(pack(error("request")))
        except AtollError as reason:
            _log(str(reason))
        except Exception:
            _log(traceback.format_exc())
        return Answer(pack(error("failed")))

    def go_on(self, afterwards: Afterwards) -> None:
        """Continue personal training. A failure is repeated and reported when the server asks for the result."""
        try:
            with self._limited():
                afterwards()
        except TimeUp:
            self._give_up()
        except Exception:
            _log(traceback.format_exc())

    def _give_up(self) -> None:
        """Forget the run whose request took too long: models and states in memory may be half changed."""
        self._participations = {}
        _log(f"gave up a request after {self.site.allow.hours} hours, the limit of 'allow: hours' in site.yaml")

    def _serve(self, request: Frame, data: bytes) -> Answer:
        match request.kind:
            case "name":
                return Answer(pack(Frame("name", {"site": self.site.name})))
            case "hello":
                check_version(request.head)
                config = config_of(request.head, self.site)
                check_rules(self.site, config)
                return self._answer("", request, Frame("card", self.site.card(config)))
            case "statistics":
                check_version(request.head)
                config = config_of(request.head, self.site)
                check_rules(self.site, config)
                reply = release_statistics(self.site, config, request.head)
                return self._answer("", request, reply)
            case "begin":
                return self._begin(request.head)
            case "exchange":
                return self._exchange(request, data)
            case "finish" | "assess" | "end":
                participation = self._participation(request)
                carry_out = {"finish": participation.finish, "assess": participation.assess, "end": participation.end}
                return self._answer(participation.run, request, carry_out[request.kind](request))
        raise Refusal("request", f"Requests of kind {request.kind!r} are unknown.")

    def _begin(self, head: Json) -> Answer:
        run = str(head.get("run"))
        exchanges = ExchangeStore(self.site.state, run)
        if exchanges.begun:
            check_unchanged(exchanges.document(), head)
        else:
            self._check_number_of_runs()
        self._take_part(head).exchanges.begin(head)
        return self._answer(run, Frame("begin", head), Frame("ready", {}))

    def _check_number_of_runs(self) -> None:
        """Raise Refusal if as many runs began within a day as the site's rules admit."""
        documents = (self.site.state / "runs").glob("*/first")
        begun = sum(time.time() - path.stat().st_mtime < DAY for path in documents)
        if begun >= self.site.allow.runs_per_day:
            raise Refusal("rules", f"{begun} runs began within a day, and site.yaml admits no more.")

    def _take_part(self, document: Json) -> Participation:
        check_version(document)
        participation = Participation(self.site, document)
        participation.compare()
        self._participations = {
            participation.run: participation
        }  # One run at a time, so that models of earlier runs are freed.
        return participation

    def _exchange(self, request: Frame, data: bytes) -> Answer:
        participation = self._participation(request)
        try:
            reply, again, afterwards = participation.exchange(request, data)
        except Flawed as reason:
            _log(str(reason))
            return self._answer(participation.run, request, Frame("flawed", {}))
        privacy = participation.account()
        answer = self._answer(participation.run, request, reply, {"again": again, "privacy": privacy})
        return answer._replace(afterwards=afterwards)

    def _participation(self, request: Frame) -> Participation:
        run = str(request.head.get("run"))
        return self._participations.get(run) or self._take_part(ExchangeStore(self.site.state, run).document())

    def _answer(self, run: str, request: Frame, reply: Frame, more: Json | None = None) -> Answer:
        """Pack a reply, after a line for it in the site's own log of everything that is sent."""
        scores = {name: reply.head[name] for name in ("before", "after", "score") if reply.head.get(name)}
        line: Json = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "kind": reply.kind,
            "run": run,
            **_position(request.head),
            "bytes": len(reply.body),
            "sha256": sha256(reply.body).hexdigest(),
            "scores": scores,
            **(more or {}),
        }
        with (self.site.state / "sent.jsonl").open("a") as log:
            log.write(to_json(line) + "\n")
            log.flush()
            os.fsync(log.fileno())
        return Answer(pack(reply))


def _position(head: Json) -> Json:
    """Return round, counted from 1, and exchange of a request that belongs to an exchange."""
    return {"round": head["round"] + 1, "exchange": head["exchange"]} if "round" in head else {}


def local(site: SiteConfig) -> Callable[[bytes], bytes]:
    """Return the site as a function of packed frames, without process and socket."""
    handler = RequestHandler(site)

    def answer(data: bytes) -> bytes:
        reply, afterwards = handler.handle(data)
        if afterwards:
            afterwards()
        return reply

    return answer


def serve(site: SiteConfig, shared: Path | None = None) -> None:
    """Answer one request after the other; continue personal training between a reply and the next request.

    Args:
        site: the site.
        shared: socket to listen on, to which the group of this account may connect; None for the site's own socket.
    """
    handler = RequestHandler(site, partial(time_limit, site.allow.hours * HOUR))
    for note in site.rows.data.notes:  # The server never learns them, so no report of the run has them.
        _log(f"data: {note}")
    with _listener(shared or site.socket, 0o660 if shared else 0o600) as listener:
        _log(f"site {site.name!r} is ready: {to_json(site.rows.given)}")
        while True:
            connection, _ = listener.accept()
            with connection:
                afterwards = _answer(handler, connection)
            if afterwards:
                handler.go_on(afterwards)


def _answer(handler: RequestHandler, connection: socket.socket) -> Afterwards | None:
    """Answer the request of one connection; return the training that remains."""
    try:
        connection.settimeout(REQUEST_SECONDS)
        data = receive(connection)
        connection.settimeout(None)
        reply, afterwards = handler.handle(data)
        connection.sendall(reply)
    except (OSError, ProtocolError) as reason:  # The reply is stored for the next request.
        _log(f"a connection was lost: {reason}")
        return None
    return afterwards


def _listener(path: Path, mode: int) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
    except OSError as reason:
        raise AtollError(
            f"Cannot listen on {str(path)!r}: {reason}. Use a site folder with a shorter path."
        ) from reason
    path.chmod(mode)
    listener.listen(BACKLOG)
    return listener


def _log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def main(folder: Path, shared: Path | None) -> None:
    """Run the worker of the site in a folder."""
    import torch

    torch.set_num_threads(1)  # Sums that are split over threads round differently.
    os.umask(0o077)
    site = read_site(folder)
    site.state.mkdir(mode=0o700, exist_ok=True)
    site.state.chmod(0o700)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    with (site.state / "worker.lock").open("w") as lock:  # The lock ends with the process.
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise AtollError(f"A worker of the site in {str(folder)!r} is running already.") from None
        serve(site, shared)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m atoll.deploy.site.worker")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--socket", type=Path, help="listen here, also for the group of this account")
    given = parser.parse_args()
    try:
        main(given.folder, given.socket)
    except AtollError as mistake:
        sys.exit(f"Error: {mistake}")
