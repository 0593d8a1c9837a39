"""A registered site that is hostile: signs requests with its own key, and describes itself as it likes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from support.attacks import Findings
from support.deployed_federation import Deployed

from atoll.deploy import pki
from atoll.deploy.server.processes import reached
from atoll.deploy.site_folder import SiteFolder

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
    findings.note("card", done.stderr.strip()[:100])
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert [line for line in importers if "deploy.site" not in line] == []
