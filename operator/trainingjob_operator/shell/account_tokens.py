"""Verification of ServiceAccount tokens with the public keys of the API server's issuer, without a request.

It accepts fewer tokens than a TokenReview: exactly the form of tokens that the API server issues to pods. A token that
it does not accept may still be valid, so the API server must review it.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils

from trainingjob_operator.core.manifests import get_text, iter_items

MIN_RSA_BITS = 2048
MAX_KEYS = 64
MAX_KEY_BYTES = 1024
SERVICE_ACCOUNT_PREFIX = "system:serviceaccount:"
_CURVES: dict[str, tuple[str, ec.EllipticCurve, hashes.HashAlgorithm]] = {
    "P-256": ("ES256", ec.SECP256R1(), hashes.SHA256()),
    "P-384": ("ES384", ec.SECP384R1(), hashes.SHA384()),
    "P-521": ("ES512", ec.SECP521R1(), hashes.SHA512()),
}
ALGORITHMS = frozenset(("RS256", *(name for name, _, _ in _CURVES.values())))


@dataclass(frozen=True)
class RsaKey:
    """A public RSA key of the issuer."""

    key: rsa.RSAPublicKey
    algorithm: str = "RS256"

    def verify(self, signature: bytes, data: bytes) -> None:
        """Raise `InvalidSignature` unless the signature is this key's."""
        self.key.verify(signature, data, padding.PKCS1v15(), hashes.SHA256())


@dataclass(frozen=True)
class EcKey:
    """A public key of the issuer on an elliptic curve."""

    key: ec.EllipticCurvePublicKey
    algorithm: str
    hashing: hashes.HashAlgorithm

    def verify(self, signature: bytes, data: bytes) -> None:
        """Raise `InvalidSignature` unless the signature, two numbers of equal length, is this key's."""
        size = (self.key.curve.key_size + 7) // 8
        if len(signature) != 2 * size:
            raise InvalidSignature
        r, s = int.from_bytes(signature[:size]), int.from_bytes(signature[size:])
        self.key.verify(utils.encode_dss_signature(r, s), data, ec.ECDSA(self.hashing))


type PublicKey = RsaKey | EcKey


@dataclass(frozen=True)
class Issuer:
    """The issuer of ServiceAccount tokens, and its public keys by their IDs."""

    name: str
    keys: Mapping[str, PublicKey]


@dataclass(frozen=True)
class Account:
    """A ServiceAccount, and the ID of the key that signed its token."""

    namespace: str
    name: str
    uid: str
    key_id: str


@dataclass(frozen=True)
class PodClaims:
    """The verified claims of a token: a ServiceAccount, and the pod to which the token is bound."""

    account: Account
    pod: str
    pod_uid: str


@dataclass(frozen=True)
class UnverifiedToken:
    """The parts of a token in the form of the API server's tokens, before any check of its signature."""

    algorithm: str
    key_id: str
    claims: Mapping[str, Any]
    signed: bytes
    signature: bytes


def parse_token(token: str) -> UnverifiedToken | None:  # None: another form
    """Return the parts of a token. Any client can have written them."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        head, claims = (json.loads(_decode(part)) for part in parts[:2])
        signature = _decode(parts[2])
    except (ValueError, RecursionError):
        return None
    if not isinstance(head, dict) or not isinstance(claims, dict) or not head.keys() <= {"alg", "kid", "typ"}:
        return None
    algorithm, key_id = head.get("alg"), head.get("kid")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS or not isinstance(key_id, str):
        return None
    return UnverifiedToken(algorithm, key_id, claims, f"{parts[0]}.{parts[1]}".encode(), signature)


def verify_token(token: UnverifiedToken, issuer: Issuer, audience: str, now: float) -> PodClaims | None:
    """Return the claims of a token that is signed by the issuer, valid for the audience at `now`, and bound to a pod.

    `now` is in seconds since 1970. None: it cannot be verified here. No clock tolerance is given, unlike in a
    TokenReview.
    """
    key = issuer.keys.get(token.key_id)
    if key is None or key.algorithm != token.algorithm:
        return None
    try:
        key.verify(token.signature, token.signed)
    except InvalidSignature:
        return None
    claims = token.claims
    audiences = claims.get("aud")
    if claims.get("iss") != issuer.name or not isinstance(audiences, list) or audience not in audiences:
        return None
    begin, end = (claims.get(name) for name in ("nbf", "exp"))
    if not isinstance(begin, int) or not isinstance(end, int) or not begin <= now < end:
        return None
    return _find_pod(claims, token.key_id)


def parse_issuer(configuration: object, key_set: object) -> Issuer | None:  # None: it has no usable key
    """Return the issuer from its OpenID configuration and its JSON web key set. Unusable keys are left out."""
    name = get_text(configuration, "issuer") if isinstance(configuration, dict) else ""
    items = list(iter_items(key_set, "keys"))[:MAX_KEYS] if isinstance(key_set, dict) else []
    keys = {key_id: key for item in items if (key_id := get_text(item, "kid")) and (key := _parse_key(item))}
    return Issuer(name, keys) if name and keys else None


def _find_pod(claims: Mapping[str, Any], key_id: str) -> PodClaims | None:  # None: not bound to a pod
    bound = claims.get("kubernetes.io")
    if not isinstance(bound, dict) or "secret" in bound:
        return None
    namespace = get_text(bound, "namespace")
    name, uid = (get_text(bound, "serviceaccount", key) for key in ("name", "uid"))
    pod, pod_uid = (get_text(bound, "pod", key) for key in ("name", "uid"))
    is_consistent = claims.get("sub") == f"{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}"
    if not all((namespace, name, uid, pod, pod_uid, is_consistent)):
        return None
    return PodClaims(Account(namespace, name, uid, key_id), pod, pod_uid)


def _parse_key(item: Mapping[str, Any]) -> PublicKey | None:  # None: not a key for signatures of these algorithms
    if item.get("use", "sig") != "sig":
        return None
    try:
        if item.get("kty") == "RSA":
            modulus, exponent = (_number(item, name) for name in "ne")
            if modulus.bit_length() < MIN_RSA_BITS:
                return None
            return RsaKey(rsa.RSAPublicNumbers(exponent, modulus).public_key())
        if item.get("kty") == "EC" and (curve_name := get_text(item, "crv")) in _CURVES:
            algorithm, curve, hashing = _CURVES[curve_name]
            x, y = (_number(item, name) for name in "xy")
            return EcKey(ec.EllipticCurvePublicNumbers(x, y, curve).public_key(), algorithm, hashing)
    except ValueError:
        return None
    return None


def _number(item: Mapping[str, Any], name: str) -> int:
    text = str(item.get(name, ""))
    if not 0 < len(text) <= 2 * MAX_KEY_BYTES:
        raise ValueError(f"{name} has {len(text)} characters")
    return int.from_bytes(_decode(text))


def _decode(part: str) -> bytes:
    """Return the bytes of base64url text without padding. Raises `ValueError`."""
    return base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
