"""Access the private parts of Flower: modules, log texts, codes, paths and environment variables.

Names outside of Flower's public packages may change in any release. All those that Atoll needs are in this file, with
the versions of Flower that were tested.
:func:`check` looks for each one when a server or a site starts, so that an
unknown version of Flower gives an error message at the start instead of a failure in the middle of a run.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from hashlib import sha256
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from inspect import signature
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ..errors import AtollError

TRIED = ("1.41", "1.42")  # minor versions of Flower that Atoll was tested with

# -- the interface between nodes and SuperLink, as the proxy sees it --------------------------------------------------

_FLEET = "/v1/fleet/"
PUSH_MESSAGES = _FLEET + "push-messages"
# The paths of the operations that sites need. Only the server may register nodes, and sites never fetch an app.
OPERATIONS = frozenset(
    _FLEET + name
    for name in (
        "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "push-object",
        "pull-object", "confirm-message-received",
    )
)  # fmt: skip
SERVER_NODE = 1  # the number under which messages reach the server
HEALTH = "/health"
PUBLIC_KEY_HEADER = "flwr-public-key"
HEADER_PREFIXES = ("flwr-", "x-flwr-")

# -- messages and logs ------------------------------------------------------------------------------------------------

LOST_CODES = frozenset({3, 4, 5, 8})  # error codes of messages and nodes that are gone, and of apps that crashed
STILL_CONNECTED = "[code: 2004]"  # the SuperLink refuses a node whose last connection has not expired


def are_replies(body: bytes) -> bool:
    """Return True if all messages of a push are replies of the sender to the server.

    Flower takes a message that replies to nothing for an order of the server, whoever sends it.
    """
    request = _load("gate").PushMessagesRequest()
    try:
        request.ParseFromString(body)
    except Exception:  # The library has no public class for what it raises.
        return False
    told = [message.metadata for message in request.messages_list]
    return all(
        m.reply_to_message_id and m.src_node_id == request.node.node_id and m.dst_node_id == SERVER_NODE for m in told
    )


# -- the connection of a site -----------------------------------------------------------------------------------------


class SiteConnection:
    """The accepted connection of a site to the SuperLink: pulls messages, and pushes replies.

    It has no way to ask for a run or for the app of a run.

    Args:
        connection: the functions that Flower yields for a connected node.
    """

    def __init__(self, connection: tuple[Any, ...]):
        self._flower = _load("site")
        _, self._receive, self._send, _, _, self._pull_object, self._push_object, self._confirm = connection

    def receive(self) -> Any | None:
        """Return the next message for the site, or None if there is none. Its content is still at the SuperLink."""
        try:
            return self._receive()
        except self._flower.RunNotRunningException:
            return None

    def pull(self, received: Any) -> Any:
        """Return the content of a received message."""
        message, tree = received
        run, number = message.metadata.run_id, message.metadata.message_id
        wanted = list({part.object_id for part in self._flower.iterate_object_tree(tree)})
        with self._while_running():
            contents = self._flower.pull_objects(wanted, pull_object_fn=partial(self._pull_object, run))
            self._confirm(run, number)
        return self._flower.inflate_object_from_contents(number, contents).content

    def reply(self, received: Any, content: Any, seconds: float) -> None:
        """Push a reply to a message that took ``seconds`` to answer."""
        from flwr.app import Message

        flower = self._flower
        reply = Message(content, reply_to=received[0])
        with self._while_running(), flower.no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            parts = flower.get_all_nested_objects(reply)
            wanted, session = self._send(reply, flower.get_object_tree(reply), seconds)
            flower.push_object_contents_from_iterable(
                ((number, part.deflate()) for number, part in parts.items() if number in wanted),
                push_object_fn=partial(self._push_object, reply.metadata.run_id, session),
            )

    @contextmanager
    def _while_running(self) -> Iterator[None]:
        """Raise RunEnded in place of Flower's own exception, which is not a subclass of Exception."""
        try:
            yield
        except self._flower.RunNotRunningException:
            raise RunEnded("The run has ended.") from None


class RunEnded(Exception):
    """Raised for a message of a run that has ended in the meantime."""


@contextmanager
def connected_site(server: str, ca: Path | None, key: bytes) -> Iterator[SiteConnection]:
    """Connect a site to the SuperLink behind an address, and disconnect it at the end.

    Args:
        server: address of the gate.
        ca: certificate of the federation's authority; None for a connection without TLS.
        key: the site's private key, in OpenSSH form.

    Raises:
        SystemExit: if the SuperLink refuses the site; the reason is in the log of the process.
    """
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    private = load_ssh_private_key(key, None)
    certificate = ca.read_bytes() if ca else None
    connect = _load("site").http_request_response
    with connect(server, ca is None, certificate, (private, private.public_key())) as connection:
        yield SiteConnection(connection)


# -- programs and their environment -----------------------------------------------------------------------------------

# Variables that Atoll's processes and Flower's programs get. Others may hold secrets of the account.
_KEPT = ("PATH", "HOME", "LANG", "TZ", "TMPDIR", "VIRTUAL_ENV", "COLUMNS")
_KEPT_PREFIXES = ("LC_", "LD_", "PYTHON", "OMP_", "MKL_", "CUDA_", "NVIDIA_", "TORCH_", "ATOLL_", "MLFLOW_", "WANDB_")


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of Flower's programs: own folder, no telemetry, no installation of packages."""
    programs = str(Path(sys.executable).parent)
    kept = {name: v for name, v in os.environ.items() if name in _KEPT or name.startswith(_KEPT_PREFIXES)}
    return kept | {
        "FLWR_HOME": str(folder),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",
    }


# -- the starters of the server ---------------------------------------------------------------------------------------

SERVER_APP = "flwr-serverapp"  # the kind of task that a server carries out, and the name of its program


def run_superlink(arguments: list[str], is_token: Callable[[str], bool]) -> None:
    """Run the SuperLink in this process, with a control interface that asks for a token.

    Args:
        arguments: options of ``flower-superlink``.
        is_token: returns True for the bearer token of the server's own account.
    """
    flower = _load("superlink")

    class TokenCheck(flower.NoOpControlAuthnPlugin):  # type: ignore[misc, name-defined, unused-ignore]
        """Accepts requests with the token as those of the one account that Flower knows without accounts."""

        def validate_tokens_in_metadata(self, metadata: Any) -> tuple[bool, Any]:
            given = [value for name, value in metadata if name == flower.ACCESS_TOKEN_KEY]
            accepted = len(given) == 1 and is_token(str(given[0]))
            return super().validate_tokens_in_metadata(metadata) if accepted else (False, None)

    flower.flower_superlink.load_control_authn_plugin = TokenCheck
    sys.argv = ["flower-superlink", *arguments]
    flower.flower_superlink.flower_superlink()


class Tasks:
    """The tasks that a SuperLink has for its executor.

    Args:
        address: address of the SuperLink.
        ca: certificate of the federation's authority; None for a connection without TLS.
        secret: the executor's secret.
    """

    def __init__(self, address: str, ca: Path | None, secret: bytes):
        self._flower = _load("executor")
        self._address = address
        self._ca = ca
        signed = self._flower.SuperExecAuthHttpInterceptor(
            master_secret=secret, protected_methods={"/flwr.proto.Runtime/AcquireTask"}
        )
        self._client = self._connect(signed)

    def next(self) -> tuple[str, str] | None:
        """Return the hash of the app and the token of the next task, or None if there is none."""
        request = self._flower.AcquireTaskRequest(supported_task_types=[SERVER_APP])
        found = self._client.AcquireTask(request)
        return (found.task.fab_hash, found.token) if found.HasField("task") and found.token else None

    def fail(self, token: str, details: str) -> None:
        """Report a task as failed."""
        client = self._connect(self._flower.RuntimeTokenHttpInterceptor(token))
        client.PushTaskOutput(self._flower.PushTaskOutputRequest(sub_status="failed", details=details))
        client.close()

    def app_arguments(self) -> list[str]:
        """Return the options of the program that carries out a task, without the token."""
        tls = ["--insecure"] if self._ca is None else ["--root-certificates", str(self._ca)]
        return ["--runtime-api-address", self._address, "--parent-pid", str(os.getpid()), *tls]

    def _connect(self, interceptor: Any) -> Any:
        return self._flower.RuntimeHttpClient.from_server_address(
            server_address=self._address,
            insecure=self._ca is None,
            root_certificates=self._ca.read_bytes() if self._ca else None,
            interceptors=[self._flower.RuntimeVersionHttpInterceptor(component_name="SuperExec"), interceptor],
        )


def run_server_app(arguments: list[str], token: str) -> None:
    """Run the server app of a task in this process. The token is not on its command line, as others see it."""
    sys.argv = [SERVER_APP, *arguments, "--token", token]
    _load("app").flwr_serverapp.flwr_serverapp()


def app_hash(folder: Path) -> str:
    """Return the hash by which Flower names the app in a folder."""
    return sha256(internals().build_fab_from_disk(folder)).hexdigest()


# -- the control interface --------------------------------------------------------------------------------------------


class BearerToken:
    """Adds a token to each request of a client of Flower."""

    def __init__(self, token: str):
        self._token = token

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        """Send a request with the token."""
        context.request.headers["authorization"] = f"Bearer {self._token}"
        return call_next(context)


# -- where the private names are --------------------------------------------------------------------------------------

_PLACES = {
    "control": {
        "ControlHttpClient": "flwr.supercore.control",
        "RuntimeVersionHttpInterceptor": "flwr.supercore.interceptors",
        "FlowerError": "flwr.supercore.error",
        "Fab": "flwr.supercore.fab",
        "build_fab_from_disk": "flwr.cli.build",
        "fab_to_proto": "flwr.common.serde",
        "user_config_to_proto": "flwr.common.serde",
        "ListNodesRequest": "flwr.proto.control_pb2",
        "RegisterNodeRequest": "flwr.proto.control_pb2",
        "UnregisterNodeRequest": "flwr.proto.control_pb2",
        "StartRunRequest": "flwr.proto.control_pb2",
        "ListRunsRequest": "flwr.proto.control_pb2",
        "StopRunRequest": "flwr.proto.control_pb2",
        "StreamLogsRequest": "flwr.proto.control_pb2",
    },
    "gate": {"PushMessagesRequest": "flwr.proto.fleet_pb2"},
    "site": {
        "http_request_response": "flwr.supernode.fleet_http_connection",
        "RunNotRunningException": "flwr.supercore.run",
        "get_all_nested_objects": "flwr.supercore.inflatable.inflatable_object",
        "get_object_tree": "flwr.supercore.inflatable.inflatable_object",
        "iterate_object_tree": "flwr.supercore.inflatable.inflatable_object",
        "no_object_id_recompute": "flwr.supercore.inflatable.inflatable_object",
        "inflate_object_from_contents": "flwr.supercore.inflatable.inflatable_utils",
        "pull_objects": "flwr.supercore.inflatable.inflatable_utils",
        "push_object_contents_from_iterable": "flwr.supercore.inflatable.inflatable_utils",
    },
    "superlink": {
        "flower_superlink": "flwr.superlink.cli",
        "NoOpControlAuthnPlugin": "flwr.superlink.auth_plugin",
        "ACCESS_TOKEN_KEY": "flwr.common.constant",
    },
    "app": {"flwr_serverapp": "flwr.superlink.cli"},
    "executor": {
        "RuntimeHttpClient": "flwr.supercore.runtime",
        "RuntimeVersionHttpInterceptor": "flwr.supercore.interceptors",
        "SuperExecAuthHttpInterceptor": "flwr.supercore.interceptors",
        "RuntimeTokenHttpInterceptor": "flwr.supercore.interceptors",
        "AcquireTaskRequest": "flwr.proto.runtime_pb2",
        "PushTaskOutputRequest": "flwr.proto.runtime_pb2",
    },
}
SERVER_PARTS = ("control", "gate", "superlink", "executor", "app")
SITE_PARTS = ("site",)


@cache
def _load(part: str) -> SimpleNamespace:
    """Load the private names of one part of Flower. They take a second to import, so no part loads another's."""
    return SimpleNamespace(**{name: _find(place, name) for name, place in _PLACES[part].items()})


def internals() -> SimpleNamespace:
    """Return the private names of Flower's control interface."""
    return _load("control")


def _find(place: str, name: str) -> Any:
    """Return a name of a module: the module of that name if there is one, as packages may hide it by a function."""
    try:
        return import_module(f"{place}.{name}")
    except ModuleNotFoundError:
        return getattr(import_module(place), name)


def require() -> None:
    """Raise AtollError unless Flower is installed."""
    if find_spec("flwr") is None:
        raise AtollError(
            'Real federations need Flower, which is not installed. Install it with: pip install "atoll[flower]"'
        )


def check(parts: tuple[str, ...]) -> None:
    """Raise AtollError unless the installed Flower has every part that Atoll needs. Importing them takes a second.

    Args:
        parts: ``SERVER_PARTS`` or ``SITE_PARTS``.
    """
    require()
    if missing := _missing_names(parts):
        raise AtollError(
            f"Flower {version('flwr')} is not a version that Atoll knows: it lacks {', '.join(missing)}. "
            f'Atoll expects Flower {" or ".join(TRIED)}. Install one of them with: pip install "atoll[flower]"'
        )


def _missing_names(parts: tuple[str, ...]) -> list[str]:
    places = [(place, name) for part in parts for name, place in _PLACES[part].items()]
    if missing := [f"{place}.{name}" for place, name in places if not _has(place, name)]:
        return missing
    return [
        f"{part}.{function}({name})"
        for part, function, names in _PARAMETERS
        if part in parts
        for name in names
        if name not in signature(attrgetter(function)(_load(part))).parameters
    ]


# Functions whose parameters Atoll names, by part of Flower.
_CLIENT = ("server_address", "insecure", "root_certificates", "interceptors")
_PARAMETERS = (
    ("control", "ControlHttpClient.from_server_address", _CLIENT),
    ("executor", "RuntimeHttpClient.from_server_address", _CLIENT),
    ("executor", "SuperExecAuthHttpInterceptor", ("master_secret", "protected_methods")),
    ("superlink", "NoOpControlAuthnPlugin.validate_tokens_in_metadata", ("metadata",)),
    ("site", "http_request_response", ("server_address", "insecure", "root_certificates", "authentication_keys")),
    ("site", "pull_objects", ("object_ids", "pull_object_fn")),
    ("site", "push_object_contents_from_iterable", ("object_contents", "push_object_fn")),
)


def _has(place: str, name: str) -> bool:
    try:
        _find(place, name)
    except (ImportError, AttributeError):
        return False
    return True
