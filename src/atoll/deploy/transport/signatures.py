"""Sign a site's replies with its key, and check the signatures where replies are used.

Flower's own signature of a request covers the time alone, so the gate, which ends the TLS connections of sites, could
send other content in a site's name. The signature here covers the packed reply and the request that it answers.
"""

from hashlib import sha256

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from .base import Ticket

_SCHEME = ec.ECDSA(SHA256())


class ReplySigner:
    """Signs replies.

    Args:
        key: the site's private key, in OpenSSH form.
    """

    def __init__(self, key: bytes):
        private = load_ssh_private_key(key, None)
        assert isinstance(private, ec.EllipticCurvePrivateKey), "pki makes no other keys"
        self._key = private

    def sign(self, ticket: Ticket, reply: bytes) -> bytes:
        """Return the signature of a packed reply to the request ``ticket``."""
        return self._key.sign(_statement(ticket, reply), _SCHEME)


def is_signed(key: str, ticket: Ticket, reply: bytes, signature: bytes) -> bool:
    """Return True if the holder of a public key (OpenSSH) signed the packed reply to the request ``ticket``."""
    public = load_ssh_public_key(key.encode())
    assert isinstance(public, ec.EllipticCurvePublicKey), "pki registers no other keys"
    try:
        public.verify(signature, _statement(ticket, reply), _SCHEME)
    except InvalidSignature:
        return False
    return True


def _statement(ticket: Ticket, reply: bytes) -> bytes:
    return b"atoll reply\n" + ticket.encode() + b"\n" + sha256(reply).digest()
