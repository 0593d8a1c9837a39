"""Take fingerprints of uploads for the audit log: SHA-256 digest and size."""

from hashlib import sha256
from typing import NamedTuple

from ..core.payloads import Payload
from ..core.serialization import encode


class Fingerprint(NamedTuple):
    """Size and SHA-256 of the canonical bytes of an upload."""

    size: int
    sha256: str


NO_FINGERPRINT = Fingerprint(0, "")  # of an upload that cannot be serialised


def fingerprint_bytes(data: bytes) -> Fingerprint:
    """Return the fingerprint of serialised data."""
    return Fingerprint(len(data), sha256(data).hexdigest())


def fingerprint_upload(upload: Payload, flaw: tuple[str, str] | None = None) -> Fingerprint:
    """Return the fingerprint of an upload's serialised bytes.

    Args:
        upload: the upload as it was sent.
        flaw: field and reason of a rejected upload. Only a rejected upload may fail to serialise.
    """
    # The upload is of another class, or too large to serialise.
    if flaw and flaw[0] == "payload":
        return NO_FINGERPRINT
    try:
        return fingerprint_bytes(encode(upload))
    except Exception:
        if flaw is None:
            raise
        return NO_FINGERPRINT
