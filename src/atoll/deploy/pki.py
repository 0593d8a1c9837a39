"""Create keys and certificates: the federation's authority, the server's certificate, a key pair for each site.

Functions return bytes, which ``federation_dir`` stores. The server identifies itself by a certificate of the
federation's own authority, so no public authority is involved. A site identifies itself by a P-384 key in OpenSSH form,
with which Flower signs requests.
"""

import base64
import hashlib
import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ..errors import AtollError

CLOCK_SKEW = timedelta(hours=1)  # Sites whose clocks are behind by less can connect at once.
AUTHORITY_DAYS = 3650


class Pair(NamedTuple):
    """A private key, which never leaves its machine, and its public part."""

    private: bytes
    public: bytes


def make_authority(name: str, days: int = AUTHORITY_DAYS, start: datetime | None = None) -> Pair:
    """Create a certificate authority that may sign servers only."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = _usage(key_cert_sign=True, crl_sign=True)
    builder = (
        _certificate(subject, subject, key.public_key(), days, start)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    return Pair(_private_pem(key), _pem(builder.sign(key, hashes.SHA256())))


def make_server(authority: Pair, names: Sequence[str], days: int, start: datetime | None = None) -> Pair:
    """Create a server certificate for host names and addresses."""
    signer = serialization.load_pem_private_key(authority.private, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    issuer = x509.load_pem_x509_certificate(authority.public)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    builder = (
        _certificate(subject, issuer.subject, key.public_key(), days, start)
        .add_extension(x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )  # fmt: skip
    return Pair(_private_pem(key), _pem(builder.sign(signer, hashes.SHA256())))


def make_site() -> Pair:
    """Create a site's key pair; the public part is one line, as in an authorized_keys file."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return Pair(private, public)


def public_of(private: bytes) -> bytes:
    """Return the public line of a site's private key."""
    key = serialization.load_ssh_private_key(private, None)
    return key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)


def public_line(name: str, public: bytes) -> str:
    """Return the line by which a site is added: its public key, and its name as the comment."""
    return f"{public.decode().strip()} {name}"


def read_public_line(line: str) -> tuple[str, str]:
    """Return the name and the public key in a line of :func:`public_line`.

    Raises:
        AtollError: the line is malformed, or holds a private key or one of another kind.
    """
    words = line.split()
    if "PRIVATE" in line:
        raise AtollError("This is a private key, which must not leave the site. Give the line that `join` printed.")
    try:
        kind, body, name = words
        key = serialization.load_ssh_public_key(f"{kind} {body}".encode())
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
            raise ValueError("another kind of key")
    except (ValueError, UnsupportedAlgorithm) as reason:
        raise AtollError(
            f"This is not the line of a site ({reason}). Give the whole line that `atoll deploy join` printed: "
            "'ecdsa-sha2-nistp384 KEY NAME'."
        ) from reason
    return name, f"{kind} {body}"


def spki(public: bytes) -> bytes:
    """Convert a site's public key to PEM, the form that Flower stores."""
    key = serialization.load_ssh_public_key(public)
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def header(public: bytes) -> str:
    """Convert a site's public key to the header value of its requests."""
    return base64.b64encode(spki(public)).decode()


def fingerprint(public: bytes) -> str:
    """Return a fingerprint of a certificate or public key, short enough to read out over the telephone."""
    if public.startswith(b"-----BEGIN CERTIFICATE"):
        body = x509.load_pem_x509_certificate(public).public_bytes(serialization.Encoding.DER)
    else:
        body = base64.b64decode(public.split()[1])  # as ssh-keygen -l does
    return "SHA256:" + base64.b64encode(hashlib.sha256(body).digest()).decode().rstrip("=")


def check_certificate(data: bytes, where: str) -> bytes:
    """Return the certificate of an authority; raise AtollError if the bytes are something else."""
    try:
        certificate = x509.load_pem_x509_certificate(data)
        if not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            raise ValueError("it is not the certificate of an authority")
    except (ValueError, x509.ExtensionNotFound) as reason:
        raise AtollError(f"{where} is not the certificate of a federation's authority, ca.crt: {reason}.") from reason
    return certificate.public_bytes(serialization.Encoding.PEM)


def expiry(certificate: bytes) -> datetime:
    """Return the time at which a certificate expires."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def names_of(certificate: bytes) -> list[str]:
    """Return the host names and addresses of a server certificate."""
    extension = x509.load_pem_x509_certificate(certificate).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    return [str(name.value) for name in extension.value]


def _certificate(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, days: int, start: datetime | None
) -> x509.CertificateBuilder:
    begin = (start or datetime.now(UTC)) - CLOCK_SKEW
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + CLOCK_SKEW + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(**on: bool) -> x509.KeyUsage:
    every = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
        "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**{name: on.get(name, False) for name in every})


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
