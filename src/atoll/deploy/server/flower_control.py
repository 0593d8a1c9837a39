"""Use Flower's control interface on the loopback: register nodes, start, list and stop runs.

The requests are those of Flower's own command line, sent by its own client; that command line itself takes seconds to
load for every call.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ...errors import AtollError
from ..flower_adapter.private_names import load
from ..flower_adapter.superlink import BearerToken

T = TypeVar("T")

GONE = "unregistered"


class Node(NamedTuple):
    """A node of Flower: a site."""

    id: int
    key: bytes  # PEM
    status: str  # registered (never seen), online, offline


class RunStatus(NamedTuple):
    """A run of Flower."""

    id: int
    status: str  # pending, starting, running, finished
    outcome: str  # completed, failed, stopped; empty until finished
    details: str

    @property
    def over(self) -> bool:
        """True if the run has ended."""
        return self.status == "finished"


class Control:
    """A connection to the SuperLink of this machine.

    Args:
        port: port of the SuperLink on the loopback.
        ca: certificate of the federation's authority; None without TLS.
        token: token of the control interface.
    """

    def __init__(self, port: int, ca: Path | None, token: str):
        flower = load("control")
        self._requests = flower
        self._client: Any = flower.ControlHttpClient.from_server_address(
            server_address=f"127.0.0.1:{port}",
            insecure=ca is None,
            root_certificates=ca.read_bytes() if ca else None,
            interceptors=[flower.RuntimeVersionHttpInterceptor(component_name="flwr CLI"), BearerToken(token)],
        )

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    # -- sites --------------------------------------------------------------------------------------------------------

    def nodes(self) -> list[Node]:
        """Return registered and unregistered nodes."""
        found = _answer(lambda: self._client.ListNodes(self._requests.ListNodesRequest()).nodes_info)
        return [Node(n.node_id, n.public_key, n.status) for n in found]

    def register(self, key: bytes, name: str) -> int:
        """Register a node by its public key (PEM); return its number."""
        answer = _answer(
            lambda: self._client.RegisterNode(self._requests.RegisterNodeRequest(public_key=key, name=name))
        )
        return int(answer.node_id)

    def unregister(self, node: int) -> None:
        """Remove a node; Flower does not accept its key again."""
        _answer(lambda: self._client.UnregisterNode(self._requests.UnregisterNodeRequest(node_id=node)))

    # -- runs ---------------------------------------------------------------------------------------------------------

    def start(self, app: Path, run_config: dict[str, str]) -> int:
        """Start a run of the app in a folder; return its number."""
        flower = load("control")
        content = flower.build_fab_from_disk(app)
        fab = flower.fab_to_proto(flower.Fab(hashlib.sha256(content).hexdigest(), content, {}))
        request = flower.StartRunRequest(fab=fab, override_config=flower.user_config_to_proto(run_config))
        answer = _answer(lambda: self._client.StartRun(request))
        if not answer.HasField("run_id"):
            raise AtollError("Flower did not start the run. See the log of the server.")
        return int(answer.run_id)

    def runs(self) -> list[RunStatus]:
        """Return all runs, the latest first."""
        found = _answer(lambda: self._client.ListRuns(self._requests.ListRunsRequest()).run_dict)
        latest = sorted(found.values(), key=lambda run: run.pending_at, reverse=True)
        return [_status(run) for run in latest]

    def run(self, number: int) -> RunStatus:
        """Return the status of a run."""
        return _status(
            _answer(lambda: self._client.ListRuns(self._requests.ListRunsRequest(run_id=number)).run_dict[number])
        )

    def stop(self, number: int) -> None:
        """Stop a run."""
        if not _answer(lambda: self._client.StopRun(self._requests.StopRunRequest(run_id=number))).success:
            raise AtollError(f"Flower could not stop run {number}. See the log of the server.")

    def log(self, number: int) -> str:
        """Return the server's log of a finished run. Flower then deletes its messages of the run."""
        pieces = _answer(
            lambda: [
                piece.log_output for piece in self._client.StreamLogs(self._requests.StreamLogsRequest(run_id=number))
            ]
        )
        return "".join(pieces)


@contextmanager
def connected(port: int, ca: Path | None, token: str) -> Iterator[Control]:
    """Open a connection to Flower's control interface, and close it at the end."""
    control = Control(port, ca, token)
    try:
        yield control
    finally:
        control.close()


def _status(run: Any) -> RunStatus:
    return RunStatus(run.run_id, run.status.status, run.status.sub_status, run.status.details)


def _answer(call: Callable[[], T]) -> T:
    """Return the answer of a call, or raise AtollError with Flower's reason."""
    import httpx

    try:
        return call()
    except httpx.HTTPStatusError as reason:
        known = load("control").FlowerError.from_json(reason.response.text)
        text = known.message if known else f"status {reason.response.status_code}"
        raise AtollError(f"Flower refused: {text}") from reason
    except httpx.HTTPError as reason:
        raise Unreachable(
            f"The server does not answer ({reason!r}). Is it running? See `atoll deploy server`."
        ) from reason


class Unreachable(AtollError):
    """Raised if Flower does not answer on the loopback."""
