"""Fingerprints of uploads for the audit log: SHA-256 digest and size."""

from hashlib import sha256
from typing import Any, NamedTuple

from ..core.serialization import encode


class Fingerprint(NamedTuple):
    """Size and SHA-256 of the canonical bytes of an upload."""

    size: int
    sha256: str


NO_FINGERPRINT = Fingerprint(0, "")  # of what has no bytes


def fingerprint_of(data: bytes) -> Fingerprint:
    return Fingerprint(len(data), sha256(data).hexdigest())


def fingerprint(upload: Any, flaw: tuple[str, str] | None = None) -> Fingerprint:
    """That of the bytes that an upload has on its way; a rejected one may have none."""
    if flaw and flaw[0] == "payload":  # of another class, or of a size that nobody should try to write
        return NO_FINGERPRINT
    try:
        return fingerprint_of(encode(upload))
    except Exception:
        if flaw is None:
            raise
        return NO_FINGERPRINT
