"""Read and change the folder of a site, which the server creates and an administrator copies to the site."""

import re
from pathlib import Path

import yaml

from ..errors import AtollError
from ..utils.parsing import Json
from . import pki
from .private_files import check_private, private_folder, write_private

SITE_YAML = """\
# The site {name}. These settings stay here: the server never sees this file.
name: "{name}"

# The site's own samples: an .npz file, a folder of images (a folder for each class), a CSV or a Parquet file.
# `atoll deploy client FOLDER --data PATH` fills this in.
data: null

# The site's own architecture, with options, such as mlp or cnn1 (see `atoll models`). Null: one that suits the data.
model: null

# For methods that distil: public samples, the same file at all sites and at the server.
public: null

# What may leave the site: classes with fewer samples stay here, and so do covariances that give samples away.
# `privacy: off` lets out whatever the method sends.
privacy:
  min_class_count: 10
"""

GATE_YAML = """\
# Where this site finds the gate of the federation's server.
server: "{server}"
"""


def join(folder: "SiteFolder", name: str, server: str, authority: bytes | None) -> str:
    """Make the folder of a site at the site, with a key that never leaves it. Return the site's public line.

    A second call keeps the key, so that the certificate of the federation's authority can be added later.

    Args:
        folder: the folder.
        name: name of the site.
        server: HOST:PORT of the server's gate.
        authority: certificate of the federation's authority, if it is at hand already.
    """
    private_folder(folder.path)
    if not folder.key.exists():
        write_private(folder.key, pki.make_site().private)
        write_private(folder.file, SITE_YAML.format(name=name).encode())
    if folder.name() != name:
        raise AtollError(f"{str(folder.path)!r} is the folder of the site {folder.name()!r}. Choose another one.")
    write_private(folder.gate, GATE_YAML.format(server=server).encode())
    if authority is not None:
        write_private(folder.ca, authority)
    return pki.public_line(name, pki.public_of(folder.key.read_bytes()))


class SiteFolder:
    """The folder of a site: its key, the certificate of the federation's authority, its settings and its state."""

    def __init__(self, path: Path):
        self.path = path.absolute()
        self.ca = self.path / "ca.crt"
        self.key = self.path / "site.key"
        self.file = self.path / "site.yaml"
        self.gate = self.path / "gate.yaml"
        self.state = self.path / "state"
        self.logs = self.path / "logs"
        self.socket = self.state / "worker.sock"

    def name(self) -> str:
        """Return the name of the site."""
        return str(self._entries(self.file)["name"])

    def data(self) -> str | None:
        """Return the place of the site's rows, or None if none was given yet."""
        return self._entries(self.file).get("data")

    def server(self) -> str:
        """Return the address of the federation's server."""
        return str(self._entries(self.gate)["server"])

    def _entries(self, file: Path) -> Json:
        try:
            found = yaml.safe_load(file.read_text())
        except FileNotFoundError:
            raise AtollError(
                f"{str(self.path)!r} is not a site's folder: it has no {file.name}. "
                "Give the folder that `atoll deploy init` made for this site."
            ) from None
        except yaml.YAMLError as reason:
            raise AtollError(f"{str(file)!r} is not readable YAML: {reason}") from reason
        needed = "server" if file == self.gate else "name"
        if not isinstance(found, dict) or not isinstance(found.get(needed), str):
            raise AtollError(f"{str(file)!r} must have an entry '{needed}'.")
        return found

    def set(self, file: Path, **entries: str) -> None:
        """Write values into one of the site's files and keep its comments."""
        text = file.read_text()
        for name, value in entries.items():
            line = yaml.safe_dump({name: value}, width=10_000).strip()
            text, count = re.subn(rf"^{re.escape(name)}:.*$", line.replace("\\", r"\\"), text, flags=re.MULTILINE)
            text = text if count else f"{text}\n{line}\n"
        write_private(file, text.encode())

    def check(self) -> None:
        """Raise AtollError if a file is missing or readable by other accounts of this machine."""
        self._check_present(self.ca, self.key, self.file, self.gate)
        for place in (self.path, self.key):
            check_private(place)

    def check_connection(self, insecure: bool) -> None:
        """Raise AtollError if a file that the connection needs is missing, or others can read the key."""
        self._check_present(self.key, self.gate, *([] if insecure else [self.ca]))
        check_private(self.key)

    def _check_present(self, *files: Path) -> None:
        for file in files:
            if not file.exists():
                if file == self.ca:
                    raise AtollError(
                        "The site's folder lacks ca.crt, the certificate of the federation's authority. Get it from "
                        "the server's administrator, and add it with: atoll deploy join ... --ca FILE"
                    )
                raise AtollError(f"The site's folder lacks {file.name}. Copy the whole folder here again.")
