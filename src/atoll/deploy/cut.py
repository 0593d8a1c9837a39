"""A simulated federation as files for sites: a deployed run then has exactly the rows of the simulated one."""

from pathlib import Path

from ..assemble import Setup, public_rows
from ..core import ClientId
from ..errors import AtollError
from .site import NAME, write_public, write_rows

PUBLIC = "public.npz"


def cut(setup: Setup, folder: Path) -> dict[ClientId, str]:
    """Write ``CLIENT.npz`` for every client, and ``public.npz`` if there are public rows; says who has which model."""
    federation = setup.federation
    for client in federation.clients:
        if not NAME.fullmatch(client):
            raise AtollError(f"Client {client!r} cannot be a site: use letters, digits, - and _ only.")
    folder.mkdir(parents=True, exist_ok=True)
    for at, client in enumerate(federation.clients):
        write_rows(folder / f"{client}.npz", federation, at)
    public = public_rows(setup.config, federation)
    if public is not None:
        write_public(folder / PUBLIC, public, federation.dataset.kind)
    return {client: setup.fleet.models[client].name for client in federation.clients}
