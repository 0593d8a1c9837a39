"""How a federation is doing."""

from pathlib import Path
from typing import Any

from . import pki
from .follow import Book
from .layout import Home
from .server import reached, running

LATEST = 5  # runs shown


def report(folder: Path) -> dict[str, Any]:
    """Whether the server runs, what Flower says of each site, and the latest runs."""
    home = Home(folder)
    federation = home.read()
    sites = {name: site.refusal() or "unknown" for name, site in federation.sites.items()}
    if running(home) is None:
        return {"server": False, "sites": sites, "runs": []}
    names = {pki.spki(site.key.encode()): name for name, site in federation.accepted().items()}
    with reached(home) as flower:
        for node in flower.nodes():
            if node.key in names:
                sites[names[node.key]] = "never seen" if node.status == "registered" else node.status
        places = Book(home).read()
        runs = [run._asdict() | {"out": places.get(str(run.id), "")} for run in flower.runs()[:LATEST]]
    return {"server": True, "sites": sites, "runs": runs}
