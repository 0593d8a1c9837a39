"""Access the private parts of Flower: modules, log texts, codes, paths and environment variables.

Names outside of Flower's public packages may change in any release. All those that Atoll needs are in this file, with
the versions of Flower that were tested. :func:`check` looks for each one when a server or a site starts, so that an
unknown version of Flower gives an error message at the start instead of a failure in the middle of a run.
"""

import os
import sys
from functools import cache
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import AtollError

TRIED = ("1.41", "1.42")  # minor versions of Flower that Atoll was tested with

# -- the interface between nodes and SuperLink, as the proxy sees it --------------------------------------------------

_FLEET = "/v1/fleet/"
PUSH_MESSAGES = _FLEET + "push-messages"
# The paths of the operations that sites need. Only the server may register nodes.
OPERATIONS = frozenset(
    _FLEET + name
    for name in (
        "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "get-run",
        "get-fab", "push-object", "pull-object", "confirm-message-received",
    )
)  # fmt: skip
_NODE_MESSAGES = "flwr.proto.fleet_pb2"
SERVER_NODE = 1  # the number under which messages reach the server
HEALTH = "/health"
PUBLIC_KEY_HEADER = "flwr-public-key"
HEADER_PREFIXES = ("flwr-", "x-flwr-")

# -- messages and logs ------------------------------------------------------------------------------------------------

LOST_CODES = frozenset({3, 4, 5, 8})  # error codes of messages and nodes that are gone, and of apps that crashed
CONNECTED = "SuperNode ID:"  # a SuperNode writes this to its log once the SuperLink has accepted it
STILL_CONNECTED = "[code: 2004]"  # the SuperLink refuses a node whose last connection has not expired


def are_replies(body: bytes) -> bool:
    """Return True if all messages of a push are replies of the sender to the server.

    Flower takes a message that replies to nothing for an order of the server, whoever sends it.
    """
    request = import_module(_NODE_MESSAGES).PushMessagesRequest()
    try:
        request.ParseFromString(body)
    except Exception:  # The library has no public class for what it raises.
        return False
    told = [message.metadata for message in request.messages_list]
    return all(
        m.reply_to_message_id and m.src_node_id == request.node.node_id and m.dst_node_id == SERVER_NODE for m in told
    )


# -- programs and their environment -----------------------------------------------------------------------------------

PROGRAMS = ("flower-superlink", "flower-supernode", "flower-superexec")
POLL_SECONDS = "0.3"  # between two requests of the executor for work; Flower's default is 1


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of Flower's programs: own folder, no telemetry, no installation of packages."""
    programs = str(Path(sys.executable).parent)
    return os.environ | {
        "FLWR_HOME": str(folder),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": POLL_SECONDS,
        "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",
    }


def program(name: str) -> str:
    """Return the path of one of Flower's programs in the environment that Atoll runs in."""
    return str(Path(sys.executable).parent / name)


# -- the control interface --------------------------------------------------------------------------------------------


class Internals(NamedTuple):
    """The private names of Flower's control interface."""

    ControlHttpClient: Any
    RuntimeVersionHttpInterceptor: Any
    FlowerError: Any
    Fab: Any
    build_fab_from_disk: Any
    fab_to_proto: Any
    user_config_to_proto: Any
    requests: Any  # the module with the request messages


_PLACES = {
    "ControlHttpClient": "flwr.supercore.control",
    "RuntimeVersionHttpInterceptor": "flwr.supercore.interceptors",
    "FlowerError": "flwr.supercore.error",
    "Fab": "flwr.supercore.fab",
    "build_fab_from_disk": "flwr.cli.build",
    "fab_to_proto": "flwr.common.serde",
    "user_config_to_proto": "flwr.common.serde",
}
_REQUESTS = "flwr.proto.control_pb2"
_REQUEST_NAMES = (
    "ListNodesRequest", "RegisterNodeRequest", "UnregisterNodeRequest", "StartRunRequest", "ListRunsRequest",
    "StopRunRequest", "StreamLogsRequest",
)  # fmt: skip


@cache
def internals() -> Internals:
    """Load the private names; they take a second to import, so this happens when they are first needed."""
    found = {name: getattr(import_module(place), name) for name, place in _PLACES.items()}
    return Internals(**found, requests=import_module(_REQUESTS))


def require() -> None:
    """Raise AtollError unless Flower is installed."""
    if find_spec("flwr") is None:
        raise AtollError(
            'Real federations need Flower, which is not installed. Install it with: pip install "atoll[flower]"'
        )


def check() -> None:
    """Raise AtollError unless the installed Flower has every part that Atoll needs. Importing them takes a second."""
    require()
    if missing := [*_missing_names(), *_missing_programs()]:
        raise AtollError(
            f"Flower {version('flwr')} is not a version that Atoll knows: it lacks {', '.join(missing)}. "
            f'Atoll expects Flower {" or ".join(TRIED)}. Install one of them with: pip install "atoll[flower]"'
        )


def _missing_names() -> list[str]:
    places = [*_PLACES.items(), *((name, _REQUESTS) for name in _REQUEST_NAMES)]
    places.append(("PushMessagesRequest", _NODE_MESSAGES))
    missing = [f"{place}.{name}" for name, place in places if not _has(place, name)]
    if missing:
        return missing
    accepted = signature(internals().ControlHttpClient.from_server_address).parameters
    wanted = ("server_address", "insecure", "root_certificates", "interceptors")
    return [f"ControlHttpClient.from_server_address({name})" for name in wanted if name not in accepted]


def _has(place: str, name: str) -> bool:
    try:
        return hasattr(import_module(place), name)
    except ImportError:
        return False


def _missing_programs() -> list[str]:
    return [name for name in PROGRAMS if not Path(program(name)).exists()]
