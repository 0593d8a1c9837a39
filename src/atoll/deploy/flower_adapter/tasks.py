"""Take the tasks of the SuperLink, and run the server app of a task."""

import os
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

from .private_names import load

SERVER_APP = "flwr-serverapp"  # the kind of task that a server carries out, and the name of its program


class Tasks:
    """The tasks that a SuperLink has for its executor.

    Args:
        address: address of the SuperLink.
        ca: certificate of the federation's authority; None for a connection without TLS.
        secret: the executor's secret.
    """

    def __init__(self, address: str, ca: Path | None, secret: bytes):
        self._flower = load("executor")
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
    load("app").flwr_serverapp.flwr_serverapp()


def app_hash(folder: Path) -> str:
    """Return the hash by which Flower names the app in a folder."""
    return sha256(load("control").build_fab_from_disk(folder)).hexdigest()
