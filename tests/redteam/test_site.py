"""A registered site that is hostile: signs requests with its own key, and describes itself as it likes."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from support.attacks import Findings
from support.deployed_federation import Deployed, processes

from atoll.deploy import pki
from atoll.deploy.flower_adapter.site_connection import connected_site
from atoll.deploy.server.processes import reached
from atoll.deploy.site.config import read_site
from atoll.deploy.site.worker import local
from atoll.deploy.site_folder import SiteFolder
from atoll.deploy.transport.flower import unwrapped, wrapped
from atoll.deploy.transport.protocol import pack, unpack
from atoll.deploy.transport.signatures import ReplySigner

pytestmark = pytest.mark.redteam
pytest.importorskip("flwr")

EVIL = """
from pathlib import Path
with Path({marker!r}).open("a") as log:
    log.write(Path("/proc/self/cmdline").read_text().replace("\\0", " ") + "\\n")
import torch
def f(**options):
    return torch.nn.Linear(5, 3)
"""


@pytest.fixture
def signed(fed: Deployed) -> Iterator[Any]:
    """Flower's own client, with the key of the site."""
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    private: Any = load_ssh_private_key(SiteFolder(fed.home.site("evil")).key.read_bytes(), None)
    with FleetHttpClient.from_server_address(
        f"localhost:{fed.port}", False, fed.home.ca.read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                      NodeAuthHttpInterceptor(private, private.public_key())],
    ) as client:  # fmt: skip
        yield client


def status(call: Any, request: Any) -> int:
    with pytest.raises(httpx.HTTPStatusError) as caught:
        call(request)
    return caught.value.response.status_code


def nodes(fed: Deployed) -> dict[str, int]:
    names = {pki.spki(site.key.encode()): name for name, site in fed.home.read().sites.items()}
    with reached(fed.home) as flower:
        return {names[node.key]: node.id for node in flower.nodes() if node.key in names}


@pytest.mark.parametrize(("attack", "reply_to"), [("order", ""), ("reply-as", "a message")])
def test_site_cannot_send_messages_for_others(
    attack: str, reply_to: str, fed: Deployed, signed: Any, findings: Findings
) -> None:
    """Even if it knows all node numbers: an order to north, and a reply that names north as its source."""
    from flwr.proto import fleet_pb2, message_pb2, node_pb2

    known = nodes(fed)
    log = SiteFolder(fed.home.site("north")).logs / "connection.log"
    before = log.read_text()
    source, target = (1, known["north"]) if attack == "order" else (known["north"], 1)
    metadata = message_pb2.Metadata(
        run_id=1, message_id="x", src_node_id=source, dst_node_id=target, reply_to_message_id=reply_to,
        message_type="train", ttl=60,
    )  # fmt: skip
    request = fleet_pb2.PushMessagesRequest(
        node=node_pb2.Node(node_id=known["evil"]), messages_list=[message_pb2.Message(metadata=metadata)],
        message_object_trees=[message_pb2.ObjectTree(object_id="x")],
    )  # fmt: skip

    got = status(signed.PushMessages, request)

    findings.note(attack, str(got))
    assert got == 403
    assert log.read_text() == before


def test_site_cannot_fetch_apps_or_register_nodes(fed: Deployed, signed: Any, findings: Findings) -> None:
    from flwr.proto import fab_pb2, fleet_pb2, run_pb2

    attempts = [
        (signed.GetRun, run_pb2.GetRunRequest(run_id=1)),
        (signed.GetFab, fab_pb2.GetFabRequest(hash_str="0" * 64, run_id=1)),
        (signed.RegisterNode, fleet_pb2.RegisterNodeFleetRequest(public_key=b"x")),
    ]

    got = [status(call, request) for call, request in attempts]

    findings.note("apps", ", ".join(map(str, got)))
    assert got == [403, 403, 403]


def test_card_with_a_python_file_as_model_is_not_imported_at_the_server(
    fed: Deployed, rows: Path, tmp_path: Path, findings: Findings
) -> None:
    marker, file = tmp_path / "marker", tmp_path / "evil.py"
    file.write_text(EVIL.format(marker=str(marker)))
    site = fed.site("evil", rows, "--model", f"{file}:f").said("Connected")

    done = fed.run("fedavg", "--sites", "evil", "--rounds", 1, "--wait", 30, "--out", tmp_path / "out")
    site.end()

    importers = marker.read_text().splitlines() if marker.exists() else []
    foreign = [line for line in importers if "deploy.site" not in line]
    findings.note("card", f"exit code {done.returncode}, {len(foreign)} imports at the server")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert foreign == []


class Hostile:
    """A site with a connection of its own making: it describes itself honestly, and sends uploads as it likes.

    Args:
        fed: the federation.
        data: rows of the site.
        bodies: bodies of its first uploads; later ones are honest.
    """

    def __init__(self, fed: Deployed, data: Path, bodies: list[bytes]):
        folder = SiteFolder(fed.home.site("evil"))
        folder.set(folder.file, data=str(data), model="mlp")
        folder.state.mkdir(mode=0o700, exist_ok=True)
        self._server = f"localhost:{fed.port}"
        self._folder = folder
        self._answer = local(read_site(folder.path))
        self._bodies = bodies
        self._signer = ReplySigner(folder.key.read_bytes())
        self._over = threading.Event()
        self.connected = threading.Event()
        self.errors: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Hostile":
        self._thread.start()
        assert self.connected.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)

    def _run(self) -> None:
        with connected_site(self._server, self._folder.ca, self._folder.key.read_bytes()) as connection:
            self.connected.set()
            while not self._over.is_set():
                received = connection.receive()
                if received is None:
                    time.sleep(0.1)
                    continue
                reply = self._answer(unwrapped(connection.pull(received)))
                if unpack(reply).kind == "upload" and self._bodies:
                    reply = pack(unpack(reply)._replace(body=self._bodies.pop()))
                try:
                    signature = self._signer.sign(connection.number(received), reply)
                    connection.reply(received, wrapped(reply, signature), 0.1)
                except Exception as reason:
                    self.errors.append(str(reason))


def memory(process: int, entry: str) -> float:
    """Megabytes of a process, by an entry of its status."""
    return int(Path(f"/proc/{process}/status").read_text().split(f"{entry}:")[1].split()[0]) / 1024


def run_watched(fed: Deployed, sites: str, out: Path) -> float:
    """Run between some sites to the end; return the most memory that the server app took."""
    words = ("fedavg", "--sites", sites, "--min-clients", 1, "--round-timeout", 8, "--rounds", 2, "--epochs", 1)
    with Watch(fed) as watch:
        done = fed.run(*words, "--out", out)
    assert done.returncode == 0, done.stderr
    return watch.peak


def test_large_upload_is_dropped_before_it_is_in_memory(
    fed: Deployed, rows: Path, tmp_path: Path, findings: Findings
) -> None:
    """60 MB pass the gate, whose floor is 100 MB an hour; the run goes on, and the site may send its next upload."""
    honest = run_watched(fed, "north,south", tmp_path / "honest")
    bodies = [os.urandom(60 * 2**20)]

    with Hostile(fed, rows, bodies):
        grown = run_watched(fed, "north,evil", tmp_path / "hostile") - honest

    findings.note("large-reply", f"dropped, {max(0, grown):.0f} MB more memory")
    assert bodies == []
    assert grown < 50
    assert "larger than" in (tmp_path / "hostile" / "events.jsonl").read_text()


def test_flood_of_objects_is_refused_by_the_gate(fed: Deployed, signed: Any, findings: Findings) -> None:
    """30 objects of 7 MB each, by a site that was asked for nothing: about 100 MB of them pass in an hour."""
    from flwr.proto import message_pb2, node_pb2

    node = node_pb2.Node(node_id=nodes(fed)["evil"])
    got = []
    for number in range(30):
        request = message_pb2.PushObjectRequest(
            node=node, run_id=1, object_id=f"{number:064}", object_content=bytes(7 * 2**20)
        )
        try:
            signed.PushObject(request)
            got.append(200)
        except httpx.HTTPStatusError as reason:
            got.append(reason.response.status_code)

    findings.note("flood", f"429 after {got.index(429) * 7} MB")
    assert got.index(429) * 7 < 120  # the floor, and a little that an earlier run asked for
    assert set(got[got.index(429) :]) == {429}
    assert (fed.home.state / "flower.db").stat().st_size < 150 * 2**20
    assert "refused an upload of evil" in (fed.home.logs / "gate.log").read_text()


class Watch:
    """Measures the most memory that the server app of a federation takes."""

    def __init__(self, fed: Deployed):
        self._fed = fed
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.peak = 0.0

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._over.wait(0.2):
            for app in processes("deploy.server.app_process", str(self._fed.home.path)):
                with suppress(OSError, IndexError):
                    self.peak = max(self.peak, memory(app, "VmHWM"))
