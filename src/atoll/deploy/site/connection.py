"""Connect a site to the server: pass each message to the site's worker, and its reply to the server.

``python -m atoll.deploy.site.connection SITE_DIR --server ADDRESS`` runs until it receives SIGTERM. The process holds
the site's key and the network connection, and no rows. It takes frames of the protocol and nothing else: apps of Flower
are neither requested nor run, so no code comes from the server. It does not import torch.
"""

import argparse
import signal
import sys
import time
from pathlib import Path

from ..flower_adapter.site_connection import RunEnded, SiteConnection, connected_site
from ..site_folder import SiteFolder
from ..transport.flower import unwrapped, wrapped
from ..transport.protocol import call, error, pack
from ..transport.signatures import ReplySigner
from .health import Health, serve_health

CONNECTED = "connected to the server"  # written to the log once the server has accepted the site
ACTIVE_PAUSE = 0.3  # seconds between two requests for messages while a run goes on
IDLE_PAUSE = 60.0  # A new run starts so late at most. Below the silence after which a probe takes a site for cut off.
PATIENCE = 50  # A pause is at most this part of the time since the last message, so a long wait costs 2 % more.


def pause_after(idle: float) -> float:
    """Return the seconds until the next request for messages, ``idle`` seconds after the last message."""
    return min(IDLE_PAUSE, max(ACTIVE_PAUSE, idle / PATIENCE))


def pass_messages(connection: SiteConnection, worker: Path, signer: ReplySigner, health: Health) -> None:
    """Pass messages to the worker's socket, one after the other, until the connection ends by an exception."""
    last = time.monotonic()
    while True:
        received = connection.receive()
        health.hear()
        if received is None:
            time.sleep(pause_after(time.monotonic() - last))
            continue
        try:
            health.working = True
            _answer(connection, received, worker, signer)
        except Exception as reason:  # The server asks again if it needs the reply.
            _log(f"a message was lost: {type(reason).__name__}: {reason}")
        finally:
            health.working = False
        last = time.monotonic()


def _answer(connection: SiteConnection, received: object, worker: Path, signer: ReplySigner) -> None:
    """Pull a message and push the worker's signed reply, or an error code: the text of an exception would travel."""
    began = time.monotonic()
    content = connection.pull(received)
    pulled = time.monotonic()
    try:
        reply = call(worker, unwrapped(content))
    except Exception:
        reply = pack(error("worker"))
    worked = time.monotonic()
    try:
        signature = signer.sign(connection.number(received), reply)
        connection.reply(received, wrapped(reply, signature), worked - began)
    except RunEnded as reason:
        _log(str(reason))
        return
    pushed = time.monotonic() - worked
    _log(f"answered: pull {pulled - began:.3f} s, worker {worked - pulled:.3f} s, push {pushed:.3f} s")


def _log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Run the connection with the arguments of the command line."""
    parser = argparse.ArgumentParser(prog="python -m atoll.deploy.site.connection")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--server", required=True, help="address of the gate")
    parser.add_argument("--socket", type=Path, help="the worker's socket; default: SITE_DIR/state/worker.sock")
    parser.add_argument("--health", metavar="HOST:PORT", help="answer GET /health here")
    parser.add_argument("--insecure", action="store_true", help="without TLS, for trials on one machine")
    given = parser.parse_args()
    site = SiteFolder(given.folder)
    worker = given.socket or site.socket
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))  # so that the server is told
    key = site.key.read_bytes()
    with connected_site(given.server, None if given.insecure else site.ca, key) as connection:
        _log(CONNECTED)
        health = Health(worker)
        if given.health:
            serve_health(health, given.health)
        pass_messages(connection, worker, ReplySigner(key), health)


if __name__ == "__main__":
    main()
