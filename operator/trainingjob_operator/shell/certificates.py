"""Issuance and rotation of the operator's own certificates: the CA and the serving certificates.

A client must trust a CA before the CA signs. Agents read the CAs from a ConfigMap, which the kubelet refreshes with a
delay. The operator therefore publishes a new CA beside the old one, and signs with it only a day later.

The old CA stays published until it expires. `renew` is a pure function of the current certificates and the time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_LIFETIME = timedelta(days=365)
SERVING_LIFETIME = timedelta(days=60)
CA_PUBLICATION_LEAD = timedelta(days=1)
"""Time between the publication of a new CA and its first use."""
CLOCK_SKEW = timedelta(hours=1)
"""Tolerated clock skew: certificates are valid this long before their creation."""


@dataclass(frozen=True)
class CertificatePair:
    """A certificate and its private key, both in PEM. `repr` omits the key."""

    certificate: str
    key: str

    def __repr__(self) -> str:
        """Return subject and serial number, without the key."""
        return f"Pair({self.x509.subject.rfc4514_string()}, serial {self.x509.serial_number})"

    @property
    def x509(self) -> x509.Certificate:
        """Return the parsed certificate. Raises `ValueError` if it is invalid."""
        return x509.load_pem_x509_certificate(self.certificate.encode())


@dataclass(frozen=True)
class Certificates:
    """All certificates of one operator. `next_ca` is published but not used yet; `old_cas` are still trusted.

    `webhook` is the webhook's own serving certificate, so that its pods hold no key of the rendezvous.
    """

    ca: CertificatePair
    serving: CertificatePair
    webhook: CertificatePair | None = None
    next_ca: CertificatePair | None = None
    old_cas: tuple[str, ...] = ()

    @property
    def bundle(self) -> str:
        """Return all trusted CAs in PEM, the signing CA first."""
        pems = [self.ca.certificate, *([self.next_ca.certificate] if self.next_ca else []), *self.old_cas]
        return "".join(pem if pem.endswith("\n") else f"{pem}\n" for pem in pems)


def renew(
    current: Certificates | None, names: Sequence[str], now: datetime, webhook_names: Sequence[str] = ()
) -> Certificates:
    """Renew certificates that are due; return the same object if nothing changed.

    A certificate is due if less than a third of its lifetime is left. Expired and invalid certificates are due at once.
    Without `webhook_names`, there is no certificate for the webhook.
    """
    renewed = _renew_most_urgent(current, names, now)
    while renewed is not current:
        renewed, current = _renew_most_urgent(renewed, names, now), renewed
    return _renew_webhook(renewed, webhook_names, now)


def _renew_most_urgent(current: Certificates | None, names: Sequence[str], now: datetime) -> Certificates:
    """Apply the most urgent renewal step; return the same object if none is due."""
    if current is None:
        return _issue_initial(names, now)
    if current.next_ca is not None and not _is_usable(current.next_ca, now):
        return replace(current, next_ca=None)
    if not _is_usable(current.ca, now):
        return _promote_ca(current, current.next_ca, names, now) if current.next_ca else _issue_initial(names, now)
    if current.next_ca is None and _is_due(current.ca, now):
        return replace(current, next_ca=make_ca(now))
    if current.next_ca is not None and now >= _creation_time(current.next_ca) + CA_PUBLICATION_LEAD:
        return _promote_ca(current, current.next_ca, names, now)
    if not _is_valid_serving(current.serving, current.ca, names) or _is_due(current.serving, now):
        return replace(current, serving=make_serving(current.ca, names, now))
    unexpired = _unexpired(current.old_cas, now)
    return current if unexpired == current.old_cas else replace(current, old_cas=unexpired)


def _renew_webhook(current: Certificates, names: Sequence[str], now: datetime) -> Certificates:
    webhook = current.webhook
    if not names:
        return current if webhook is None else replace(current, webhook=None)
    if webhook and _is_valid_serving(webhook, current.ca, names) and not _is_due(webhook, now):
        return current
    return replace(current, webhook=make_serving(current.ca, names, now))


def make_ca(now: datetime) -> CertificatePair:
    """Create a CA. Its subject contains the time, so that two CAs have different names."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"trainingjob-operator-ca {now:%Y-%m-%dT%H:%M:%SZ}")])
    builder = (
        _builder(name, name, key.public_key(), now, CA_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return _pair(builder.sign(key, hashes.SHA256()), key)


def make_serving(ca: CertificatePair, names: Sequence[str], now: datetime) -> CertificatePair:
    """Create a serving certificate for DNS names, signed by a CA. It expires no later than the CA."""
    issuer, issuer_key = ca.x509, serialization.load_pem_private_key(ca.key.encode(), password=None)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    lifetime = min(SERVING_LIFETIME, issuer.not_valid_after_utc - now)
    builder = (
        _builder(subject, issuer.subject, key.public_key(), now, lifetime)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),  # type: ignore[arg-type]
            critical=False,
        )
    )
    return _pair(builder.sign(issuer_key, hashes.SHA256()), key)  # type: ignore[arg-type]


def _issue_initial(names: Sequence[str], now: datetime) -> Certificates:
    ca = make_ca(now)
    return Certificates(ca=ca, serving=make_serving(ca, names, now))


def _promote_ca(current: Certificates, ca: CertificatePair, names: Sequence[str], now: datetime) -> Certificates:
    old = _unexpired((current.ca.certificate, *current.old_cas), now)
    return Certificates(ca=ca, serving=make_serving(ca, names, now), old_cas=old)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, lifetime: timedelta
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - CLOCK_SKEW).not_valid_after(now + lifetime)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> CertificatePair:
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return CertificatePair(certificate.public_bytes(pem).decode(), private.decode())


def _creation_time(pair: CertificatePair) -> datetime:
    """Return the creation time of a certificate."""
    return pair.x509.not_valid_before_utc + CLOCK_SKEW


def _unexpired(pems: Iterable[str], now: datetime) -> tuple[str, ...]:
    """Return the valid certificates that have not expired."""
    return tuple(pem for pem in pems if (certificate := _parse(pem)) and certificate.not_valid_after_utc > now)


def _parse(pem: str) -> x509.Certificate | None:  # None: invalid
    try:
        return x509.load_pem_x509_certificate(pem.encode())
    except ValueError:
        return None


def _is_due(pair: CertificatePair, now: datetime) -> bool:
    """Return whether less than a third of the lifetime is left."""
    end = pair.x509.not_valid_after_utc
    return end - now < (end - _creation_time(pair)) / 3


def _is_usable(pair: CertificatePair, now: datetime) -> bool:
    """Return whether a CA is valid, matches its key and has not expired."""
    try:
        key = serialization.load_pem_private_key(pair.key.encode(), password=None)
        return pair.x509.public_key() == key.public_key() and pair.x509.not_valid_after_utc > now
    except (ValueError, TypeError):
        return False


def _is_valid_serving(serving: CertificatePair, ca: CertificatePair, names: Sequence[str]) -> bool:
    """Return whether a serving certificate is signed by this CA, matches its key and covers exactly these names."""
    try:
        certificate = serving.x509
        certificate.verify_directly_issued_by(ca.x509)
        key = serialization.load_pem_private_key(serving.key.encode(), password=None)
        alternative_names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False
    return certificate.public_key() == key.public_key() and alternative_names.get_values_for_type(x509.DNSName) == list(
        names
    )
