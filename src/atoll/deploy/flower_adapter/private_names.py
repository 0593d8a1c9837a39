"""List the private names of Flower that Atoll uses, load them, and check that the installed version has them."""

from functools import cache
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from inspect import signature
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from ...errors import AtollError

TRIED = ("1.41", "1.42")  # minor versions of Flower that Atoll was tested with

PLACES = {
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
    "replies": {
        "PullAppMessagesRequest": "flwr.proto.runtime_pb2",
        "ConfirmMessageReceivedRequest": "flwr.proto.message_pb2",
        "PullObjectRequest": "flwr.proto.message_pb2",
        "iterate_object_tree": "flwr.supercore.inflatable.inflatable_object",
        "inflate_object_from_contents": "flwr.supercore.inflatable.inflatable_utils",
        "HttpGrid": "flwr.superlink.grid.http_grid",
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
SERVER_PARTS = ("control", "gate", "superlink", "executor", "replies", "app")
SITE_PARTS = ("site",)


@cache
def load(part: str) -> SimpleNamespace:
    """Load the private names of one part of Flower. They take a second to import, so no part loads another's."""
    return SimpleNamespace(**{name: _find(place, name) for name, place in PLACES[part].items()})


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
            'Real federations need Flower, which is not installed. Install it with: pip install "flwr>=1.41,<1.43"'
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
            f'Atoll expects Flower {" or ".join(TRIED)}. Install one of them with: pip install "flwr>=1.41,<1.43"'
        )


def _missing_names(parts: tuple[str, ...]) -> list[str]:
    places = [(place, name) for part in parts for name, place in PLACES[part].items()]
    if missing := [f"{place}.{name}" for place, name in places if not _has(place, name)]:
        return missing
    return [
        f"{part}.{function}({name})"
        for part, function, names in PARAMETERS
        if part in parts
        for name in names
        if name not in signature(attrgetter(function)(load(part))).parameters
    ]


# Functions whose parameters Atoll names, by part of Flower.
_CLIENT = ("server_address", "insecure", "root_certificates", "interceptors")
PARAMETERS = (
    ("control", "ControlHttpClient.from_server_address", _CLIENT),
    ("executor", "RuntimeHttpClient.from_server_address", _CLIENT),
    ("executor", "SuperExecAuthHttpInterceptor", ("master_secret", "protected_methods")),
    ("superlink", "NoOpControlAuthnPlugin.validate_tokens_in_metadata", ("metadata",)),
    ("site", "http_request_response", ("server_address", "insecure", "root_certificates", "authentication_keys")),
    ("site", "pull_objects", ("object_ids", "pull_object_fn", "initial_backoff")),
    ("site", "push_object_contents_from_iterable", ("object_contents", "push_object_fn")),
)


def _has(place: str, name: str) -> bool:
    try:
        _find(place, name)
    except (ImportError, AttributeError):
        return False
    return True
