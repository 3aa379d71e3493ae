"""Keys and certificates: one certificate authority of the cluster, which signs all servers and clients.

Clients are identified by their certificate, as in Kubernetes: the common name is the user, the organisation the group.
Files are written once; a second `up` keeps them.
"""

import base64
import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from e2e.cluster.paths import PKI
from e2e.cluster.topology import API_SERVER

LIFETIME = timedelta(days=3650)
CLOCK_SKEW = timedelta(hours=1)


@dataclass(frozen=True)
class KeyPair:
    """The files of one private key and its certificate, both PEM."""

    key: Path
    certificate: Path


AUTHORITY = KeyPair(PKI / "ca.key", PKI / "ca.crt")
SERVICE_ACCOUNTS = PKI / "service-accounts.key"


def ensure_authority() -> None:
    """Create the authority and the key that signs service account tokens, unless they exist."""
    PKI.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not SERVICE_ACCOUNTS.exists():
        _write_key(SERVICE_ACCOUNTS, ec.generate_private_key(ec.SECP256R1()))
    if AUTHORITY.certificate.exists():
        return
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("trainingjob-cluster")
    builder = (
        _builder(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(is_authority=True), critical=True)
    )
    _write_key(AUTHORITY.key, key)
    _write_certificate(AUTHORITY.certificate, builder.sign(key, hashes.SHA256()))


def ensure_certificate(file_name: str, user: str, *, group: str = "", addresses: tuple[str, ...] = ()) -> KeyPair:
    """Return a key pair for a client, or for a server with names and IP addresses; create it on the first call."""
    pair = KeyPair(PKI / f"{file_name}.key", PKI / f"{file_name}.crt")
    if pair.certificate.exists():
        return pair
    ca_key = serialization.load_pem_private_key(AUTHORITY.key.read_bytes(), password=None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    ca = x509.load_pem_x509_certificate(AUTHORITY.certificate.read_bytes())
    key = ec.generate_private_key(ec.SECP256R1())
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH] + ([ExtendedKeyUsageOID.SERVER_AUTH] if addresses else [])
    builder = (
        _builder(_name(user, group), ca.subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(is_authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        # Python 3.13 rejects a certificate without an authority key identifier.
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
    )
    if addresses:
        builder = builder.add_extension(
            x509.SubjectAlternativeName(list(map(_general_name, addresses))), critical=False
        )
    _write_key(pair.key, key)
    _write_certificate(pair.certificate, builder.sign(ca_key, hashes.SHA256()))
    return pair


def ensure_kubeconfig(path: Path, user: str, *, group: str = "") -> Path:
    """Return a kubeconfig with embedded certificates, so that it can be copied; create it on the first call."""
    if path.exists():
        return path
    pair = ensure_certificate(user.replace(":", "-"), user, group=group)
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "trainingjob",
                "cluster": {"server": API_SERVER, "certificate-authority-data": _base64(AUTHORITY.certificate)},
            }
        ],
        "users": [
            {
                "name": user,
                "user": {"client-certificate-data": _base64(pair.certificate), "client-key-data": _base64(pair.key)},
            }
        ],
        "contexts": [{"name": "trainingjob", "context": {"cluster": "trainingjob", "user": user}}],
        "current-context": "trainingjob",
    }
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(user: str, group: str = "") -> x509.Name:
    organisation = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group)] if group else []
    return x509.Name([*organisation, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _general_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    # The API server accepts the service account key only in this older format.
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )  # fmt: skip


def _write_certificate(path: Path, certificate: x509.Certificate) -> None:
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
