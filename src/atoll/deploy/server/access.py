"""Decide which requests pass the reverse proxy: operations of sites, signed by keys that the federation accepts."""

from .. import pki
from ..federation_dir import FederationDir, RegisteredSite
from ..flower_adapter.fleet import HEALTH, OPERATIONS


class Refusal(Exception):
    """Raised for a request that the proxy answers itself, with an HTTP status, instead of passing it to Flower."""

    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status = status
        self.reason = reason


def check_path(method: str, target: str) -> None:
    """Raise Refusal unless the request is an operation of sites, in its exact spelling: no query, escapes or dots."""
    if method == "GET" and target == HEALTH:
        return
    if method != "POST" or target not in OPERATIONS:
        raise Refusal(403, "closed")


class KeyChecker:
    """Checks keys against federation.yaml, and reads the file again when it has changed."""

    def __init__(self, directory: FederationDir):
        self._directory = directory
        self._seen: tuple[int, int] | None = None
        self._sites: dict[str, RegisteredSite] = {}  # by key
        self._upload_mb = 0

    def check_key(self, target: str, key: str | None) -> str | None:
        """Return the name of the site whose key it is; raise Refusal unless the key is accepted.

        The health check needs no key, but a key that is shown must be valid.
        """
        if key is None and target == HEALTH:
            return None
        self._update()
        site = self._sites.get(key or "")
        refusal = "key not known" if site is None else site.refusal()
        if site is None or refusal:
            raise Refusal(401, str(refusal))
        return site.name

    def upload_bytes_per_hour(self) -> int:
        """Return the bytes that each site may send in an hour beside what a run has asked it for."""
        self._update()
        return self._upload_mb * 2**20

    def _update(self) -> None:
        found = self._directory.file.stat()
        mark = found.st_mtime_ns, found.st_ino
        if mark != self._seen:
            federation = self._directory.read()
            self._sites = {pki.header(site.key.encode()): site for site in federation.sites.values()}
            self._upload_mb = federation.upload_mb_per_hour
            self._seen = mark


class AnyKey(KeyChecker):
    """Accepts any key, for trials on the loopback without TLS."""

    def check_key(self, target: str, key: str | None) -> str | None:
        return None
