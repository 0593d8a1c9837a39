"""Write a simulated federation as one file per site, so that a deployed run has the rows of the simulated one."""

from pathlib import Path

from ..data.dataset import Array
from ..data.federated_dataset import FederatedDataset
from ..errors import AtollError
from .site.config import NAME, check_problem, write_public, write_rows

PUBLIC = "public.npz"


def export_sites(federation: FederatedDataset, folder: Path, public: Array | None = None) -> list[Path]:
    """Write ``CLIENT.npz`` for every client, and ``public.npz`` if there are public rows.

    ``public`` are those of another data set, if they come from one.
    """
    check_problem(federation.dataset)
    for client in federation.clients:
        if not NAME.fullmatch(client):
            raise AtollError(f"Client {client!r} cannot be a site: use letters, digits, - and _ only.")
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / f"{client}.npz" for client in federation.clients]
    for at, path in enumerate(written):
        write_rows(path, federation, at)
    if public is None and len(federation.public):
        public = federation.rows(federation.public)
    if public is not None:
        written.append(folder / PUBLIC)
        write_public(written[-1], public, federation.dataset)
    return written
