"""The connection of a site: passes frames, runs nothing, asks seldom when idle."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.deploy import pki
from atoll.deploy.federation_dir import FederationDir
from atoll.deploy.flower_adapter import private_names
from atoll.deploy.flower_adapter.fleet import OPERATIONS
from atoll.deploy.flower_adapter.private_names import load
from atoll.deploy.flower_adapter.site_connection import RunEnded, SiteConnection
from atoll.deploy.site import connection, health
from atoll.deploy.site.foreground import run_connection
from atoll.deploy.site.health import Health
from atoll.deploy.site.processes import Given, take_part
from atoll.deploy.site_folder import SiteFolder
from atoll.deploy.transport.flower import unwrapped, wrapped
from atoll.deploy.transport.protocol import Frame, call, pack, unpack
from atoll.deploy.transport.signatures import ReplySigner
from atoll.errors import AtollError

pytest.importorskip("flwr")


@pytest.mark.parametrize(("idle", "pause"), [(0, 0.3), (15, 0.3), (50, 1.0), (100, 2.0), (250, 5.0), (9999, 60.0)])
def test_pause_grows_with_the_time_since_the_last_message(idle: float, pause: float) -> None:
    """A fiftieth of the time, but at least 0.3 s and at most 60 s: 50 / 50 = 1."""
    assert connection.pause_after(idle) == pause
    assert pause < health.SILENCE


def test_connection_loads_no_torch_and_needs_at_most_120_megabytes() -> None:
    code = (
        "import sys, atoll.deploy.site.connection; from pathlib import Path;"
        "from atoll.deploy.flower_adapter.private_names import load;"
        "load('site'); import flwr.app;"
        "print('torch' in sys.modules, Path('/proc/self/status').read_text().split('VmRSS:')[1].split()[0])"
    )
    torch, kilobytes = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split()

    assert torch == "False"
    assert int(kilobytes) <= 120 * 1024


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("part", ["worker", "connection"])
def test_signals_end_each_process_of_a_site_without_a_traceback(part: str, number: int, tmp_path: Path) -> None:
    """The process is stopped where it would wait for messages; the handlers are those of a real start."""
    home = FederationDir(tmp_path / "federation")
    home.create(["north"], ["localhost"], 8443, 30)
    np.savez(tmp_path / "rows.npz", x=np.zeros((20, 3), dtype="float32"), y=np.arange(20) % 2)
    site = SiteFolder(home.site("north"))
    site.set(site.file, data=str(tmp_path / "rows.npz"))
    waits = {
        "worker": "m.serve = lambda *a: (print('ready', flush=True), time.sleep(60)); m.main(Path(sys.argv[1]), None)",
        "connection": (
            "from contextlib import nullcontext; m.connected_site = lambda *a: nullcontext();"
            "m.pass_messages = lambda *a: (print('ready', flush=True), time.sleep(60));"
            "sys.argv += ['--server', 'localhost:1']; m.main()"
        ),
    }
    code = f"import sys, time; from pathlib import Path; from atoll.deploy.site import {part} as m; {waits[part]}"
    command = [sys.executable, "-c", code, str(site.path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"

    process.send_signal(number)

    _, said = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Traceback" not in said


def test_both_ways_to_start_a_connection_check_the_installed_flower_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(private_names.PLACES, "site", {"Moved": "flwr.proto.fleet_pb2"})
    nowhere = tmp_path / "none"

    with pytest.raises(AtollError, match=r"lacks flwr\.proto\.fleet_pb2\.Moved"):
        take_part(nowhere, Given(), False, None, print)
    with pytest.raises(AtollError, match=r"lacks flwr\.proto\.fleet_pb2\.Moved"):
        run_connection(nowhere, None, None, False, print)


def test_site_whose_key_others_can_read_does_not_start(tmp_path: Path) -> None:
    home = FederationDir(tmp_path / "federation")
    home.create(["north"], ["localhost"], 8443, 30)
    (home.site("north") / "site.key").chmod(0o644)

    with pytest.raises(AtollError, match="Other accounts can read"):
        run_connection(home.site("north"), None, None, False, print)
    with pytest.raises(AtollError, match="Other accounts can read"):
        take_part(home.site("north"), Given(), False, None, print)


def test_connection_without_tls_to_another_machine_is_refused(tmp_path: Path) -> None:
    home = FederationDir(tmp_path / "federation")
    home.create(["north"], ["203.0.113.1"], 8443, 30)

    with pytest.raises(AtollError, match=r"203\.0\.113\.1:8443 is another one"):
        run_connection(home.site("north"), None, None, True, print)


def test_run_that_ends_meanwhile_ends_no_connection() -> None:
    """Flower's own exception is no Exception, so that nothing but the process would catch it."""
    ended = load("site").RunNotRunningException

    def fail(*_: object) -> None:
        raise ended

    site = SiteConnection((None, fail, None, None, None, None, None, None))
    assert site.receive() is None
    with pytest.raises(RunEnded), site._while_running():
        fail()


def test_sites_have_no_operation_that_fetches_an_app() -> None:
    assert len(OPERATIONS) == 8
    assert not [path for path in OPERATIONS if "get-" in path or "register" in path]


def signer() -> ReplySigner:
    return ReplySigner(pki.make_site().private)


class Stub:
    """A connection with messages that are given, and then an end."""

    def __init__(self, *contents: Any, fails: Exception | None = None):
        self.contents = list(contents)
        self.fails = fails
        self.replies: list[bytes] = []

    def receive(self) -> Any:
        if not self.contents:
            raise KeyboardInterrupt
        return self.contents.pop(0)

    def number(self, received: Any) -> str:
        return "a message"

    def pull(self, received: Any) -> Any:
        return received

    def reply(self, received: Any, content: Any, seconds: float) -> None:
        self.replies.append(unwrapped(content))
        if self.fails:
            raise self.fails


def test_message_without_a_worker_gets_an_error_code(tmp_path: Path) -> None:
    stub = Stub(wrapped(pack(Frame("name", {}))))

    with pytest.raises(KeyboardInterrupt):
        connection.pass_messages(stub, tmp_path / "no.sock", signer(), Health(tmp_path / "no.sock"))  # type: ignore[arg-type]

    assert [unpack(reply).code for reply in stub.replies] == ["worker"]


@pytest.mark.parametrize("fails", [RunEnded("over"), OSError("gone")])
def test_reply_that_cannot_be_sent_does_not_end_the_connection(fails: Exception, tmp_path: Path) -> None:
    stub = Stub(wrapped(b"one"), wrapped(b"two"), fails=fails)

    with pytest.raises(KeyboardInterrupt):
        connection.pass_messages(stub, tmp_path / "no.sock", signer(), Health(tmp_path / "no.sock"))  # type: ignore[arg-type]

    assert len(stub.replies) == 2


@pytest.mark.parametrize("data", [b"", b"x" * 5, b"ATL1" + bytes(12) + b"more", b"ATL1\x00\x00\x00\x09" + bytes(8)])
def test_bytes_that_are_no_whole_frame_are_not_passed_to_the_worker(data: bytes, tmp_path: Path) -> None:
    """The worker would wait for the rest of the frame, and the site with it."""
    reply = unpack(call(tmp_path / "no such socket", data))

    assert reply.code == "request"
