"""Tokens that an issuer signs, as the API server does for pods, and its documents."""

import base64
import json
from functools import cache
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils

from trainingjob_api.protocol import TOKEN_AUDIENCE

ISSUER = "https://kubernetes.default.svc"
CONFIGURATION = {"issuer": ISSUER, "jwks_uri": f"{ISSUER}/openid/v1/jwks"}
CURVES = {"P-256": ec.SECP256R1(), "P-384": ec.SECP384R1(), "P-521": ec.SECP521R1()}
NEVER = 2**40


@cache
def rsa_key(number: int = 0, bits: int = 2048) -> rsa.RSAPrivateKey:
    """Return a private key; another number makes another key."""
    del number
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


@cache
def ec_key(curve: str) -> ec.EllipticCurvePrivateKey:
    """Return a private key of a curve."""
    return ec.generate_private_key(CURVES[curve])


def encode(content: bytes | dict[str, Any]) -> str:
    """Return base64url text without padding."""
    content = content if isinstance(content, bytes) else json.dumps(content).encode()
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def rsa_jwk(key: rsa.RSAPrivateKey, kid: str = "rsa", **changes: Any) -> dict[str, Any]:
    """Return a public key as the API server shows it."""
    numbers = key.public_key().public_numbers()
    n, e = (encode(value.to_bytes((value.bit_length() + 7) // 8)) for value in (numbers.n, numbers.e))
    return {"use": "sig", "kty": "RSA", "kid": kid, "alg": "RS256", "n": n, "e": e, **changes}


def ec_jwk(curve: str, **changes: Any) -> dict[str, Any]:
    """Return a public key of a curve as the API server shows it. Its ID is the name of the curve."""
    numbers, size = ec_key(curve).public_key().public_numbers(), (CURVES[curve].key_size + 7) // 8
    x, y = (encode(value.to_bytes(size)) for value in (numbers.x, numbers.y))
    return {"use": "sig", "kty": "EC", "kid": curve, "crv": curve, "x": x, "y": y, **changes}


def key_set(*extra: dict[str, Any]) -> dict[str, Any]:
    """Return the issuer's keys: one of RSA, and `extra`."""
    return {"keys": [rsa_jwk(rsa_key()), *extra]}


def make_claims(**changes: Any) -> dict[str, Any]:
    """Return the claims of a token for `llama-0` in `research`. A change to None removes a claim."""
    claims = {
        "iss": ISSUER,
        "aud": [TOKEN_AUDIENCE],
        "sub": "system:serviceaccount:research:default",
        "iat": 0,
        "nbf": 0,
        "exp": NEVER,
        "kubernetes.io": make_binding(),
        **changes,
    }
    return {name: value for name, value in claims.items() if value is not None}


def make_binding(**changes: Any) -> dict[str, Any]:
    """Return the objects to which a token is bound. A change to None removes one."""
    binding = {
        "namespace": "research",
        "node": {"name": "node", "uid": "node-uid"},
        "pod": {"name": "llama-0", "uid": "pod-uid"},
        "serviceaccount": {"name": "default", "uid": "account-uid"},
        "warnafter": 1,
        **changes,
    }
    return {name: value for name, value in binding.items() if value is not None}


def sign(
    claims: dict[str, Any] | bytes, head: dict[str, Any] | None = None, key: rsa.RSAPrivateKey | None = None
) -> str:
    """Return a token with a signature of RSA. `head` changes its header, and `key` is another key than the issuer's."""
    signed = f"{encode({'alg': 'RS256', 'kid': 'rsa', **(head or {})})}.{encode(claims)}"
    signature = (key or rsa_key()).sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
    return f"{signed}.{encode(signature)}"


def sign_with_curve(claims: dict[str, Any], curve: str, algorithm: str) -> str:
    """Return a token with a signature of a curve."""
    signed = f"{encode({'alg': algorithm, 'kid': curve})}.{encode(claims)}"
    hashing = {"P-256": hashes.SHA256(), "P-384": hashes.SHA384(), "P-521": hashes.SHA512()}[curve]
    r, s = utils.decode_dss_signature(ec_key(curve).sign(signed.encode(), ec.ECDSA(hashing)))
    size = (CURVES[curve].key_size + 7) // 8
    return f"{signed}.{encode(r.to_bytes(size) + s.to_bytes(size))}"
